"""What the page shows of the traffic, from counters as Prometheus would read them."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from deploy.gateway.state import Fleet, Model, Version
from deploy.gateway.summary import COLUMNS, Summary
from tests.deploy.gateway.canned import Series, fleet, node, replica, series

ONE = Fleet(
    nodes={"a": node("a"), "b": node("b")},
    models={"m": Model("m", {"1.0": Version("1.0", {"a": replica(), "b": replica()})}, "1.0")},
)


def points(summary: Summary, model: str = "m") -> list[dict[str, Any]]:
    (found,) = [each for each in summary.document(ONE)["models"] if each["name"] == model]
    return [dict(zip(COLUMNS, row, strict=True)) for row in found["points"]]


def seen(*scrapes: Mapping[str, Mapping[Series, float]], step_s: float = 2.0) -> Summary:
    """A summary that saw these scrapes, one every `step_s`."""
    summary = Summary()
    for number, scraped in enumerate(scrapes):
        summary.observe(100.0 + number * step_s, ONE, scraped)
    return summary


def buckets(name: str, counts: Mapping[str, float], model: str = "m") -> dict[Series, float]:
    return {series(f"{name}_bucket", model, le=bound): count for bound, count in counts.items()}


ITEMS = series("handler_items_total", "m")
NOTHING = {"0.01": 0.0, "0.1": 0.0, "+Inf": 0.0}


def test_rate_is_the_sum_of_all_nodes() -> None:
    summary = seen({"a": {ITEMS: 1000.0}, "b": {ITEMS: 50.0}}, {"a": {ITEMS: 1010.0}, "b": {ITEMS: 56.0}})
    (point,) = points(summary)
    assert point["items_per_s"] == 8.0


def test_first_scrape_shows_no_rate() -> None:
    assert points(seen({"a": {ITEMS: 1000.0}})) == []


def test_restart_of_a_node_is_no_negative_rate() -> None:
    summary = seen({"a": {ITEMS: 1000.0}}, {"a": {ITEMS: 4.0}}, {"a": {ITEMS: 10.0}})
    assert [point["items_per_s"] for point in points(summary)] == [2.0, 3.0]


def test_node_that_misses_a_scrape_makes_no_peak() -> None:
    summary = seen({"a": {ITEMS: 0.0}}, {}, {"a": {ITEMS: 40.0}})
    assert [point["items_per_s"] for point in points(summary)] == [10.0]


def test_requests_are_those_of_workers_where_workers_count_them() -> None:
    """Those of TorchServe have questions about the model among them."""
    frontend = series("ts_inference_requests_total", "m")
    good, bad = (series("handler_requests_total", "m", Outcome=outcome) for outcome in ("success", "fail"))
    without = seen({"a": {frontend: 0.0}}, {"a": {frontend: 20.0}})
    assert points(without)[0]["requests_per_s"] == 10.0
    both = seen({"a": {frontend: 0.0, good: 0.0}}, {"a": {frontend: 20.0, good: 12.0, bad: 2.0}})
    assert points(both)[0]["requests_per_s"] == 7.0


def test_versions_of_a_model_count_together() -> None:
    old, new = (series("handler_items_total", "m", ModelVersion=version) for version in ("1.0", "2.0"))
    summary = seen({"a": {old: 0.0, new: 0.0}}, {"a": {old: 6.0, new: 2.0}})
    assert points(summary)[0]["items_per_s"] == 4.0


def test_refused_items_are_refusals_and_no_errors() -> None:
    refusals = series("handler_refusals_total", "m", Reason="Overloaded")
    overloaded, corrupt = (
        series("handler_item_errors_total", "m", Type=kind) for kind in ("Overloaded", "CorruptInput")
    )
    summary = seen({"a": {ITEMS: 0.0}}, {"a": {ITEMS: 2.0, refusals: 4.0, overloaded: 8.0, corrupt: 6.0}})
    (point,) = points(summary)
    assert (point["refusals_per_s"], point["errors_per_s"], point["items_per_s"]) == (2.0, 3.0, 8.0)


def test_latency_is_that_of_requests_where_there_is_a_histogram_of_them() -> None:
    """And 3 ms in TorchServe's queue on average."""
    forward = "handler_forward_seconds"
    grown = {
        series("ts_queue_latency_microseconds", "m"): 300_000.0,
        series("ts_inference_requests_total", "m"): 100.0,
        **buckets("handler_request_seconds", {"0.01": 0, "0.1": 100, "+Inf": 100}),
        **buckets(forward, {"+Inf": 9}),
    }
    summary = seen({"a": buckets("handler_request_seconds", NOTHING)}, {"a": grown})
    (point,) = points(summary)
    assert (point["p50_ms"], point["p99_ms"]) == (58.0, 102.1)
    assert summary.document(ONE)["models"][0]["latency_of"] == "requests"


