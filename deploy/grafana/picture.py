"""`python -m deploy.grafana.picture`: draws the dashboard's panels from a live Prometheus, without Grafana.

panels.ROWS -> Prometheus' query_range -> plotly -> Chromium -> a PNG

For a README, and for a look at the panels where there is no Grafana. It says that it is not Grafana's own screen.
"""

import argparse
import json
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from deploy.grafana.panels import ROWS, Panel

TITLE = "The dashboard's queries on a real Prometheus, drawn by this repository. Not Grafana's own screen."
# What the dashboard's variables stand for, everything chosen.
VARIABLES = {"${model:pipe}": ".*", "$model": ".*", "$version": ".*", "$node": ".*", "$__rate_interval": "15s"}
COLORS = ("#3274d9", "#e0752d", "#56a64b", "#8f3bb8", "#e02f44", "#1f9e9e", "#806eb7", "#99440a")
INK, MUTED, GRID, BLUES = "#24292e", "#6b7380", "#e4e7ec", "Blues"
POINTS, COLUMNS, ROW_PX, STAT_PX, WIDTH_PX = 100, 3, 172, 84, 1200

Series = list[tuple[dict[str, str], list[float], list[float]]]


def ask(url: str, expression: str, start_s: float, end_s: float) -> Series:
    """Ask for a range: each series' labels, times in seconds since its begin, values."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    step = max(1, round((end_s - start_s) / POINTS))
    query = urllib.parse.urlencode({"query": expression, "start": start_s, "end": end_s, "step": step})
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{query}", timeout=30) as answer:  # noqa: S310
        result = json.load(answer)["data"]["result"]
    return [
        (series["metric"], [float(at) - start_s for at, _ in series["values"]], [float(v) for _, v in series["values"]])
        for series in result
    ]


def legend(template: str, labels: dict[str, str], title: str) -> str:
    """Fill a legend as Grafana does."""
    for name, value in labels.items():
        template = template.replace("{{" + name + "}}", value)
    return template or title


def written(value: float, unit: str) -> str:
    """A stat's number with its unit."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s":
        return f"{value * 1000:.0f} ms"
    return f"{value:.3g}" + (" /s" if unit == "reqps" else "")


