"""Nodes as containers run them, under load: rolled, killed, ended; not one request is lost.

clients -> the gateway, which finds nodes by a name -> a node's Envoy -> its TorchServe with mobilenet-v2

Without containers: a Pod is python -m deploy.nodes.container on 127.0.0.N:PORT, Hosts is the gateway's own /etc/hosts.
All nodes have one port and separate addresses, to which the name resolves, like a headless Service for an edge.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import requests

from deploy.models import ROOT
from deploy.nodes.run.properties import relocate_config
from deploy.nodes.run.server import Server
from load import sandbox
from load.sandbox import free_ports, make_settings
from tests.e2e.clients import Clients, assert_all_answered, capacity_per_s, under_load
from tests.e2e.conftest import MOBILENET
from tests.e2e.machine import BODIES, QUEUE, SHARE, with_lines
from tests.waiting import until

HOST = "torchserve-nodes"
# A start takes ten seconds alone, and some on two cores that others use.
START_S, END_S = 180.0, 120.0
VERSION = {"defaultVersion": True, "marName": f"{MOBILENET}.mar", "batchSize": 8, "maxBatchDelay": 5}
MODELS = json.dumps({MOBILENET: {"1.0": {**VERSION, "minWorkers": 1, "maxWorkers": 1}}})
# Production's, but for its models: names what is served, tokens on.
CONFIG = re.sub(
    r"(?s)load_models=.*?\n\n",
    f"load_models={MOBILENET}.mar\nmodels={MODELS}\n\n",
    (ROOT / "config.production.properties").read_text(encoding="utf-8"),
)
REGISTERS = {**QUEUE, "enable_model_api=false": "enable_model_api=true"}


class Pod:
    """One node's process."""

    def __init__(self, address: str, port: int, store: Path, replaced: dict[str, str]) -> None:
        self.address, self.port, self.url = address, port, f"http://{address}:{port}"
        # A short path: workers have sockets in it.
        self.folder = Path(tempfile.mkdtemp(prefix="pod-"))
        self.run, self.output = self.folder / "run", self.folder / "output"
        self.config = self.folder / "config.properties"
        self.config.write_text(relocate_config(with_lines(CONFIG, replaced), ROOT, make_settings(store)))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run the command as a kubelet does; again in the same folder after a death, as an emptyDir is kept."""
        own = {"CONFIG": self.config, "STATE_DIR": self.run, "ADDRESS": self.address, "PORT": self.port}
        variables = {**os.environ, **{f"NODE_{name}": str(value) for name, value in own.items()}}
        words, none = [sys.executable, "-m", "deploy.nodes.container"], subprocess.DEVNULL
        with self.output.open("ab") as out:
            self._process = subprocess.Popen(
                words, cwd=ROOT, env=variables, stdin=none, stdout=out, stderr=out, start_new_session=True
            )

    def probe(self, path: str = "/ready") -> int:
        with requests.Session() as session, suppress(requests.RequestException):
            session.trust_env = False
            return session.get(self.url + path, timeout=5).status_code
        return 0

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.output.read_text()
            return self.probe() == 200

        until(is_ready, START_S)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def server(self) -> Server:
        return Server(self.run / "config.properties", directory=self.run, temporary=self.run / "tmp")

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_S)

    def close(self) -> None:
        """Kill every process at once, as the end of a container's process namespace does."""
        if self._process is not None and self._process.poll() is None:
            mine = [self.process.pid, self.server.pid()]
            with suppress(OSError, ValueError):
                mine.append(int((self.run / "envoy" / "envoy.pid").read_text()))
            found = [psutil.Process(pid) for pid in mine if pid is not None]
            for process in found + [child for each in found for child in each.children(recursive=True)]:
                if process.is_running():
                    process.kill()
            self.process.wait(END_S)
        shutil.rmtree(self.folder, ignore_errors=True)


