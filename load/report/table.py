"""Prints stored runs as a table on a terminal."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from load.measure.exchange import Verdict
from load.measure.latencies import STATISTICS
from load.report.terms import STAGES, TERMS
from load.runs.run_file import Run, StepResult

TEXTS = ("run", "load", "status")
HEADS = ("run", "load")
# Characters of a line into a file, which no table fills.
FILE_WIDTH = 1000
# Characters between two columns.
GAP = 2


def show(runs: Sequence[Run], console: Console, *, has_legend: bool = False) -> None:
    """Print a table of every step, and what is wrong with them.

    Where the terminal is too narrow, the columns go on in a further table below.

    Args:
        runs: what is shown.
        console: where it is printed.
        has_legend: whether the definitions of all terms follow.
    """
    console = wide(console)
    for columns in _parts(runs, console.width):
        console.print(_table(runs, columns))
    for line in (line for run in runs for line in remarks_of(run)):
        console.print(line, style="yellow", soft_wrap=True, markup=False, highlight=False)
    if has_legend:
        console.print()
        for term, meaning in TERMS.items():
            console.print(f"{term:12} {meaning}", soft_wrap=True, highlight=False)


def wide(console: Console) -> Console:
    """Return the console itself, or, where it prints into a file, one with lines as long as they must be."""
    return console if console.is_terminal else Console(file=console.file, width=FILE_WIDTH)


def _parts(runs: Sequence[Run], width: int) -> list[list[str]]:
    """Cut the columns into tables that fit; each begins with the columns that say which step it is."""
    columns = columns_of(runs)
    texts = [{"run": run.label, **cells_of(step)} for run in runs for step in run.steps]
    widths = {name: GAP + max(len(name), *(len(cells[name]) for cells in texts)) for name in columns}
    heads = [name for name in HEADS if name in columns]
    parts = [list(heads)]
    for name in columns[len(heads) :]:
        if sum(widths[each] for each in [*parts[-1], name]) - GAP > width and parts[-1] != heads:
            parts.append(list(heads))
        parts[-1].append(name)
    return parts


def _table(runs: Sequence[Run], columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for name in columns:
        table.add_column(name, justify="left" if name in TEXTS else "right", no_wrap=True)
    for run in runs:
        for step in run.steps:
            cells = {"run": run.label, **cells_of(step)}
            table.add_row(*(Text(cells[name]) for name in columns), style=None if step.is_valid else "yellow")
    return table


def cells_of(step: StepResult) -> dict[str, str]:
    """Return every column of a step: name -> text, which is empty where it was not measured."""
    latency = step.latency_ms
    return {
        "load": step.name + ("" if step.repeat == 1 else f" #{step.repeat}"),
        "1/s": f"{step.throughput_per_s:.1f}",
        "goodput 1/s": "" if step.latency_threshold_ms is None else f"{step.goodput_per_s:.1f}",
        "in time %": "" if step.latency_threshold_ms is None else f"{step.in_time_percent:.2f}",
        **{f"{name} ms": _ms(latency.get(name)) for name in STATISTICS},
        "status": ", ".join(_statuses(step)),
        "batch": "" if step.mean_batch_size is None else f"{step.mean_batch_size:.1f}",
        **{name: _ms(step.server_ms.get(name)) for name in STAGES},
        "lag p99": _ms(step.generator_lag_ms.get("p99")) if step.kind == "rate" else "",
        "valid": "yes" if step.is_valid else "NO",
    }


def columns_of(runs: Sequence[Run]) -> list[str]:
    """Return the names of the columns that hold something, in order."""
    every = [{"run": run.label if len(runs) > 1 else "", **cells_of(step)} for run in runs for step in run.steps]
    names = list(dict.fromkeys(name for cells in every for name in cells))
    return [name for name in names if any(cells[name] for cells in every)]


def _statuses(step: StepResult) -> Iterable[str]:
    yield from (f"{status}: {count}" for status, count in step.status.items())
    yield from (f"{reason}: {count}" for reason, count in step.connection_errors.items())


def remarks_of(run: Run) -> Iterable[str]:
    """Yield what is wrong with a run, a line each."""
    for step in run.steps:
        if step.invalid_reason:
            yield f"NOT VALID: {run.label}, {step.name}: {step.invalid_reason}"
        wrong, swapped = step.answers.get(Verdict.WRONG, 0), step.answers.get(Verdict.SWAPPED, 0)
        if wrong or swapped:
            yield (
                f"WRONG ANSWERS: {run.label}, {step.name}: {wrong} wrong, {swapped} that belong to another request, "
                f"of {sum(step.answers.values())} that were checked"
            )


def _ms(value: float | None) -> str:
    """Write ms with three significant digits, as many as the histogram has."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
