"""Draws stored runs as plotly figures. Pure.

runs -> throughput against latency | latency distribution | batch sizes | server time
"""

from collections.abc import Iterator, Sequence

import plotly.graph_objects as go

from load.measure.latencies import Latencies
from load.report.terms import STAGES
from load.runs.run_file import Run, StepResult

# Okabe and Ito's colours, which everybody can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"
PERCENTILE_TICKS = (50, 90, 99, 99.9, 99.99, 99.999)


def throughput_latency(runs: Sequence[Run]) -> go.Figure:
    """Draw a curve for each configuration: p50 and p99 over throughput, with a point for each load."""
    figure = go.Figure()
    for colour, (label, steps) in zip(_colours(), _curves(runs), strict=False):
        for percentile, dash in (("p99", "solid"), ("p50", "dot")):
            points = [step for step in steps if step.latency_ms]
            figure.add_scatter(
                x=[step.throughput_per_s for step in points],
                y=[step.latency_ms[percentile] for step in points],
                text=[step.name for step in points],
                name=f"{label}, {percentile}",
                mode="lines+markers",
                line={"color": colour, "dash": dash},
                # Points of steps that are not valid are hollow.
                marker={"symbol": ["circle" if step.is_valid else "circle-open" for step in points], "size": 9},
                hovertemplate="%{text}<br>%{x:.1f}/s, %{y:.1f} ms",
            )
    for threshold_ms in {step.latency_threshold_ms for run in runs for step in run.steps} - {None}:
        figure.add_hline(y=threshold_ms, line={"color": "#888", "dash": "dash"}, annotation_text="threshold")
    return _styled(figure, "Throughput, answers per second", "Latency, ms")


def latency_distribution(runs: Sequence[Run]) -> go.Figure:
    """Draw latency over percentile; the tail is stretched, so that every nine takes as much room as the one before."""
    figure = go.Figure()
    for colour, (name, step) in zip(_colours(), _steps(runs), strict=False):
        latencies = Latencies(each.latency_s for each in step.counted if each.is_good)
        points = [(100 / (100 - level), value) for level, value in latencies.distribution()] if latencies.count else []
        figure.add_scatter(
            x=[x for x, _ in points],
            y=[y for _, y in points],
            name=name,
            mode="lines",
            line={"color": colour, "shape": "hv"},
            text=[f"p{100 - 100 / x:.5g}" for x, _ in points],
            hovertemplate="%{text}: %{y:.2f} ms",
        )
    figure.update_xaxes(
        type="log",
        tickvals=[100 / (100 - percent) for percent in PERCENTILE_TICKS],
        ticktext=[f"{percent:g} %" for percent in PERCENTILE_TICKS],
    )
    return _styled(figure, "Percentile of the answers", "Latency, ms")


def batch_sizes(runs: Sequence[Run]) -> go.Figure:
    """Draw the share of requests in micro-batches of each size; by the counters where answers do not say."""
    figure = go.Figure()
    for colour, (name, step) in zip(_colours(), _steps(runs), strict=False):
        counts = step.requests_by_batch_size or step.forward_passes
        total = sum(counts.values())
        if total:
            figure.add_bar(
                x=list(counts),
                y=[100 * count / total for count in counts.values()],
                name=name,
                marker={"color": colour},
                hovertemplate="micro-batches of %{x}: %{y:.1f} %",
            )
    sizes = {size for _, step in _steps(runs) for size in (step.requests_by_batch_size or step.forward_passes)}
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=sorted(sizes, key=float))
    return _styled(figure, "Items of the micro-batch", "Share of the requests, %")


def server_time(runs: Sequence[Run]) -> go.Figure:
    """Draw a bar for each load that shows where the server's time went."""
    figure = go.Figure()
    named = list(_steps(runs))
    for colour, stage in zip(_colours(), STAGES, strict=False):
        values = [step.server_ms.get(stage, 0.0) for _, step in named]
        if any(values):
            figure.add_bar(
                y=[name for name, _ in named],
                x=values,
                name=stage,
                orientation="h",
                marker={"color": colour},
                hovertemplate=f"{stage} %{{x:.2f}} ms",
            )
    figure.update_layout(barmode="stack")
    figure.update_yaxes(autorange="reversed")
    return _styled(figure, "Mean time of a request, ms", "")


def _curves(runs: Sequence[Run]) -> Iterator[tuple[str, list[StepResult]]]:
    for run in runs:
        for kind in ("concurrency", "rate"):
            steps = sorted((step for step in run.steps if step.kind == kind), key=lambda step: step.value)
            if steps:
                yield f"{run.label} ({kind})", steps


def _steps(runs: Sequence[Run]) -> Iterator[tuple[str, StepResult]]:
    for run in runs:
        for step in run.steps:
            repeat = f" #{step.repeat}" if step.repeat > 1 else ""
            yield f"{run.label}, {step.name}{repeat}", step


def _colours() -> Iterator[str]:
    while True:
        yield from COLOURS


def _styled(figure: go.Figure, x: str, y: str) -> go.Figure:
    figure.update_layout(
        template="plotly_white",
        font={"family": FONT, "size": 13},
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        legend={"orientation": "h", "y": -0.22},
        height=420,
        hoverlabel={"font": {"family": FONT}},
    )
    figure.update_xaxes(title=x, automargin=True)
    figure.update_yaxes(title=y, rangemode="tozero", automargin=True)
    return figure
