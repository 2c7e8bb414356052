"""NVIDIA's perf_analyzer against the gateway, in its default service kind, as Triton's tutorials call it."""

import csv
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from deploy.models import ROOT
from deploy.nodes.run.server import Server
from load import sandbox
from load.sandbox import Sandbox
from tests.e2e import echo
from tests.e2e.conftest import Make, Registrations
from tests.waiting import until

FOLDER = ROOT / ".perf_analyzer"
MODEL = "language-id"
# Whatever the windows show counts as stable: it is the calls that are tried here. Shorter ones could end before the
# handlers' counts, which come once a second, have moved, and it takes a model without any for one that is not there.
SHORT = ("--measurement-interval", "1500", "--max-trials", "5", "--stability-percentage", "999")
JSON = ("--input-tensor-format", "json", "--output-tensor-format", "json")
# The caller sets the free dimensions of a shape; the rows are those of the batch.
SHAPES = [word for name in echo.DATATYPES for word in ("--shape", f"{name}:3,2")]
# Name of a run -> its model, its protocol and its options; without data the inputs come from the metadata.
RUNS = {
    "a range of concurrency": (MODEL, "http", ["--concurrency-range", "1:4:3"]),
    "a range of rates": (MODEL, "grpc", ["--request-rate-range", "20:40:20", "--request-distribution", "poisson"]),
    "asynchronous": (MODEL, "grpc", ["--async", "--concurrency-range", "4"]),
    "several rows in JSON": (MODEL, "http", ["-b", "4", *JSON]),
    "every datatype over http": (echo.NAME, "http", ["-b", "2", *SHAPES]),
    "every datatype over grpc": (echo.NAME, "grpc", ["-b", "2", *SHAPES]),
}


@pytest.fixture(scope="module")
def gateway(
    server: Server, archive: Make, registrations: Registrations, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    """In front of a model of texts, and of one with an input and an output of every datatype."""
    files = {MODEL: archive(MODEL), echo.NAME: archive(echo.entry(tmp_path_factory.mktemp("echo")))}
    for name, file in files.items():
        registrations.serve(name, file, {"batch_size": 8, "max_batch_delay_ms": 1, "workers": 1})
    with sandbox.run_gateway([sandbox.make_node(server)]) as running:
        for name in files:
            until(lambda name=name: is_served(running, name))  # type: ignore[misc]
        yield running


def is_served(gateway: Sandbox, name: str) -> bool:
    """Whether the gateway says what a model takes, and a worker refuses what is wrong."""
    answer = requests.get(f"{gateway.http}/v2/models/{name}", timeout=10)
    is_described = answer.status_code == 200 and bool(answer.json()["inputs"])
    return is_described and requests.post(f"{gateway.http}/predictions/{name}", json={}, timeout=60).status_code == 400


def perf_analyzer(gateway: Sandbox, name: str, protocol: str, *options: str) -> subprocess.CompletedProcess[str]:
    address = gateway.grpc if protocol == "grpc" else gateway.http.removeprefix("http://")
    words = [f"{FOLDER}/bin/perf_analyzer", "-m", name, "-i", protocol, "-u", address, *SHORT, *options]
    libraries = {**os.environ, "LD_LIBRARY_PATH": str(FOLDER / "nvidia" / "cuda_runtime" / "lib")}
    return subprocess.run(words, env=libraries, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("run", RUNS)
def test_perf_analyzer_measures_through_the_gateway(gateway: Sandbox, tmp_path: Path, run: str) -> None:
    """Each of its measurements has answers, and the server's times from its statistics."""
    name, protocol, options = RUNS[run]
    report, data = tmp_path / "report.csv", tmp_path / "input.json"
    if name == MODEL:
        data.write_text(json.dumps({"data": [{"text": ["hello world"]}, {"text": ["Bonjour, le monde"]}]}))
        options = [*options, "--input-data", str(data)]
    finished = perf_analyzer(gateway, name, protocol, *options, "-f", str(report))
    assert finished.returncode == 0 and "error" not in finished.stderr.lower(), finished.stdout + finished.stderr
    with report.open() as file:
        rows = list(csv.DictReader(file))
    assert rows, finished.stdout
    assert all(float(row[each]) > 0 for row in rows for each in ("Inferences/Second", "Server Compute Infer")), rows
    if name == echo.NAME:
        too_many = perf_analyzer(gateway, name, protocol, "-b", str(echo.MOST_ROWS + 1), *SHAPES)
        assert too_many.returncode != 0 and "batch" in too_many.stderr, too_many.stderr
