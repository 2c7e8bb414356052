"""The gateway in front of a real TorchServe: what it finds by itself, what it says of models, what it outlives."""

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from deploy.gateway import sandbox
from deploy.gateway.sandbox import Sandbox
from deploy.models import ROOT
from deploy.server import Server
from tests.e2e.conftest import MOBILENET, curl, metrics
from tests.waiting import until
from torchserve_client import archives
from torchserve_client.cli import main as torchserve_client
from torchserve_client.version import VERSION

PHOTOGRAPH = (ROOT / "examples" / "resnet-152" / "cat.jpg").read_bytes()
# What a user is promised.
PROMISED_S = 10.0


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as made:
        made.trust_env = False
        yield made


def status(session: requests.Session, url: str) -> int:
    return session.get(url, timeout=30).status_code


def predict(session: requests.Session, gateway: Sandbox, path: str = MOBILENET) -> requests.Response:
    return session.put(f"{gateway.http}/predictions/{path}", data=PHOTOGRAPH, timeout=60)


@pytest.fixture
def served(serve: Callable[..., str], gateway: Sandbox, session: requests.Session) -> Sandbox:
    """The gateway, with mobilenet-v2 READY behind it and described."""
    serve()
    url = f"{gateway.http}/v2/models/{MOBILENET}"
    until(lambda: status(session, f"{url}/ready") == 200 and session.get(url, timeout=30).json()["inputs"])
    until(lambda: predict(session, gateway).status_code == 200)
    return gateway


@pytest.mark.usefixtures("nothing_registered")
def test_model_registered_and_removed_by_curl_appears_and_vanishes(
    server: Server, gateway: Sandbox, session: requests.Session
) -> None:
    management, url = server.settings.management_url, f"{gateway.http}/v2/models/{MOBILENET}"
    until(lambda: status(session, url) == 404)
    curl("-X", "POST", f"{management}/models?url={MOBILENET}.mar&initial_workers=1&synchronous=true")
    until(lambda: status(session, f"{url}/ready") == 200, PROMISED_S)
    until(lambda: predict(session, gateway).status_code == 200, PROMISED_S)
    curl("-X", "DELETE", f"{management}/models/{MOBILENET}")
    until(lambda: status(session, url) == 404, PROMISED_S)
    until(lambda: predict(session, gateway).status_code == 404, PROMISED_S)


def test_metadata_is_the_loaded_models_own(served: Sandbox, session: requests.Session) -> None:
    document = session.get(f"{served.http}/v2/models/{MOBILENET}/versions/1", timeout=30).json()
    assert (document["name"], document["versions"], document["platform"]) == (
        MOBILENET,
        ["1.0"],
        "torchserve_openvino",
    )
    (tensor,) = document["inputs"]
    assert (tensor["datatype"], tensor["shape"][0]) == ("BYTES", -1)
    assert all(output["shape"][0] == -1 for output in document["outputs"])
    config = session.get(f"{served.http}/v2/models/{MOBILENET}/config", timeout=30).json()
    assert config["input"][0]["data_type"] == "TYPE_STRING"
    assert config["max_batch_size"] > 1
    assert config["dynamic_batching"] == {"preferred_batch_size": [8], "max_queue_delay_microseconds": 20_000}
    server = session.get(f"{served.http}/v2", timeout=30).json()
    assert (server["name"], server["version"]) == ("torchserve-batching", VERSION)


def test_triton_grpc_client_is_told_the_same(served: Sandbox) -> None:
    with tritonclient.grpc.InferenceServerClient(served.grpc) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready(MOBILENET, "1")
        assert client.get_model_metadata(MOBILENET).versions == ["1.0"]
        assert client.get_model_config(MOBILENET).config.max_batch_size > 1
        assert client.get_inference_statistics(MOBILENET).model_stats[0].version == "1"
        assert [entry.name for entry in client.get_model_repository_index().models] == [MOBILENET]
        for refused in (client.get_trace_settings, client.get_log_settings, client.get_system_shared_memory_status):
            with pytest.raises(InferenceServerException) as caught:
                refused()
            assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
            assert "not supported" in caught.value.message()
        with pytest.raises(InferenceServerException) as caught:
            client.get_model_metadata("unknown")
        assert caught.value.status() == "StatusCode.NOT_FOUND"


