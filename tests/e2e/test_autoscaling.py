"""KEDA's queries against a live gateway: each metric is there under its name, with the labels that are asked for."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from deploy.gateway.sandbox import Sandbox
from deploy.gateway.scrape import parse
from deploy.models import ROOT
from load.autoscale import signals
from load.autoscale.scaled_object import read
from tests.e2e.conftest import MOBILENET
from tests.waiting import until

RULES = ROOT / "deploy" / "kubernetes" / "overlays" / "keda" / "scaledobject.yaml"
PHOTOGRAPH = ROOT / "examples" / "resnet-152" / "cat.jpg"
# A series that PromQL selects: its name, and the labels with how they are compared.
SELECTED = re.compile(r"(\w+)\{([^{}]*)\}")
MATCHER = re.compile(r'(\w+)(=~?)"((?:[^"\\]|\\.)*)"')


def selected(query: str, text: str) -> dict[str, list[float]]:
    """Every metric that a query selects -> the values of the series that an exposition has of it."""
    found = {}
    for name, matchers in SELECTED.findall(query):
        wanted = [
            (label, value.replace("\\\\", "\\") if operator == "=~" else re.escape(value))
            for label, operator, value in MATCHER.findall(matchers)
        ]
        assert wanted
        found[name] = [
            value
            for series, value in parse(text).items()
            if series.name == name
            and all(re.fullmatch(pattern, dict(series.labels).get(label, "")) for label, pattern in wanted)
        ]
    return found


def refuse_some(url: str, body: bytes) -> set[int]:
    """More at once than the queue holds; the statuses."""

    def send(_: int) -> int:
        with requests.Session() as session:
            session.trust_env = False
            return session.post(url, data=body, timeout=60).status_code

    with ThreadPoolExecutor(32) as pool:
        return set(pool.map(send, range(64)))


@pytest.mark.usefixtures("nothing_registered")
def test_keda_queries_select_series_that_a_live_gateway_has(
    gateway: Sandbox, variant: Callable[..., str], serve: Callable[..., str]
) -> None:
    """Before any traffic the cluster is there, so that no traffic is 0 and no edge is no answer; then all of them."""
    name = serve(variant("short-queue", jobQueueSize=1), "short-queue", batch_size=1, max_batch_delay_ms=1)

    def exposition() -> str:
        with requests.Session() as session:
            session.trust_env = False
            return session.get(gateway.metrics, timeout=30).text

    queries = [signals.in_flight(name), signals.busy(name, is_adaptive=False), signals.demand(name)]
    until(lambda: all(selected(query, exposition())["envoy_cluster_membership_total"] for query in queries))
    url = f"{gateway.http}/predictions/{name}"
    until(lambda: refuse_some(url, PHOTOGRAPH.read_bytes()) == {200, 503})
    until(lambda: all(all(selected(query, exposition()).values()) for query in queries))
    # What has been counted comes a second later: a handler's series begins at 0.
    counted = {"envoy_cluster_upstream_rq": signals.demand(name), "handler_forward_seconds_sum": queries[1]}
    until(lambda: all(sum(selected(query, exposition())[metric]) > 0 for metric, query in counted.items()))


def test_shipped_queries_are_those_of_the_signals() -> None:
    """So that what a live gateway has of one model, it has of the shipped rules' one."""
    queries = [re.sub(r"\s+", " ", trigger.query) for trigger in read(Path(RULES).read_text(encoding="utf-8")).triggers]
    assert queries == [
        signals.in_flight(MOBILENET),
        signals.busy(MOBILENET, is_adaptive=False),
        signals.demand(MOBILENET),
    ]
