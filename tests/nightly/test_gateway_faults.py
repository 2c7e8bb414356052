"""Nodes that are killed, restarted or hang under load: no request goes unanswered.

    clients -> the gateway -> two TorchServes with mobilenet-v2, as `make serve NODES=2` has them

What starts a killed node anew is its supervisor's affair; here the test calls what a supervisor would. Once, and at
less load, it is in tests/e2e/test_nodes.py.
"""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import requests

from deploy.gateway import sandbox
from deploy.gateway.drain import take_out
from deploy.models import ROOT
from deploy.run.machine import Layout, LocalNode, local_nodes
from deploy.run.nodes import start_node, stop_node
from deploy.sandbox import Ports, config_for
from tests.e2e.clients import assert_all_answered, capacity_per_s, under_load
from tests.e2e.conftest import MOBILENET
from tests.photographs import photograph
from tests.waiting import until
from torchserve_client.gateway import Gateway

READY_S = 120.0
# Of what both nodes can do; a node that starts takes much of a machine that has two cores.
SHARE = 0.6
KILLS = 6
# Requests of a batch, and workers: the same on every node.
REGISTRATION = {"batch_size": 8, "max_batch_delay_ms": 5, "workers": 1}
# One node of two has 1.2 times what it can do while the other is away: what is too much waits, in the memory that fewer
# and larger bodies would have had.
QUEUE = {"job_queue_size=64": "job_queue_size=512", "max_request_size=8388608": "max_request_size=1048576"}
BODIES = [photograph("chelsea"), photograph("coffee")]
# Seconds without an answer after which the gateway leaves a node.
UNRESPONSIVE_S = 10.0


@dataclass(frozen=True)
class Fleet:
    """Two nodes behind a gateway.

    Attributes:
        nodes: as `make serve NODES=2` starts them.
        gateway: in front of them.
    """

    nodes: list[LocalNode]
    gateway: sandbox.Sandbox

    @property
    def url(self) -> str:
        """Of predictions."""
        return f"{self.gateway.http}/predictions/{MOBILENET}"

    def wait_ready(self) -> None:
        """Wait until both nodes get requests: all of their models are READY, as the gateway and Envoy see it."""

        def is_ready() -> bool:
            nodes = requests.get(f"{self.gateway.control}/control/nodes", timeout=10).json()
            is_routed = len(nodes) == len(self.nodes) and all(each["is_routed"] for each in nodes)
            return is_routed and requests.get(f"{self.gateway.http}/v2/health/ready", timeout=10).status_code == 200

        until(is_ready, READY_S)


@pytest.fixture(scope="module")
def fleet(model_store: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        # A short path: workers have sockets in it.
        folder = Path(tempfile.mkdtemp(prefix="nodes-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        # A model store of what is served here, and no more.
        store = folder / "store"
        store.mkdir()
        os.link(model_store / f"{MOBILENET}.mar", store / f"{MOBILENET}.mar")
        config = folder / "config.properties"
        text = (ROOT / "config.properties").read_text(encoding="utf-8")
        for before, after in QUEUE.items():
            assert before in text
            text = text.replace(before, after)
        config.write_text(config_for(text, Ports.free(), ROOT, store), encoding="utf-8")
        nodes = local_nodes(Layout(config, 2), folder)
        for node in nodes:
            stack.callback(node.server.stop)
            start_node(node)
            node.server.register(MOBILENET, f"{MOBILENET}.mar", **REGISTRATION)
        limits = {"unresponsive_s": UNRESPONSIVE_S}
        gateway = stack.enter_context(sandbox.started([node.node() for node in nodes], limits=limits))
        made = Fleet(nodes, gateway)
        made.wait_ready()
        yield made


@pytest.fixture(scope="module")
def rate_per_s(fleet: Fleet) -> float:
    return SHARE * capacity_per_s(fleet.url, BODIES)


def signalled(node: LocalNode, number: signal.Signals) -> None:
    """Send a signal to a whole TorchServe: Java, and every worker."""
    pid = node.server.pid()
    assert pid is not None
    java = psutil.Process(pid)
    for process in [java, *java.children(recursive=True)]:
        process.send_signal(number)


def test_killed_torchserves_leave_no_request_without_an_answer(fleet: Fleet, rate_per_s: float) -> None:
    def kill() -> None:
        for number in range(KILLS):
            node = fleet.nodes[number % 2]
            signalled(node, signal.SIGKILL)
            time.sleep(0.5)
            start_node(node)
            fleet.wait_ready()

    assert_all_answered(under_load(fleet.url, BODIES, rate_per_s, kill))
    for node in fleet.nodes:
        described = node.server.management.describe(MOBILENET)
        assert (described["batchSize"], described["maxBatchDelay"], described["minWorkers"]) == (8, 5, 1)


def test_rolling_restart_leaves_no_request_without_an_answer(fleet: Fleet, rate_per_s: float) -> None:
    def restart() -> None:
        """Take each node out, stop it when nothing is in flight, start it again, let it get requests again."""
        gateway = Gateway(fleet.gateway.control)
        for node in fleet.nodes:
            assert take_out(gateway, node.name, limit_s=60)
            assert stop_node(node, is_for_good=False)
            start_node(node)
            gateway.drain(node.name, is_draining=False)
            fleet.wait_ready()
        gateway.close()

    before = [node.server.pid() for node in fleet.nodes]
    assert_all_answered(under_load(fleet.url, BODIES, rate_per_s, restart))
    assert not {node.server.pid() for node in fleet.nodes} & {*before}


def test_node_that_hangs_is_left_and_leaves_no_request_without_an_answer(fleet: Fleet, rate_per_s: float) -> None:
    """It takes connections, as its system does for it, and answers nothing: what a cut cable looks like for a while."""

    def hang() -> None:
        signalled(fleet.nodes[1], signal.SIGSTOP)
        try:
            time.sleep(2 * UNRESPONSIVE_S)
        finally:
            signalled(fleet.nodes[1], signal.SIGCONT)
        fleet.wait_ready()

    assert_all_answered(under_load(fleet.url, BODIES, rate_per_s / 2, hang))