def test_model_without_workers_makes_the_server_unready(
    served: Sandbox, server: Server, session: requests.Session
) -> None:
    ready, other = f"{served.http}/v2/health/ready", "resnet-152"
    until(lambda: status(session, ready) == 200)
    server.management.register(f"{other}.mar", initial_workers=0)
    until(lambda: status(session, ready) == 503, PROMISED_S)
    assert status(session, f"{served.http}/v2/models/{other}/ready") == 503
    assert status(session, f"{served.http}/v2/models/{MOBILENET}/ready") == 200
    assert status(session, f"{served.http}/v2/health/live") == 200
    server.management.unregister(other)
    until(lambda: status(session, ready) == 200, PROMISED_S)


def test_repository_loads_and_unloads(gateway: Sandbox, session: requests.Session, served: Sandbox) -> None:
    url = f"{gateway.http}/v2/repository"
    assert session.post(f"{url}/models/{MOBILENET}/unload", timeout=60).status_code == 200
    assert session.post(f"{url}/index", timeout=30).json() == []
    assert status(session, f"{gateway.http}/v2/models/{MOBILENET}") == 404
    assert session.post(f"{url}/models/{MOBILENET}/load", timeout=150).status_code == 200
    index = [{"name": MOBILENET, "version": "1.0", "state": "READY", "reason": ""}]
    assert session.post(f"{url}/index", timeout=30).json() == index
    until(lambda: predict(session, gateway).status_code == 200, PROMISED_S)
    refused = session.post(f"{url}/models/unknown/load", timeout=60)
    assert (refused.status_code, refused.json()) == (404, {"error": "no archive unknown.mar"})


def test_statistics_are_the_nodes_own_and_never_fall(
    served: Sandbox, server: Server, session: requests.Session
) -> None:
    def statistics() -> dict[str, Any]:
        (found,) = session.get(f"{served.http}/v2/models/{MOBILENET}/stats", timeout=30).json()["model_stats"]
        return dict(found)

    def succeeded() -> int:
        return int(statistics()["inference_stats"]["success"]["count"])

    def counted() -> float:
        return sum(
            value
            for name, value in metrics(server).items()
            if name.startswith("handler_requests_total{")
            and all(label in name for label in (f'"{MOBILENET}"', '"1.0"', '"success"'))
        )

    before = succeeded()
    for _ in range(5):
        assert predict(session, served).status_code == 200
    until(lambda: before + 5 <= succeeded() == counted())
    found = statistics()
    assert found["last_inference"] > 0
    assert found["inference_stats"]["compute_infer"]["ns"] > 0
    assert sum(size["compute_infer"]["count"] for size in found["batch_stats"]) == found["execution_count"]
    kill_control(served)
    until(lambda: status(session, f"{served.http}/v2") == 200)
    assert succeeded() == counted() >= before + 5


def test_inference_goes_on_without_the_control_process(served: Sandbox, session: requests.Session) -> None:
    kill_control(served)
    assert predict(session, served).status_code == 200
    until(lambda: status(session, f"{served.http}/v2/models/{MOBILENET}/ready") == 200)


def test_draining_and_canaries_are_decided_on_the_control_port(
    served: Sandbox, server: Server, session: requests.Session
) -> None:
    url = f"{served.control}/control"
    (node,) = session.get(f"{url}/nodes", timeout=30).json()
    assert node == {
        "name": "node-1",
        "management": server.settings.management_url,
        "state": "up",
        "is_draining": False,
        "is_routed": True,
        "in_flight": 0,
    }
    assert session.put(f"{url}/nodes/node-1", json={"draining": True}, timeout=30).json()["is_draining"]
    until(lambda: predict(session, served).status_code == 503)
    kill_control(served)
    until(lambda: nodes_drain(session, url) == [True])
    session.put(f"{url}/nodes/node-1", json={"draining": False}, timeout=30)
    until(lambda: predict(session, served).status_code == 200)
    refused = session.put(f"{url}/canaries/{MOBILENET}", json={"version": "7", "percent": 5}, timeout=30)
    assert (refused.status_code, list(refused.json())) == (404, ["error"])
    # Nothing of it is there for clients.
    assert status(session, f"{served.http}/control/nodes") == 404