class Hosts:
    """The addresses of HOST, for processes in a mount namespace that has this file as /etc/hosts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name()

    @property
    def within(self) -> list[str]:
        """Words that stand before a command which is to see it."""
        as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
        script = f'mount --bind {self._path} /etc/hosts && exec "$@"'
        return ["unshare", "--mount", *as_root, "sh", "-c", script, "sh"]

    def name(self, *pods: Pod) -> None:
        """Let the name have these addresses, in place: the namespace has this very file."""
        lines = ["127.0.0.1 localhost", *(f"{pod.address} {HOST}" for pod in pods)]
        self._path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def pod(model_store: Path) -> Iterator[Pod]:
    made = Pod("127.0.0.2", free_ports(1)[0], model_store, REGISTERS)
    yield made
    made.close()


def test_node_is_ready_lives_drains_and_ends_in_order(pod: Pod) -> None:
    """One start, since a start is the dearest of it: what kubelet and edges see of a node's life."""
    pod.start()
    until(pod.probe)
    # TorchServe starts: alive, and not ready.
    assert pod.probe("/live") == 200
    pod.wait_ready()
    with Clients(f"{pod.url}/predictions/{MOBILENET}", 24, BODIES) as clients, ThreadPoolExecutor(1) as pool:
        clients.wait_for(24)
        # Three batches wait all the time, and every worker is busy.
        assert [pod.probe(path) for path in ("/ready", "/live") * 20] == [200] * 40
        ended = pool.submit(pod.terminate)
        until(lambda: pod.probe() != 200)
        assert [pod.probe(f"/models/{MOBILENET}"), pod.probe("/live")] == [503, 200]
        # These clients look at no health: they are answered until they go.
        clients.wait_for(50)
        assert not ended.done()
        clients.end()
        assert ended.result(120) == 0
    assert_all_answered(clients)
    # The workers' output is the process' output.
    assert all(words in pod.output.read_text() for words in ("the last response is sent", "MODEL_LOG"))
    assert (pod.server.pid(), pod.probe("/live")) == (None, 0)


@pytest.mark.parametrize(
    ("number", "words"), [(signal.SIGKILL, "process {} has died"), (signal.SIGSTOP, "TorchServe has not answered")]
)
def test_node_ends_with_one_line_where_java_dies_or_hangs_and_comes_back_in_the_same_folder(
    pod: Pod, number: signal.Signals, words: str
) -> None:
    pod.start()
    pod.wait_ready()
    server = pod.server
    server.authorize()
    server.management.register(f"{MOBILENET}.mar", initial_workers=1, model_name="another")
    java = server.pid()
    assert java is not None
    os.kill(java, number)
    # Twice the responseTimeout of the archive, 60 s.
    assert pod.process.wait(200) == 1
    (line,) = [line for line in pod.output.read_text().splitlines() if line.startswith("node: node: ")][-1:]
    assert words.format(java) in line
    assert pod.probe("/live") == 0
    # A kubelet starts it again with what the last one left. A SIGTERM while it starts ends it, too.
    pod.start()
    until(lambda: pod.probe() == 503)
    assert pod.terminate() == 0
    assert pod.server.pid() is None
    # Another start finds what was registered beside what is named.
    pod.start()
    pod.wait_ready()
    assert "another 1.0: restored" in pod.output.read_text()


@dataclass
class Site:
    """Nodes behind a gateway that finds them by a name."""

    gateway: sandbox.Sandbox
    hosts: Hosts
    make: Callable[[], Pod]
    pods: list[Pod] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.gateway.http}/predictions/{MOBILENET}"

    def start(self) -> Pod:
        """Bring a node up: only once it is ready does the name have its address."""
        pod = self.make()
        pod.start()
        pod.wait_ready()
        self.pods.append(pod)
        self.hosts.name(*self.pods)
        return pod

    def wait_routed(self, nodes: int) -> None:
        url = f"{self.gateway.control}/control/nodes"
        until(lambda: [each["is_routed"] for each in requests.get(url, timeout=10).json()] == [True] * nodes)


@pytest.fixture(scope="module")
def site(model_store: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hosts-")))
        hosts = Hosts(folder / "hosts")
        port, number = free_ports(1)[0], iter(range(2, 250))

        def make() -> Pod:
            made = Pod(f"127.0.0.{next(number)}", port, model_store, QUEUE)
            stack.callback(made.close)
            return made

        edge = sandbox.run_gateway([], prefix=hosts.within, discover={"host": HOST, "port": port})
        made = Site(stack.enter_context(edge), hosts, make)
        for _ in range(2):
            made.start()
        made.wait_routed(2)
        yield made


def roll(site: Site) -> None:
    """maxSurge 1, maxUnavailable 0: a new node is ready, and known for a while; then an old one goes."""
    before = list(site.pods)
    for old in before:
        site.start()
        site.wait_routed(3)
        # A pod that ends leaves its Service and gets a SIGTERM at once.
        site.pods.remove(old)
        site.hosts.name(*site.pods)
        assert old.terminate() == 0
        site.wait_routed(2)
    assert not {*before} & {*site.pods}


@pytest.mark.timeout(1200)
def test_nodes_that_are_replaced_under_load_lose_no_request(site: Site) -> None:
    rate_per_s = SHARE * capacity_per_s(site.url, BODIES)
    assert_all_answered(under_load(site.url, BODIES, rate_per_s, lambda: roll(site)))
