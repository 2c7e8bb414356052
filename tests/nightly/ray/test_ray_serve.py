"""Ray Serve and a TorchServe with the same archives answer the same; clients leave, replicas die, load grows."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import grpc
import pytest
import requests
import yaml
from hypothesis import HealthCheck, given, settings

from deploy.archives.archive import Recipe
from deploy.models import ModelEntry
from deploy.run.server import Server
from tests.e2e import echo
from tests.e2e.conftest import ADAPTIVE, vary
from tests.e2e.test_conformance import (
    EMBEDDING,
    LANGUAGES,
    Clients,
    test_inference_is_that_of_predictions_by_every_client_in_either_mode,
    test_malformed_request_is_an_error_in_the_protocols_form,
    test_media_type_selects_the_reader_of_a_body,
    test_priority_and_timeout_are_taken_from_the_request,
    test_row_that_fails_leaves_the_others_their_answers,
    test_tensors_and_embeddings_are_json_whatever_their_type,
    test_tensors_of_every_datatype_come_back_as_they_were_sent,
    test_wrong_request_is_an_error_that_names_what_is_wrong,
    which,
)
from tests.e2e.test_tasks import CASES, check
from tests.hostile.requests import Request
from tests.hostile.test_requests import KINDS
from tests.nightly.ray.cluster import BIN, Cluster, cluster
from tests.photographs import MOBILENET_TOP_1, photograph
from tests.waiting import until

# The conformance tables of tests/e2e, which find `lab` and `server` here.
__all__ = [
    "test_inference_is_that_of_predictions_by_every_client_in_either_mode",
    "test_malformed_request_is_an_error_in_the_protocols_form",
    "test_media_type_selects_the_reader_of_a_body",
    "test_priority_and_timeout_are_taken_from_the_request",
    "test_row_that_fails_leaves_the_others_their_answers",
    "test_tensors_and_embeddings_are_json_whatever_their_type",
    "test_tensors_of_every_datatype_come_back_as_they_were_sent",
    "test_wrong_request_is_an_error_that_names_what_is_wrong",
    "which",
]
pytestmark = pytest.mark.timeout(1200)

MOBILENET = "mobilenet-v2"
SLOW = "slow"
LANGUAGES_ADAPTIVE = "language-id-adaptive"
SLOW_S = 0.3
# Folder of the model store with the next version of it.
NEXT = "next"
METADATA = {"X-Model-Metadata": "1"}
# A step of the load: seconds before and after it, and the latency to which p99 returns.
LOW_S, HIGH_S = 10.0, 60.0
TARGET_S = 4 * SLOW_S


@pytest.fixture(scope="module")
def store(archive: Callable[..., str], model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archives of a trained model of images, of texts, of every datatype, and of a slow function."""
    folder = tmp_path_factory.mktemp("slow")
    (folder / "infer.py").write_text(
        f"import time\n\n\ndef infer(x):\n    time.sleep({SLOW_S})\n    return {{'y': x * 2}}\n"
    )
    (folder / "model-config.yaml").write_text(yaml.safe_dump({"handler": {"max_batch_items": 1}}))
    archive(EMBEDDING)
    archive(LANGUAGES)
    # For TorchServe: Ray Serve schedules every model as adaptive mode does, and classic mode ignores X-Priority.
    vary(
        model_store,
        LANGUAGES_ADAPTIVE,
        archive(LANGUAGES, archive_format="no-archive"),
        {"scheduling": {"mode": "adaptive"}},
        ADAPTIVE,
    )
    archive(echo.entry(tmp_path_factory.mktemp("echo")), engine="auto")
    archive(ModelEntry(SLOW, "tensors", "1", folder, {"path": "infer.py"}), engine="auto")
    Recipe(ModelEntry(SLOW, "tensors", "2", folder, {"path": "infer.py"}), export_path=model_store / NEXT).build()
    return model_store


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("home")) as started:
        yield started


def archives(store: Path, *names: str, **more: Any) -> list[dict[str, Any]]:
    # New replicas start before old ones stop, and so need room.
    return [{"archive": str(store / f"{name}.mar"), "cpus": 0.4, "threads": 2, **more} for name in names]


