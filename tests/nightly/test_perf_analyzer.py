"""NVIDIA's perf_analyzer against the gateway, in its default service kind, as Triton's tutorials call it."""

import csv
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from deploy import sandbox
from deploy.models import ROOT
from deploy.run.server import Server
from deploy.sandbox import Sandbox
from tests.e2e import echo
from tests.e2e.conftest import Registrations
from tests.waiting import until

PROGRAM = ROOT / ".perf_analyzer" / "bin" / "perf_analyzer"
LIBRARIES = ROOT / ".perf_analyzer" / "nvidia" / "cuda_runtime" / "lib"
MODEL = "language-id"
# Whatever the windows show counts as stable: it is the calls that are tried here. Shorter ones could end before the
# handlers' counts, which come once a second, have moved, and it takes a model without any for one that is not there.
SHORT = ("--measurement-interval", "1500", "--max-trials", "5", "--stability-percentage", "999")
# Name of a run -> its protocol and its options.
LOADS = {
    "a range of concurrency": ("http", ("--concurrency-range", "1:4:3")),
    "a range of rates": ("grpc", ("--request-rate-range", "20:40:20", "--request-distribution", "poisson")),
    "asynchronous": ("grpc", ("--async", "--concurrency-range", "4")),
    "several rows in JSON": ("http", ("-b", "4", "--input-tensor-format", "json", "--output-tensor-format", "json")),
}


@pytest.fixture(scope="module")
def gateway(
    server: Server, archive: Callable[..., str], registrations: Registrations, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    """In front of a model of texts, and of one with an input and an output of every datatype."""
    parameters = {"batch_size": 8, "max_batch_delay_ms": 1, "workers": 1}
    registrations.serve(MODEL, archive(MODEL), parameters)
    entry = echo.entry(tmp_path_factory.mktemp("echo"))
    registrations.serve(echo.NAME, archive(entry, engine="auto"), parameters)
    with sandbox.run_gateway([sandbox.make_node(server)]) as running:
        for name in (MODEL, echo.NAME):
            until(lambda name=name: is_served(running, name))  # type: ignore[misc]
        yield running


def is_served(gateway: Sandbox, name: str) -> bool:
    """Whether the gateway says what a model takes, and a worker refuses what is wrong."""
    answer = requests.get(f"{gateway.http}/v2/models/{name}", timeout=10)
    is_described = answer.status_code == 200 and bool(answer.json()["inputs"])
    url, json_type = f"{gateway.http}/predictions/{name}", {"Content-Type": "application/json"}
    return is_described and requests.post(url, data=b"{}", headers=json_type, timeout=60).status_code == 400


def perf_analyzer(
    gateway: Sandbox, protocol: str, *arguments: str, name: str = MODEL
) -> subprocess.CompletedProcess[str]:
    """Run it; the model's inputs come from what the gateway says of them."""
    address = gateway.grpc if protocol == "grpc" else gateway.http.removeprefix("http://")
    return subprocess.run(
        [str(PROGRAM), "-m", name, "-i", protocol, "-u", address, *SHORT, *arguments],
        env={**os.environ, "LD_LIBRARY_PATH": str(LIBRARIES)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def measured(gateway: Sandbox, report: Path, protocol: str, *arguments: str, name: str = MODEL) -> None:
    """Run it, and check that each of its measurements has answers, and the server's times from its statistics."""
    finished = perf_analyzer(gateway, protocol, *arguments, "-f", str(report), name=name)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "error" not in finished.stderr.lower(), finished.stderr
    with report.open() as file:
        rows = list(csv.DictReader(file))
    assert rows, finished.stdout
    for row in rows:
        assert float(row["Inferences/Second"]) > 0, row
        assert float(row["Server Compute Infer"]) > 0, row


@pytest.mark.parametrize("load", LOADS)
def test_perf_analyzer_measures_through_the_gateway(gateway: Sandbox, tmp_path: Path, load: str) -> None:
    protocol, arguments = LOADS[load]
    data = tmp_path / "input.json"
    data.write_text(json.dumps({"data": [{"text": ["hello world"]}, {"text": ["Bonjour, le monde"]}]}))
    measured(gateway, tmp_path / "report.csv", protocol, "--input-data", str(data), *arguments)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_makes_inputs_of_every_datatype_from_the_metadata(
    gateway: Sandbox, tmp_path: Path, protocol: str
) -> None:
    # The caller sets the free dimensions of a shape; the rows are those of the batch.
    shapes = [word for name in echo.DATATYPES for word in ("--shape", f"{name}:3,2")]
    measured(gateway, tmp_path / "report.csv", protocol, "-b", "2", *shapes, name=echo.NAME)
    too_many = perf_analyzer(gateway, protocol, "-b", str(echo.MOST_ROWS + 1), *shapes, name=echo.NAME)
    assert too_many.returncode != 0
    assert "batch" in too_many.stderr, too_many.stderr
