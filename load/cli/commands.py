"""Runs the commands: options of the command line -> runs -> tables, files and an exit code."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from load.cli.advice import DONE, autoscale, tune
from load.cli.arguments import DEFAULTS
from load.cli.files import check_outputs, write
from load.cli.sessions import expected, served_for, session_for, steps_for
from load.errors import BadRange, TooMuch
from load.measure.exchanges import EXCHANGE_BYTES, TIMING_BYTES
from load.measure.summary import Summary
from load.report import csv, page, table
from load.runs import compare
from load.runs.run_file import Run
from load.runs.scenarios import Step, closed, grid, opened, pacer_for
from load.runs.search import fair, highest, is_met
from load.runs.session import Session, Subject

INTERRUPTED = 130
# Bytes of a Server-Timing, as the handlers of this repository write it.
TYPICAL_TIMING = 90


def run(options: argparse.Namespace) -> int:
    """Measure models, print a table and store the runs."""
    if options.binary_search and options.latency_threshold is None:
        raise BadRange("--binary-search needs --latency-threshold MS: the latency that is to be kept")
    if len(options.model) > 1 and options.out is not None and options.out.suffix:
        raise BadRange(f"--out {options.out}: for several models, name a folder")
    check_outputs([options.out, options.csv, options.html], is_folder=len(options.model) > 1)
    session = session_for(options)
    steps = [] if options.binary_search else steps_for(options)
    _check_memory(session, options, steps)
    subjects = [_subject(session, options, model) for model in options.model]
    try:
        if options.binary_search:
            is_complete = all(_search(session, options, subject) for subject in subjects)
        else:
            is_complete = session.measure_all(subjects, steps, options.repeats)
    except KeyboardInterrupt:
        # Ctrl-C came between two measurements.
        is_complete = False
    except TooMuch as error:
        if not any(subject.run.steps for subject in subjects):
            raise
        # What was measured is worth an hour, perhaps; each step that is cut short says so itself.
        print(f"load: {error}", file=sys.stderr)
        is_complete = True
    runs = [subject.run for subject in subjects]
    for each in runs:
        if options.out is not None:
            each.save(options.out / f"{each.label}.json" if len(runs) > 1 else options.out)
    _output(runs, options)
    return DONE if is_complete else INTERRUPTED


def _check_memory(session: Session, options: argparse.Namespace, steps: Sequence[Step]) -> None:
    """Make sure that a long run can be recorded, as far as its requests are known before it.

    Raises:
        TooMuch: it would be cut short.
    """
    per_step = [
        options.requests or step.value * (options.duration + options.warm_up)
        for step in steps
        if options.requests or step.kind == "rate"
    ]
    expected = round(sum(per_step) * options.repeats * len(options.model))
    needed_mb = expected * (EXCHANGE_BYTES + TIMING_BYTES * TYPICAL_TIMING) / 2**20
    if needed_mb > (allowed_mb := session.max_memory_bytes / 2**20):
        raise TooMuch(
            f"some {expected:,} requests take {needed_mb:,.1f} MB to record, --max-memory is {allowed_mb:,.1f} MB: "
            "measure for a shorter time, or allow more"
        )


def report(options: argparse.Namespace) -> int:
    """Redraw stored runs."""
    _output([Run.read(path) for path in options.runs], options)
    return DONE


def _subject(session: Session, options: argparse.Namespace, model: str) -> Subject:
    served = served_for(options, model, options.model_version)
    settings = {name: _plain(value) for name, value in vars(options).items() if "token" not in name}
    label = options.label if options.label and len(options.model) == 1 else model
    subject = session.subject(served, label, settings)
    checker = expected(options, served, session.inputs.items)
    return subject if checker is None else Subject(served, subject.run, checker.verdict)


def _plain(value: Any) -> Any:
    """Turn an option into what JSON can hold."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def _search(session: Session, options: argparse.Namespace, subject: Subject) -> bool:
    """Search one model's highest load and print it; return False when Ctrl-C ended it."""
    percentile = options.percentile or DEFAULTS.percentile
    pace = pacer_for(options.request_distribution, options.seed or 0, options.burst_size)
    if bool(options.concurrency) == bool(options.rate):
        raise BadRange("--binary-search needs --concurrency LOW:HIGH or --rate LOW:HIGH:STEP, one of them")
    step = closed if options.concurrency else (lambda rate: opened(pace(rate), options.max_in_flight))

    def measure(load: float) -> Summary:
        summary = session.measure(subject, step(load), f"{subject.run.label}, {step(load)}")
        if summary.is_interrupted:
            raise _Interrupted
        return summary

    try:
        found = highest(
            grid(options.concurrency or options.rate),
            fair(measure, percentile),
            lambda summary: is_met(summary, percentile),
        )
    except _Interrupted:
        return False
    wanted = f"{percentile:g} % of requests within {options.latency_threshold:g} ms"
    if found.load is None:
        print(f"{subject.run.label}: not even the lowest load has {wanted}")
    else:
        limit = ", the highest of the range: more might hold" if found.is_limit else ""
        print(f"{subject.run.label}: highest load with {wanted}: {step(found.load)}{limit}")
    return True


class _Interrupted(Exception):
    """Ctrl-C ended a search."""


def compared(options: argparse.Namespace) -> int:
    """Print the ratios of two stored runs."""
    base, other = Run.read(options.base), Run.read(options.other)
    rows = compare.compare(base, other)
    table.wide(Console()).print(compare.table(base, other, rows))
    for line in compare.remarks(base, other, rows):
        print(f"load: {line}", file=sys.stderr)
    return DONE


def _output(runs: Sequence[Run], options: argparse.Namespace) -> None:
    table.show(runs, Console(), has_legend=options.verbose)
    drawn = {options.csv: csv.render, options.html: page.render}
    for path, render in drawn.items():
        if path is not None:
            write(path, render(runs))


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": run,
    "report": report,
    "compare": compared,
    "tune": tune,
    "autoscale": autoscale,
}
