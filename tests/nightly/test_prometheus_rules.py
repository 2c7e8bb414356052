"""Rules, alerts, runbooks and dashboard: each names what the others have, and promtool takes them as they are."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from deploy.gateway.metrics import METRICS
from deploy.models import ROOT
from handlers.metrics import COUNTERS
from tests.e2e.conftest import printed
from tests.nightly.test_observability import BIN, SHIPPED, panels
from tests.pages import prose

# Envoy's names of these metrics, as tests/nightly/test_observability.py finds them on a running one.
ENVOY = {
    "envoy_cluster_upstream_rq",
    "envoy_cluster_upstream_rq_active",
    "envoy_cluster_upstream_rq_completed",
    "envoy_cluster_upstream_rq_time_bucket",
    "envoy_http_downstream_cx_active",
    "envoy_overload_envoy_resource_monitors_fixed_heap_pressure",
    "envoy_server_days_until_first_cert_expiring",
    "envoy_server_live",
    "envoy_server_memory_heap_size",
}
NAME = re.compile(
    r"\b(?:envoy|handler|gateway|frontend|ts)_\w+\b|\bRequests2XX\b|\b(?:model|node|slo):\w+:\w+\b|\bup\b"
)
LABELS = {"envoy_cluster_name", "envoy_response_code", "envoy_http_conn_manager_prefix"}


def rules(kind: str) -> list[dict[str, Any]]:
    documents = [yaml.safe_load(path.read_text()) for path in sorted((SHIPPED / "rules").glob("*.yml"))]
    return [rule for each in documents for group in each["groups"] for rule in group["rules"] if kind in rule]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for kind in ("alert", "record") for rule in rules(kind))
    yield from (query for queries in panels().values() for query in queries)


def test_every_metric_that_is_asked_for_is_one_that_there_is() -> None:
    torchserve = yaml.safe_load((ROOT / "deploy" / "metrics.yaml").read_text())["ts_metrics"]
    known = {
        *(counter.name for counter in COUNTERS),
        *(name for name, _, _ in METRICS),
        *(metric["name"] for kind in torchserve.values() for metric in kind),
        *(rule["record"] for rule in rules("record")),
        *ENVOY,
        "up",
    }
    asked = {name for expression in expressions() for name in NAME.findall(expression)} - LABELS
    assert asked - known == set()
    assert len(asked) > 30
    assert {rule["record"] for rule in rules("record")} <= asked


def test_every_alert_has_its_paragraph_and_is_tried_silent_firing_and_silent_again() -> None:
    page = "docs/how-to/runbooks.md"
    alerts = [rule["alert"] for rule in rules("alert")]
    assert re.findall(r"^## (\w+)$", prose(page), re.MULTILINE) == alerts
    for rule in rules("alert"):
        path, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (path, anchor) == (page, rule["alert"].lower())
        assert rule["labels"]["severity"] in {"critical", "warning"}
    cases = [case for path in (SHIPPED / "tests").glob("*.yml") for case in yaml.safe_load(path.read_text())["tests"]]
    assert {case["name"].split()[0] for case in cases} == set(alerts)
    for case in cases:
        asked = {each["expr"] for each in case["promql_expr_test"]}
        assert asked == {f'count(ALERTS{{alertname="{case["name"].split()[0]}",alertstate="firing"}})'}
        assert [each["exp_samples"] for each in case["promql_expr_test"]] == [[], [{"value": 1}], []]


@pytest.mark.parametrize(
    "words",
    [
        ["check", "config", "prometheus.yml"],
        ["check", "config", "ray.yml"],
        ["check", "rules", "rules/recording.yml", "rules/alerts.yml"],
        ["test", "rules", *(f"tests/{path.name}" for path in sorted((SHIPPED / "tests").glob("*.yml")))],
    ],
    ids=["configuration", "ray", "rules", "alerts"],
)
def test_promtool_takes_configuration_and_rules_and_alerts_fire_when_they_should(words: list[str]) -> None:
    printed(BIN / "promtool", *words, cwd=SHIPPED)
