"""Writes stored runs as one self-contained page: headline numbers, figures without network, the table, its terms."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from load.report import figures
from load.report.table import cells_of, columns_of, remarks_of
from load.report.terms import TERMS
from load.runs.compare import Comparison, compare
from load.runs.run_file import Run, StepResult

STYLE = """
:root { color-scheme: light; --ink: #1b1f24; --soft: #5b6570; --line: #dde2e8; --warn: #8a4b00; }
body { font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', sans-serif; color: var(--ink); margin: 0; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 40px 0 4px; }
p { margin: 4px 0 12px; color: var(--soft); max-width: 75ch; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 12px; margin: 20px 0; }
.card { border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px; }
.card b { display: block; font-size: 26px; font-weight: 600; } .card span { color: var(--soft); font-size: 13px; }
.warn { border-left: 4px solid #e69f00; background: #fff8ea; color: var(--warn); padding: 8px 14px; margin: 8px 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 4px 9px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } td.text, th.text { text-align: left; }
dt { font-weight: 600; float: left; width: 110px; } dd { margin: 0 0 4px 120px; color: var(--soft); }
"""
TEXTS = ("run", "load", "quantity", "status")


def render(runs: Sequence[Run]) -> str:
    """Return the page as HTML.

    Args:
        runs: at least one; the others are held against the first.
    """
    title = " and ".join(dict.fromkeys(run.label for run in runs))
    sections = [
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(_about(run))}</p>" for run in runs),
        *(f'<div class="warn">{escape(line)}</div>' for run in runs for line in remarks_of(run)),
        f'<div class="cards">{"".join(card for run in runs for card in _cards(run, len(runs) > 1))}</div>',
        *_figure("Throughput against latency", THROUGHPUT_LATENCY, figures.throughput_latency(runs)),
        *_before_after(runs),
        *_figure("Latency distribution", DISTRIBUTION, figures.latency_distribution(runs)),
        *_figure("Batch sizes", BATCHES, figures.batch_sizes(runs)),
        *_figure("Time in the server", SERVER, figures.server_time(runs)),
        "<h2>Every number</h2>",
        _table(runs),
        "<h2>What they mean</h2>",
        f"<dl>{''.join(f'<dt>{escape(term)}</dt><dd>{escape(text)}</dd>' for term, text in TERMS.items())}</dl>",
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    # The page itself holds the script, once for all figures.
    script = f"<script>{get_plotlyjs()}</script>"
    body = "\n".join(sections)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}{script}</head>\n<body><main>\n{body}\n</main></body></html>\n'
    )


THROUGHPUT_LATENCY = (
    "One curve for each configuration and percentile, one point for each load. Hollow points are not valid. Where a "
    "curve turns upwards the server is full: more load buys waiting, not answers."
)
DISTRIBUTION = "So many of the answers did not exceed this latency. The tail is stretched: each nine has the same room."
BATCHES = "So many items shared a request's micro-batch. Few large micro-batches are what makes a server fast."
SERVER = "These are means. The rest of the latency is the network, the protocol and the generator's own wait."


def _about(run: Run) -> str:
    registered = ", ".join(f"{name} {value}" for name, value in run.registration.items())
    created_at = datetime.fromisoformat(run.created_at)
    return f"{run.label}: {run.url}, {created_at:%Y-%m-%d %H:%M:%S} UTC" + (f"; {registered}" if registered else "")


def _cards(run: Run, is_one_of_many: bool) -> Iterator[str]:
    """Yield the numbers that one looks for first, of the steps that are valid."""
    steps = [step for step in run.steps if step.is_valid]
    label = f"{run.label}: " if is_one_of_many else ""
    if not steps:
        return
    best = max(steps, key=lambda step: step.throughput_per_s)
    yield _card(f"{best.throughput_per_s:.1f}/s", f"{label}highest throughput, at {best.name}")
    quickest = min(steps, key=lambda step: step.latency_ms["p50"])
    yield _card(f"{quickest.latency_ms['p50']:.1f} ms", f"{label}lowest p50, at {quickest.name}")
    yield _card(f"{best.latency_ms['p99']:.1f} ms", f"{label}p99 at the highest throughput")
    in_time = [step for step in steps if step.latency_threshold_ms is not None]
    if in_time:
        most = max(in_time, key=lambda step: step.goodput_per_s)
        limit = f"within {most.latency_threshold_ms:g} ms"
        yield _card(f"{most.goodput_per_s:.1f}/s", f"{label}highest goodput {limit}, at {most.name}")


def _card(value: str, what: str) -> str:
    return f'<div class="card"><b>{escape(value)}</b><span>{escape(what)}</span></div>'


def _figure(title: str, about: str, figure: go.Figure) -> Iterator[str]:
    """Yield a heading, a sentence and the figure, or nothing where there is nothing to draw."""
    if not figure.data:
        return
    yield f"<h2>{escape(title)}</h2><p>{escape(about)}</p>"
    yield figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False, "responsive": True})


def _before_after(runs: Sequence[Run]) -> Iterator[str]:
    for other in runs[1:]:
        rows = compare(runs[0], other)
        if rows:
            yield f"<h2>{escape(other.label)} against {escape(runs[0].label)}</h2>"
            yield "<p>Each ratio compares the same load on both; repeats give it an interval.</p>"
            lines = "".join(map(_ratio_row, rows))
            yield f'<div class="wide"><table>{_ratio_head(runs[0], other)}{lines}</table></div>'


def _ratio_head(base: Run, other: Run) -> str:
    return _row(("load", "quantity", base.label, other.label, "ratio", "95 % interval"), "th")


def _ratio_row(row: Comparison) -> str:
    interval = f"{row.ratio.low:.3f} .. {row.ratio.high:.3f}" if row.ratio.repeats > 1 else ""
    return _row(
        (row.load, row.quantity, f"{row.base:.1f}", f"{row.other:.1f}", f"{row.ratio.mean:.3f}", interval), "td"
    )


def _table(runs: Sequence[Run]) -> str:
    columns = columns_of(runs)
    head = "".join(f"<th{_class(name)}>{escape(name)}</th>" for name in columns)
    rows = ((run, step) for run in runs for step in run.steps)
    lines = ("".join(_cell(name, run, step) for name in columns) for run, step in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'


def _cell(name: str, run: Run, step: StepResult) -> str:
    return f"<td{_class(name)}>{escape({'run': run.label, **cells_of(step)}[name])}</td>"


def _class(name: str) -> str:
    return ' class="text"' if name in TEXTS else ""


def _row(cells: Sequence[str], tag: str) -> str:
    """Write a row whose first two cells are text."""
    classes = [' class="text"'] * 2 + [""] * (len(cells) - 2)
    return "<tr>" + "".join(f"<{tag}{k}>{escape(c)}</{tag}>" for c, k in zip(cells, classes, strict=True)) + "</tr>"
