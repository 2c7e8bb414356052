"""The gateway in front of a real TorchServe: what it finds by itself, what it outlives, and what it loses: nothing."""

import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from deploy import sandbox
from deploy.gateway.supervisor import HANG_S, is_listening
from deploy.run.node import Node
from deploy.run.server import Server
from deploy.sandbox import Sandbox
from tests.e2e.clients import Clients
from tests.e2e.conftest import MOBILENET, metrics
from tests.photographs import photograph
from tests.waiting import until
from torchserve_client import archives
from torchserve_client.cli import main as torchserve_client

PHOTOGRAPH = photograph("coffee")
# Of a part of a form.
END = b"\r\n\r\nx\r\n--b--\r\n"


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as made:
        made.trust_env = False
        yield made


def status(session: requests.Session, url: str) -> int:
    try:
        return session.get(url, timeout=30).status_code
    except requests.ConnectionError:
        return 0


def predict(session: requests.Session, gateway: Sandbox, path: str = MOBILENET) -> int:
    return session.put(f"{gateway.http}/predictions/{path}", data=PHOTOGRAPH, timeout=60).status_code


@pytest.fixture
def served(serve: Callable[..., str], gateway: Sandbox, session: requests.Session) -> Sandbox:
    """The gateway, with mobilenet-v2 READY behind it and described; a batch waits for half a second."""
    serve(max_batch_delay_ms=500)
    url = f"{gateway.http}/v2/models/{MOBILENET}"
    until(lambda: status(session, f"{url}/ready") == 200 and session.get(url, timeout=30).json()["inputs"])
    until(lambda: predict(session, gateway) == 200)
    return gateway


def control_of(gateway: Sandbox) -> psutil.Process | None:
    supervisor = psutil.Process(int((gateway.state_dir / "gateway.pid").read_text()))
    return next((child for child in supervisor.children() if "deploy.gateway.control" in child.cmdline()), None)


def test_torchserves_own_errors_have_our_form(served: Sandbox, session: requests.Session) -> None:
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    part = b'--b\r\nContent-Disposition: form-data; name="%s"\r\nContent-Type: text/plain; charset=%s'
    for body, headers, expected in (
        (part % (b"", b"utf-8") + END, form, (400, "MalformedForm")),
        (part % (b"data", b"nonsense") + END, form, (400, "MalformedForm")),
        (bytes(9 << 20), {}, (413, "BodyTooLarge")),
    ):
        answer = session.post(f"{served.http}/predictions/{MOBILENET}", data=body, headers=headers, timeout=60)
        assert (answer.status_code, answer.json()["type"]) == expected


def test_control_process_that_is_killed_leaves_inference_and_remembers_counts(
    served: Sandbox, server: Server, session: requests.Session
) -> None:
    def statistics() -> Any:
        (found,) = session.get(f"{served.http}/v2/models/{MOBILENET}/stats", timeout=30).json()["model_stats"]
        return found

    def succeeded() -> int:
        return int(statistics()["inference_stats"]["success"]["count"])

    def counted() -> float:
        wanted = (f'"{MOBILENET}"', '"1.0"', '"success"')
        series = {name: value for name, value in metrics(server).items() if name.startswith("handler_requests_total{")}
        return sum(value for name, value in series.items() if all(label in name for label in wanted))

    before = succeeded()
    assert [predict(session, served) for _ in range(5)] == [200] * 5
    until(lambda: before + 5 <= succeeded() == counted())
    sizes = statistics()["batch_stats"]
    assert sum(size["compute_infer"]["count"] for size in sizes) == statistics()["execution_count"]
    control = control_of(served)
    assert control is not None
    control.kill()
    control.wait(10)
    assert predict(session, served) == 200
    until(lambda: status(session, f"{served.http}/v2/models/{MOBILENET}/ready") == 200)
    assert succeeded() >= before + 5


