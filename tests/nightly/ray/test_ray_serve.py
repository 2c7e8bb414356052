"""Ray Serve and a TorchServe with the same archives answer the same; replicas die and are replaced."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import yaml
from hypothesis import HealthCheck, given, settings
from openapi_spec_validator import validate

from deploy.archives.archive import Recipe
from deploy.models import ModelEntry
from deploy.nodes.run.server import Server
from load.sandbox import run_server
from tests import retrieval_rows as rows
from tests.e2e import echo
from tests.e2e.conftest import ADAPTIVE, MOBILENET, Make, vary

# The conformance tables of tests/e2e, which find `lab` and `server` here.
from tests.e2e.test_conformance import (  # noqa: F401
    EMBEDDING,
    LANGUAGES,
    Clients,
    test_inference_is_that_of_predictions_by_every_client_in_either_mode,
    test_media_type_selects_the_reader_of_a_body,
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

pytestmark = pytest.mark.timeout(1200)

SLOW, SLOW_S = "slow", 0.3
LANGUAGES_ADAPTIVE = "language-id-adaptive"
# Folder of the model store with the next version of it.
NEXT = "next"


@pytest.fixture(scope="module")
def store(archive: Make, model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archives of a trained model of images, of texts, of every datatype, and of a slow function."""
    folder = tmp_path_factory.mktemp("slow")
    (folder / "infer.py").write_text(
        f"import time\n\n\ndef infer(x):\n    time.sleep({SLOW_S})\n    return {{'y': x * 2}}\n"
    )
    (folder / "model-config.yaml").write_text(yaml.safe_dump({"handler": {"max_batch_items": 1}}))
    archive(EMBEDDING)
    archive(LANGUAGES)
    # For TorchServe: Ray Serve schedules every model as adaptive mode does, and classic mode ignores X-Priority.
    adaptive = {"scheduling": {"mode": "adaptive"}}
    vary(model_store, LANGUAGES_ADAPTIVE, archive(LANGUAGES, archive_format="no-archive"), adaptive, ADAPTIVE)
    archive(echo.entry(tmp_path_factory.mktemp("echo")))
    for version, place in (("1", model_store), ("2", model_store / NEXT)):
        Recipe(ModelEntry(SLOW, "tensors", version, folder, {"path": "infer.py"}), export_path=place).build()
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


@pytest.fixture
def server(ray: Cluster) -> Any:
    """Return the part of a TorchServe that the tables use: the URL of its predictions."""
    return SimpleNamespace(settings=SimpleNamespace(inference_url=ray.http))


@pytest.fixture(scope="module")
def torchserve(store: Path) -> Iterator[Server]:
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
        sent: dict[str, Any] = {"data": part.value}
        if more:
            sent = {"files": [(each.name, (None, each.value)) for each in request.parts if each.name]}
            encoded.pop("Content-Type")
        theirs, ours = both(ray, torchserve, f"/predictions/{LANGUAGES}", headers=encoded, **sent)
        # A form that Netty cannot decode is the client's fault. Only Ray inflates bodies, and these are not compressed.
        is_fault = "ErrorDataDecoderException" in theirs.text or request.headers.get("Content-Encoding") == "gzip"
        expected = 400 if is_fault else theirs.status_code
        assert ours.status_code == expected, (theirs.text, ours.text)

    holds()


def test_every_port_is_on_loopback_and_the_dashboard_wants_a_token(ray: Cluster) -> None:
    # HAProxy may start again for a change.
    until(lambda: {name for name, _ in ray.listening()} >= {"gcs_server", "haproxy", "raylet"})
    assert [each for each in ray.listening() if each[1] not in ("127.0.0.1", "::ffff:127.0.0.1")] == []
    assert requests.get(f"{ray.dashboard}/api/serve/applications/", timeout=60).status_code == 401


