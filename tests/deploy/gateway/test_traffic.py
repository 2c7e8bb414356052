"""Metrics of nodes, sums of their counters that never fall, and the data of the page."""

import asyncio
import socket
from collections.abc import Mapping
from unittest.mock import ANY

import aiohttp
import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from deploy.gateway import metrics
from deploy.gateway.control.page import summarize
from deploy.gateway.metrics import Counter, merge, read_counters
from deploy.gateway.settings import Canary
from deploy.gateway.state import Fleet, Placement, ServedModel, ServedVersion
from deploy.gateway.traffic import Traffic
from deploy.nodes.run.node import Node
from deploy.protocol.page import PAGE
from tests.deploy.gateway.conftest import Scene
from tests.deploy.gateway.envoy.harness import TIMEOUT_S
from tests.tables import table
from tests.waiting import PATIENCE_S

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
URL = "http://127.0.0.1:1"
READY = Placement(1, 1, 8, 20, is_default=True)
NODES = {name: Node(name=name, inference=URL, management=URL, metrics=URL) for name in ("a", "b")}
ONE = Fleet(NODES, registered={"m": ServedModel("m", {"1.0": ServedVersion("1.0", {"a": READY, "b": READY})}, "1.0")})
Values = Mapping[Counter, float]
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
handler_cache_hits_total{{ModelName="m",ModelVersion="1.0",Hostname="vm",}} 4.0
handler_cache_misses_total{{ModelName="m",ModelVersion="1.0",Hostname="vm",}} 5.0
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
    items = {Counter(name, "1.0", "handler_items_total"): count for name, count in (("a", 3.0), ('b "x, y"', 450.0))}
    assert read_counters(TORCHSERVE + ENVOY) == items


def counted(requests: float) -> Values:
    return read_counters(COUNTERS.format(requests=requests))


def durations(count: int, **each_ms: float) -> dict[str, dict[str, int]]:
    return {name: {"count": count, "ns": round(ms * 1e6)} for name, ms in each_ms.items()}


def test_statistics_of_one_node_are_tritons() -> None:
    traffic = Traffic()
    traffic.add({"a": counted(10)}, ONE, 1.0)
    assert traffic.triton("m", "1.0") == {
        "last_inference": ANY, "inference_count": 18, "execution_count": 3, "memory_usage": [], "response_stats": {},
        "inference_stats": {
            **durations(10, success=250), **durations(2, fail=0), **durations(20, queue=125),
            **durations(3, compute_input=62.5, compute_infer=750, compute_output=0),
            **durations(4, cache_hit=0), **durations(5, cache_miss=0),
        },
        "batch_stats": [
            {"batch_size": 2, **durations(1, compute_input=0, compute_infer=250, compute_output=0)},
            {"batch_size": 8, **durations(2, compute_input=62.5, compute_infer=500, compute_output=0)},
        ],
    }  # fmt: skip
    assert traffic.triton("unknown", "1.0")["inference_count"] == 0


@table(
    ([{"a": 10}, {"b": 5}, {"a": 10, "b": 6}], 16),
    # Restarted, and counted to 3 since.
    ([{"a": 10}, {"a": 3}, {"a": 4}], 14),
    ([{"a": 10}, {}, {"b": 1}], 11),
    ([{"a": 10}, {}, {"a": 12}], 12),
)
def test_sums_over_nodes_that_come_and_go_never_fall(seen: list[dict[str, float]], expected: int) -> None:
    traffic, found = Traffic(), [0]
    for scraped in seen:
        traffic.add({node: counted(value) for node, value in scraped.items()}, ONE, 1.0)
        found.append(traffic.triton("m", "1.0")["inference_stats"]["success"]["count"])
    assert (found, found[-1]) == (sorted(found), expected)


