"""NVIDIA's perf_analyzer against the gateway, in its default service kind, as Triton's tutorials call it."""

import csv
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from deploy.gateway import sandbox
from deploy.models import ROOT
from deploy.server import Server
from tests.e2e import echo
from tests.e2e.conftest import Registrations

PROGRAM = ROOT / ".perf_analyzer" / "bin" / "perf_analyzer"
LIBRARIES = ROOT / ".perf_analyzer" / "nvidia" / "cuda_runtime" / "lib"
MODEL = "language-id"
# Whatever the windows show counts as stable: it is the calls that are tried here. Shorter ones could end before the
# handlers' counts, which come once a second, have moved, and it takes a model without any for one that is not there.
SHORT = ("--measurement-interval", "1500", "--max-trials", "5", "--stability-percentage", "999")
# Over HTTP alone.
JSON = "JSON tensors"
LOADS = {
    "one client": (),
    "a range of concurrency": ("--concurrency-range", "1:4:3"),
    "a range of rates": ("--request-rate-range", "20:40:20"),
    "a range of rates, Poisson": ("--request-rate-range", "20", "--request-distribution", "poisson"),
    "a search within a latency": ("--concurrency-range", "1:8", "--binary-search", "--latency-threshold", "5000"),
    "a latency that ends it": ("--concurrency-range", "1:2:1", "--latency-threshold", "5000"),
    "asynchronous": ("--async", "--concurrency-range", "4"),
    "several rows": ("-b", "4"),
    JSON: ("--input-tensor-format", "json", "--output-tensor-format", "json"),
}


@pytest.fixture(scope="module")
def gateway(server: Server, archive: Callable[..., str], registrations: Registrations) -> Iterator[sandbox.Sandbox]:
    registrations.serve(MODEL, archive(MODEL), {"batch_size": 8, "max_batch_delay_ms": 1, "workers": 1})
    with sandbox.started([sandbox.node_of(server)]) as running:
        wait_served(running, MODEL)
        yield running


@pytest.fixture(scope="module")
def tensors(
    gateway: sandbox.Sandbox,
    archive: Callable[..., str],
    registrations: Registrations,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """A model with an input and an output of every datatype."""
    entry = echo.entry(tmp_path_factory.mktemp("tensors"))
    file = archive(entry, engine="auto")
    registrations.serve(entry.name, file, {"batch_size": 8, "max_batch_delay_ms": 1, "workers": 1})
    wait_served(gateway, entry.name)
    return entry.name


def wait_served(gateway: sandbox.Sandbox, name: str) -> None:
    """Wait until the gateway knows a model, which is within 10 s of its registration, and what it takes."""
    deadline = time.monotonic() + 30
    while not described(gateway, name):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def described(gateway: sandbox.Sandbox, name: str) -> bool:
    answer = requests.get(f"{gateway.http}/v2/models/{name}", timeout=10)
    is_described = answer.status_code == 200 and bool(answer.json()["inputs"])
    # Envoy asks after each node's health by itself: a worker is reached where one refuses what is wrong.
    url, json_type = f"{gateway.http}/predictions/{name}", {"Content-Type": "application/json"}
    return is_described and requests.post(url, data=b"{}", headers=json_type, timeout=60).status_code == 400


def perf_analyzer(
    gateway: sandbox.Sandbox, protocol: str, *arguments: str, name: str = MODEL
) -> subprocess.CompletedProcess[str]:
    """Run it; the model's inputs come from what the gateway says of them."""
    address = gateway.grpc if protocol == "grpc" else gateway.http.removeprefix("http://")
    return subprocess.run(
        [str(PROGRAM), "-m", name, "-i", protocol, "-u", address, *SHORT, *arguments],
        env={**os.environ, "LD_LIBRARY_PATH": str(LIBRARIES)},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )


@pytest.mark.parametrize(
    ("protocol", "load"), [*(("http", load) for load in LOADS), *(("grpc", load) for load in LOADS if load != JSON)]
)
def test_perf_analyzer_measures_through_the_gateway(
    gateway: sandbox.Sandbox, tmp_path: Path, protocol: str, load: str
) -> None:
    data, report = tmp_path / "input.json", tmp_path / "report.csv"
    data.write_text(json.dumps({"data": [{"text": ["hello world"]}, {"text": ["Bonjour, le monde"]}]}))
    arguments = ("--input-data", str(data), "-f", str(report), *LOADS[load])
    finished = perf_analyzer(gateway, protocol, *arguments)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    with report.open() as file:
        rows = list(csv.DictReader(file))
    assert rows, finished.stdout
    # The server's times come from its statistics.
    for row in rows:
        assert float(row["Inferences/Second"]) > 0, row
        assert float(row["Server Compute Infer"]) > 0, row
    assert "error" not in finished.stderr.lower(), finished.stderr


def test_perf_analyzer_makes_inputs_of_its_own_from_the_metadata(gateway: sandbox.Sandbox) -> None:
    finished = perf_analyzer(gateway, "grpc", "--string-length", "20")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "throughput" in finished.stdout


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_makes_tensors_of_every_datatype(
    gateway: sandbox.Sandbox, tensors: str, tmp_path: Path, protocol: str
) -> None:
    report = tmp_path / "report.csv"
    # What is free of a shape, the caller says; the rows are those of the batch.
    shapes = [word for name in echo.DATATYPES for word in ("--shape", f"{name}:3,2")]
    arguments = ("-b", "2", "--concurrency-range", "2", "-f", str(report), *shapes)
    finished = perf_analyzer(gateway, protocol, *arguments, name=tensors)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    with report.open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["Inferences/Second"]) > 0, row
    assert float(row["Server Compute Infer"]) > 0, row
    assert "error" not in finished.stderr.lower(), finished.stderr


def test_perf_analyzer_is_told_how_many_rows_a_request_may_have(gateway: sandbox.Sandbox, tensors: str) -> None:
    shapes = [word for name in echo.DATATYPES for word in ("--shape", f"{name}:3,2")]
    finished = perf_analyzer(gateway, "grpc", "-b", str(echo.MOST_ROWS + 1), *shapes, name=tensors)
    assert finished.returncode != 0
    assert "batch" in finished.stderr, finished.stderr
