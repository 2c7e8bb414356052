"""Draws stored runs as one HTML page that needs no network: main figures, four charts, ratios, every number. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from statistics import median
from string import Template

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from load.report import STAGES, Rows, ratios, remarks, table
from load.results import Latencies
from load.run_file import Run, Step

TEMPLATE = Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
TICKS = (50, 90, 99, 99.9, 99.99, 99.999)
POINTS_PER_NINE = 20  # points of the drawn latency distribution per nine, for a smooth curve


def name(runs: Sequence[Run], number: int) -> str:
    """Return the label of a run, with its part in a comparison: the first run is the baseline of the others."""
    label = runs[number].label
    return label if len(runs) == 1 else f"{'after' if number else 'before'}: {label}"


def render(runs: Sequence[Run]) -> str:
    tables = [(f"before: {runs[0].label}, after: {other.label}", ratios(runs[0], other)) for other in runs[1:]]
    tables.append(("Every number", table(runs)))
    cards = (
        f"<div class='card'><b>{escape(value)}</b><span>{escape(what)}</span></div>" for value, what in _cards(runs)
    )
    return TEMPLATE.substitute(
        title=escape(" and ".join(run.label for run in runs)),
        about="\n".join(f"<p>{escape(_about(run))}</p>" for run in runs),
        remarks="\n".join(f'<div class="warn">{escape(line)}</div>' for line in remarks(runs)),
        cards="".join(cards),
        figure=_figure(runs).to_html(full_html=False, include_plotlyjs=True, config={"displayModeBar": False}),
        tables="\n".join(f"<h2>{escape(title)}</h2>{_html(rows)}" for title, rows in tables if rows),
    )


def _about(run: Run) -> str:
    registered = "".join(f", {name} {value}" for name, value in run.registration.items())
    return f"{run.label}: {run.url}, {run.created_at[:19].replace('T', ' ')} UTC{registered}"


def _cards(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Yield throughput and p99 of each run at the load of the charts, and the ratio of the last run to the first."""
    rows = ratios(runs[0], runs[-1]) if len(runs) > 1 else []
    for number, (run, steps) in enumerate(zip(runs, _shown(runs), strict=True)):
        for point in (point for point in curve(run) if steps and point.name == steps[0].name and point.is_valid):
            words = f"{name(runs, number)}: throughput at {point.name}, p99 {point.latency_ms['p99']:.0f} ms"
            yield f"{point.throughput_per_s:.1f}/s", words
    for row in (row for row in rows if row["load"] == rows[-1]["load"]):
        if row["quantity"] in ("throughput 1/s", "p99 ms"):
            yield f"× {float(row['ratio']):.2f}", f"{row['quantity'].split()[0]} at {row['load']}, after over before"


def _shown(runs: Sequence[Run]) -> list[list[Step]]:
    """Return the steps of each run to draw distributions of: the repeats of the highest common load, or of the best."""
    answered = [[step for step in run.steps if step.latency_ms] for run in runs]
    common = set.intersection(*({(step.value, step.name) for step in steps} for steps in answered))
    if len(runs) > 1 and common:
        return [[step for step in steps if step.name == max(common)[1]] for steps in answered]
    best = [max(steps, key=lambda step: step.throughput_per_s, default=None) for steps in answered]
    return [
        [step for step in steps if step.name == top.name] if top else []
        for steps, top in zip(answered, best, strict=True)
    ]


def curve(run: Run) -> list[Step]:
    """Return a step with the medians of each load that has responses, ordered by clients, then by rate."""
    loads: dict[tuple[str, float], list[Step]] = {}
    for step in sorted((step for step in run.steps if step.latency_ms), key=lambda step: (step.kind, step.value)):
        loads.setdefault((step.kind, step.value), []).append(step)
    return [
        replace(
            steps[0],
            throughput_per_s=median(step.throughput_per_s for step in steps),
            latency_ms={name: median(step.latency_ms[name] for step in steps) for name in steps[0].latency_ms},
            is_valid=all(step.is_valid for step in steps),
        )
        for steps in loads.values()
    ]