@pytest.fixture(scope="module")
def ray(running: Cluster, store: Path) -> Cluster:
    running.deploy(models=archives(store, MOBILENET, EMBEDDING, LANGUAGES, echo.NAME))
    return running


@pytest.fixture
def lab(ray: Cluster) -> Clients:
    return Clients(ray.http, ray.grpc)


def as_server(running: Cluster) -> Any:
    """Return the part of a TorchServe that the tables use: the URL of its predictions."""
    return SimpleNamespace(settings=SimpleNamespace(inference_url=running.http))


@pytest.fixture(name="server")
def ray_as_server(ray: Cluster) -> Any:
    return as_server(ray)


@pytest.fixture(scope="module", name="torchserve")
def torchserve_with_the_same_archives(request: pytest.FixtureRequest, store: Path) -> Iterator[Server]:
    from deploy.sandbox import run_server  # noqa: PLC0415

    with run_server(store) as found:
        for name, archive in ((MOBILENET, f"{MOBILENET}.mar"), (LANGUAGES, LANGUAGES_ADAPTIVE)):
            found.management.register(archive, model_name=name, batch_size=8, max_batch_delay_ms=1, initial_workers=1)
            until(partial(found.management.is_ready, name), timeout_s=120)
        yield found


def both(ray: Cluster, torchserve: Server, path: str, **sent: Any) -> list[requests.Response]:
    urls = (torchserve.settings.inference_url, ray.http)
    return [requests.post(f"{url}{path}", timeout=60, **sent) for url in urls]


def test_photographs_are_answered_as_by_torchserve_and_as_they_are_known(ray: Cluster, torchserve: Server) -> None:
    for name, label in MOBILENET_TOP_1.items():
        theirs, ours = both(ray, torchserve, f"/predictions/{MOBILENET}", data=photograph(name))
        assert next(iter(ours.json())) == label
        assert ours.json() == pytest.approx(theirs.json(), abs=0.02)
        for header in ("Content-Type", "X-Model-Version"):
            assert ours.headers[header] == theirs.headers[header]
    for path in (f"/predictions/{MOBILENET}/7", "/predictions/nobody"):
        theirs, ours = both(ray, torchserve, path, data=b"x")
        assert (ours.status_code, ours.json()) == (theirs.status_code, theirs.json())


def test_hostile_request_gets_torchserves_status(ray: Cluster, torchserve: Server) -> None:
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(KINDS["language_id"].requests())
    def holds(request: Request) -> None:
        part, *more = request.parts
        headers = {"Content-Type": part.content_type, **request.headers}
        encoded = {name: value.encode("utf-8", "replace").decode("latin-1") for name, value in headers.items()}
        if more:
            files = [(each.name, (None, each.value)) for each in request.parts if each.name]
            encoded.pop("Content-Type")
            theirs, ours = both(ray, torchserve, f"/predictions/{LANGUAGES}", files=files, headers=encoded)
        else:
            theirs, ours = both(ray, torchserve, f"/predictions/{LANGUAGES}", data=part.value, headers=encoded)
        # A form that Netty cannot decode is the client's fault.
        expected = 400 if "ErrorDataDecoderException" in theirs.text else theirs.status_code
        assert ours.status_code == expected, (theirs.text, ours.text)

    holds()


def test_every_port_is_on_loopback_and_the_dashboard_wants_a_token(ray: Cluster) -> None:
    # HAProxy may start again for a change.
    until(lambda: {name for name, _ in ray.listening()} >= {"gcs_server", "haproxy", "raylet"})
    assert [each for each in ray.listening() if each[1] not in ("127.0.0.1", "::ffff:127.0.0.1")] == []
    assert requests.get(f"{ray._dashboard}/api/serve/applications/", timeout=60).status_code == 401


