"""Ray Serve and a TorchServe with the same archives answer the same; replicas die and are replaced."""

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