@contextmanager
def clients(gateway: Sandbox, path: str) -> Iterator[Counter[int]]:
    """Four clients, one request after the other each; gives the statuses. One without an answer fails at the end."""
    is_over, statuses = threading.Event(), Counter[int]()

    def client() -> None:
        with requests.Session() as own:
            own.trust_env = False
            while not is_over.wait(0.01):
                statuses[predict(own, gateway, path).status_code] += 1

    with ThreadPoolExecutor(4) as threads:
        started = [threads.submit(client) for _ in range(4)]
        try:
            yield statuses
        finally:
            is_over.set()
        for each in started:
            each.result()


def test_requests_while_a_model_is_unregistered_are_answered_or_find_no_model(
    gateway: Sandbox,
    server: Server,
    serve: Callable[..., str],
    session: requests.Session,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """TorchServe answers nothing of a batch that is being filled then: with this delay there is always one."""
    serve(max_batch_delay_ms=500)
    until(lambda: predict(session, gateway).status_code == 200)
    with clients(gateway, MOBILENET) as statuses:
        until(lambda: statuses[200] >= 8)
        arguments = ["--management", server.settings.management_url, "unregister", MOBILENET]
        assert torchserve_client([*arguments, "--gateway", gateway.control]) == 0
        until(lambda: statuses[404] >= 8)
    assert set(statuses) == {200, 404}
    assert capsys.readouterr().out.splitlines() == [
        f"{MOBILENET}: the gateway sends no new requests",
        f"{MOBILENET}: unregistered",
    ]
    # Registered anew it is served.
    serve()
    until(lambda: predict(session, gateway).status_code == 200)


def test_requests_for_the_version_that_a_rollout_retires_are_answered_or_find_none(
    gateway: Sandbox,
    server: Server,
    serve: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    model_store: Path,
) -> None:
    """They name it, so that the new default draws none of them away."""
    serve(max_batch_delay_ms=500)
    for path in (MOBILENET, f"{MOBILENET}/1.0"):
        with clients(gateway, path) as before:
            until(partial(before.get, 200))
    arguments = ["--management", server.settings.management_url, "rollout", MOBILENET, "--max-batch-delay", "5"]
    arguments += ["--model-store", str(model_store), "--logs", str(server.logs), "--gateway", gateway.control]
    try:
        with clients(gateway, f"{MOBILENET}/1.0") as statuses, clients(gateway, MOBILENET) as others:
            until(lambda: statuses[200] >= 8)
            assert torchserve_client(arguments) == 0
            until(lambda: statuses[404] >= 8)
        assert (set(statuses), set(others)) == ({200, 404}, {200})
        assert server.management.versions(MOBILENET) == ["1.0-r2"]
        # Most rollouts are lucky without it.
        assert f"{MOBILENET}: version 1.0: the gateway sends no new requests" in capsys.readouterr().out.splitlines()
    finally:
        for copy in model_store.glob("*@*"):
            archives.remove(copy)


def test_requests_that_fail_are_no_reason_to_leave_a_node_out(served: Sandbox, session: requests.Session) -> None:
    """TorchServe resets the connection of each request that it answers with an error."""
    url = f"{served.http}/predictions/{MOBILENET}"
    for number in range(20):
        assert session.post(url, data=b"no image", timeout=60).status_code == 415
        assert session.post(f"{url}?{'a' * 6000}", data=b"no image", timeout=60).status_code == 400
        (node,) = session.get(f"{served.control}/control/nodes", timeout=30).json()
        assert node["is_routed"], number


def test_metrics_are_labelled_by_node(served: Sandbox, session: requests.Session) -> None:
    lines = session.get(served.metrics, timeout=30).text.splitlines()
    assert 'gateway_node_up{node="node-1"} 1' in lines
    assert [line for line in lines if line.startswith('handler_items_total{node="node-1",')]
    assert [line for line in lines if line.startswith("envoy_")]
    assert status(session, f"{served.http}/metrics") == 404


def test_settings_are_read_anew_and_broken_ones_are_not(served: Sandbox, session: requests.Session) -> None:
    index = f"{served.http}/v2/repository/index"
    served.configure(management=False)
    until(lambda: session.post(index, timeout=30).status_code == 404)
    served.configure(management="perhaps")
    until(lambda: "management" in (served.run / "control.log").read_text().rpartition("ERROR")[2])
    assert predict(session, served).status_code == 200
    assert session.post(index, timeout=30).status_code == 404
    served.configure()
    until(lambda: session.post(index, timeout=30).status_code == 200)


def test_gateway_of_nodes_in_a_file_starts_twice_stops_once(server: Server, session: requests.Session) -> None:
    with sandbox.started([sandbox.node_of(server)]) as own:
        again = own.command("start")
        assert (again.returncode, again.stdout.splitlines()[0][:24]) == (0, "gateway: already running")
        lines = [line for line in again.stdout.splitlines() if line.startswith("$ curl ")]
        assert [curl("-o", "/dev/null", "-w", "%{http_code}", line.split()[-1]) for line in lines] == ["200"] * 2
        # Another one on its ports says so; and a supervisor that is killed leaves an Envoy that is taken over.
        other = Sandbox(own.http, own.grpc, own.metrics, own.control, own.config, own.run / "other", own.nodes_file)
        refused = other.command("start")
        assert (refused.returncode, "taken by another server" in refused.stderr) == (1, True)
        envoy = (own.run / "envoy.pid").read_text()
        psutil.Process(int((own.run / "gateway.pid").read_text())).kill()
        assert status(session, f"{own.http}/predictions/unknown") == 404
        started = own.command("start")
        assert (started.returncode, started.stderr) == (0, "")
        assert (own.run / "envoy.pid").read_text() == envoy
        assert status(session, f"{own.http}/v2/health/live") == 200
        # An Envoy that is killed is there again by itself.
        psutil.Process(int(envoy)).kill()
        until(lambda: (own.run / "envoy.pid").read_text() not in ("", envoy))
        envoy = (own.run / "envoy.pid").read_text()
        until(lambda: answers(session, f"{own.http}/v2/health/live"))
        assert own.command("stop").stdout == "gateway: stopped\n"
        assert own.command("stop").stdout == "gateway: not running\n"
        assert not psutil.pid_exists(int(envoy))


def test_invalid_settings_are_one_line(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text("limits: {body_bytes: -1}\nkeys: [{client: a, key: short}]\n")
    own = Sandbox("", "", "", "", config, tmp_path / "run", tmp_path / "nodes.json")
    failed = own.command("start")
    assert failed.returncode == 1
    assert failed.stderr.startswith("gateway: gateway.yaml: ")
    assert len(failed.stderr.splitlines()) == 1
    assert "short" not in failed.stderr


def answers(session: requests.Session, url: str) -> bool:
    try:
        return status(session, url) == 200
    except requests.ConnectionError:
        return False


def nodes_drain(session: requests.Session, url: str) -> list[bool]:
    """Whether each node is draining; nothing while the control process is away."""
    try:
        return [node["is_draining"] for node in session.get(f"{url}/nodes", timeout=30).json()]
    except requests.ConnectionError:
        return []


def kill_control(gateway: Sandbox) -> None:
    """Kill the control process of a gateway."""
    supervisor = psutil.Process(int((gateway.run / "gateway.pid").read_text()))
    (control,) = (child for child in supervisor.children() if "deploy.gateway.control" in child.cmdline())
    control.send_signal(signal.SIGKILL)
    control.wait(10)
