"""Two nodes of one machine behind the gateway: killed, restarted and stopped under load, they lose no request.

One site for the module, in the order of its tests: started together, killed, supervised, restarted, stopped.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from deploy.gateway.drain import undrain_local
from deploy.models import ROOT
from deploy.run.lifecycle import find_watcher, start_node, stop_node
from deploy.run.machine import Layout, LocalNode, local_nodes, reachable_nodes
from deploy.run.node import write_nodes
from deploy.run.properties import relocate_config
from deploy.run.restore import Record
from deploy.sandbox import GATEWAY_PORTS, free_ports, make_settings
from tests.e2e.clients import Clients, assert_all_answered
from tests.e2e.conftest import MOBILENET, send
from tests.photographs import photograph
from tests.waiting import until
from torchserve_client.cli import main as client
from torchserve_client.gateway import Gateway

STARTUP_TIMEOUT_S = 120


class Site:
    """Two nodes, and a gateway in front of them, in a temporary folder."""

    def __init__(self, folder: Path, store: Path) -> None:
        self.folder = folder / "n"
        self.config = folder / "config.properties"
        self.config.write_text(relocate_config((ROOT / "config.properties").read_text(), ROOT, make_settings(store)))
        layout = Layout(self.config, 2)
        self.nodes = local_nodes(layout, self.folder)
        layout.write(self.folder)
        write_nodes(reachable_nodes(self.nodes), self.folder / "nodes.json")
        self.edge = folder / "gateway.yaml"
        ports = dict(zip(GATEWAY_PORTS, free_ports(len(GATEWAY_PORTS)), strict=True))
        self.edge.write_text(yaml.safe_dump({"ports": ports}))
        self.run = folder / "run"
        self.url = f"http://127.0.0.1:{ports['http']}/predictions/{MOBILENET}"
        self.control = f"http://127.0.0.1:{ports['control']}"

    def python(self, module: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", module, *words],
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=STARTUP_TIMEOUT_S,
        )  # fmt: skip

    def gateway(self, command: str) -> None:
        words = [
            "--config",
            str(self.edge),
            "--nodes-file",
            str(self.folder / "nodes.json"),
            "--state-dir",
            str(self.run),
        ]
        done = self.python("deploy.gateway", command, *words)
        assert done.returncode == 0, done.stderr

    @property
    def words(self) -> list[str]:
        return ["--config", str(self.config), "--state-dir", str(self.folder), "--gateway-config", str(self.edge)]

    def serve(self, *command: str) -> list[str]:
        """The words of `python -m deploy.run`."""
        return ["deploy.run", *command, *self.words]

    def wait_routed(self) -> None:
        """Wait until both nodes get requests."""
        with ExitStack() as stack:
            gateway = Gateway(self.control)
            stack.callback(gateway.close)
            until(lambda: [node.is_routed for node in gateway.nodes()] == [True] * 2, STARTUP_TIMEOUT_S)

    def clients(self, count: int = 4) -> Clients:
        """Of the gateway; something of the cores is left for the nodes that start."""
        return Clients(self.url, count, [photograph("chelsea")], interval_s=0.1)


def start(node: LocalNode) -> list[str]:
    """As `make serve` does; the models that it serves then."""
    start_node(node)
    return [str(model) for model in node.server.management.models()]


@pytest.fixture(scope="module")
def site(model_store: Path) -> Iterator[Site]:
    """Both nodes with mobilenet-v2 on them, and the gateway."""
    # A short path: sockets of workers are in it.
    folder = Path(tempfile.mkdtemp(prefix="nodes-"))
    (folder / "store").mkdir()
    os.link(model_store / f"{MOBILENET}.mar", folder / "store" / f"{MOBILENET}.mar")
    made = Site(folder, folder / "store")
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(start, made.nodes))
        made.gateway("start")
        register = ["register", MOBILENET, "--batch-size", "4", "--max-batch-delay", "3", "--wait"]
        assert client(["--nodes-file", str(made.folder / "nodes.json"), *register]) == 0
        made.wait_routed()
        yield made
    finally:
        made.gateway("stop")
        made.python(*made.serve("stop"))
        shutil.rmtree(folder, ignore_errors=True)


def described(node: LocalNode) -> dict[str, Any]:
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


def kill(node: LocalNode) -> None:
    pid = node.server.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: node.server.pid() is None)


def list_lost(node: LocalNode) -> list[str]:
    return [each.model for each in Record(node).read_pending()]


def orphans(node: LocalNode) -> list[int]:
    """Workers of a server that is no more."""
    prefix = f"{node.server.temporary}/.ts.sock."
    found = psutil.process_iter(["cmdline", "ppid"])
    mine = [each for each in found if any(word.startswith(prefix) for word in each.info["cmdline"] or [])]
    return [each.pid for each in mine if each.info["ppid"] != node.server.pid()]


def test_nodes_share_the_cores_and_are_called_together(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    cores = []
    for node in site.nodes:
        (worker,) = node.server.management.describe(MOBILENET)["workers"]
        processes = [psutil.Process(node.server.pid()), psutil.Process(worker["pid"])]
        assert processes[0].cpu_affinity() == processes[1].cpu_affinity()
        cores.append(set(processes[0].cpu_affinity() or []))
    if len(os.sched_getaffinity(0)) > 1:
        assert not cores[0] & cores[1]
    assert client(["--nodes-file", str(site.folder / "nodes.json"), "describe", MOBILENET, "--json"]) == 0
    assert {each["node"] for each in json.loads(capsys.readouterr().out)} == {"node-1", "node-2"}


def test_killed_node_loses_no_request_and_the_gateway_brings_it_back_with_all_that_it_had(site: Site) -> None:
    node = site.nodes[0]
    management, store = node.server.management, Path(node.server.settings.model_store)
    management.register(f"{MOBILENET}.mar", initial_workers=1, batch_size=3, max_batch_delay_ms=9, model_name="by-curl")
    management.register(f"{MOBILENET}.mar", initial_workers=1, model_name="unregistered")
    management.unregister("unregistered")
    management.scale("by-curl", 1, most=2)
    before = described(node)
    os.link(store / f"{MOBILENET}.mar", store / "gone.mar")
    management.register("gone.mar", initial_workers=0, model_name="gone")
    (store / "gone.mar").unlink()
    # Nothing is waited for: not even its worker is there when the server dies.
    management.register(f"{MOBILENET}.mar", initial_workers=0, batch_size=5, model_name="at-last")
    with site.clients() as clients:
        clients.wait_for(40)
        kill(node)
        clients.wait_for(40)
        log = site.run / "gateway.log"
        line = "node-1: gone 1.0 is not restored: gone.mar is missing from the model store\n"
        # The gateway answers 503 for the one that is lost, and the next start tries it again.
        until(lambda: line in log.read_text() and list_lost(node) == ["gone"], STARTUP_TIMEOUT_S)
        assert sorted(management.models()) == ["at-last", "by-curl", MOBILENET]
        after = described(node)
        assert (after.pop("at-last 1.0")[0]["batchSize"], before["by-curl 1.0"][0]["batchSize"]) == (5, 3)
        assert after == before
        # A worker that was starting waits for its server forever, and no other process ends it.
        assert orphans(node) == []
        assert send(node.server, "by-curl", photograph("chelsea")).status == 200
        for name in ("by-curl", "at-last"):
            management.unregister(name)
        site.wait_routed()
        clients.wait_for(40)
    # The other node has answered the requests of the node that died.
    assert_all_answered(clients)


def test_supervised_node_is_restored_after_a_kill_and_remembers_after_a_sigterm(site: Site) -> None:
    node = site.nodes[1]
    stop_node(node, is_for_good=False)
    out = site.folder / "supervisor.out"

    def run() -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", *site.serve("run", "--node", "node-2")]
        with out.open("w") as output:
            supervisor = subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        until(lambda: find_watcher(node) == supervisor.pid or supervisor.poll() is not None, STARTUP_TIMEOUT_S)
        assert supervisor.poll() is None, out.read_text()
        return supervisor

    supervisor = run()
    try:
        assert f"node-2: {MOBILENET} 1.0: restored, batch_size 4" in out.read_text()
        kill(node)
        assert supervisor.wait(STARTUP_TIMEOUT_S) == 1
        assert "node-2: process" in out.read_text()
        # As systemd would; now a SIGTERM ends both, and what was served is not forgotten.
        supervisor = run()
        with site.clients(2) as clients:
            clients.wait_for(8)
            supervisor.terminate()
            assert supervisor.wait(STARTUP_TIMEOUT_S) == 0
            clients.wait_for(8)
        assert_all_answered(clients)
        assert node.server.pid() is None
        assert Record(node).exists()
    finally:
        supervisor.kill()
        supervisor.wait()
    assert start(node) == [MOBILENET]
    undrain_local(node, site.edge)
    site.wait_routed()


def test_rolling_restart_and_make_stop_under_load_lose_and_cut_off_nothing(site: Site) -> None:
    pids = [node.server.pid() for node in site.nodes]
    with site.clients() as clients:
        restarted = site.python("deploy.run", "restart", *site.words)
        assert restarted.returncode == 0, restarted.stderr
        assert all(node.server.pid() not in pids for node in site.nodes)
        drained = site.python("deploy.run", "drain", "node-2", *site.words)
        assert drained.returncode == 0, drained.stderr
        assert site.nodes[1].server.pid() is None
        # The last node is in use: make stop's first half, and its second.
        before = clients.statuses[200]
        site.gateway("stop")
        assert clients.statuses[200] > before
        stopped = site.python(*site.serve("stop"))
        assert stopped.stdout.splitlines() == ["node-1: stopped"]
    assert_all_answered(clients)


def test_stop_is_for_good(site: Site) -> None:
    assert start(site.nodes[0]) == []
