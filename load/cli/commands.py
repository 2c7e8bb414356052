"""Runs the commands: options of the command line -> runs -> tables, files and an exit code."""

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from load.autoscale import scaled_object, study
from load.autoscale.rules import Wishes, derive
from load.autoscale.study import Plan
from load.cli.arguments import DEFAULTS
from load.cli.progress import Progress
from load.errors import BadRange, CannotWrite, InputError, TooMuch
from load.generate import expect, inputs
from load.generate.inputs import Inputs
from load.generate.windows import TUNING as WINDOWS
from load.generate.windows import Duration, Requests, Stability, Until
from load.measure.exchanges import EXCHANGE_BYTES, TIMING_BYTES
from load.measure.summary import TUNING as VALIDITY
from load.measure.summary import Summary
from load.report import csv, page, replicas, table
from load.runs import compare
from load.runs.run_file import Run
from load.runs.scenarios import Step, closed, grid, mlperf, numbers, opened, pacer_for, replay
from load.runs.search import Found, fair, highest, is_met
from load.runs.served import Served
from load.runs.session import Session, Subject
from load.runs.tune import Tuner, advise
from load.runs.tuned import Held, Tuned

DONE, INTERRUPTED = 0, 130
ALONE = "alone"
# Wishes of autoscale -> the options that say them.
OPTIONS = {
    "min_replicas": "--min-replicas",
    "max_replicas": "--max-replicas",
    "cold_start_s": "--cold-start",
    "is_adaptive": "--adaptive",
    "deployment": "--deployment",
    "prometheus": "--prometheus",
}
# Bytes of a Server-Timing, as the handlers of this repository write it.
TYPICAL_TIMING = 90


def run(options: argparse.Namespace) -> int:
    """Measure models, print a table and store the runs."""
    if options.binary_search and options.latency_threshold is None:
        raise BadRange("--binary-search needs --latency-threshold MS: the latency that is to be kept")
    if len(options.model) > 1 and options.out is not None and options.out.suffix:
        raise BadRange(f"--out {options.out}: for several models, name a folder")
    _check_outputs([options.out, options.csv, options.html], is_folder=len(options.model) > 1)
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


def session_for(options: argparse.Namespace) -> Session:
    """Make the session that measures every step of a run."""
    return Session(
        inputs=Inputs(inputs.read(options.input, options.content_type), options.seed),
        until=_until(options),
        warm_up_s=options.warm_up,
        latency_threshold_ms=options.latency_threshold,
        max_lag_ms=options.max_lag,
        display=Progress(Console(stderr=True)),
        max_memory_bytes=options.max_memory,
    )


def served_for(options: argparse.Namespace, model: str, version: str | None = None) -> Served:
    """Address a model where the command line says it is."""
    return Served(
        model,
        version,
        options.url,
        options.management_url,
        options.metrics_url,
        options.token,
        options.management_token,
        options.timeout,
    )


def expected(options: argparse.Namespace, served: Served, items: Sequence[inputs.Input]) -> expect.Expected | None:
    """Take the answers that the server is held to, as --expect says.

    Args:
        options: the command line.
        served: the model, which is asked for each answer with `--expect alone`.
        items: what is sent.

    Returns:
        The judge of answers; None where --expect was not given.

    Raises:
        InputError: the file of answers cannot be read, or has none for an input.
        NotServed: the model does not answer.
    """
    if options.expect is None:
        return None
    if options.expect == ALONE:
        answers = [expect.parsed(served.ask(item)) for item in items]
    else:
        answers = expect.read(Path(options.expect), items)
    return expect.Expected(answers, options.tolerance)


def steps_for(options: argparse.Namespace) -> list[Step]:
    """Make the loads that the command line asks for.

    Raises:
        BadRange: it asks for none, or for more than one kind.
        InputError: a file of intervals cannot be read.
    """
    pace = pacer_for(options.request_distribution, options.seed or 0, options.burst_size)
    clients = numbers(options.concurrency) if options.concurrency else ()
    rates = numbers(options.rate) if options.rate else ()
    if options.scenario:
        return mlperf(options.scenario, clients, rates, pace)
    if sum(map(bool, (clients, rates, options.request_intervals))) != 1:
        raise BadRange("give one of --concurrency, --rate, --request-intervals and --scenario")
    if options.request_intervals:
        return [opened(replay(_lines(options.request_intervals)), options.max_in_flight)]
    return [closed(each) for each in clients] or [opened(pace(each), options.max_in_flight) for each in rates]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def _until(options: argparse.Namespace) -> Until:
    """Make the rule for a step's end: a duration, unless windows or a number of requests are asked for."""
    windows = (
        options.stability_percentage,
        options.measurement_interval,
        options.measurement_request_count,
        options.max_trials,
    )
    if any(each is not None for each in windows):
        percentage, interval_ms, request_count, max_trials = windows
        return Stability(
            interval_s=interval_ms / 1e3 if interval_ms else WINDOWS.interval_s,
            percentage=percentage or WINDOWS.percentage,
            max_trials=max_trials or WINDOWS.max_trials,
            percentile=options.percentile,
            request_count=request_count or 0,
        )
    return Requests(options.requests) if options.requests else Duration(options.duration)


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


