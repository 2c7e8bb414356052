"""What the shipped queries answer, by Prometheus' own promtool: sums over edges and versions, 0, and nothing."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.models import ROOT
from load.autoscale.scaled_object import read
from tests.load.autoscale.tuned import RULES

# tests/nightly/packages/prometheus.sh unpacks it there.
PROMTOOL = ROOT / ".tools" / "prometheus" / "usr" / "bin" / "promtool"


EDGE = {
    'envoy_cluster_membership_total{envoy_cluster_name="mobilenet-v2",edge="a"}': "2+0x20",
}
# Two edges and a version; another model; a node that both edges show, and one that one of them does; no refusals yet.
BUSY = {
    **EDGE,
    'envoy_cluster_upstream_rq_active{envoy_cluster_name="mobilenet-v2",edge="a"}': "3+0x20",
    'envoy_cluster_upstream_rq_active{envoy_cluster_name="mobilenet-v2/1_0",edge="b"}': "5+0x20",
    'envoy_cluster_upstream_rq_active{envoy_cluster_name="mobilenet-v2-other",edge="b"}': "50+0x20",
    'envoy_cluster_upstream_rq{envoy_cluster_name="mobilenet-v2",envoy_response_code="200"}': "0+300x20",
    'handler_forward_seconds_sum{ModelName="mobilenet-v2",ModelVersion="1.0",node="n1",edge="a"}': "0+9x20",
    'handler_forward_seconds_sum{ModelName="mobilenet-v2",ModelVersion="1.0",node="n1",edge="b"}': "0+9x20",
    'handler_forward_seconds_sum{ModelName="mobilenet-v2",ModelVersion="1.0",node="n2",edge="b"}': "0+3x20",
}
REFUSING = {
    **EDGE,
    'envoy_cluster_upstream_rq{envoy_cluster_name="mobilenet-v2",envoy_response_code="503"}': "0+30x20",
    'envoy_cluster_upstream_rq{envoy_cluster_name="mobilenet-v2",envoy_response_code="200"}': "0+270x20",
}


@pytest.mark.parametrize(
    ("series", "answers"),
    [
        (BUSY, {"in-flight": 8, "busy": 80, "refusals": 0}),
        (EDGE, {"in-flight": 0, "busy": 0, "refusals": 0}),
        (REFUSING, {"in-flight": 0, "busy": 0, "refusals": 20}),
        ({'up{job="edge"}': "0+0x20"}, {"in-flight": None, "busy": None, "refusals": None}),
    ],
    ids=["busy", "no-traffic-yet", "refusing", "no-edge-is-scraped"],
)
def test_query_answers_with_one_number_or_with_none(
    tmp_path: Path, series: dict[str, str], answers: dict[str, float | None]
) -> None:
    triggers = read(RULES.read_text(encoding="utf-8")).triggers
    cases: list[dict[str, Any]] = [
        {
            "expr": trigger.query,
            "eval_time": "5m",
            # promtool's name of a sample without labels.
            "exp_samples": [] if answers[trigger.name] is None else [{"labels": "{}", "value": answers[trigger.name]}],
        }
        for trigger in triggers
    ]
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    document = {"tests": [{"interval": "15s", "input_series": inputs, "promql_expr_test": cases}]}
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    done = subprocess.run([PROMTOOL, "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
