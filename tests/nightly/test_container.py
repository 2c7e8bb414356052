"""Nodes as containers run them, under load: rolled, killed, ended; not one request is lost.

clients -> the gateway, which finds nodes by a name -> a node's Envoy -> its TorchServe with mobilenet-v2
"""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests

from deploy import sandbox
from deploy.sandbox import free_ports
from tests.e2e.clients import Clients, assert_all_answered, capacity_per_s, under_load
from tests.e2e.conftest import MOBILENET
from tests.nightly.containers import HOST, Hosts, Pod
from tests.photographs import photograph
from tests.waiting import until

MODELS: dict[str, object] = {
    MOBILENET: {
        "1.0": {
            "defaultVersion": True,
            "marName": f"{MOBILENET}.mar",
            "minWorkers": 1,
            "maxWorkers": 1,
            "batchSize": 8,
            "maxBatchDelay": 5,
        }
    }
}
# While one node is away, the other's excess requests wait in memory that fewer and larger bodies would need.
QUEUE = {"job_queue_size=64": "job_queue_size=512", "max_request_size=8388608": "max_request_size=1048576"}
REGISTERS = {**QUEUE, "enable_model_api=false": "enable_model_api=true"}
BODIES = [photograph("chelsea"), photograph("coffee")]
SHARE = 0.6


@pytest.fixture(scope="module")
def store(model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    os.link(model_store / f"{MOBILENET}.mar", folder / f"{MOBILENET}.mar")
    return folder


@pytest.fixture
def pod(store: Path) -> Iterator[Pod]:
    made = Pod("127.0.0.2", free_ports(1)[0], store, MODELS, REGISTERS)
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
    printed = pod.output.read_text()
    assert "the last response is sent" in printed
    # The workers' output is the process' output.
    assert "MODEL_LOG" in printed
    assert pod.server.pid() is None
    assert pod.probe("/live") == 0


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
        self.hosts.add(pod.address)
        self.pods.append(pod)
        return pod

    def wait_routed(self, nodes: int) -> None:
        def found() -> list[bool]:
            known = requests.get(f"{self.gateway.control}/control/nodes", timeout=10).json()
            return [each["is_routed"] for each in known]

        until(lambda: found() == [True] * nodes)


@pytest.fixture(scope="module")
def site(store: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hosts-")))
        hosts = Hosts(folder / "hosts")
        port, number = free_ports(1)[0], iter(range(2, 250))

        def make() -> Pod:
            made = Pod(f"127.0.0.{next(number)}", port, store, MODELS, QUEUE)
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
        site.hosts.remove(old.address)
        assert old.terminate() == 0
        site.pods.remove(old)
        site.wait_routed(2)
    assert not {*before} & {*site.pods}


@pytest.mark.timeout(1200)
def test_nodes_that_are_replaced_under_load_lose_no_request(site: Site) -> None:
    rate_per_s = SHARE * capacity_per_s(site.url, BODIES)
    assert_all_answered(under_load(site.url, BODIES, rate_per_s, lambda: roll(site)))
    assert len(site.pods) == 2
