from pathlib import Path

import pytest

from load.bench import client
from load.bench.__main__ import BENCHMARKS
from load.bench.peers import BenchError
from load.bench.table import spread

HEY = """
Summary:
  Total:	8.4000 secs
  Slowest:	1.3021 secs
  Requests/sec:	41.4286

Status code distribution:
  [200]	336 responses
  [503]	12 responses
"""


def test_client_table_compares_with_connections_and_with_the_loop() -> None:
    rates = {
        "connections": [40.0, 50.0],
        "predict": [39.0, 47.0],
        "predict cpu": [1.5, 1.7],
        "loop": [600.0, 600.0],
        "chunking": [630.0, 600.0],
        "chunking cpu": [0.05, 0.05],
    }
    rows = client.table(rates)
    assert [(spread(row.compared, 2), row.cells()[-1]) for row in rows] == [
        ("0.96 (0.94..0.97)", "ok"),
        ("1.60 (1.50..1.70)", ""),
        ("1.02 (1.00..1.05)", "ok"),
        ("0.05 (0.05..0.05)", ""),
    ]


def test_hey_rate_counts_answers_of_status_200_alone() -> None:
    assert client.hey_rate_per_s(HEY) == pytest.approx(40.0)


@pytest.mark.parametrize("report", ["", HEY.replace("[200]", "[500]")])
def test_hey_without_answers_is_an_error(report: str) -> None:
    with pytest.raises(BenchError, match="hey got no answers"):
        client.hey_rate_per_s(report)


def test_peer_is_hey_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert client.peer() == "closed loop of 48"
    (tmp_path / "hey").write_text("#!/bin/sh\n")
    (tmp_path / "hey").chmod(0o755)
    assert client.peer() == "hey -c 48"


def test_client_is_one_of_the_benchmarks() -> None:
    assert BENCHMARKS["client"] is client.run
