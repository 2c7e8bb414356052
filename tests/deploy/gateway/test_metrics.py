"""Metrics of nodes: read, made into one text, and summed so that they never fall."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.gateway.metrics import Counter, Statistics, counters, merge

# As TorchServe writes it: a comma after the last label, families in any order.
TORCHSERVE = """\
# HELP handler_items_total Torchserve prometheus counter metric with unit: count
# TYPE handler_items_total counter
handler_items_total{ModelName="a",ModelVersion="1.0",Hostname="vm",} 3.0
handler_items_total{ModelName="b \\"x, y\\"",ModelVersion="1.0",Hostname="vm",} 4.5E2
# TYPE up gauge
up 1
not a series
"""
ENVOY = """\
# TYPE envoy_cluster_membership gauge
envoy_cluster_membership{envoy_cluster_name="control"} 17
# TYPE envoy_cluster_upstream_rq_time histogram
envoy_cluster_upstream_rq_time_bucket{le="+Inf"} 1
envoy_cluster_upstream_rq_time_sum{} 2.5
envoy_cluster_upstream_rq_time_count{} 1
"""


def read(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Read an exposition by Prometheus' own parser."""
    families = list(text_string_to_metric_families(text))
    # One family stands together, whatever the nodes.
    assert len(families) == len({family.name for family in families})
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def test_metrics_of_nodes_and_envoy_are_one_exposition_in_which_each_series_has_its_node() -> None:
    text = merge({"n1": TORCHSERVE, "n2": TORCHSERVE}, ENVOY)
    series = read(TORCHSERVE.replace("not a series\n", "")).items()
    of_nodes = {(name, labels | {("node", node)}): value for (name, labels), value in series for node in ("n1", "n2")}
    assert read(text) == {**of_nodes, **read(ENVOY)}
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert len(heads) == len(set(heads))


def test_counters_are_read_with_the_labels_that_tell_them_apart() -> None:
    items = "handler_items_total"
    assert counters(TORCHSERVE + ENVOY) == {
        Counter("a", "1.0", items): 3.0,
        Counter('b "x, y"', "1.0", items): 450.0,
    }


# -- sums ---------------------------------------------------------------------------------------------------------

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


NODES = ("n1", "n2")


def counted(requests: float) -> dict[Counter, float]:
    return counters(COUNTERS.format(requests=requests))


def succeeded(totals: Statistics) -> int:
    return int(totals.triton("m", "1.0")["inference_stats"]["success"]["count"])


def durations(count: int, **each_ms: float) -> dict[str, dict[str, int]]:
    return {name: {"count": count, "ns": round(ms * 1e6)} for name, ms in each_ms.items()}


def test_statistics_of_one_node_are_tritons() -> None:
    totals = Statistics()
    totals.add({"n1": counted(10)}, NODES, 1234)
    assert totals.triton("m", "1.0") == {
        "last_inference": 1234,
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
    assert totals.triton("unknown", "1.0")["inference_count"] == 0


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([{"n1": 10}, {"n2": 5}, {"n1": 10, "n2": 6}], 16),
        # Restarted, and counted to 3 since.
        ([{"n1": 10}, {"n1": 3}, {"n1": 4}], 14),
        # Gone for good, or for a while.
        ([{"n1": 10}, {}, {"n2": 1}], 11),
        ([{"n1": 10}, {}, {"n1": 12}], 12),
    ],
)
def test_sums_over_nodes_that_come_and_go_never_fall(seen: list[dict[str, float]], expected: int) -> None:
    totals, before = Statistics(), 0
    for scraped in seen:
        totals.add({node: counted(value) for node, value in scraped.items()}, NODES, 0)
        assert succeeded(totals) >= before
        before = succeeded(totals)
    assert before == expected
