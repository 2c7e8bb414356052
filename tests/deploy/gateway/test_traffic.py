"""Sums of the nodes' counters that never fall, and the points and states that the page shows."""

import math
from collections.abc import Mapping
from unittest.mock import ANY

import pytest

from deploy.gateway.control.page import summarize
from deploy.gateway.metrics import Counter, read_counters
from deploy.gateway.settings import Canary
from deploy.gateway.state import Fleet, Replica, ServedModel, ServedVersion
from deploy.gateway.traffic import COLUMNS, Traffic, quantile
from deploy.run.node import Node

URL = "http://127.0.0.1:1"
READY = Replica(1, 1, 8, 20, is_default=True)
NODES = {name: Node(name=name, inference=URL, management=URL, metrics=URL) for name in ("a", "b")}
ONE = Fleet(NODES, registered={"m": ServedModel("m", {"1.0": ServedVersion("1.0", {"a": READY, "b": READY})}, "1.0")})
Values = Mapping[Counter, float]


# -- Triton's statistics ------------------------------------------------------------------------------------------

COUNTERS = """\
handler_requests_total{{ModelName="m",ModelVersion="1.0",outcome="success",Hostname="vm",}} {requests}
handler_requests_total{{ModelName="m",ModelVersion="1.0",outcome="fail",Hostname="vm",}} 2
handler_requests_total{{ModelName="m",ModelVersion="2.0",outcome="success",Hostname="vm",}} 99
handler_outcome_seconds_total{{ModelName="m",ModelVersion="1.0",outcome="success",Hostname="vm",}} 0.25
handler_worker_wait_seconds_total{{ModelName="m",ModelVersion="1.0",Hostname="vm",}} 0.125
handler_engine_wait_seconds_count{{ModelName="m",ModelVersion="1.0",Hostname="vm",}} 20
handler_items_total{{ModelName="m",ModelVersion="1.0",Hostname="vm",}} 18
handler_executions_total{{ModelName="m",ModelVersion="1.0",size="8",Hostname="vm",}} 2
handler_executions_total{{ModelName="m",ModelVersion="1.0",size="2",Hostname="vm",}} 1
handler_execution_seconds_total{{ModelName="m",ModelVersion="1.0",size="8",phase="infer",Hostname="vm",}} 0.5
handler_execution_seconds_total{{ModelName="m",ModelVersion="1.0",size="2",phase="infer",Hostname="vm",}} 0.25
handler_execution_seconds_total{{ModelName="m",ModelVersion="1.0",size="8",phase="input",Hostname="vm",}} 0.0625
"""


def counted(requests: float) -> Values:
    return read_counters(COUNTERS.format(requests=requests))


def durations(count: int, **each_ms: float) -> dict[str, dict[str, int]]:
    return {name: {"count": count, "ns": round(ms * 1e6)} for name, ms in each_ms.items()}


def test_statistics_of_one_node_are_tritons() -> None:
    traffic = Traffic()
    traffic.add({"a": counted(10)}, ONE, 1.0)
    assert traffic.triton("m", "1.0") == {
        "last_inference": ANY,
        "inference_count": 18,
        "execution_count": 3,
        "inference_stats": {
            **durations(10, success=250),
            **durations(2, fail=0),
            **durations(20, queue=125),
            **durations(3, compute_input=62.5, compute_infer=750, compute_output=0),
            **durations(0, cache_hit=0, cache_miss=0),
        },
        "batch_stats": [
            {"batch_size": 2, **durations(1, compute_input=0, compute_infer=250, compute_output=0)},
            {"batch_size": 8, **durations(2, compute_input=62.5, compute_infer=500, compute_output=0)},
        ],
        "memory_usage": [],
        "response_stats": {},
    }
    assert traffic.triton("unknown", "1.0")["inference_count"] == 0


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([{"a": 10}, {"b": 5}, {"a": 10, "b": 6}], 16),
        # Restarted, and counted to 3 since.
        ([{"a": 10}, {"a": 3}, {"a": 4}], 14),
        # Gone for good, or for a while.
        ([{"a": 10}, {}, {"b": 1}], 11),
        ([{"a": 10}, {}, {"a": 12}], 12),
    ],
)
def test_sums_over_nodes_that_come_and_go_never_fall(seen: list[dict[str, float]], expected: int) -> None:
    traffic, found = Traffic(), [0]
    for scraped in seen:
        traffic.add({node: counted(value) for node, value in scraped.items()}, ONE, 1.0)
        found.append(traffic.triton("m", "1.0")["inference_stats"]["success"]["count"])
    assert (found, found[-1]) == (sorted(found), expected)


