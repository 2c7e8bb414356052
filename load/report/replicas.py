"""Draws a simulated day: demand, replicas and the share of requests in target, over time; and its table. Pure.

Study -> figure -> page (HTML without network)
      -> rows, as Markdown
"""

from collections.abc import Iterable

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from load.autoscale.simulation.outcome import MINUTE_S, Minute, Outcome
from load.autoscale.study import Study
from load.report.figures import COLOURS, FONT

# Minutes that one point stands for: a day has 288 then, and a late second in it is still seen.
POINT_MINUTES = 5
SIZE = (1080, 620)


def figure(study: Study, model: str) -> go.Figure:
    """Draw replicas above, the share in target below, over the hours of the day."""
    made = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.68, 0.32], vertical_spacing=0.08)
    minutes = study.keda.minutes[: int(study.day.length_s / MINUTE_S)]
    hours = [number / 60 for number in range(len(minutes))]
    lines = (
        ("what the traffic takes, at the rate a replica holds", [_needed(study, each) for each in minutes], 0, "dot"),
        ("replicas that are wanted", [each.asked_for for each in minutes], 4, "solid"),
        ("replicas that answer", [each.replicas for each in minutes], 2, "solid"),
        (f"static for the peak: {study.peak_replicas}", [study.peak_replicas] * len(minutes), 1, "dash"),
        (f"static for the mean: {study.mean_replicas}", [study.mean_replicas] * len(minutes), 3, "dash"),
    )
    for name, values, colour, dash in lines:
        line = {"color": COLOURS[colour], "dash": dash, "width": 2, "shape": "linear" if dash == "dot" else "hv"}
        made.add_scatter(x=hours, y=values, name=name, mode="lines", line=line, row=1, col=1)
    for colour, (name, outcome) in zip((2, 1, 3), study.rows, strict=True):
        points = list(_shares(outcome, len(minutes)))
        made.add_scatter(
            x=[hour for hour, _ in points],
            y=[share for _, share in points],
            name=name,
            mode="lines",
            line={"color": COLOURS[colour], "width": 2},
            showlegend=False,
            row=2,
            col=1,
        )
    made.update_xaxes(title_text="Hour of the simulated day", row=2, col=1)
    made.update_yaxes(title_text="Replicas", rangemode="tozero", row=1, col=1)
    made.update_yaxes(title_text="In target, %", range=[-2, 104], row=2, col=1)
    made.update_layout(
        template="plotly_white",
        font={"family": FONT, "size": 14},
        title={"text": f"{model}: replicas over a simulated day", "x": 0.01, "y": 0.98, "yanchor": "top"},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        width=SIZE[0],
        height=SIZE[1],
        margin={"l": 60, "r": 20, "t": 140, "b": 50},
    )
    return made


def _needed(study: Study, minute: Minute) -> float:
    return minute.arrivals / MINUTE_S / study.held_per_s


def _shares(outcome: Outcome, minutes: int) -> Iterable[tuple[float, float]]:
    """Yield the hour and the share in target, in %, of every few minutes in which anything came."""
    for begin in range(0, minutes, POINT_MINUTES):
        some = outcome.minutes[begin : begin + POINT_MINUTES]
        if arrivals := sum(each.arrivals for each in some):
            yield begin / 60, 100 * sum(each.in_target for each in some) / arrivals


def page(study: Study, model: str) -> str:
    """Return the figure as a page of its own."""
    body = figure(study, model).to_html(full_html=False, include_plotlyjs=False, config={"displayModeBar": False})
    title = f"{model}: replicas over a simulated day"
    head = f'<meta charset="utf-8"><title>{title}</title><style>body{{margin:0}}</style>'
    return f"<!doctype html><html><head>{head}<script>{get_plotlyjs()}</script></head><body>{body}</body></html>\n"


def table(rows: Iterable[tuple[str, Outcome]], base: Outcome) -> str:
    """Return a table in Markdown.

    Args:
        rows: names and what they came to.
        base: whose replica-hours the others' are a share of.
    """
    lines = [
        "| replicas | requests in target | refused | replica-hours | of static for the peak |",
        "|---|---|---|---|---|",
    ]
    for name, outcome in rows:
        refused = outcome.refused / max(outcome.arrivals, 1)
        lines.append(
            f"| {name} | {outcome.share_in_target:.2%} | {refused:.2%} | {outcome.replica_hours:.1f} | "
            f"{outcome.replica_s / base.replica_s:.0%} |"
        )
    return "\n".join(line.replace("%", " %") for line in lines)
