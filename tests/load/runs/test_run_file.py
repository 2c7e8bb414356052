"""run.json: what is in it, and that it comes back."""

import json
from pathlib import Path

import pytest

from load.errors import BadRun, CannotWrite
from load.runs.run_file import Run
from tests.load.stored_runs import run


@pytest.mark.parametrize("name", ["run.json", "folder/run.json.gz"])
def test_run_that_was_saved_is_read_again(tmp_path: Path, name: str) -> None:
    original = run()
    original.save(tmp_path / name)
    assert Run.read(tmp_path / name) == original


def test_run_json_has_the_documented_fields(tmp_path: Path) -> None:
    run().save(tmp_path / "run.json")
    stored = json.loads((tmp_path / "run.json").read_text())
    step = stored["steps"][0]
    assert stored["schema"] == "load-run/1"
    assert (step["kind"], step["value"], step["is_valid"], step["invalid_reason"]) == ("concurrency", 8, True, None)
    assert (step["throughput_per_s"], step["goodput_per_s"]) == (50.0, 25.0)
    assert list(step["latency_ms"]) == ["min", "mean", "p50", "p90", "p95", "p99", "p99.9", "max"]
    assert step["latency_ms"]["p50"] == pytest.approx(50, rel=1e-3)
    assert step["status"] == {"200": 500, "503": 1}
    assert step["connection_errors"] == {"ServerDisconnectedError": 1}
    assert step["requests"] == 502
    assert step["in_time_percent"] == pytest.approx(100 * 250 / 502)
    assert step["requests_by_batch_size"] == {"4": 500}
    assert step["mean_batch_size"] == 4
    assert step["server_ms"] == {"queue": 5, "decode": 2, "wait": 1, "forward": 40, "encode": 0.5}
    assert {len(column) for column in step["exchanges"].values()} == {502}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        (b"", "holds no run"),
        (b"[]", "holds no run"),
        (b'{"steps": []}', "holds no run"),
    ],
)
def test_file_that_is_no_run_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "run.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadRun, match=message):
        Run.read(path)


def test_file_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run().save(path)
    path.write_text(path.read_text().replace("load-run/1", "load-run/0"))
    with pytest.raises(BadRun, match="load-run/0, this program reads load-run/1"):
        Run.read(path)


def test_compressed_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json.gz").write_bytes(b"not gzip")
    with pytest.raises(BadRun):
        Run.read(tmp_path / "run.json.gz")


def test_run_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite, match="cannot write"):
        run().save(tmp_path / "file" / "run.json")
