"""`python -m deploy.grafana.dashboard`: writes dashboards/torchserve.json of panels.py.

panels.ROWS -> dashboard() -> dashboards/torchserve.json, which a test holds equal

Grafana's classic JSON model: every version imports it, and newer ones convert it as they load it.
https://grafana.com/docs/grafana/latest/visualizations/dashboards/build-dashboards/view-dashboard-json-model/
"""

import json
from pathlib import Path
from typing import Any

from deploy.grafana.panels import ROWS, Panel

FILE = Path(__file__).parent / "dashboards" / "torchserve.json"
# Of Grafana 10.3; each version migrates what is older.
SCHEMA_VERSION = 39
COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, Any]


def dashboard() -> Json:
    """Make the dashboard."""
    panels: list[Json] = []
    top = 0
    for row in ROWS:
        panels.append(_row(row.title, len(panels) + 1, top))
        top += 1
        left = height = 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                top, left, height = top + height, 0, 0
            panels.append(_panel(panel, len(panels) + 1, {"x": left, "y": top, "w": panel.width, "h": panel.height}))
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return {
        "uid": "torchserve",
        "title": "TorchServe",
        "description": "Traffic, latency, batches, queues and nodes of a TorchServe deployment behind its gateway.",
        "tags": ["torchserve"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        # Panels share one crosshair.
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [_alerts()]},
        "templating": {"list": _variables()},
        "links": [],
        "panels": panels,
    }


def _variables() -> list[Json]:
    source: Json = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "refresh": 1,
        "hide": 0,
        "multi": False,
        "includeAll": False,
        "regex": "",
    }
    return [
        source,
        _variable("model", "Model", "label_values(gateway_workers, model)"),
        _variable("version", "Version", 'label_values(gateway_workers{model=~"$model"}, version)'),
        _variable("node", "Node", "label_values(handler_batch_size_count, node)"),
    ]


def _variable(name: str, label: str, query: str) -> Json:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        # Asked again when the time range changes: models come and go.
        "refresh": 2,
        "sort": 1,
        "hide": 0,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "regex": "",
        "options": [],
    }


def _alerts() -> Json:
    """Mark where alerts fired."""
    return {
        "name": "Alerts",
        "enable": True,
        "hide": False,
        "iconColor": "red",
        "datasource": DATASOURCE,
        "expr": 'ALERTS{alertstate="firing",alertname!=""}',
        "titleFormat": "{{alertname}}",
        "textFormat": "{{model}} {{node}} {{instance}}",
        "step": "60s",
    }


def _row(title: str, number: int, top: int) -> Json:
    place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> Json:
    is_heatmap = panel.kind == "heatmap"
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": query.expression,
            "legendFormat": query.legend or panel.title,
            "format": "heatmap" if is_heatmap else "time_series",
            "range": True,
        }
        for index, query in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": OPTIONS[panel.kind],
    }


def _field(panel: Panel) -> Json:
    field: Json = {"unit": panel.unit, "min": 0, "noValue": "none" if panel.is_quiet else "no data"}
    if panel.kind == "timeseries":
        field["color"] = {"mode": "palette-classic"}
        field["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 25 if panel.stacked else 8,
            "showPoints": "never",
            # A gap of a minute is a gap.
            "spanNulls": 60_000,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }
    if panel.kind == "stat":
        field["color"] = {"mode": "thresholds"}
        field["thresholds"] = {"mode": "absolute", "steps": _steps(panel)}
    return field


def _steps(panel: Panel) -> list[Json]:
    """Grafana wants them ascending, the first without a value."""
    if not panel.thresholds:
        return [{"color": "blue", "value": None}]
    orange, red = panel.thresholds
    if panel.is_low_bad:
        return [
            {"color": "red", "value": None},
            {"color": "orange", "value": red},
            {"color": "green", "value": orange},
        ]
    return [
        {"color": "green", "value": None},
        {"color": "orange", "value": orange},
        {"color": "red", "value": red},
    ]


OPTIONS: dict[str, Json] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "textMode": "auto",
        "justifyMode": "auto",
        "orientation": "auto",
    },
    "heatmap": {
        # The buckets are Prometheus' own.
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Blues", "steps": 64, "reverse": False, "exponent": 0.5},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "yHistogram": True, "showColorScale": False},
        "yAxis": {"axisPlacement": "left", "reverse": False},
    },
}


def main() -> None:
    """Write the file."""
    FILE.write_text(json.dumps(dashboard(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
