"""`make gateway` again: with the same settings, with other ports, and with another file."""

import socket

from deploy import sandbox
from deploy.gateway.supervisor import is_listening
from deploy.run.node import Node


def test_gateway_is_restarted_on_other_ports_and_refuses_another_file() -> None:
    # Nothing listens there: the gateway starts all the same.
    inference, management, metrics = (f"http://127.0.0.1:{port}" for port in sandbox.free_ports(3))
    node = Node(name="node-1", inference=inference, management=management, metrics=metrics)
    with sandbox.run_gateway([node]) as own:
        again = own.command("start")
        assert (again.returncode, "already running" in again.stdout, own.http in again.stdout) == (0, True, True)
        before = int(own.http.rpartition(":")[2])
        ports = dict(zip(sandbox.GATEWAY_PORTS, sandbox.free_ports(5), strict=True))
        with socket.create_server(("127.0.0.1", 0)) as other_server:
            taken = other_server.getsockname()[1]
            own.configure(ports={**ports, "http": taken})
            refused = own.command("start")
        assert f"127.0.0.1:{taken}" in refused.stderr and "`ports`" in refused.stderr
        assert (refused.returncode, is_listening("127.0.0.1", before)) == (1, True)
        own.configure(ports=ports)
        again = own.command("start")
        assert (again.returncode, again.stderr) == (0, "")
        assert "its ports have changed" in again.stdout
        assert f"http://127.0.0.1:{ports['http']} " in again.stdout
        assert (is_listening("127.0.0.1", ports["http"]), is_listening("127.0.0.1", before)) == (True, False)
        other = own.config.with_name("other.yaml")
        other.write_text(own.config.read_text())
        own.config, first = other, own.config
        refused = own.command("start")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert f"already running with {first} (pid " in refused.stderr
        assert "torchserve-batching gateway stop" in refused.stderr
        own.config = other.with_name("none.yaml")
        missing = own.command("start")
        assert (missing.returncode, str(own.config) in missing.stderr) == (1, True)
        own.config = first
