"""Stored runs as text: a table, verdicts, and ratios between runs. Pure."""

from collections.abc import Iterator, Sequence
from statistics import median

from load.results import PERCENTILE
from load.run_file import Run, Step

Rows = list[dict[str, str]]  # a table: column -> text, for each row

# Stages of a request in the server, in order, by their names in the handlers' Server-Timing.
STAGES = ("decode", "wait", "forward", "encode")


def table(runs: Sequence[Run]) -> Rows:
    """Return a row for each step, without empty columns."""
    rows = []
    for run, step in _steps(runs):
        has_threshold = step.latency_threshold_ms is not None
        statuses = {**step.status, **step.connection_errors}
        cells = {
            "run": run.label,
            "load": step.name + ("" if step.repeat == 1 else f" #{step.repeat}"),
            "1/s": f"{step.throughput_per_s:.1f}",
            "goodput 1/s": f"{step.goodput_per_s:.1f}" if has_threshold else "",
            "in time %": f"{step.in_time_percent:.2f}" if has_threshold else "",
            **{f"{name} ms": _ms(step.latency_ms.get(name)) for name in ("p50", "p90", "p99", "max")},
            "status": ", ".join(f"{name}: {count}" for name, count in statuses.items()),
            "batch": f"{step.mean_batch_size:.1f}" if step.mean_batch_size else "",
            **{f"{name} ms": _ms(step.server_ms.get(name)) for name in STAGES},
            "valid": "yes" if step.is_valid else "NO",
        }
        rows.append(cells)
    return [{name: cell for name, cell in row.items() if any(each[name] for each in rows)} for row in rows]


def _steps(runs: Sequence[Run]) -> Iterator[tuple[Run, Step]]:
    return ((run, step) for run in runs for step in run.steps)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def ratios(base: Run, other: Run) -> Rows:
    """Return a row for each quantity of each common load, from the repeats that are valid in both."""
    rows = []
    for load in dict.fromkeys(step.name for step in base.steps):
        theirs = {step.repeat: step for step in other.steps if step.name == load and step.is_valid}
        mine = [step for step in base.steps if step.name == load and step.is_valid and step.repeat in theirs]
        for quantity in ("throughput 1/s", "goodput 1/s", "p50 ms", "p99 ms"):
            pairs = [(_value(step, quantity), _value(theirs[step.repeat], quantity)) for step in mine]
            if pairs and all(map(all, pairs)):
                # As they are written, so that a reader who divides them gets the ratio.
                before, after = (round(median(values), 1) or median(values) for values in zip(*pairs, strict=True))
                each = [b / a for a, b in pairs]
                cells = {
                    "load": load,
                    "quantity": quantity,
                    "before": f"{before:.1f}",
                    "after": f"{after:.1f}",
                    "ratio": f"{after / before:.3f}",
                    "of each repeat": f"{min(each):.3f} .. {max(each):.3f}" if len(each) > 1 else "needs --repeats",
                }
                rows.append(cells)
    return rows


def _value(step: Step, quantity: str) -> float:
    """Return one quantity of a step; 0 if it was not measured."""
    goodput_per_s = 0.0 if step.latency_threshold_ms is None else step.goodput_per_s
    rates = {"throughput 1/s": step.throughput_per_s, "goodput 1/s": goodput_per_s}
    return rates.get(quantity, step.latency_ms.get(quantity.removesuffix(" ms"), 0.0))


def remarks(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a warning for each invalid step and each step with wrong answers."""
    for run, step in _steps(runs):
        if step.invalid_reason:
            yield f"NOT VALID: {run.label}, {step.name}: {step.invalid_reason}"
        wrong, swapped = step.answers.get("wrong", 0), step.answers.get("swapped", 0)
        if wrong or swapped:
            words = f"{wrong} wrong, {swapped} that belong to another request, of {sum(step.answers.values())} checked"
            yield f"WRONG ANSWERS: {run.label}, {step.name}: {words}"


def verdicts(runs: Sequence[Run]) -> Iterator[str]:
    """Yield whether each valid step met its latency target, and the first refusal of each step."""
    for run, step in _steps(runs):
        percent = run.settings.get("percentile") or PERCENTILE
        if step.latency_threshold_ms is not None and step.outcomes:
            verdict = "met" if step.in_time_percent >= percent else "NOT MET"
            if not step.is_valid:
                verdict = "unknown, the step is NOT VALID"
            shares = (f"{name} {100 * count / max(step.requests, 1):.2f} %" for name, count in step.outcomes.items())
            words = f"{', '.join(shares)} of {step.requests} requests; {percent:g} % must be in time"
            yield f"target {verdict}: {run.label}, {step.name}, {step.latency_threshold_ms:g} ms: {words}"
        if step.refusal is not None:
            status, kind, after, latency_ms = step.refusal.values()
            words = f"{status} {kind or ''}".strip() + f", Retry-After {after or 'missing'}, after {_ms(latency_ms)} ms"
            yield f"first refusal: {run.label}, {step.name}: {words}"


def text(runs: Sequence[Run]) -> str:
    """Return the table, the verdicts, the warnings, and the ratios of every later run to the first."""
    parts = [_aligned(table(runs)), *verdicts(runs), *remarks(runs)]
    for other in runs[1:]:
        rows = ratios(runs[0], other)
        parts.append(f"\nbefore: {runs[0].label}, after: {other.label}")
        parts.append(_aligned(rows) if rows else "the runs have no valid load in common to compare")
    return "\n".join(parts)


def _aligned(rows: Rows) -> str:
    lines = [dict(zip(rows[0], rows[0], strict=True)), *rows] if rows else []
    widths = {name: max(len(line[name]) for line in lines) for name in (rows[0] if rows else ())}
    sides = {name: "<" if name in ("run", "load", "quantity", "status") else ">" for name in widths}
    return "\n".join("  ".join(f"{line[name]:{sides[name]}{widths[name]}}" for name in widths) for line in lines)