def test_host_on_loopback_is_rejected_if_ray_listens_elsewhere(running: Cluster) -> None:
    program = "from deploy.hosts.ray.app import archive; import sys; print(archive({'host': sys.argv[1], **ARGS}))"
    program = program.replace("ARGS", str({"archive": "a", "threads": 1, "gpu": False}))
    variables = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH")
    for host, missing in product(("0.0.0.0", "127.0.0.1"), (*variables, None)):  # noqa: S104
        env = {name: value for name, value in running.env.items() if name != missing}
        words = [str(BIN / "python"), "-c", program, host]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=120)
        is_rejected = host == "127.0.0.1" and missing is not None
        assert (done.returncode, f"host is {host}" in done.stderr) == (is_rejected, is_rejected), done.stderr


def test_models_beyond_one_vector_answer_as_in_one_process_and_the_host_describes_them(
    running: Cluster, archive: Make, model_store: Path, tmp_path: Path
) -> None:
    for entry, weights in rows.entries(tmp_path / "models"):
        archive(entry, weights, comparisons=None)
    with rows.one_process(model_store) as url:
        expected = rows.answers(url)
    running.deploy(models=archives(model_store, *rows.MODELS, cpus=0.2))
    rows.assert_as_one_process(running.http, expected)

    def get(path: str) -> requests.Response:
        return requests.get(running.http + path, timeout=60)

    assert (get("/v2/health/deep").status_code, get("/v2/health/deep").json()) == (200, {"ready": True})
    document = get("/openapi.json").json()
    validate(document)
    named = {path for path, *_ in rows.ROWS} | {f"/v2/models/{name}/infer" for name in rows.MODELS}
    assert named <= {*document["paths"], "/predictions/chunks"}
    files = re.findall(r'(?:src|href)="(/page/[^"]+)"', get("/docs").text)
    assert files and all(get(file).status_code == 200 for file in files)
    running.withdraw("m3")
    until(lambda: get("/v2/health/deep").status_code == 503)
    assert [*get("/v2/health/deep").json()["problems"]] == ["m3"]


@contextmanager
def loaded(running: Cluster, clients: int) -> Iterator[list[str]]:
    """Send numbers while the block runs; yield the versions that answered. Every answer is the request's own."""
    done, versions = threading.Event(), list[str]()

    def send(number: int) -> None:
        while not done.is_set():
            answer = requests.post(f"{running.http}/predictions/{SLOW}", json={"x": number}, timeout=60)
            assert (answer.status_code, answer.json()) == (200, {"y": 2 * number})
            versions.append(answer.headers["X-Model-Version"])

    with ThreadPoolExecutor(clients) as threads:
        sending = [threads.submit(send, number) for number in range(clients)]
        try:
            yield versions
        finally:
            done.set()
        assert [each.result() for each in sending] == [None] * clients


def test_replica_that_is_killed_under_load_loses_and_crosses_no_answer(running: Cluster, store: Path) -> None:
    running.deploy(models=archives(store, SLOW, replicas=2, cpus=0.5))
    until(lambda: len(running.replicas(SLOW)) == 2, timeout_s=300)
    with loaded(running, 8):
        time.sleep(2)
        # HAProxy repeats the requests that the dead replica held.
        os.kill(running.replicas(SLOW)[0], signal.SIGKILL)
        time.sleep(5)
    until(lambda: len(running.replicas(SLOW)) == 2, timeout_s=300)


def test_rolling_update_between_versions_loses_no_request(running: Cluster, store: Path) -> None:
    running.deploy(models=archives(store, SLOW, cpus=0.5))
    with loaded(running, 2) as versions:
        until(lambda: versions)
        running.deploy(models=archives(store / NEXT, SLOW, cpus=0.5))
        until(lambda: versions[-1] != versions[0], timeout_s=300)
        # The old replica still drains.
        time.sleep(15)
    assert {versions[0], versions[-1]} == {*versions} and versions[0] != versions[-1]
