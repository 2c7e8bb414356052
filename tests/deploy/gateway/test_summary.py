"""What the page shows of the traffic, from counters as Prometheus would read them."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from deploy.gateway.scrape import Series
from deploy.gateway.state import Canary, Fleet, Model, Replica, Version
from deploy.gateway.summary import COLUMNS, Summary
from deploy.run.node import Node

URL = "http://127.0.0.1:1"
READY = Replica(1, 1, 8, 20, is_default=True)
NODES = {name: Node(name=name, inference=URL, management=URL, metrics=URL) for name in ("a", "b")}
ONE = Fleet(NODES, models={"m": Model("m", {"1.0": Version("1.0", {"a": READY, "b": READY})}, "1.0")})
Values = Mapping[Series, float]


def series(name: str, model: str = "m", **labels: str) -> Series:
    """Name a series as the handlers do, or as TorchServe does."""
    label = "model_name" if name.startswith("ts_") else "ModelName"
    return Series(name, frozenset({label: model, **labels}.items()))


def buckets(name: str, counts: Mapping[str, float]) -> dict[Series, float]:
    return {series(f"{name}_bucket", le=bound): count for bound, count in counts.items()}


ITEMS = series("handler_items_total")
# Half of 0.01..0.1 s in the model, half of 0..0.01 s waiting, and 3 ms in TorchServe's queue on average.
PARTS = {
    **buckets("handler_wait_seconds", {"0.01": 10, "0.1": 10, "+Inf": 10}),
    **buckets("handler_forward_seconds", {"0.01": 0, "0.1": 10, "+Inf": 10}),
    series("ts_queue_latency_microseconds"): 30_000.0,
    series("ts_inference_requests_total"): 10.0,
}
WHOLE = {
    **PARTS,
    **buckets("handler_request_seconds", {"0.01": 0, "0.1": 90, "+Inf": 100}),
    **buckets("handler_batch_size", {"1": 2.0, "4": 5.0, "8": 5.0, "+Inf": 6.0}),
    # TorchServe counts questions about the model too.
    **{series("handler_requests_total", Outcome=outcome): count for outcome, count in (("success", 5), ("fail", 3))},
    **{series(ITEMS.name, ModelVersion=version): 2.0 for version in ("1.0", "2.0")},
    series("handler_item_errors_total", Type="CorruptInput"): 6.0,
    # A refused request's items are no errors.
    series("handler_item_errors_total", Type="Overloaded"): 8.0,
    series("handler_refusals_total", Reason="Overloaded"): 4.0,
    series("handler_queue_depth_sum"): 30.0,
    series("handler_queue_depth_count"): 10.0,
    series("handler_queue_age_seconds_sum"): 0.5,
    series("handler_queue_age_seconds_count"): 10.0,
}


def seen(*scrapes: Mapping[str, Values], step_s: float = 2.0) -> Summary:
    """Return a summary that saw these scrapes, one every `step_s`."""
    summary = Summary()
    for number, scraped in enumerate(scrapes):
        summary.observe(100.0 + number * step_s, ONE, scraped)
    return summary


def document(summary: Summary, **words: float) -> dict[str, Any]:
    (found,) = summary.document(ONE, **words)["models"]
    return dict(found)


def points(summary: Summary, **words: float) -> list[dict[str, Any]]:
    return [dict(zip(COLUMNS, row, strict=True)) for row in document(summary, **words)["points"]]


@pytest.mark.parametrize(
    ("values", "latency_of", "expected"),
    [
        (
            PARTS,
            "parts",
            {"requests_per_s": 5.0, "p50_ms": 55 + 5 + 3, "wait_ms": 3.0, "queue_items": None, "queue_age_ms": None},
        ),
        (
            WHOLE,
            "requests",
            {"requests_per_s": 4.0, "p50_ms": 60.0 + 3, "p99_ms": 100.0 + 3, "items_per_s": 9.0, "errors_per_s": 3.0}
            | {"refusals_per_s": 2.0, "wait_ms": 3.0, "queue_items": 3.0, "queue_age_ms": 50.0},
        ),
        ({}, "parts", {"requests_per_s": 0.0, "p50_ms": None, "p99_ms": None, "wait_ms": None}),
    ],
    ids=["classic", "adaptive", "nothing"],
)
def test_point_is_what_counters_grew_by(values: Values, latency_of: str, expected: dict[str, float | None]) -> None:
    summary = seen({"a": {}}, {"a": values})
    (point,) = points(summary)
    assert {name: point[name] for name in expected} == pytest.approx(expected)
    assert document(summary)["latency_of"] == latency_of


@pytest.mark.parametrize(
    ("scrapes", "expected"),
    [
        # Counting begins with the first scrape of a node.
        ([{"a": {ITEMS: 1000.0}}], []),
        ([{"a": {ITEMS: 1000.0}, "b": {ITEMS: 50.0}}, {"a": {ITEMS: 1010.0}, "b": {ITEMS: 56.0}}], [8.0]),
        # Started anew.
        ([{"a": {ITEMS: 1000.0}}, {"a": {ITEMS: 4.0}}, {"a": {ITEMS: 10.0}}], [2.0, 3.0]),
        # A scrape missed.
        ([{"a": {ITEMS: 0.0}}, {}, {"a": {ITEMS: 40.0}}], [10.0]),
        ([{"a": {ITEMS: math.nan}}, {"a": {ITEMS: math.nan}}], [0.0]),
    ],
)
def test_rate_is_the_growth_of_all_nodes(scrapes: list[Mapping[str, Values]], expected: list[float]) -> None:
    assert [point["items_per_s"] for point in points(seen(*scrapes))] == expected


def test_node_or_model_that_was_away_begins_anew() -> None:
    """Labels of a node are no reason to remember a model."""
    summary = seen({"a": {}}, {"a": {ITEMS: 4.0, series(ITEMS.name, "other"): 9.0}})
    assert len(points(summary)) == 1
    summary.observe(110.0, Fleet(), {"a": {ITEMS: 8.0}})
    assert points(summary) == []
    summary.observe(450.0, ONE, {})
    summary.observe(452.0, ONE, {"a": {ITEMS: 900.0}})
    assert points(summary) == []


def test_document_has_the_state_of_every_replica() -> None:
    partly = {"a": READY, "b": Replica(2, 1, 8, 20, is_default=True)}
    versions = {"1.0": Version("1.0", partly, {"task": "any"}), "2.0": Version("2.0", {"b": READY})}
    fleet = Fleet(NODES, frozenset("b"), {"m": Model("m", versions, "1.0")}, {"m": Canary("2.0", 5.0)})
    found = Summary().document(fleet)
    assert found["nodes"] == [{"name": "a", "is_draining": False}, {"name": "b", "is_draining": True}]
    (model,) = found["models"]
    canary = {"version": "2.0", "percent": 5.0}
    assert (model["is_ready"], model["default"], model["canary"]) == (False, "1.0", canary)
    assert [(each["is_ready"], each["metadata"]) for each in model["versions"]] == [
        (False, {"task": "any"}),
        (True, None),
    ]
    assert [(each["node"], each["ready_workers"]) for each in model["versions"][0]["replicas"]] == [("a", 1), ("b", 1)]