def test_host_on_loopback_is_refused_if_ray_listens_elsewhere(running: Cluster) -> None:
    program = "from deploy.ray.app import archive; import sys; print(archive({'host': sys.argv[1], **ARGS}))"
    program = program.replace("ARGS", str({"archive": "a", "threads": 1, "gpu": False}))
    variables = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH")
    for host, missing in product(("0.0.0.0", "127.0.0.1"), (*variables, None)):  # noqa: S104
        env = {name: value for name, value in running.env.items() if name != missing}
        words = [str(BIN / "python"), "-c", program, host]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=120)
        is_refused = host == "127.0.0.1" and missing is not None
        assert (done.returncode, f"host is {host}" in done.stderr) == (is_refused, is_refused), done.stderr


def test_message_is_inflated_up_to_the_limit_and_a_body_up_to_it_reaches_an_archive(ray: Cluster) -> None:
    (pid,) = ray.replicas("routes", "routes")

    def peak_bytes() -> int:
        found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        assert found
        return 1024 * int(found[1])

    before = peak_bytes()
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(ray.grpc, options=options, compression=grpc.Compression.Gzip) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            infer(bytes(400 << 20), timeout=120)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert peak_bytes() - before < 150 << 20
    body = b"{" + bytes(5 << 20)
    assert requests.post(f"{ray.http}/v2/models/{echo.NAME}/infer", data=body, timeout=60).status_code == 400


def test_request_that_does_not_come_is_closed(ray: Cluster) -> None:
    host, port = ray.http.removeprefix("http://").split(":")
    head = f"POST /predictions/{LANGUAGES} HTTP/1.1\r\nHost: a\r\n".encode()

    def send(part: bytes) -> bytes:
        with socket.create_connection((host, int(port)), timeout=120) as client:
            client.sendall(part)
            return client.recv(100)

    parts = (head, head + b"Content-Length: 10\r\n\r\nabc")
    with ThreadPoolExecutor(len(parts)) as threads:
        assert all(each.startswith(b"HTTP/1.1 408 ") for each in threads.map(send, parts))


@pytest.fixture(scope="module")
def tasks(running: Cluster, archive: Callable[..., str], model_store: Path, tmp_path_factory: Any) -> Cluster:
    """The archives of the task table of tests/e2e, with the same weights and settings."""
    folders = []
    for task, case in CASES.items():
        weights = case.checkpoint and str(case.checkpoint(tmp_path_factory.mktemp(task)))
        built = archive(case.model, weights, engine="auto", archive_format="no-archive")
        folders.append(vary(model_store, f"{task}-ray", built, {"precision": "fp32", **case.settings}, ADAPTIVE))
    running.deploy(models=[{"archive": str(folder), "cpus": 0.15, "threads": 2} for folder in folders])
    return running


@pytest.mark.parametrize("task", CASES)
def test_task_gives_each_its_own_answer_and_bad_items_fail_alone(tasks: Cluster, task: str) -> None:
    check(as_server(tasks), task, {"adaptive": f"{task}-ray"})
    assert "canary" not in tasks.logged()


def test_clients_that_disconnect_leave_no_waiting_request_to_run(running: Cluster, store: Path) -> None:
    running.deploy(models=archives(store, SLOW, cpus=0.5))
    url = f"{running.http}/predictions/{SLOW}"
    before = running.counted("handler_batch_size_sum_total", ModelName=SLOW)

    def leave(after_s: float) -> None:
        with suppress(requests.RequestException):
            requests.post(url, json={"x": 1}, timeout=(60, after_s))

    with ThreadPoolExecutor(51) as threads:
        first = threads.submit(requests.post, url, json={"x": 2}, timeout=60)
        list(threads.map(leave, [0.01] * 50))
        # On a busy machine those leave before HAProxy has sent their requests on; these do not.
        list(threads.map(leave, [1.0] * 20))
        assert first.result().json() == {"y": 4}
    assert requests.post(url, json={"x": 4}, timeout=60).json() == {"y": 8}
    # A report comes once a second, and an export every few.
    until(lambda: running.counted("handler_abandoned_total", ModelName=SLOW) >= 5, timeout_s=60)
    time.sleep(8)
    # The engine begins some before their clients leave; without cancelling it runs at least 22.
    ran = running.counted("handler_batch_size_sum_total", ModelName=SLOW) - before
    assert 2 <= ran <= 15