def tune(options: argparse.Namespace) -> int:
    """Print what to register a model with, and store what that was made of."""
    _check_outputs([options.out])
    session = Session(
        inputs=Inputs(inputs.read(options.input, options.content_type), options.seed),
        until=Duration(options.duration),
        warm_up_s=DEFAULTS.warm_up_s,
        latency_threshold_ms=options.latency_threshold_ms,
        max_lag_ms=VALIDITY.max_lag_ms,
        display=Progress(Console(stderr=True)),
    )
    tuner = Tuner(session, served_for(options, options.model), options.archive, print)
    sizes = [2**power for power in range(options.max_batch_size.bit_length()) if 2**power <= options.max_batch_size]
    curve, points = tuner.curve(sizes)
    print(f"time of a batch of n: {curve.per_item_ms:.2f} ms * n + {curve.per_batch_ms:.2f} ms")
    advice = advise(curve, options.latency_threshold_ms, options.max_batch_size)
    workers, found = tuner.best(advice, options.max_workers, options.percentile)
    wanted = f"{options.percentile:g} % of requests within {options.latency_threshold_ms:g} ms"
    print(
        f"\nbatch_size {advice.batch_size}, max_batch_delay {advice.max_batch_delay_ms}, "
        f"job_queue_size {advice.job_queue_size}, workers {workers}\n"
        f'curl -X POST "{options.management_url}/models?url={tuner.archive}&batch_size={advice.batch_size}'
        f'&max_batch_delay={advice.max_batch_delay_ms}&initial_workers={workers}"\n'
        f"job_queue_size={advice.job_queue_size}   # config.properties, or jobQueueSize in model-config.yaml"
    )
    if found.load is None:
        print(f"but not even the lowest rate that was tried has {wanted}: p99 {_p99(found.measured)}")
    else:
        print(f"holds {found.load:.1f} requests/s with {wanted}: p99 {_p99(found.measured)}")
    if options.out is not None:
        Tuned(
            model=options.model,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            latency_threshold_ms=options.latency_threshold_ms,
            percentile=options.percentile,
            points=points,
            curve=curve,
            advice=advice,
            workers=workers,
            held=_held(found),
            ready_s=round(tuner.ready_s, 1),
        ).save(options.out)
    return DONE


def _held(found: Found[Summary]) -> Held | None:
    if found.load is None:
        return None
    latencies = found.measured.latencies.statistics_ms()
    return Held(found.load, latencies["mean"], latencies["p99"])


def _p99(summary: Summary) -> str:
    return f"{summary.latency_ms(99):.1f} ms" if summary.completed else "of nothing"


def autoscale(options: argparse.Namespace) -> int:
    """Write KEDA's rules for the replicas of a model that was tuned."""
    wishes = Wishes(
        min_replicas=options.min_replicas,
        max_replicas=options.max_replicas,
        cold_start_s=options.cold_start,
        is_adaptive=options.adaptive,
        deployment=options.deployment,
        prometheus=options.prometheus,
    )
    _check_outputs([options.out, options.simulate])
    tuned = Tuned.read(options.tune)
    text = scaled_object.render(derive(tuned, wishes), _typed(options, wishes))
    if options.out is not None:
        _write(options.out, text)
    elif options.simulate is None and not options.sweep:
        print(text, end="")
    if options.simulate is None and not options.sweep:
        return DONE
    plan = Plan(replicas_at_peak=options.peak, hours=options.hours, seed=options.seed)
    scene = study.Scene.of(tuned, wishes, plan)
    if options.simulate is not None:
        # The rules are those of the YAML, as KEDA would read it.
        day = study.study(scene, scaled_object.read(text))
        _write(options.simulate, replicas.page(day, tuned.model))
        print(replicas.table(day.rows, day.peak))
    if options.sweep:
        tried = study.sweep(tuned, wishes, scene, say=lambda line: print(f"load: {line}", file=sys.stderr))
        rows = [(f"{name} {value:g}", outcome) for name, value, outcome in tried]
        print(replicas.table(rows, scene.static(math.ceil(plan.replicas_at_peak))))
    return DONE


def _typed(options: argparse.Namespace, wishes: Wishes) -> str:
    """The command as a reader would type it again, without what is as it is by default."""
    words = ["python -m load autoscale", options.tune.as_posix()]
    for each in fields(wishes):
        value = getattr(wishes, each.name)
        if value != each.default:
            words += [OPTIONS[each.name]] if value is True else [OPTIONS[each.name], f"{value}"]
    return " ".join(words + (["--out", options.out.as_posix()] if options.out else []))


def _output(runs: Sequence[Run], options: argparse.Namespace) -> None:
    table.show(runs, Console(), has_legend=options.verbose)
    drawn = {options.csv: csv.render, options.html: page.render}
    for path, render in drawn.items():
        if path is not None:
            _write(path, render(runs))


def _check_outputs(paths: Sequence[Path | None], *, is_folder: bool = False) -> None:
    """Make sure before an hour of measuring that its results can be written.

    Args:
        paths: files to write; None is none. The first is of the runs.
        is_folder: whether that one is a folder.

    Raises:
        CannotWrite: a file cannot be made where it is wanted.
    """
    for number, path in enumerate(paths):
        if path is None:
            continue
        folder = path if is_folder and not number else path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise CannotWrite(f"cannot write {path}: {error.strerror}") from error
        if folder is not path and path.is_dir():
            raise CannotWrite(f"cannot write {path}: it is a folder")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror}") from error


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": run,
    "report": report,
    "compare": compared,
    "tune": tune,
    "autoscale": autoscale,
}
