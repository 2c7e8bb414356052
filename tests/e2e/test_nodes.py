"""Two nodes on one machine: shares, restoring after kill -9, and stops that cut off no answer."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import yaml

from deploy.models import ROOT
from deploy.nodes.in_flight import look
from deploy.nodes.local import Layout, Local, locals_of, nodes_of
from deploy.nodes.node import write
from deploy.nodes.running import record_of, run_node
from deploy.sandbox import Ports, config_for
from deploy.waits import Waits
from tests.e2e.conftest import MOBILENET, send
from tests.photographs import photograph
from torchserve_client.cli import main as client
from torchserve_client.management import ManagementError

pytestmark = pytest.mark.timeout(300)

STARTUP_TIMEOUT_S = 120


class Site:
    """Two nodes, and a gateway in front of them, in a folder of their own."""

    def __init__(self, folder: Path, store: Path) -> None:
        self.folder = folder / "n"
        self.config = folder / "config.properties"
        self.config.write_text(config_for((ROOT / "config.properties").read_text(), Ports.free(), ROOT, store))
        self.layout = Layout(self.config, 2)
        self.nodes = locals_of(self.layout, self.folder)
        self.layout.write(self.folder)
        write(nodes_of(self.nodes), self.folder / "nodes.json")
        free = Ports.free()
        self.edge = folder / "gateway.yaml"
        ports = {"http": free.inference, "grpc": free.management, "metrics": free.metrics, "control": free.worker}
        self.edge.write_text(yaml.safe_dump({"ports": ports}))
        self.run = folder / "run"
        self.url = f"http://127.0.0.1:{free.inference}/predictions/{MOBILENET}"
        self.control = f"http://127.0.0.1:{free.worker}"

    def start(self) -> None:
        with Waits() as waits:
            for node in self.nodes:
                run_node(node, waits)

    def python(self, module: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", module, *words],
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=STARTUP_TIMEOUT_S,
        )  # fmt: skip

    def gateway(self, command: str) -> None:
        nodes = str(self.folder / "nodes.json")
        done = self.python(
            "deploy.gateway", command, "--config", str(self.edge), "--nodes", nodes, "--run", str(self.run)
        )
        assert done.returncode == 0, done.stderr

    @property
    def words(self) -> list[str]:
        words = ["--config", str(self.config), "--folder", str(self.folder)]
        return [*words, "--gateway-config", str(self.edge)]

    def stop(self) -> subprocess.CompletedProcess[str]:
        return self.python("deploy.serve", "stop", *self.words, "--gateway-run", str(self.run))


@pytest.fixture(scope="module")
def site(model_store: Path) -> Iterator[Site]:
    # A short path: sockets of workers are in it.
    folder = Path(tempfile.mkdtemp(prefix="nodes-"))
    store = folder / "store"
    store.mkdir()
    os.link(model_store / f"{MOBILENET}.mar", store / f"{MOBILENET}.mar")
    made = Site(folder, store)
    try:
        made.start()
        yield made
    finally:
        made.gateway("stop")
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


def described(node: Local) -> dict[str, Any]:
    """Everything that a restored node must have in common with the one that died."""
    management = node.server.management
    kept = ("batchSize", "maxBatchDelay", "minWorkers", "maxWorkers", "modelUrl", "responseTimeout")
    found: dict[str, Any] = {}
    for name in management.models():
        default = management.describe(name)["modelVersion"]
        for version in management.versions(name):
            model = management.describe(name, version)
            found[f"{name} {version}"] = ({key: model[key] for key in kept}, version == default)
    return found


def killed(node: Local) -> None:
    pid = node.server.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while node.server.pid() is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def orphans(node: Local) -> list[int]:
    """Workers of a server that is no more."""
    prefix = f"{node.server.temporary}/.ts.sock."
    found = psutil.process_iter(["cmdline", "ppid"])
    mine = [each for each in found if any(word.startswith(prefix) for word in each.info["cmdline"] or [])]
    return [each.pid for each in mine if each.info["ppid"] != node.server.pid()]


def started_again(node: Local) -> list[str]:
    with Waits() as waits:
        assert run_node(node, waits)
    return [str(model) for model in node.server.management.models()]


def test_nodes_share_the_cores_and_are_called_together(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = ["--nodes", str(site.folder / "nodes.json")]
    assert client([*nodes, "register", MOBILENET, "--batch-size", "4", "--max-batch-delay", "3", "--wait"]) == 0
    assert capsys.readouterr().out.count(f"{MOBILENET}: ready") == 2
    cores = []
    for node in site.nodes:
        (worker,) = node.server.management.describe(MOBILENET)["workers"]
        processes = [psutil.Process(node.server.pid()), psutil.Process(worker["pid"])]
        assert processes[0].cpu_affinity() == processes[1].cpu_affinity()
        cores.append(set(processes[0].cpu_affinity() or []))
    if len(os.sched_getaffinity(0)) > 1:
        assert not cores[0] & cores[1]
    assert client([*nodes, "describe", MOBILENET, "--json"]) == 0
    assert {each["node"] for each in json.loads(capsys.readouterr().out)} == {"node-1", "node-2"}


def test_killed_node_comes_back_with_all_that_it_had_the_last_registration_too(site: Site) -> None:
    node = site.nodes[0]
    management = node.server.management
    management.register(f"{MOBILENET}.mar", initial_workers=1, batch_size=3, max_batch_delay_ms=9, model_name="by-curl")
    management.register(f"{MOBILENET}.mar", initial_workers=1, model_name="unregistered")
    management.unregister("unregistered")
    management.scale("by-curl", 1, most=2)
    # Nothing is waited for: not even its worker is there when the server dies.
    management.register(f"{MOBILENET}.mar", initial_workers=0, batch_size=5, model_name="at-last")
    before = described(node)
    killed(node)
    assert sorted(started_again(node)) == ["at-last", "by-curl", MOBILENET]
    assert described(node) == before
    # A worker that was starting waits for its server forever, and nobody else ends it.
    assert orphans(node) == []
    assert before["by-curl 1.0"][0]["batchSize"] == 3
    assert send(node.server, "by-curl", photograph("chelsea")).status == 200


def test_archive_that_is_gone_is_said_in_a_line_and_the_rest_is_served(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    node = site.nodes[0]
    store = Path(node.server.settings.model_store)
    os.link(store / f"{MOBILENET}.mar", store / "gone.mar")
    node.server.management.register("gone.mar", initial_workers=0, model_name="gone")
    (store / "gone.mar").unlink()
    for name in ("by-curl", "at-last"):
        node.server.management.unregister(name)
    killed(node)
    assert started_again(node) == [MOBILENET]
    lines = capsys.readouterr().out.splitlines()
    assert "node-1: gone 1.0 is not restored: gone.mar is gone from the model store" in lines


def test_supervised_node_that_is_killed_is_restored_by_its_supervisor(site: Site) -> None:
    node = site.nodes[1]
    out = site.folder / "supervisor.out"
    words = ["-m", "deploy.serve", "run", "--node", "node-2", *site.words, "--gateway-run", str(site.run)]

    def run() -> subprocess.Popen[bytes]:
        with out.open("w") as output:
            return subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)

    supervisor = run()
    try:
        wait((node.folder / "run.pid").exists, supervisor)
        killed(node)
        assert supervisor.wait(STARTUP_TIMEOUT_S) == 1
        assert "node-2: process" in out.read_text()
        # As systemd would.
        supervisor = run()
        wait((node.folder / "run.pid").exists, supervisor)
        assert f"node-2: {MOBILENET} 1.0: restored, batch_size 4" in out.read_text()
        assert send(node.server, MOBILENET, photograph("chelsea")).status == 200
        # A SIGTERM ends both, and what was served is not forgotten.
        supervisor.terminate()
        assert supervisor.wait(STARTUP_TIMEOUT_S) == 0
        assert node.server.pid() is None
        assert record_of(node).exists()
    finally:
        supervisor.kill()
        supervisor.wait()
    assert started_again(node) == [MOBILENET]


def wait(holds: Any, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + STARTUP_TIMEOUT_S
    while not holds():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)


class Clients:
    """Clients of the gateway that never try twice; they end when nobody listens any more, or when told."""

    def __init__(self, url: str, count: int = 6) -> None:
        self.statuses: Counter[int] = Counter()
        self.lost: list[str] = []
        self._url, self.is_over = url, threading.Event()
        self._pool = ThreadPoolExecutor(count)
        self._clients = [self._pool.submit(self._client) for _ in range(count)]

    def _client(self) -> None:
        with requests.Session() as session:
            session.trust_env = False
            while not self.is_over.is_set():
                try:
                    answer = session.post(self._url, data=photograph("chelsea"), timeout=60)
                except requests.ConnectionError as error:
                    if "NewConnectionError" not in str(error):
                        self.lost.append(str(error))
                    # Refused: nothing was sent, and nobody is there.
                    return
                self.statuses[answer.status_code] += 1
                # Something of the cores is left for the nodes that start.
                self.is_over.wait(0.05)

    def end(self) -> None:
        self.is_over.set()
        for each in self._clients:
            each.result(120)
        self._pool.shutdown()


def test_rolling_restart_and_make_stop_under_load_lose_and_cut_off_nothing(site: Site) -> None:
    site.gateway("start")
    deadline = time.monotonic() + STARTUP_TIMEOUT_S
    while requests.post(site.url, data=photograph("chelsea"), timeout=60).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    pids = [node.server.pid() for node in site.nodes]
    clients = Clients(site.url)
    try:
        restarted = site.python("deploy.nodes", "restart", *site.words)
        assert restarted.returncode == 0, restarted.stderr
        assert all(node.server.pid() not in pids for node in site.nodes)
        drained = site.python("deploy.drain", "node-2", *site.words)
        assert drained.returncode == 0, drained.stderr
        assert site.nodes[1].server.pid() is None
        # The last node is in use: make stop's first half, and its second.
        before = clients.statuses[200]
        site.gateway("stop")
        assert clients.statuses[200] > before
        stopped = site.stop()
        assert "node-1: stopped" in stopped.stdout
    finally:
        clients.end()
    assert clients.lost == []
    assert set(clients.statuses) == {200}


def test_stop_without_a_gateway_waits_for_what_is_in_hand_and_forgets(site: Site) -> None:
    site.start()
    node = site.nodes[0]
    # make stop is for good.
    with pytest.raises(ManagementError):
        node.server.management.describe(MOBILENET)
    # Requests that take a while: the first of each batch waits for others that do not come.
    node.server.register(MOBILENET, f"{MOBILENET}.mar", batch_size=64, max_batch_delay_ms=4000, workers=1)
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(send, node.server, MOBILENET, photograph("chelsea")) for _ in range(3)]
        deadline = time.monotonic() + 60
        while look(node.server).arrived < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        stopped = site.stop()
        assert stopped.returncode == 0, stopped.stderr
        assert [answer.result(60).status for answer in answers] == [200, 200, 200]
    assert node.server.pid() is None
