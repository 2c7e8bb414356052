"""Counters of nodes that restart and go, summed so that they never fall."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.gateway.scrape import Series, parse
from deploy.gateway.statistics import Totals

COUNTERS = """\
handler_requests_total{{ModelName="m",ModelVersion="1.0",Outcome="success",Hostname="vm",}} {requests}
handler_requests_total{{ModelName="m",ModelVersion="1.0",Outcome="fail",Hostname="vm",}} 2
handler_requests_total{{ModelName="m",ModelVersion="2.0",Outcome="success",Hostname="vm",}} 99
handler_request_seconds_total{{ModelName="m",ModelVersion="1.0",Outcome="success",Hostname="vm",}} 0.25
handler_queue_seconds_total{{ModelName="m",ModelVersion="1.0",Hostname="vm",}} 0.125
handler_wait_seconds_count{{ModelName="m",ModelVersion="1.0",Hostname="vm",}} 20
handler_items_total{{ModelName="m",ModelVersion="1.0",Hostname="vm",}} 18
handler_executions_total{{ModelName="m",ModelVersion="1.0",Size="8",Hostname="vm",}} 2
handler_executions_total{{ModelName="m",ModelVersion="1.0",Size="2",Hostname="vm",}} 1
handler_execution_seconds_total{{ModelName="m",ModelVersion="1.0",Size="8",Phase="infer",Hostname="vm",}} 0.5
handler_execution_seconds_total{{ModelName="m",ModelVersion="1.0",Size="2",Phase="infer",Hostname="vm",}} 0.25
handler_execution_seconds_total{{ModelName="m",ModelVersion="1.0",Size="8",Phase="input",Hostname="vm",}} 0.0625
"""


def counters(requests: float) -> dict[Series, float]:
    return parse(COUNTERS.format(requests=requests))


def test_statistics_of_one_node_are_tritons(tmp_path: Path) -> None:
    totals = Totals(tmp_path / "statistics.json")
    totals.add({"n1": counters(10)}, 1234)
    nothing = {"count": 0, "ns": 0}
    assert totals.statistics("m", "1.0") == {
        "last_inference": 1234,
        "inference_count": 18,
        "execution_count": 3,
        "inference_stats": {
            "success": {"count": 10, "ns": 250_000_000},
            "fail": {"count": 2, "ns": 0},
            "queue": {"count": 20, "ns": 125_000_000},
            "compute_input": {"count": 3, "ns": 62_500_000},
            "compute_infer": {"count": 3, "ns": 750_000_000},
            "compute_output": {"count": 3, "ns": 0},
            "cache_hit": nothing,
            "cache_miss": nothing,
        },
        "batch_stats": [
            {
                "batch_size": 2,
                "compute_input": {"count": 1, "ns": 0},
                "compute_infer": {"count": 1, "ns": 250_000_000},
                "compute_output": {"count": 1, "ns": 0},
            },
            {
                "batch_size": 8,
                "compute_input": {"count": 2, "ns": 62_500_000},
                "compute_infer": {"count": 2, "ns": 500_000_000},
                "compute_output": {"count": 2, "ns": 0},
            },
        ],
        "memory_usage": [],
        "response_stats": {},
    }
    assert totals.statistics("unknown", "1.0")["inference_count"] == 0


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([{"n1": 10}, {"n1": 15}], 15),
        ([{"n1": 10}, {"n2": 5}, {"n1": 10, "n2": 6}], 16),
        # Restarted, and counted to 3 since.
        ([{"n1": 10}, {"n1": 3}, {"n1": 4}], 14),
        # Gone for good, or for a while.
        ([{"n1": 10}, {}, {"n2": 1}], 11),
        ([{"n1": 10}, {}, {"n1": 12}], 12),
    ],
)
def test_sums_over_nodes_that_come_and_go(tmp_path: Path, seen: list[dict[str, float]], expected: int) -> None:
    totals = Totals(tmp_path / "statistics.json")
    for scraped in seen:
        totals.add({node: counters(value) for node, value in scraped.items()}, 0)
    assert totals.statistics("m", "1.0")["inference_stats"]["success"]["count"] == expected


@given(st.lists(st.dictionaries(st.sampled_from(["n1", "n2"]), st.integers(0, 50)), max_size=20))
def test_sums_never_fall(scrapes: list[dict[str, int]]) -> None:
    totals = Totals(Path("/nonexistent/statistics.json"))
    before = 0
    for scraped in scrapes:
        totals.add({node: counters(value) for node, value in scraped.items()}, 0)
        now = totals.statistics("m", "1.0")["inference_stats"]["success"]["count"]
        assert now >= before
        before = now


def test_sums_outlive_the_process_and_count_what_came_meanwhile(tmp_path: Path) -> None:
    first = Totals(tmp_path / "statistics.json")
    first.add({"n1": counters(10)}, 1000)
    first.save()
    second = Totals(tmp_path / "statistics.json")
    assert second.statistics("m", "1.0") == first.statistics("m", "1.0")
    second.add({"n1": counters(13)}, 2000)
    assert second.statistics("m", "1.0")["inference_stats"]["success"]["count"] == 13
    assert second.statistics("m", "1.0")["last_inference"] == 2000


@pytest.mark.parametrize("text", ["", "{", "[]", '{"sums": [[1]], "last": {}, "last_ms": []}', '{"sums": 3}'])
def test_file_that_cannot_be_read_begins_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "statistics.json").write_text(text)
    totals = Totals(tmp_path / "statistics.json")
    totals.add({"n1": counters(1)}, 0)
    assert totals.statistics("m", "1.0")["inference_stats"]["success"]["count"] == 1