def test_latency_is_the_sum_of_its_parts_where_there_is_none() -> None:
    """Half of 0.01..0.1 s in the model, half of 0..0.01 s waiting, and 3 ms in TorchServe's queue on average."""
    before = {**buckets("handler_forward_seconds", NOTHING), **buckets("handler_wait_seconds", NOTHING)}
    after = {
        **buckets("handler_forward_seconds", {"0.01": 0, "0.1": 10, "+Inf": 10}),
        **buckets("handler_wait_seconds", {"0.01": 10, "0.1": 10, "+Inf": 10}),
        series("ts_queue_latency_microseconds", "m"): 30_000.0,
        series("ts_inference_requests_total", "m"): 10.0,
    }
    summary = seen({"a": before}, {"a": after})
    assert points(summary)[0]["p50_ms"] == pytest.approx(55 + 5 + 3)
    assert summary.document(ONE)["models"][0]["latency_of"] == "parts"


def test_latency_without_requests_is_nothing() -> None:
    summary = seen(*[{"a": buckets("handler_forward_seconds", NOTHING)}] * 2)
    assert points(summary)[0]["p99_ms"] is None


def test_quantiles_are_of_the_last_ten_seconds() -> None:
    slow = buckets("handler_request_seconds", {"0.01": 0, "0.1": 100, "+Inf": 100})
    scrapes = [{"a": buckets("handler_request_seconds", NOTHING)}, *[{"a": slow}] * 7]
    assert [point["p50_ms"] for point in points(seen(*scrapes))] == [55.0] * 5 + [None] * 2


def test_queue_is_told_in_both_modes() -> None:
    classic = {series("ts_queue_latency_microseconds", "m"): 8_000.0, series("ts_inference_requests_total", "m"): 4.0}
    adaptive = {
        series("handler_queue_depth_sum", "m"): 30.0,
        series("handler_queue_depth_count", "m"): 10.0,
        series("handler_queue_age_seconds_sum", "m"): 0.5,
        series("handler_queue_age_seconds_count", "m"): 10.0,
    }
    (point,) = points(seen({"a": {}}, {"a": {**classic, **adaptive}}))
    assert (point["wait_ms"], point["queue_items"], point["queue_age_ms"]) == (2.0, 3.0, 50.0)
    (point,) = points(seen({"a": {}}, {"a": classic}))
    assert (point["queue_items"], point["queue_age_ms"]) == (None, None)


def test_batch_sizes_are_counted_apart_for_five_minutes() -> None:
    sizes = {"1": 2.0, "4": 5.0, "8": 5.0, "+Inf": 6.0}
    empty = buckets("handler_batch_size", dict.fromkeys(sizes, 0.0))
    full = buckets("handler_batch_size", sizes)
    summary = seen({"a": empty}, {"a": full})
    assert summary.document(ONE)["models"][0]["batch_sizes"] == [[1, 2], [4, 3], [None, 1]]
    for second in range(102, 406, 2):
        summary.observe(second, ONE, {"a": full})
    assert summary.document(ONE)["models"][0]["batch_sizes"] == []


@pytest.mark.parametrize("step_s", [0.1, 2.0])
def test_history_is_five_minutes_and_bounded(step_s: float) -> None:
    summary = seen(*({"a": {ITEMS: float(number)}} for number in range(4000)), step_s=step_s)
    times = [point["time_s"] for point in points(summary)]
    assert len(times) <= 300
    assert times[-1] - times[0] <= 300
    assert step_s < 1 or len(times) == 151


def test_models_that_are_not_served_leave_nothing_behind() -> None:
    """Labels of a node are no reason to remember a model, and one that vanished begins anew when it is back."""
    summary = seen({"a": {ITEMS: 0.0}}, {"a": {ITEMS: 4.0, series("handler_items_total", "other"): 9.0}})
    assert [model["name"] for model in summary.document(ONE)["models"]] == ["m"]
    summary.observe(110.0, Fleet(), {"a": {ITEMS: 8.0}})
    assert summary.document(ONE)["models"][0]["points"] == []


def test_since_leaves_out_what_the_client_has() -> None:
    summary = seen(*({"a": {ITEMS: float(number)}} for number in range(6)))
    (model,) = summary.document(ONE, since_s=106.0)["models"]
    assert [row[0] for row in model["points"]] == [108.0, 110.0]


def test_document_tells_the_state_of_every_replica() -> None:
    document = Summary().document(fleet())
    assert [model["name"] for model in document["models"] if not model["is_ready"]] == [
        "colours",
        "text-classification",
    ]
    (resnet,) = [model for model in document["models"] if model["name"] == "resnet-152"]
    assert (resnet["default"], resnet["canary"]) == ("1.0", {"version": "2.0", "percent": 5.0})
    assert [(version["version"], [each["node"] for each in version["replicas"]]) for version in resnet["versions"]] == [
        ("1.0", ["node-0", "node-1"]),
        ("2.0", ["node-1"]),
    ]
    assert resnet["versions"][0]["metadata"]["task"] == "image_classification"
    assert document["nodes"][0] == {"name": "node-0", "is_draining": False}


def test_scrapes_with_nonsense_are_survived() -> None:
    odd: dict[Series, float] = {
        series("handler_batch_size_bucket", "m", le="many"): 3.0,
        Series("handler_items_total", frozenset()): 3.0,
        ITEMS: math.nan,
    }
    (point,) = points(seen({"a": odd}, {"a": {key: value + 1 for key, value in odd.items()}}))
    assert point["items_per_s"] == 0.0
