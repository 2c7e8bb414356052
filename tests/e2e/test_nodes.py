"""Two nodes of one machine behind the gateway: killed, restarted and stopped under load, they lose no request.

One site for the module, in the order of its tests: started together, killed, restarted, supervised, stopped.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from deploy.models import ROOT
from deploy.nodes.run.lifecycle import find_watcher, start_node
from deploy.nodes.run.machine import LocalNode
from deploy.nodes.run.restore import Record
from tests.e2e.clients import Clients, assert_all_answered
from tests.e2e.conftest import Make, send
from tests.e2e.machine import READY_S, Machine
from tests.waiting import until
from torchserve_client.cli import main as client

# Its workers start fastest, and these tests start ten.
MODEL, TEXT = "language-id", b"Good morning, how are you?"


class Site(Machine):
    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *self.serve(*words)],
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=2 * READY_S,
        )  # fmt: skip

    def serve(self, *command: str) -> list[str]:
        places = ["--config", self.config, "--state-dir", self.folder, "--gateway-config", self.gateway.config]
        return ["deploy.nodes.run", *command, *map(str, places)]

    def clients(self, count: int = 4) -> Clients:
        """Of the gateway; something of the cores is left for the nodes that start."""
        return Clients(self.url, count, [TEXT], interval_s=0.1)


def start(node: LocalNode) -> list[str]:
    """As `make serve` does; the models that it serves then."""
    start_node(node)
    return [str(model) for model in node.server.management.models()]


@pytest.fixture(scope="module")
def site(archive: Make, model_store: Path) -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="nodes-"))
    # A node that stalls for seconds, as a busy machine does, is not lost.
    patience = {"attempt_connect_s": 10, "unresponsive_s": 12}
    made = Site(folder, model_store / archive(MODEL), MODEL, {}, limits=patience)
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(start, made.nodes))
        made.command("start")
        register = ["register", MODEL, "--batch-size", "4", "--max-batch-delay", "3", "--wait"]
        assert client(["--nodes-file", str(made.gateway.nodes_file), *register]) == 0
        made.wait_ready()
        yield made
    finally:
        made.command("stop")
        made.python("stop")
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
    psutil.Process(node.server.pid() or 0).kill()
    until(lambda: node.server.pid() is None)


def orphans(node: LocalNode) -> list[int]:
    prefix = f"{node.server.temporary}/.ts.sock."
    found = psutil.process_iter(["cmdline", "ppid"])
    mine = [each for each in found if any(word.startswith(prefix) for word in each.info["cmdline"] or [])]
    return [each.pid for each in mine if each.info["ppid"] != node.server.pid()]


def test_nodes_share_the_cores_and_are_called_together(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    cores = []
    for node in site.nodes:
        (worker,) = node.server.management.describe(MODEL)["workers"]
        processes = [psutil.Process(node.server.pid()), psutil.Process(worker["pid"])]
        assert processes[0].cpu_affinity() == processes[1].cpu_affinity()
        cores.append(set(processes[0].cpu_affinity() or []))
    if len(os.sched_getaffinity(0)) > 1:
        assert not cores[0] & cores[1]
    assert client(["--nodes-file", str(site.gateway.nodes_file), "describe", MODEL, "--json"]) == 0
    assert {each["node"] for each in json.loads(capsys.readouterr().out)} == {"node-1", "node-2"}


def test_killed_node_loses_no_request_and_the_gateway_brings_it_back_with_all_that_it_had(site: Site) -> None:
    node = site.nodes[0]
    management, store = node.server.management, Path(node.server.settings.model_store)
    management.register(f"{MODEL}.mar", initial_workers=1, batch_size=3, max_batch_delay_ms=9, model_name="by-curl")
    management.register(f"{MODEL}.mar", initial_workers=0, model_name="unregistered")
    management.unregister("unregistered")
    management.scale("by-curl", 1, most=2)
    before = described(node)
    os.link(store / f"{MODEL}.mar", store / "gone.mar")
    management.register("gone.mar", initial_workers=0, model_name="gone")
    (store / "gone.mar").unlink()
    # Nothing is waited for: not even its worker is there when the server dies.
    management.register(f"{MODEL}.mar", initial_workers=0, batch_size=5, model_name="at-last")
    with site.clients() as clients:
        clients.wait_for(40)
        kill(node)
        clients.wait_for(40)
        log = site.gateway.state_dir / "gateway.log"
        line = "node-1: gone 1.0 is not restored: gone.mar is missing from the model store\n"
        # The gateway answers 503 for the one that is lost, and the next start tries it again.
        pending = Record(node).read_pending
        until(lambda: line in log.read_text() and [each.model for each in pending()] == ["gone"], READY_S)
        assert sorted(management.models()) == ["at-last", "by-curl", MODEL]
        after = described(node)
        assert (after.pop("at-last 1.0")[0]["batchSize"], before["by-curl 1.0"][0]["batchSize"]) == (5, 3)
        assert after == before
        # A worker that was starting waits for its server forever, and no other process ends it.
        assert orphans(node) == []
        assert send(node.server, "by-curl", TEXT).status == 200
        for name in ("by-curl", "at-last"):
            management.unregister(name)
        # The lost one makes nothing else unready, and says why it is not served.
        site.wait_ready()
        until(
            lambda: (
                "gone.mar is missing from the model store"
                in requests.post(f"{site.gateway.http}/predictions/gone", timeout=READY_S).text
            )
        )
        clients.wait_for(40)
    # The other node has answered the requests of the node that died.
    assert_all_answered(clients)


def test_rolling_restart_and_drain_under_load_lose_nothing(site: Site) -> None:
    pids = [node.server.pid() for node in site.nodes]
    with site.clients() as clients:
        restarted = site.python("restart")
        assert restarted.returncode == 0, restarted.stderr
        assert all(node.server.pid() not in pids for node in site.nodes)
        drained = site.python("drain", "node-2")
        assert drained.returncode == 0, drained.stderr
        assert site.nodes[1].server.pid() is None
    assert_all_answered(clients)


def test_supervised_node_is_restored_after_a_kill_and_remembers_after_a_sigterm(site: Site) -> None:
    node = site.nodes[1]
    assert site.python("drain", "node-2", "--undo").returncode == 0
    out = site.folder / "supervisor.out"

    def run() -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", *site.serve("run", "--node", "node-2")]
        with out.open("w") as output:
            supervisor = subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        until(lambda: find_watcher(node) == supervisor.pid or supervisor.poll() is not None, READY_S)
        assert supervisor.poll() is None, out.read_text()
        return supervisor

    supervisor = run()
    try:
        assert f"node-2: {MODEL} 1.0: restored, batch_size 4" in out.read_text()
        kill(node)
        assert supervisor.wait(READY_S) == 1
        assert "node-2: process" in out.read_text()
        # As systemd would; now a SIGTERM ends both, and what was served is not forgotten.
        supervisor = run()
        with site.clients(2) as clients:
            clients.wait_for(8)
            supervisor.terminate()
            assert supervisor.wait(READY_S) == 0
            clients.wait_for(8)
        assert_all_answered(clients)
        assert node.server.pid() is None
        assert Record(node).exists()
    finally:
        supervisor.kill()
        supervisor.wait()


def test_make_stop_under_load_cuts_off_nothing_and_is_for_good(site: Site) -> None:
    with site.clients() as clients:
        clients.wait_for(8)
        # The last node is in use: make stop's first half, and its second.
        before = clients.statuses[200]
        site.command("stop")
        assert clients.statuses[200] > before
        stopped = site.python("stop")
        assert stopped.stdout.splitlines() == ["node-1: stopped"]
    assert_all_answered(clients)
    assert start(site.nodes[0]) == []
