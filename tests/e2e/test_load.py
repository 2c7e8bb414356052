"""The load generator on a real TorchServe."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.models import ROOT
from deploy.run.server import Server
from load.__main__ import main
from tests.e2e.conftest import MOBILENET

EXAMPLE = ROOT / "examples" / MOBILENET


def arguments(server: Server, *more: str) -> list[str]:
    addresses = ["-u", server.settings.inference_url, "--management-url", server.settings.management_url]
    return ["run", *addresses, "-m", MOBILENET, "-i", str(EXAMPLE / "espresso.jpg"), *more]


def test_load_on_torchserve_measures_throughput_batches_and_right_answers(
    server: Server, serve: Callable[..., str], tmp_path: Path
) -> None:
    serve()
    out, page = tmp_path / "run.json", tmp_path / "page.html"
    expected = str(EXAMPLE / "espresso.expected.json")
    more = ["--concurrency", "1,8", "--duration", "2s", "--expect", expected, "-o", str(out), "--html", str(page)]
    assert main(arguments(server, *more)) == 0
    run = json.loads(out.read_text())
    (one, eight), batch_size = run["steps"], run["registration"]["batchSize"]
    for step in (one, eight):
        assert step["is_valid"], step["invalid_reason"]
        assert (step["status"], step["answers"]) == ({"200": step["requests"]}, {"right": step["requests"]})
        assert step["server_ms"].keys() >= {"decode", "wait", "forward", "encode"}
        assert step["server_ms"]["forward"] < step["latency_ms"]["mean"]
    assert one["mean_batch_size"] == 1 < eight["mean_batch_size"] <= batch_size == 8
    # One client: what it waited for is all there is; its rate is the inverse of its mean latency.
    assert one["throughput_per_s"] == pytest.approx(1e3 / one["latency_ms"]["mean"], rel=0.2)
    # The page draws the load of the highest rate: on a machine that stalls it may be the single client's.
    best = "8 clients" if eight["throughput_per_s"] >= one["throughput_per_s"] else "1 client"
    assert f"Batch sizes, {best}" in page.read_text()


def test_load_on_a_model_that_is_not_there_names_those_that_are(
    server: Server, serve: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    serve()
    assert main(arguments(server, "--concurrency", "1", "-m", "absent")) == 2
    assert f"model absent is not registered; registered: {MOBILENET}" in capsys.readouterr().err
