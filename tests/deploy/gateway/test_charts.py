"""What the page shows of the traffic, from counters as Prometheus would read them."""

from collections.abc import Mapping
from typing import Any

import pytest

from deploy.gateway.charts import Charts, Point
from deploy.gateway.metrics import Counter, Statistics
from deploy.gateway.settings import Canary
from deploy.gateway.state import Fleet, Model, Replica, Version
from deploy.run.node import Node

URL = "http://127.0.0.1:1"
READY = Replica(1, 1, 8, 20, is_default=True)
NODES = {name: Node(name=name, inference=URL, management=URL, metrics=URL) for name in ("a", "b")}
ONE = Fleet(NODES, registered={"m": Model("m", {"1.0": Version("1.0", {"a": READY, "b": READY})}, "1.0")})
Values = Mapping[Counter, float]


def counter(name: str, version: str = "1.0", **labels: str) -> Counter:
    return Counter("m", version, name, **labels)


def buckets(name: str, counts: Mapping[str, float]) -> dict[Counter, float]:
    return {counter(f"{name}_bucket", end=bound): count for bound, count in counts.items()}


# A handler that is not of this project counts nothing: TorchServe does.
FRONTEND = {counter("ts_queue_latency_microseconds"): 30_000.0, counter("ts_inference_requests_total"): 10.0}
WHOLE = {
    **FRONTEND,
    **buckets("handler_request_seconds", {"0.01": 0, "0.1": 90, "+Inf": 100}),
    **buckets("handler_batch_size", {"1": 2.0, "4": 5.0, "8": 5.0, "+Inf": 6.0}),
    # TorchServe counts questions about the model too.
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


class Page:
    """What the page is told, by way of the sums."""

    def __init__(self) -> None:
        self.statistics, self.charts = Statistics(), Charts()

    def see(self, now_s: float, fleet: Fleet, scraped: Mapping[str, Values]) -> None:
        grown = self.statistics.add(scraped, fleet.nodes.keys(), 0)
        self.charts.add(now_s, fleet.models.keys(), grown)

    def points(self) -> list[dict[str, Any]]:
        (model,) = self.charts.summary(ONE)["models"]
        return [dict(zip(Point._fields, row, strict=True)) for row in model["points"]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (FRONTEND, {"requests_per_s": 5.0, "p50_ms": None, "wait_ms": 3.0, "queue_items": None}),
        (
            WHOLE,
            {"requests_per_s": 4.0, "p50_ms": 60.0 + 3, "p99_ms": 100.0 + 3, "items_per_s": 9.0, "errors_per_s": 3.0}
            | {"refusals_per_s": 2.0, "wait_ms": 3.0, "queue_items": 3.0, "queue_age_ms": 50.0},
        ),
        ({}, {"requests_per_s": 0.0, "p50_ms": None, "p99_ms": None, "wait_ms": None}),
    ],
    ids=["of another's handler", "adaptive", "nothing"],
)
def test_point_is_what_counters_grew_by(values: Values, expected: dict[str, float | None]) -> None:
    page = Page()
    page.see(100.0, ONE, {"a": {}})
    page.see(102.0, ONE, {"a": values})
    (point,) = page.points()
    assert {name: point[name] for name in expected} == pytest.approx(expected)


def test_document_has_the_state_of_every_replica() -> None:
    partly = {"a": READY, "b": Replica(2, 1, 8, 20, is_default=True)}
    versions = {"1.0": Version("1.0", partly, {"task": "any"}), "2.0": Version("2.0", {"b": READY})}
    fleet = Fleet(NODES, frozenset("b"), {"m": Model("m", versions, "1.0")}, canaries={"m": Canary("2.0", 5.0)})
    found = Charts().summary(fleet)
    assert found["nodes"] == [{"name": "a", "is_draining": False}, {"name": "b", "is_draining": True}]
    (model,) = found["models"]
    canary = {"version": "2.0", "percent": 5.0}
    assert (model["is_ready"], model["default"], model["canary"]) == (False, "1.0", canary)
    assert [(each["is_ready"], each["metadata"]) for each in model["versions"]] == [
        (False, {"task": "any"}),
        (True, None),
    ]
    assert [(each["node"], each["ready_workers"]) for each in model["versions"][0]["replicas"]] == [("a", 1), ("b", 1)]