def _figure(runs: Sequence[Run]) -> go.Figure:
    shown = _shown(runs)
    where = ", ".join(dict.fromkeys(steps[0].name for steps in shown if steps))
    titles = [f"{title}, {where}" for title in ("Latency distribution", "Batch sizes", "Time of a request")]
    titles.insert(0, "Latency by throughput, a point for each load: p99 (line), p50 (dots)")
    figure = make_subplots(2, 2, subplot_titles=titles, horizontal_spacing=0.09, vertical_spacing=0.15)
    for number, (run, steps, colour) in enumerate(zip(runs, shown, COLOURS * len(runs), strict=False)):
        marker = {"color": colour}
        # One entry of the legend for all traces of a run.
        same = {"name": name(runs, number), "legendgroup": str(number), "showlegend": False}
        points = curve(run)
        for percentile, dash in (("p50", "dot"), ("p99", "solid")):
            figure.add_scatter(
                x=[point.throughput_per_s for point in points],
                y=[point.latency_ms[percentile] for point in points],
                hovertext=[f"{point.name}, {percentile}" for point in points],
                text=[f"{point.value:g}" for point in points],
                textposition="top left",
                mode="lines+markers+text" if percentile == "p99" else "lines+markers",
                line={"color": colour, "dash": dash, "width": 2.5},
                # Points of loads that are not valid are hollow.
                marker={"symbol": ["circle" if point.is_valid else "circle-open" for point in points], "size": 9},
                **{**same, "showlegend": percentile == "p99"},
                row=1,
                col=1,
            )
        repeats = [Latencies(step.latencies_s) for step in steps]
        # On this axis 1, 10, 100 are p0, p90, p99, so that each nine has equal width; it ends with the values.
        x = [10 ** (tick / POINTS_PER_NINE) for tick in range(1, 6 * POINTS_PER_NINE)]
        x = [beyond for beyond in x if beyond <= min(map(len, repeats), default=0)]
        y = [median(each.percentile_ms(100 - 100 / beyond) for each in repeats) for beyond in x]
        figure.add_scatter(x=x, y=y, mode="lines", line={"color": colour, "width": 2.5}, **same, row=1, col=2)
        sizes: Counter[str] = Counter()
        for step in steps:
            sizes.update(step.requests_by_batch_size)
        shares = [100 * count / sizes.total() for count in sizes.values()]
        figure.add_bar(x=list(sizes), y=shares, marker=marker, **same, row=2, col=1)
        if steps:
            inside_ms = [median(step.server_ms.get(stage, 0.0) for step in steps) for stage in STAGES]
            outside_ms = max(0.0, median(step.latency_ms["mean"] for step in steps) - sum(inside_ms))
            figure.add_bar(x=["outside", *STAGES], y=[outside_ms, *inside_ms], marker=marker, **same, row=2, col=2)
    order = sorted({size for steps in shown for step in steps for size in step.requests_by_batch_size}, key=float)
    ticks = {"tickvals": [100 / (100 - tick) for tick in TICKS], "ticktext": [f"p{tick:g}" for tick in TICKS]}
    figure.update_xaxes(title="responses per second", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title="percentile of the responses", type="log", **ticks, row=1, col=2)
    figure.update_xaxes(title="requests in the micro-batch", type="category", categoryarray=order, row=2, col=1)
    figure.update_xaxes(title="outside the handler, and its stages", row=2, col=2)
    for place, unit in enumerate(("ms", "ms", "% of the requests", "ms, mean")):
        figure.update_yaxes(title=unit, rangemode="tozero", row=1 + place // 2, col=1 + place % 2)
    legend = {"orientation": "h", "y": 1.07, "yanchor": "bottom", "font": {"size": 16}}
    clear = "rgba(0,0,0,0)"
    margin = {"l": 60, "r": 20, "t": 80, "b": 40}
    figure.update_layout(
        template="plotly_white", paper_bgcolor=clear, plot_bgcolor=clear, margin=margin, legend=legend, height=820
    )
    return figure


def _html(rows: Rows) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row.values()) for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'
