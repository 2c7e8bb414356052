"""Rules, alerts, runbooks and dashboard: each names what the others have, and promtool takes them as they are."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.gateway.own_metrics import METRICS
from deploy.grafana.dashboard import COLUMNS, FILE, dashboard
from deploy.grafana.panels import ROWS
from deploy.models import ROOT
from handlers.metrics import COUNTERS, GAUGES
from tests.nightly.prometheus import BIN, SHIPPED
from tests.pages import anchors, prose

# What Envoy shows of these, as tests/e2e/test_observability.py finds it on a live one.
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
    yield from (query.expression for row in ROWS for panel in row.panels for query in panel.queries)


def cases() -> list[dict[str, Any]]:
    """Promtool's."""
    return [case for path in (SHIPPED / "tests").glob("*.yml") for case in yaml.safe_load(path.read_text())["tests"]]


def test_every_metric_that_is_asked_for_is_one_that_there_is() -> None:
    torchserve = yaml.safe_load((ROOT / "deploy" / "metrics.yaml").read_text())["ts_metrics"]
    known = {
        *(counter.name for counter in COUNTERS),
        *(gauge.name for gauge in GAUGES),
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


def test_every_alert_has_its_paragraph_and_every_paragraph_its_alert() -> None:
    page = "docs/runbooks.md"
    alerts = [rule["alert"] for rule in rules("alert")]
    assert len(alerts) == len(set(alerts))
    assert re.findall(r"^### (\w+)$", prose(page), re.MULTILINE) == alerts
    for rule in rules("alert"):
        path, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert path == page
        assert anchor in anchors(page)
        assert anchor == rule["alert"].lower()
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in {"critical", "warning"}
    for paragraph in re.split(r"^### ", prose(page), flags=re.MULTILINE)[1:]:
        assert re.findall(r"^\*\*(\w+)\*\*", paragraph, re.MULTILINE) == ["Means", "Look", "Do"], paragraph[:40]


def test_every_alert_is_tried_silent_firing_and_silent_again() -> None:
    assert {case["name"].split()[0] for case in cases()} == {rule["alert"] for rule in rules("alert")}
    for case in cases():
        asked = {each["expr"] for each in case["promql_expr_test"]}
        assert asked == {f'count(ALERTS{{alertname="{case["name"].split()[0]}",alertstate="firing"}})'}
        assert [each["exp_samples"] for each in case["promql_expr_test"]] == [[], [{"value": 1}], []]


def test_dashboard_is_what_the_panels_make() -> None:
    """`python -m deploy.grafana.dashboard` writes it anew."""
    assert json.loads(FILE.read_text()) == dashboard()


def test_panels_have_units_descriptions_legends_and_places_of_their_own() -> None:
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(dashboard()["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert all(target["legendFormat"] and target["expr"] for target in panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        place = panel["gridPos"]
        cells = {(place["x"] + across, place["y"] + down) for across in range(place["w"]) for down in range(place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= COLUMNS
        taken |= cells


def test_variables_are_those_that_the_queries_use() -> None:
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]}
    text = json.dumps(dashboard()["panels"])
    used = set(re.findall(r"\$\{?([a-z]\w+)", text.replace("$__", "")))
    assert used - {"rate_interval"} == variables


def test_grafana_finds_what_it_is_given() -> None:
    folder = ROOT / "deploy" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text())["datasources"]
    scraped = yaml.safe_load((SHIPPED / "prometheus.yml").read_text())
    assert source["type"] == "prometheus"
    assert source["jsonData"]["timeInterval"] == scraped["global"]["scrape_interval"]
    assert {job["job_name"] for job in scraped["scrape_configs"]} == {"torchserve-gateway"}


@pytest.mark.parametrize(
    "words",
    [("check", "config", "prometheus.yml"), ("check", "rules", "rules/recording.yml", "rules/alerts.yml")],
)
def test_promtool_takes_configuration_and_rules(words: tuple[str, ...]) -> None:
    done = subprocess.run([BIN / "promtool", *words], cwd=SHIPPED, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_alerts_fire_when_they_should_and_end() -> None:
    words: list[str | Path] = [BIN / "promtool", "test", "rules", *sorted((SHIPPED / "tests").glob("*.yml"))]
    done = subprocess.run(words, cwd=SHIPPED, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
