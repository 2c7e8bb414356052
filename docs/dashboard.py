"""Draw the dashboard's queries as docs/images/dashboard.png: python -m docs.dashboard --prometheus URL

deploy/grafana/dashboards/torchserve.json -> Prometheus' query_range -> plotly -> Debian's Chromium -> PNG
Start a gateway and Prometheus (docs/how-to/monitor.md), send load, run this program. Grafana is not needed.
"""

import argparse
import json
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import requests
from plotly.subplots import make_subplots

from deploy.models import ROOT
from docs.screenshots import IMAGES, open_page, start_browser, write_picture

DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "torchserve.json"
# The dashboard's variables, with every model, version and node.
VARIABLES = {"${model:pipe}": ".*", "$model": ".*", "$version": ".*", "$node": ".*", "$__rate_interval": "15s"}
COLOURS = ("#3274d9", "#e0752d", "#56a64b", "#8f3bb8", "#e02f44", "#1f9e9e", "#806eb7", "#99440a")
UNITS = {"reqps": ", per second", "s": ", seconds", "bytes": ", bytes"}
# The panels of the picture: more would be too small to read.
PANELS = ("Responses by status", "Latency in the worker", "Batch size", "Engine busy share")
COLUMNS, POINTS, ROW_PX = 2, 100, 330
Panel = dict[str, Any]


def query(url: str, target: Panel, start_s: float, end_s: float) -> list[tuple[str, list[float], list[float]]]:
    """Return the name, the seconds since `start_s` and the values of each series."""
    expression, template = target["expr"], target.get("legendFormat", "")
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    parameters = {"query": expression, "start": start_s, "end": end_s, "step": max(1, (end_s - start_s) // POINTS)}
    response = requests.get(f"{url}/api/v1/query_range", parameters, timeout=30)
    response.raise_for_status()
    series = []
    for each in response.json()["data"]["result"]:
        name = template
        for label, value in each["metric"].items():
            name = name.replace("{{" + label + "}}", value)
        times, values = zip(*((float(at) - start_s, float(value)) for at, value in each["values"]), strict=True)
        series.append((name, list(times), list(values)))
    return series


def heatmap(series: list[tuple[str, list[float], list[float]]]) -> go.Heatmap:
    """Draw a histogram's cumulative buckets; square roots, so that rare sizes are visible beside common ones."""
    rows, names, below = [], [], [0.0] * len(series[0][1])
    for name, _, values in sorted(series, key=lambda each: float(each[0])):
        rows.append([max(0.0, value - less) ** 0.5 for value, less in zip(values, below, strict=True)])
        names.append(name)
        below = values
    last = max((index for index, row in enumerate(rows) if max(row) > 0), default=0) + 1
    return go.Heatmap(x=series[0][1], y=names[:last], z=rows[:last], colorscale="Blues", showscale=False)


def draw(url: str, start_s: float, end_s: float) -> go.Figure:
    """Draw the panels of the picture."""
    panels = [each for each in json.loads(DASHBOARD.read_text())["panels"] if each["title"] in PANELS]
    units = [panel["fieldConfig"]["defaults"].get("unit", "") for panel in panels]
    titles = [panel["title"] + UNITS.get(unit, "") for panel, unit in zip(panels, units, strict=True)]
    lines = -(-len(panels) // COLUMNS)
    figure = make_subplots(lines, COLUMNS, subplot_titles=titles, vertical_spacing=0.12, horizontal_spacing=0.06)
    for index, (panel, unit) in enumerate(zip(panels, units, strict=True)):
        place = {"row": index // COLUMNS + 1, "col": index % COLUMNS + 1}
        series = [found for target in panel["targets"] for found in query(url, target, start_s, end_s)]
        if panel["type"] == "heatmap" and series:
            figure.add_trace(heatmap(series), **place)
            figure.update_yaxes(type="category", **place)
            continue
        stacking = panel["fieldConfig"]["defaults"].get("custom", {}).get("stacking", {}).get("mode")
        group = "all" if stacking == "normal" else None
        legend = "legend" if index == 0 else f"legend{index + 1}"
        for (name, x, y), colour in zip(series, cycle(COLOURS), strict=False):
            line = {"color": colour, "width": 1.5}
            figure.add_scatter(x=x, y=y, name=name, mode="lines", stackgroup=group, line=line, legend=legend, **place)
        axes = figure.get_subplot(**place)
        corner = {"x": axes.xaxis.domain[0], "y": axes.yaxis.domain[1], "xanchor": "left", "yanchor": "top"}
        figure.update_layout({legend: {**corner, "font": {"size": 12}, "bgcolor": "rgba(255,255,255,0.6)"}})
        highest = max((value for _, _, y in series for value in y if value == value), default=0.0)  # noqa: PLR0124 - NaN
        total = sum(max(y) for _, _, y in series) if group else highest
        figure.update_yaxes(range=[0, (total or 0.8) * (1.2 + 0.13 * len(series))], **place)
        figure.update_yaxes(tickformat="~%" if unit == "percentunit" else None, **place)
    figure.update_xaxes(ticksuffix=" s", nticks=6)
    figure.update_annotations(font={"size": 16})
    margin = {"l": 46, "r": 14, "t": 40, "b": 30}
    return figure.update_layout(template="plotly_white", height=lines * ROW_PX, margin=margin, font={"size": 12})


def main() -> None:
    """Draw the time before now."""
    parser = argparse.ArgumentParser(description="Draw the dashboard's queries as a picture.")
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", metavar="URL", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=150.0, metavar="S", help="length; default: %(default)g s")
    arguments = parser.parse_args()
    end_s = time.time()
    try:
        figure = draw(arguments.prometheus, end_s - arguments.seconds, end_s)
    except requests.RequestException as error:
        sys.exit(f"dashboard: no data from {arguments.prometheus}: {type(error).__name__}; start Prometheus")
    with tempfile.TemporaryDirectory() as folder, start_browser() as browser:
        path = Path(folder) / "dashboard.html"
        figure.write_html(path, config={"staticPlot": True})
        page = open_page(browser, path.as_uri(), "light")
        page.wait_for_selector(".main-svg")
        write_picture(page, IMAGES / "dashboard.png", full=True)


if __name__ == "__main__":
    main()