def test_requests_while_a_version_is_rolled_out_and_a_model_unregistered_are_answered_or_find_none(
    served: Sandbox, server: Server, model_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TorchServe answers nothing of a batch that is being filled then: with this delay there is always one."""

    def run(*words: str) -> list[str]:
        arguments = ["--management-url", server.settings.management_url, *words, "--gateway", served.control]
        assert torchserve_client(arguments) == 0
        return capsys.readouterr().out.splitlines()

    def clients(path: str) -> Clients:
        return Clients(f"{served.http}/predictions/{path}", 4, [PHOTOGRAPH], interval_s=0.1)

    store = ["--model-store", str(model_store), "--logs", str(server.logs)]
    try:
        # Those who name the old version are not drawn away by the new default.
        with clients(f"{MOBILENET}/1.0") as named, clients(MOBILENET) as others:
            named.wait_for(8)
            others.wait_for(8)
            lines = run("rollout", MOBILENET, "--batch-size", "4", *store)
            named.wait_for(8, 404)
        assert (set(named.statuses), set(others.statuses), named.lost + others.lost) == ({200, 404}, {200}, [])
        assert server.management.versions(MOBILENET) == ["1.0-r2"]
        # Most rollouts are lucky without it.
        assert f"{MOBILENET}: version 1.0: the gateway sends no new requests" in lines
        with clients(MOBILENET) as others:
            others.wait_for(8)
            lines = run("unregister", MOBILENET)
            others.wait_for(8, 404)
        assert (set(others.statuses), others.lost) == ({200, 404}, [])
        assert lines == [f"{MOBILENET}: the gateway sends no new requests", f"{MOBILENET}: unregistered"]
    finally:
        for copy in model_store.glob("*@*"):
            archives.remove(copy)


def test_gateway_is_started_once_taken_over_by_a_new_supervisor_and_stopped(
    server: Server, session: requests.Session
) -> None:
    with sandbox.run_gateway([sandbox.make_node(server)]) as own:
        again = own.command("start")
        assert (again.returncode, again.stdout.splitlines()[0][:24]) == (0, "gateway: already running")
        # A supervisor that is killed leaves an Envoy that goes on, and that the next one takes over.
        envoy = (own.state_dir / "envoy.pid").read_text()
        psutil.Process(int((own.state_dir / "gateway.pid").read_text())).kill()
        assert status(session, f"{own.http}/predictions/unknown") == 404
        started = own.command("start")
        assert (started.returncode, started.stderr, (own.state_dir / "envoy.pid").read_text()) == (0, "", envoy)
        # Envoy accepts endpoints of the new one: a drain is refused otherwise.
        drain = partial(session.put, f"{own.control}/control/nodes/node-1", json={"draining": True}, timeout=30)
        until(lambda: drain().ok)
        # A control process that hangs is killed and started again; an Envoy that dies meanwhile is back before.
        hung = control_of(own)
        assert hung is not None
        hung.suspend()
        psutil.Process(int(envoy)).kill()
        until(lambda: (own.state_dir / "envoy.pid").read_text() not in ("", envoy), HANG_S)
        until(lambda: status(session, f"{own.http}/predictions/unknown") == 404, HANG_S)
        hung.wait(HANG_S + 5)
        # A SIGTERM is seen while the next one starts.
        until(lambda: control_of(own))
        envoy = (own.state_dir / "envoy.pid").read_text()
        assert own.command("stop").stdout == "gateway: stopped\n"
        assert own.command("stop").stdout == "gateway: not running\n"
        assert not psutil.pid_exists(int(envoy))


def test_gateway_is_restarted_on_other_ports_and_refuses_another_file() -> None:
    # Nothing listens there: the gateway starts all the same.
    inference, management, metrics = (f"http://127.0.0.1:{port}" for port in sandbox.free_ports(3))
    node = Node(name="node-1", inference=inference, management=management, metrics=metrics)
    with sandbox.run_gateway([node]) as own:
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
        own.config = first