# -- the page -----------------------------------------------------------------------------------------------------


def counter(name: str, version: str = "1.0", **labels: str) -> Counter:
    return Counter("m", version, name, **labels)


def buckets(name: str, counts: Mapping[str, float]) -> dict[Counter, float]:
    return {counter(f"{name}_bucket", end=bound): count for bound, count in counts.items()}


# A handler of another project counts nothing; TorchServe does.
FRONTEND = {counter("ts_queue_latency_microseconds"): 30_000.0, counter("ts_inference_requests_total"): 10.0}
WHOLE = {
    **FRONTEND,
    **buckets("handler_request_seconds", {"0.01": 0, "0.1": 90, "+Inf": 100}),
    **buckets("handler_batch_size", {"1": 2.0, "4": 5.0, "8": 5.0, "+Inf": 6.0}),
    # TorchServe also counts requests for metadata.
    **{counter("handler_requests_total", outcome=outcome): count for outcome, count in (("success", 5), ("fail", 3))},
    **{counter("handler_items_total", version): 2.0 for version in ("1.0", "2.0")},
    counter("handler_item_errors_total", error="CorruptInput"): 6.0,
    # A refused request's items are no errors.
    counter("handler_item_errors_total", error="Overloaded"): 8.0,
    counter("handler_refusals_total"): 4.0,
    counter("handler_queue_depth_sum"): 30.0,
    counter("handler_queue_depth_count"): 10.0,
    counter("handler_queue_age_seconds_sum"): 0.5,
    counter("handler_queue_age_seconds_count"): 10.0,
}


@pytest.mark.parametrize(
    ("values", "expected", "sizes"),
    [
        (FRONTEND, {"requests_per_s": 5.0, "p50_ms": None, "wait_ms": 3.0, "queue_items": None}, []),
        (
            WHOLE,
            {"requests_per_s": 4.0, "p50_ms": 60.0 + 3, "p99_ms": 100.0 + 3, "items_per_s": 9.0, "errors_per_s": 3.0}
            | {"refusals_per_s": 2.0, "wait_ms": 3.0, "queue_items": 3.0, "queue_age_ms": 50.0},
            [[1, 2], [4, 3], [None, 1]],
        ),
        ({}, {"requests_per_s": 0.0, "p50_ms": None, "p99_ms": None, "wait_ms": None}, []),
    ],
    ids=["of another's handler", "adaptive", "nothing"],
)
def test_point_is_what_counters_grew_by(
    values: Values, expected: dict[str, float | None], sizes: list[list[float | None]]
) -> None:
    traffic = Traffic()
    traffic.add({"a": {}}, ONE, 100.0)
    # The first scrape of another node has counts of its whole life.
    traffic.add({"a": values, "b": WHOLE}, ONE, 102.0)
    (model,) = summarize(ONE, traffic)["models"]
    (row,) = model["points"]
    point = dict(zip(COLUMNS, row, strict=True))
    assert {name: point[name] for name in expected} == pytest.approx(expected)
    assert model["batch_sizes"] == sizes


def test_document_has_the_state_of_every_replica() -> None:
    partly = {"a": READY, "b": Replica(2, 0, 8, 20, is_default=True)}
    versions = {"1.0": ServedVersion("1.0", partly, {"task": "any"}), "2.0": ServedVersion("2.0", {"b": READY})}
    fleet = Fleet(NODES, frozenset("b"), {"m": ServedModel("m", versions, "1.0")}, canaries={"m": Canary("2.0", 5.0)})
    found = summarize(fleet, Traffic())
    assert found["nodes"] == [{"name": "a", "is_draining": False}, {"name": "b", "is_draining": True}]
    (model,) = found["models"]
    canary = {"version": "2.0", "percent": 5.0}
    assert (model["is_ready"], model["default"], model["canary"]) == (False, "1.0", canary)
    assert [(each["is_ready"], each["metadata"]) for each in model["versions"]] == [
        (False, {"task": "any"}),
        (True, None),
    ]
    assert [(each["node"], each["ready_workers"]) for each in model["versions"][0]["replicas"]] == [("a", 1), ("b", 0)]


def test_quantile_of_versions_with_other_latency_targets_follows_the_lower_buckets() -> None:
    """Ten of a version with the bucket 0.2 and ninety of one without it: 0.2 has fewer than 0.1."""
    assert quantile(0.5, {0.1: 100.0, 0.2: 10.0, 0.25: 100.0, math.inf: 100.0}) == pytest.approx(0.05)
    assert quantile(0.99, {0.1: 90.0, 0.2: 10.0, 0.25: 100.0, math.inf: 100.0}) == pytest.approx(0.245)
