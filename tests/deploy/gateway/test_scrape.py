"""Texts of metrics taken apart, and made into one."""

import asyncio

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from deploy.gateway.scrape import Series, merge, parse, scrape
from deploy.nodes.node import Node
from tests.deploy.gateway.stand_in import StandIn

# As TorchServe writes it: a comma after the last label, families in any order.
TORCHSERVE = """\
# HELP handler_items_total Torchserve prometheus counter metric with unit: count
# TYPE handler_items_total counter
handler_items_total{ModelName="a",ModelVersion="1.0",Hostname="vm",} 3.0
handler_items_total{ModelName="b \\"x, y\\"",ModelVersion="1.0",Hostname="vm",} 4.5E2
# HELP QueueTime Torchserve prometheus gauge metric with unit: Milliseconds
# TYPE QueueTime gauge
QueueTime{Level="Host",Hostname="vm",} 0.0
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


def test_series_are_read_as_prometheus_own_parser_reads_them() -> None:
    expected = {
        Series(sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(TORCHSERVE.replace("not a series\n", "") + ENVOY)
        for sample in family.samples
    }
    assert len(expected) == 8
    assert parse(TORCHSERVE + ENVOY) == expected


def test_merged_text_has_each_node_and_each_family_once() -> None:
    text = merge({"n1": TORCHSERVE, "n2": TORCHSERVE}, ENVOY)
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    samples = {
        (sample.name, sample.labels.get("node"), sample.labels.get("ModelName")): sample.value
        for family in families
        for sample in family.samples
    }
    assert samples["handler_items_total", "n1", "a"] == 3.0
    assert samples["handler_items_total", "n2", 'b "x, y"'] == 450.0
    assert samples["envoy_cluster_membership", None, None] == 17.0
    assert samples["envoy_cluster_upstream_rq_time_count", None, None] == 1.0
    assert samples["up", "n1", None] == 1.0
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert len(heads) == len(set(heads))


def test_dead_node_is_left_out() -> None:
    async def play() -> dict[str, str]:
        alive, dead = await StandIn("alive").start(), await StandIn("dead").start()
        alive.metrics = "up 1\n"
        await dead.stop()
        gone: list[Node] = [alive.node, dead.node]
        async with aiohttp.ClientSession() as session:
            found = await scrape(session, gone)
        await alive.stop()
        return found

    assert asyncio.run(play()) == {"alive": "up 1\n"}
