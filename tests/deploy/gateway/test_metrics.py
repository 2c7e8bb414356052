"""Metrics of nodes: read, and made into one text."""

from prometheus_client.parser import text_string_to_metric_families

from deploy.gateway.metrics import Counter, merge, read_counters

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
    assert read_counters(TORCHSERVE + ENVOY) == {
        Counter("a", "1.0", items): 3.0,
        Counter('b "x, y"', "1.0", items): 450.0,
    }
