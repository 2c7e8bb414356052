"""One gateway's processes, in the order of the tests: started once, restarted, taken over, killed, hung, stopped."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import psutil
import pytest
import requests

from deploy.gateway.supervisor import HANG_S, is_listening
from deploy.nodes.run.node import Node
from load import sandbox
from load.sandbox import GATEWAY_PORTS, Sandbox, free_ports
from tests.e2e.machine import control_of
from tests.waiting import until


@pytest.fixture(scope="module")
def own() -> Iterator[Sandbox]:
    # Nothing listens there: the gateway starts all the same.
    inference, management, metrics = (f"http://127.0.0.1:{port}" for port in free_ports(3))
    node = Node(name="node-1", inference=inference, management=management, metrics=metrics)
    with sandbox.run_gateway([node]) as started:
        yield started


def is_answered(gateway: Sandbox) -> bool:
    with suppress(requests.ConnectionError):
        return requests.get(f"{gateway.http}/predictions/unknown", timeout=30).status_code == 404
    return False


def ports_of(gateway: Sandbox) -> tuple[int, dict[str, int]]:
    """The gateway's present port, and others for all."""
    return int(gateway.http.rpartition(":")[2]), dict(zip(GATEWAY_PORTS, free_ports(len(GATEWAY_PORTS)), strict=True))


def test_gateway_that_runs_is_not_started_again_nor_from_another_file_nor_on_a_taken_port(own: Sandbox) -> None:
    again = own.command("start")
    assert (again.returncode, again.stdout.splitlines()[0][:24]) == (0, "gateway: already running")
    present, others = ports_of(own)
    with socket.create_server(("127.0.0.1", 0)) as other_server:
        taken = other_server.getsockname()[1]
        own.configure(ports={**others, "http": taken})
        rejected = own.command("start")
    assert f"127.0.0.1:{taken}" in rejected.stderr and "`ports`" in rejected.stderr
    assert (rejected.returncode, is_listening("127.0.0.1", present)) == (1, True)
    own.configure()
    first, own.config = own.config, own.config.with_name("other.yaml")
    own.configure()
    rejected, own.config = own.command("start"), first
    assert (rejected.returncode, rejected.stdout) == (1, "")
    assert f"already running with {first} (pid " in rejected.stderr
    assert "torchserve-batching gateway stop" in rejected.stderr


def test_gateway_is_restarted_on_other_ports(own: Sandbox) -> None:
    present, others = ports_of(own)
    own.configure(ports=others)
    again = own.command("start")
    assert (again.returncode, again.stderr) == (0, "")
    assert "its ports have changed" in again.stdout
    assert f"http://127.0.0.1:{others['http']} " in again.stdout
    assert (is_listening("127.0.0.1", others["http"]), is_listening("127.0.0.1", present)) == (True, False)
    own.http, own.control = (f"http://127.0.0.1:{others[name]}" for name in ("http", "control"))


def test_gateway_is_taken_over_its_dead_and_hung_processes_are_back_and_it_is_stopped(own: Sandbox) -> None:
    # A supervisor that is killed leaves an Envoy that goes on, and that the next one takes over.
    envoy = (own.state_dir / "envoy.pid").read_text()
    psutil.Process(int((own.state_dir / "gateway.pid").read_text())).kill()
    assert is_answered(own)
    started = own.command("start")
    assert (started.returncode, started.stderr, (own.state_dir / "envoy.pid").read_text()) == (0, "", envoy)
    # Envoy accepts endpoints of the new one: a drain is rejected otherwise.
    drain = partial(requests.put, f"{own.control}/control/nodes/node-1", json={"draining": True}, timeout=30)
    until(lambda: drain().ok)
    # A control process that hangs is killed and started again; an Envoy that dies meanwhile is back before.
    hung = control_of(own)
    assert hung is not None
    hung.suspend()
    psutil.Process(int(envoy)).kill()
    until(lambda: (own.state_dir / "envoy.pid").read_text() not in ("", envoy), HANG_S)
    until(lambda: is_answered(own), HANG_S)
    hung.wait(HANG_S + 5)
    # A SIGTERM is seen while the next one starts.
    until(lambda: control_of(own))
    envoy = (own.state_dir / "envoy.pid").read_text()
    assert own.command("stop").stdout == "gateway: stopped\n"
    assert own.command("stop").stdout == "gateway: not running\n"
    assert not psutil.pid_exists(int(envoy))