def figure(url: str, start_s: float, end_s: float) -> Any:
    """Draw all of it."""
    import plotly.graph_objects as go  # noqa: PLC0415  # seconds, which only this needs
    from plotly.subplots import make_subplots  # noqa: PLC0415

    stats = [panel for row in ROWS for panel in row.panels if panel.kind == "stat"]
    charts = [panel for row in ROWS for panel in row.panels if panel.kind != "stat"]
    lines = -(-len(charts) // COLUMNS)
    titles = [f"<b>{panel.title}</b>{UNITS.get(panel.unit, '')}" for panel in charts]
    drawn = make_subplots(lines, COLUMNS, subplot_titles=titles, vertical_spacing=0.055, horizontal_spacing=0.055)
    for index, panel in enumerate(charts):
        row, column = index // COLUMNS + 1, index % COLUMNS + 1
        for trace in _traces(go, panel, url, start_s, end_s):
            drawn.add_trace(trace, row, column)
        _legend(drawn, index, row, column)
        top = None if panel.kind == "heatmap" else _top(drawn, row, column)
        drawn.update_yaxes(range=None if top is None else [0, top], row=row, col=column)
        if panel.unit == "percentunit":
            drawn.update_yaxes(tickformat="~%", row=row, col=column)
        if panel.kind == "heatmap":
            drawn.update_yaxes(type="category", row=row, col=column)
    height = lines * ROW_PX + STAT_PX + 48
    drawn.update_layout(
        width=WIDTH_PX, height=height, template="plotly_white", margin={"l": 46, "r": 14, "t": STAT_PX + 54, "b": 30},
        font={"family": "DejaVu Sans, Arial, sans-serif", "size": 10, "color": MUTED}, showlegend=True,
    )  # fmt: skip
    drawn.update_annotations(font={"size": 12, "color": INK}, xanchor="center")
    drawn.update_xaxes(gridcolor=GRID, ticksuffix=" s", nticks=6, range=[_first(drawn), end_s - start_s])
    drawn.update_yaxes(gridcolor=GRID, nticks=5)
    above = {"xref": "paper", "yref": "paper", "showarrow": False, "yanchor": "bottom"}
    inner = height - STAT_PX - 84
    drawn.add_annotation(
        x=0,
        y=1 + (STAT_PX + 16) / inner,
        text=f"<b>{TITLE}</b>",
        font={"size": 13, "color": INK},
        xanchor="left",
        **above,
    )
    for index, panel in enumerate(stats):
        found = ask(url, panel.queries[0].expression, start_s, end_s)
        value = written(found[0][2][-1], panel.unit) if found else "none"
        place = {**above, "x": (index + 0.5) / len(stats), "xanchor": "center"}
        drawn.add_annotation(y=1 + 66 / inner, text=panel.title, font={"size": 11, "color": MUTED}, **place)
        drawn.add_annotation(y=1 + 30 / inner, text=f"<b>{value}</b>", font={"size": 24, "color": COLORS[0]}, **place)
    return drawn


UNITS = {"reqps": ", per second", "s": ", seconds", "bytes": ", bytes", "percentunit": ""}


def _traces(go: Any, panel: Panel, url: str, start_s: float, end_s: float) -> list[Any]:
    if panel.kind == "heatmap":
        return [_heatmap(go, ask(url, panel.queries[0].expression, start_s, end_s))]
    named = [
        (legend(query.legend, labels, panel.title), times, values)
        for query in panel.queries
        for labels, times, values in ask(url, query.expression, start_s, end_s)
    ]
    return [
        go.Scatter(
            x=times, y=values, name=name, mode="lines", stackgroup="all" if panel.stacked else None,
            line={"color": COLORS[index % len(COLORS)], "width": 1.5},
        )
        for index, (name, times, values) in enumerate(named)
    ]  # fmt: skip


def _heatmap(go: Any, series: Series) -> Any:
    """Buckets are cumulative: each less the one below; those that are always empty are left out."""
    buckets = sorted((float(labels["le"]), times, values) for labels, times, values in series)
    rows, names, below = [], [], [0.0] * len(buckets[0][1]) if buckets else []
    for bound, _, values in buckets:
        rows.append([max(0.0, value - less) for value, less in zip(values, below, strict=True)])
        names.append(f"{bound:g}")
        below = values
    used = [index for index, row in enumerate(rows) if max(row, default=0) > 0]
    kept = slice(0, max(used) + 1) if used else slice(0)
    # The root, so that few are seen beside many.
    roots = [[value**0.5 for value in row] for row in rows[kept]]
    return go.Heatmap(x=buckets[0][1] if buckets else [], y=names[kept], z=roots, colorscale=BLUES, showscale=False)


def _legend(drawn: Any, index: int, row: int, column: int) -> None:
    """Give each chart a legend of its own, inside its upper left corner."""
    name = "legend" if index == 0 else f"legend{index + 1}"
    axis = drawn.get_subplot(row, column)
    drawn.update_traces(legend=name, row=row, col=column, selector={"type": "scatter"})
    drawn.update_layout(
        {
            name: {
                "x": axis.xaxis.domain[0], "y": axis.yaxis.domain[1], "xanchor": "left", "yanchor": "top",
                "font": {"size": 9}, "bgcolor": "rgba(255,255,255,0.3)", "tracegroupgap": 0,
            }
        }
    )  # fmt: skip


def _first(drawn: Any) -> float:
    """Second of the first point of all charts: what is before is empty."""
    return float(min((trace.x[0] for trace in drawn.data if len(trace.x)), default=0.0))


def _top(drawn: Any, row: int, column: int) -> float:
    """Room above the highest line for the legend."""
    traces = [trace for trace in drawn.select_traces(row=row, col=column) if trace.y is not None]
    values = [[value for value in trace.y if value == value] for trace in traces]  # noqa: PLR0124  # no NaN
    highest = [max(each, default=0.0) for each in values]
    is_stacked = any(trace.stackgroup for trace in traces)
    return float((sum(highest) if is_stacked else max(highest, default=0.0)) * (1.25 + 0.12 * len(traces)) or 1.0)


def png(drawn: Any, path: Path, chromium: str) -> None:
    """Have Chromium draw it; of Debian's, or another."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  # of the developers' environment

    page_text = drawn.to_html(include_plotlyjs=True, config={"staticPlot": True})
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH_PX, "height": int(drawn.layout.height)})
        page.set_content(page_text)
        page.wait_for_selector(".main-svg")
        page.screenshot(path=str(path), clip={"x": 8, "y": 8, "width": WIDTH_PX, "height": int(drawn.layout.height)})
        browser.close()


def main(arguments: list[str]) -> int:
    """Draw what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m deploy.grafana.picture", description=__doc__.partition("\n")[0])
    parser.add_argument("--prometheus", default="http://localhost:9090", metavar="URL")
    parser.add_argument("--seconds", type=float, default=300.0, help="how much is drawn")
    parser.add_argument("--until", type=float, default=None, metavar="UNIX_TIME", help="where it ends; default: now")
    parser.add_argument("--out", type=Path, default=Path("docs/images/dashboard.png"))
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args(arguments)
    end_s = time.time() if options.until is None else options.until
    png(figure(options.prometheus, end_s - options.seconds, end_s), options.out, options.chromium)
    print(f"{options.out}: {options.out.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
