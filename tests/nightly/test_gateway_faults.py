"""Nodes that are killed, restarted or cut off under load, and clients that are slow: no request goes unanswered.

    clients -> the gateway -> two TorchServes with mobilenet-v2, as `make serve NODES=2` has them

What starts a killed node anew is its supervisor's affair; here the test calls what a supervisor would.
"""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import requests

from deploy.gateway import sandbox
from deploy.gateway.departure import take_out
from deploy.models import ROOT
from deploy.nodes.local import Layout, Local, locals_of
from deploy.nodes.running import end_node, run_node
from deploy.sandbox import Ports, config_for
from deploy.waits import Waits
from load.generate import Attack, ClosedLoop, Target
from load.inputs import Inputs
from tests.e2e.conftest import MOBILENET
from tests.e2e.loads import all_answered, capacity_per_s, slow_clients, under_load
from tests.nightly.namespaces import namespace
from tests.photographs import photograph
from torchserve_client.gateway import Gateway

# The first test's has the start of two nodes in it, of which each other restart is one more.
pytestmark = [pytest.mark.timeout(300)]

READY_S = 120.0
# Of what both nodes can do. A node that starts takes much of a machine that has two cores, so the short run asks less.
SHARE, SHORT_SHARE = 0.6, 0.3
# Requests of a batch, and workers: the same on every node.
REGISTRATION = {"batch_size": 8, "max_batch_delay_ms": 5, "workers": 1}
# One node of two has 1.2 times what it can do while the other is away: what is too much waits, in the memory that fewer
# and larger bodies would have had.
QUEUE = {"job_queue_size=64": "job_queue_size=512", "max_request_size=8388608": "max_request_size=1048576"}
INPUTS = Inputs.of([photograph("chelsea"), photograph("coffee")], "image/jpeg")


@dataclass(frozen=True)
class Fleet:
    """Two nodes behind a gateway.

    Attributes:
        nodes: as `make serve NODES=2` starts them.
        gateway: in front of them.
    """

    nodes: list[Local]
    gateway: sandbox.Sandbox

    @property
    def url(self) -> str:
        """Of predictions."""
        return f"{self.gateway.http}/predictions/{MOBILENET}"

    def wait_ready(self, nodes: int = 2) -> None:
        """Wait until both nodes get requests: their models are READY, and the gateway knows."""
        wait_ready(self.gateway, {node.name for node in self.nodes[:nodes]})


def wait_ready(gateway: sandbox.Sandbox, names: set[str]) -> None:
    """Wait until these nodes get requests: all of their models are READY, as the gateway and Envoy see it."""
    deadline = time.monotonic() + READY_S
    while True:
        nodes = requests.get(f"{gateway.control}/control/nodes", timeout=10).json()
        is_up = {each["name"] for each in nodes if each["is_routed"]} >= names
        if is_up and requests.get(f"{gateway.http}/v2/health/ready", timeout=10).status_code == 200:
            return
        assert time.monotonic() < deadline, nodes
        time.sleep(0.2)


