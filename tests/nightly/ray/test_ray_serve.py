"""Ray Serve and a TorchServe with the same archives answer the same; clients leave, replicas die, load grows."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import yaml
from hypothesis import HealthCheck, given, settings

from deploy.models import ModelEntry
from deploy.run.server import Server
from tests.e2e import echo
from tests.e2e.conftest import Registrations
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
from tests.nightly.ray.cluster import Cluster, cluster
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
SLOW_S = 0.3


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
    archive(echo.entry(tmp_path_factory.mktemp("echo")), engine="auto")
    archive(ModelEntry(SLOW, "tensors", "1", folder, {"path": "infer.py"}), engine="auto")
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


@pytest.fixture(name="server")
def ray_as_server(ray: Cluster) -> Any:
    """Return the part of a TorchServe that the tables use: the URL of its predictions."""
    return SimpleNamespace(settings=SimpleNamespace(inference_url=ray.http))


@pytest.fixture(scope="module", name="torchserve")
def torchserve_with_the_same_archives(request: pytest.FixtureRequest, store: Path) -> Iterator[Server]:
    from deploy.sandbox import run_server  # noqa: PLC0415

    with run_server(store) as found:
        registrations = Registrations(found)
        for name in (MOBILENET, LANGUAGES):
            registrations.serve(name, f"{name}.mar", {"batch_size": 8, "max_batch_delay_ms": 1, "workers": 1})
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
        assert ours.status_code == theirs.status_code, (theirs.text, ours.text)

    holds()


def test_ports_of_haproxy_are_on_loopback_and_the_dashboard_wants_a_token(ray: Cluster) -> None:
    assert ray.listening() == {"127.0.0.1"}
    assert requests.get(f"{ray._dashboard}/api/serve/applications/", timeout=60).status_code == 401


def test_clients_that_disconnect_leave_no_waiting_request_to_run(running: Cluster, store: Path) -> None:
    running.deploy(models=archives(store, SLOW, cpus=0.5))
    before = running.counted("handler_batch_size_sum_total", ModelName=SLOW)

    def leave(after_s: float) -> None:
        with suppress(requests.RequestException):
            requests.post(f"{running.http}/predictions/{SLOW}", json={"x": 1}, timeout=(60, after_s))

    # On a busy machine the first leave before HAProxy has sent their requests on, and the others do not.
    with ThreadPoolExecutor(50) as threads:
        list(threads.map(leave, [0.01] * 50))
        list(threads.map(leave, [1.0] * 20))
    answer = requests.post(f"{running.http}/predictions/{SLOW}", json={"x": 4}, timeout=60)
    assert answer.json() == {"y": 8}
    until(lambda: running.counted("handler_abandoned_total", ModelName=SLOW) >= 5, timeout_s=60)
    # A report comes once a second, and an export every few.
    time.sleep(8)
    # Those of clients that were first while the engine was free, and the last request: 71 without cancelling.
    assert running.counted("handler_batch_size_sum_total", ModelName=SLOW) - before <= 20


def load(running: Cluster, clients: int, done: threading.Event) -> list[tuple[float, int, bool]]:
    """Send numbers until it is done: when each answer came, its status, and whether it is right or names a retry."""
    found: list[tuple[float, int, bool]] = []

    def send(number: int) -> None:
        while not done.is_set():
            answer = requests.post(f"{running.http}/predictions/{SLOW}", json={"x": number}, timeout=60)
            is_right = answer.json() == {"y": 2 * number} if answer.ok else "Retry-After" in answer.headers
            found.append((time.monotonic(), answer.status_code, is_right))

    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(send, range(clients)))
    return found


def test_replica_that_is_killed_under_load_crosses_no_answers(running: Cluster, store: Path) -> None:
    running.deploy(models=archives(store, SLOW, replicas=2, cpus=0.5))
    until(lambda: len(running.replicas(SLOW)) == 2, timeout_s=300)
    done = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(load, running, 8, done)
        time.sleep(2)
        os.kill(running.replicas(SLOW)[0], signal.SIGKILL)
        time.sleep(5)
        done.set()
        found = sending.result()
    assert {status for _, status, _ in found} <= {200, 503}
    assert all(is_right for _, _, is_right in found)
    until(lambda: len(running.replicas(SLOW)) == 2, timeout_s=300)


def test_rolling_update_loses_no_request(running: Cluster, store: Path) -> None:
    running.deploy(models=archives(store, SLOW, cpus=0.5))
    (before,) = running.replicas(SLOW)
    done = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(load, running, 2, done)
        # Other settings of the deployment's constructor are another version of it, as another archive is.
        running.deploy(models=archives(store, SLOW, threads=1, cpus=0.5))
        until(lambda: running.replicas(SLOW) not in ([before], []), timeout_s=300)
        time.sleep(3)
        done.set()
        found = sending.result()
    assert {status for _, status, _ in found} == {200}
    assert all(is_right for _, _, is_right in found)


def test_two_raylets_start_a_second_replica_under_load_and_no_request_fails(
    store: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with cluster(tmp_path_factory.mktemp("home"), cpus=(1, 1)) as two:
        two.deploy(models=archives(store, SLOW, replicas=[1, 2], cpus=1, threads=1, ongoing_requests=2))
        assert len(two.replicas(SLOW)) == 1
        done = threading.Event()
        with ThreadPoolExecutor(1) as thread:
            started_s = time.monotonic()
            sending = thread.submit(load, two, 6, done)
            until(lambda: len(two.replicas(SLOW)) == 2, timeout_s=120)
            print(json.dumps({"second_replica_s": round(time.monotonic() - started_s, 1)}))
            time.sleep(5)
            done.set()
            found = sending.result()
    assert {status for _, status, _ in found} == {200}
    assert all(is_right for _, _, is_right in found)
