"""Makes what a run needs of the options: options of the command line -> session, models, loads, expected answers."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from load.cli.progress import Progress
from load.errors import BadRange, InputError
from load.generate import expect, inputs
from load.generate.inputs import Inputs
from load.generate.windows import TUNING as WINDOWS
from load.generate.windows import Duration, Requests, Stability, Until
from load.runs.scenarios import Step, closed, mlperf, numbers, opened, pacer_for, replay
from load.runs.served import Served
from load.runs.session import Session

ALONE = "alone"


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