def test_counters_of_the_page_grow_on_nodes_that_were_scraped_before_and_end_with_the_model() -> None:
    traffic = Traffic()
    grown = [{"a": 10}, {"a": 13, "b": 99}, {"a": 13, "b": 100}, {"a": 2, "b": 100}]
    found = []
    for scraped in grown:
        traffic.add({node: counted(value) for node, value in scraped.items()}, ONE, 1.0)
        (model,) = summarize(ONE, traffic)["models"]
        found.append(model["counters"]["handler_requests_total"][""])
    assert found == [0, 3, 4, 4 + 2]
    bounds = Counter("m", "1.0", "handler_batch_size_bucket", end="8")
    error = Counter("m", "2.0", "handler_item_errors_total", error="CorruptInput")
    traffic.add({"a": {bounds: 3, error: 2, Counter("m", "1.0", "handler_executions_total", size="8"): 1}}, ONE, 2.0)
    counters = traffic.grown("m")
    assert (counters["handler_batch_size_bucket"], counters["handler_item_errors_total"]) == (
        {"8": 3},
        {"CorruptInput": 2},
    )
    assert "handler_executions_total" not in counters
    traffic.add({}, Fleet(NODES), 3.0)
    assert (summarize(Fleet(NODES), traffic)["models"], traffic.grown("m")) == ([], {})


def test_node_that_does_not_answer_in_time_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "RESPONSE_S", 0.05)

    async def scraped(url: str) -> dict[str, str]:
        async with aiohttp.ClientSession() as session:
            node = Node(name="a", inference=URL, management=URL, metrics=url)
            return await asyncio.wait_for(metrics.scrape(session, [node]), PATIENCE_S)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert asyncio.run(scraped(f"http://127.0.0.1:{silent.getsockname()[1]}")) == {}


def test_document_has_the_state_of_every_replica() -> None:
    partly = {"a": READY, "b": Placement(2, 0, 8, 20, is_default=True)}
    versions = {"1.0": ServedVersion("1.0", partly, {"task": "any"}), "2.0": ServedVersion("2.0", {"b": READY})}
    fleet = Fleet(NODES, frozenset("b"), {"m": ServedModel("m", versions, "1.0")}, canaries={"m": Canary("2.0", 5.0)})
    found = summarize(fleet, Traffic())
    assert found["nodes"] == [{"name": "a", "is_draining": False}, {"name": "b", "is_draining": True}]
    (model,) = found["models"]
    canary = {"version": "2.0", "percent": 5.0}
    assert (model["is_ready"], model["default"], model["canary"]) == (False, "1.0", canary)
    expected = [(False, {"task": "any"}), (True, None)]
    assert [(each["is_ready"], each["metadata"]) for each in model["versions"]] == expected
    assert [(each["node"], each["ready_workers"]) for each in model["versions"][0]["replicas"]] == [("a", 1), ("b", 0)]


@table(
    ("/", "text/html; charset=utf-8", "no-cache"),
    ("/page/page.js", "text/javascript; charset=utf-8", "no-cache"),
    # Data that a key protects is not cached.
    ("/summary", "application/json", "no-store"),
)
def test_answers_have_a_type_and_let_nothing_run(path: str, content_type: str, cached: str, scene: Scene) -> None:
    answer = requests.get(scene.url + path, timeout=TIMEOUT_S)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, content_type)
    assert answer.headers["Cache-Control"] == cached
    policy = answer.headers["Content-Security-Policy"]
    for word in ("default-src 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"):
        assert word in policy
    assert not any(word in policy for word in ("unsafe", "http", "*"))
    others = [answer.headers[name] for name in ("X-Content-Type-Options", "Referrer-Policy")]
    assert others == ["nosniff", "no-referrer"]


def test_files_are_those_of_the_folder_and_no_others(scene: Scene) -> None:
    def get(name: str) -> requests.Response:
        return requests.get(f"{scene.url}/page/{name}", timeout=TIMEOUT_S)

    assert [path.name for path in PAGE.iterdir() if get(path.name).content != path.read_bytes()] == []
    for name in ("nothing.js", "", "..%2fmetrics.py", "%2e%2e%2fsettings.py", ".hidden"):
        assert get(name).status_code == 404