class Response(NamedTuple):
    """A response to a client of `load`, and when it came."""

    at_s: float
    status: int
    is_right: bool  # its own answer, or an error that names a retry
    version: str


def load(running: Cluster, clients: int, done: threading.Event) -> list[Response]:
    """Send numbers until it is done."""
    found: list[Response] = []

    def send(number: int) -> None:
        while not done.is_set():
            answer = requests.post(f"{running.http}/predictions/{SLOW}", json={"x": number}, timeout=60)
            is_right = answer.json() == {"y": 2 * number} if answer.ok else "Retry-After" in answer.headers
            version = answer.headers.get("X-Model-Version", "")
            found.append(Response(time.monotonic(), answer.status_code, is_right, version))

    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(send, range(clients)))
    return found


@contextmanager
def loaded(running: Cluster, clients: int) -> Iterator[list[Response]]:
    """Send while the block runs; the responses are complete after it."""
    done, found = threading.Event(), list[Response]()
    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(load, running, clients, done)
        try:
            yield found
        finally:
            done.set()
            found += sending.result()
    assert found
    assert all(each.is_right for each in found)


def test_replica_that_is_killed_under_load_loses_and_crosses_no_answer(running: Cluster, store: Path) -> None:
    running.deploy(models=archives(store, SLOW, replicas=2, cpus=0.5))
    until(lambda: len(running.replicas(SLOW)) == 2, timeout_s=300)
    with loaded(running, 8) as found:
        time.sleep(2)
        os.kill(running.replicas(SLOW)[0], signal.SIGKILL)
        time.sleep(5)
    # HAProxy repeats the requests that the dead replica held.
    assert {each.status for each in found} == {200}
    until(lambda: len(running.replicas(SLOW)) == 2, timeout_s=300)


def test_rolling_update_between_versions_loses_no_request(running: Cluster, store: Path) -> None:
    running.deploy(models=archives(store, SLOW, cpus=0.5))

    def version() -> str:
        return requests.get(f"{running.http}/predictions/{SLOW}", headers=METADATA, timeout=60).headers[
            "X-Model-Version"
        ]

    before = version()
    with loaded(running, 2) as found:
        running.deploy(models=archives(store / NEXT, SLOW, cpus=0.5))
        until(lambda: version() != before, timeout_s=300)
        # The old replica still drains.
        time.sleep(15)
    assert {each.status for each in found} == {200}
    assert {each.version for each in found} == {before, found[-1].version}
    assert found[-1].version not in ("", before)


def test_step_of_load_starts_a_second_replica_and_no_request_fails(
    store: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two raylets: 20 % of a replica's capacity, then 150 %."""
    capacity_per_s, latencies = 1 / SLOW_S, list[tuple[float, float]]()

    def send(due_s: float) -> int:
        answer = requests.post(f"{two.http}/predictions/{SLOW}", json={"x": due_s}, timeout=120)
        latencies.append((due_s, time.monotonic() - due_s))
        assert answer.json() == {"y": 2 * due_s}
        return answer.status_code

    with cluster(tmp_path_factory.mktemp("home"), cpus=(1, 1)) as two, ThreadPoolExecutor(400) as threads:
        two.deploy(models=archives(store, SLOW, replicas=[1, 2], cpus=1, threads=1, ongoing_requests=2))
        assert len(two.replicas(SLOW)) == 1
        sent, due_s, second_s = list[Future[int]](), time.monotonic(), None
        step_s = due_s + LOW_S
        while due_s < step_s + HIGH_S:
            time.sleep(max(0.0, due_s - time.monotonic()))
            sent.append(threads.submit(send, due_s))
            due_s += 1 / (capacity_per_s * (0.2 if due_s < step_s else 1.5))
            if second_s is None and len(two.replicas(SLOW)) == 2:
                second_s = time.monotonic() - step_s
        assert {each.result() for each in sent} == {200}
    late_s = [due_s - step_s for due_s, latency_s in latencies if latency_s > TARGET_S]
    print(json.dumps({"second_replica_s": second_s, "p99_is_back_s": max(late_s, default=0.0)}))
    assert second_s is not None
    assert max(late_s) < HIGH_S - 5