@pytest.fixture(scope="module")
def store(model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store of what is served here, and no more."""
    folder = tmp_path_factory.mktemp("store")
    os.link(model_store / f"{MOBILENET}.mar", folder / f"{MOBILENET}.mar")
    return folder


@pytest.fixture(scope="module")
def fleet(store: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        # A short path: workers have sockets in it.
        folder = Path(tempfile.mkdtemp(prefix="nodes-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        config = folder / "config.properties"
        text = (ROOT / "config.properties").read_text(encoding="utf-8")
        for before, after in QUEUE.items():
            assert before in text
            text = text.replace(before, after)
        config.write_text(config_for(text, Ports.free(), ROOT, store), encoding="utf-8")
        nodes = locals_of(Layout(config, 2), folder)
        with Waits() as waits:
            for node in nodes:
                stack.callback(node.server.stop)
                run_node(node, waits)
                node.server.register(MOBILENET, f"{MOBILENET}.mar", **REGISTRATION)
        gateway = stack.enter_context(sandbox.started([node.node() for node in nodes]))
        made = Fleet(nodes, gateway)
        made.wait_ready()
        yield made


@pytest.fixture(scope="module")
def rate_per_s(fleet: Fleet) -> float:
    return capacity_per_s(fleet.url, INPUTS)


def kill(node: Local) -> None:
    """End a whole TorchServe as a machine's end would: Java, and every worker."""
    pid = node.server.pid()
    assert pid is not None
    java = psutil.Process(pid)
    for process in [java, *java.children(recursive=True)]:
        process.send_signal(signal.SIGKILL)


def start_again(node: Local) -> None:
    """What a node's supervisor does: start it, with every model that it had."""
    with Waits() as waits:
        assert run_node(node, waits)


def kills(fleet: Fleet, times: int) -> Callable[[], None]:
    """Kill one node after the other, the next when both are READY."""

    def run() -> None:
        for number in range(times):
            node = fleet.nodes[number % 2]
            kill(node)
            time.sleep(0.5)
            start_again(node)
            fleet.wait_ready()

    return run


def test_killed_torchserve_leaves_no_request_without_an_answer(fleet: Fleet, rate_per_s: float) -> None:
    fleet.wait_ready()
    before = [node.server.pid() for node in fleet.nodes]
    summary = under_load(fleet.url, INPUTS, SHORT_SHARE * rate_per_s, kills(fleet, 1))
    assert all_answered(summary), (summary.statuses, summary.errors)
    assert summary.requests > 0
    assert [node.server.pid() == pid for node, pid in zip(fleet.nodes, before, strict=True)] == [False, True]
    described = fleet.nodes[0].server.management.describe(MOBILENET)
    assert (described["batchSize"], described["maxBatchDelay"], described["minWorkers"]) == (8, 5, 1)


@pytest.mark.timeout(1200)
def test_six_killed_torchserves_at_60_percent_load_leave_no_request_without_an_answer(
    fleet: Fleet, rate_per_s: float
) -> None:
    fleet.wait_ready()
    summary = under_load(fleet.url, INPUTS, SHARE * rate_per_s, kills(fleet, 6))
    assert all_answered(summary), (summary.statuses, summary.errors)


def rolling_restart(fleet: Fleet) -> None:
    """Take each node out, stop it when nothing is in hand, start it again, let it get requests again."""
    gateway = Gateway(fleet.gateway.control)
    for node in fleet.nodes:
        assert take_out(gateway, node.name, lambda _: None, timeout_s=60)
        assert end_node(node, lambda _: None, is_for_good=False)
        start_again(node)
        gateway.drain(node.name, is_draining=False)
        fleet.wait_ready()


@pytest.mark.timeout(600)
def test_rolling_restart_at_60_percent_load_leaves_no_request_without_an_answer(
    fleet: Fleet, rate_per_s: float
) -> None:
    """At less load, and as `make` and a supervisor do it, it is in tests/e2e/test_nodes.py."""
    fleet.wait_ready()
    before = [node.server.pid() for node in fleet.nodes]
    summary = under_load(fleet.url, INPUTS, SHARE * rate_per_s, lambda: rolling_restart(fleet))
    assert all_answered(summary), (summary.statuses, summary.errors)
    assert not {node.server.pid() for node in fleet.nodes} & {*before}


def p99_ms(fleet: Fleet) -> float:
    summary = Attack(Target(fleet.url), INPUTS, ClosedLoop(4), 3, warm_up_s=0.5).run()
    assert all_answered(summary), (summary.statuses, summary.errors)
    return summary.latency_ms(99)


def test_slow_clients_leave_the_latency_of_the_others_as_it_was(fleet: Fleet) -> None:
    fleet.wait_ready()
    alone, beside = [], []
    for _ in range(2):
        alone.append(p99_ms(fleet))
        with slow_clients(fleet.url, 500) as slow:
            beside.append(p99_ms(fleet))
        assert slow.most == 500
    # Noise: on two cores that others use too, one p99 is now and then twice another.
    assert min(beside) < 2 * max(alone), (alone, beside)


def test_node_that_is_cut_off_leaves_no_request_without_an_answer(fleet: Fleet, store: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="cut-"))
    limits = {"unresponsive_s": 3.0, "attempt_connect_s": 1.0}
    try:
        with (
            namespace(1) as far,
            far.server(store, folder / "far", "far") as (server, node),
            sandbox.started([fleet.nodes[1].node(), node], limits=limits) as gateway,
        ):
            server.register(MOBILENET, f"{MOBILENET}.mar", **REGISTRATION)
            wait_ready(gateway, {fleet.nodes[1].name, "far"})
            url = f"{gateway.http}/predictions/{MOBILENET}"
            rate = SHORT_SHARE * capacity_per_s(url, INPUTS)

            def cut_and_mend() -> None:
                far.cut()
                time.sleep(8)
                far.mend()
                wait_ready(gateway, {"far"})

            summary = under_load(url, INPUTS, rate, cut_and_mend)
            assert all_answered(summary), (summary.statuses, summary.errors)
            # Left after 3 s, connected to another within 1 s, and answered there.
            assert summary.latency_ms(100) < (limits["unresponsive_s"] + limits["attempt_connect_s"] + 6) * 1e3
    finally:
        shutil.rmtree(folder, ignore_errors=True)
