"""Runs `torchserve-batching load`; `--help` and README.md beside this file describe it.

Progress goes to stderr, tables to stdout. Exit codes: 0 done (an invalid step is marked as such), 2 not possible,
130 stopped by Ctrl-C (the run contains the measurements until then).
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from load import LoadError, expect, inputs, page, report
from load.arguments import parser
from load.generate import Attack, ClosedLoop, Load, OpenLoop
from load.measure import find_highest, measure, meets_target
from load.results import Summary
from load.run_file import Run, now, write
from load.schedules import Constant, Poisson
from load.served import Served
from torchserve_client.arguments import USAGE
from torchserve_client.errors import InvalidPayload
from torchserve_client.nodes import read_tokens

# Exit codes.
DONE = 0
INTERRUPTED = 130  # 128 + SIGINT


def run(options: argparse.Namespace) -> int:
    """Measure models, or search for their highest load; print a table and store the runs."""
    if len(options.model) > 1 and options.out is not None and options.out.suffix:
        raise LoadError(f"--out {options.out}: for several models, name a folder")
    labels = options.model if len(options.model) > 1 else [options.label or options.model[0]]
    outputs = [options.out / f"{label}.json" if len(labels) > 1 else options.out for label in labels if options.out]
    for path in filter(None, (*outputs, options.html)):
        write(path, b"", "ab")
    loads = _loads(options)
    subjects = [_make_subject(options, *names) for names in zip(options.model, labels, strict=True)]
    exit_code = DONE
    try:
        if options.command == "search":
            for attack, each in subjects:
                _search(attack, each, loads, options.percentile)
        else:
            _measure_all(subjects, loads, options.repeats)
    except KeyboardInterrupt:
        exit_code = INTERRUPTED
    runs = [each for _, each in subjects]
    for path, each in zip(outputs, runs, strict=False):
        each.save(path)
    _show(runs, options)
    return exit_code


def _make_subject(options: argparse.Namespace, model: str, label: str) -> tuple[Attack, Run]:
    """Return the attack on a model that responds, without its load, and the empty run of its results."""
    content = inputs.read(options.input, options.content_type)
    served = _served(options, model, options.model_version)
    registration = served.registration()
    served.send(content.items[0])
    check = None
    if options.expect is not None:
        is_alone = options.expect == "alone"
        answers = [expect.parse(served.send(item)) for item in content.items] if is_alone else None
        check = expect.make_check(answers or expect.read(Path(options.expect), content.items), options.tolerance)
    attack = Attack(
        target=served.target,
        inputs=content,
        load=ClosedLoop(1),
        duration_s=options.duration,
        warm_up_s=options.warm_up,
        latency_threshold_ms=options.latency_threshold,
        check=check,
    )
    settings = {name: value for name, value in vars(options).items() if "token" not in name}
    names = [item.name for item in content.items]
    return attack, Run(label, now(), model, served.target.url, registration, settings, names)


def _served(options: argparse.Namespace, model: str, version: str | None = None) -> Served:
    try:
        tokens = read_tokens(options.token_file)
    except (InvalidPayload, OSError) as error:
        raise LoadError(str(error)) from error
    keys = tokens.get("inference"), tokens.get("management")
    return Served(model, version, options.url, options.management_url, *keys, options.timeout)


def _loads(options: argparse.Namespace) -> list[Load]:
    if options.command == "search":  # a bisection
        options.concurrency, options.rate = (each and sorted({*each}) for each in (options.concurrency, options.rate))
    if options.concurrency:
        return [ClosedLoop(clients) for clients in options.concurrency]
    schedule = Constant if options.request_distribution == "constant" else Poisson
    return [OpenLoop(schedule(rate), options.max_in_flight) for rate in options.rate]


def _measure_all(subjects: Sequence[tuple[Attack, Run]], loads: Sequence[Load], repeats: int) -> None:
    """Measure every load of every model in turn, so that drift of the machine affects all of them."""
    for repeat in range(1, repeats + 1):
        first = repeat % len(subjects)  # the first model has a quieter machine, so each repeat begins with another one
        for load in loads:
            for attack, each in [*subjects[first:], *subjects[:first]]:
                measure(replace(attack, load=load), each, repeat)


def _search(attack: Attack, each: Run, loads: Sequence[Load], percentile: float) -> None:
    def measure_load(load: Load) -> Summary:
        return measure(replace(attack, load=load), each)

    found = find_highest(loads, measure_load, lambda summary: meets_target(summary, percentile))
    target = f"{percentile:g} % of requests within {attack.latency_threshold_ms:g} ms"
    if found is None:
        print(f"{each.label}: no load of the range has {target}")
    else:
        limit = "; this is the end of the range, more may be possible" if found[0] == loads[-1] else ""
        print(f"{each.label}: highest load with {target}: {found[0]}{limit}")


def draw(options: argparse.Namespace) -> int:
    _show([Run.read(path) for path in options.runs], options)
    return DONE


def _show(runs: Sequence[Run], options: argparse.Namespace) -> None:
    print(report.text(runs))
    if options.html is not None:
        write(options.html, page.render(runs).encode())


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    try:
        return {"run": run, "search": run, "report": draw}[options.command](options)
    except LoadError as error:
        print(f"load: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
