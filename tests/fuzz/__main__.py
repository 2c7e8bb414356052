"""The command line of the fuzzer: `python -m tests.fuzz --minutes 5 --seed 1`.

a process for each task -> its outcomes as lines -> table, findings, files of found/
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.fuzz.kinds import KINDS
from tests.fuzz.outcome import Finding, Outcome
from tests.fuzz.report import distinct, keep, lines, table
from tests.fuzz.sent import Sent

IN_PROCESS, SERVED = "in-process", "served"
# Importing, and making the model: what a process takes before its first body.
START_S = 12.0
# What a task behind a server takes at least, in both modes.
SERVED_S = 40.0
MODES = ("classic", "adaptive")
# A process that says nothing for so long hangs, whatever it was sent; it prints the stacks of its threads.
HANGS_S = 120.0


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=5.0, help="how long, all in all (default: %(default)s)")
    length.add_argument("--bodies", type=int, help="instead: how many bodies a task and mode")
    parser.add_argument("--seed", type=int, default=1, help="of every body (default: %(default)s)")
    parser.add_argument("--task", choices=list(KINDS), action="append", help="only this one; may be repeated")
    parser.add_argument("--against", choices=[IN_PROCESS, SERVED], action="append", help="default: both")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="send one body again, and print what comes")
    parser.add_argument("--no-files", action="store_true", help="do not keep findings as files of tests/fuzz/found")
    parser.add_argument("--journal", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    return parser.parse_args(given)


def main() -> int:
    """Fuzz, print, and say by the exit status whether everything held."""
    options = arguments()
    tasks = options.task or list(KINDS)
    if options.only is not None:
        return _only(tasks, options.seed, options.only)
    if options.journal is not None:
        (task,) = tasks
        return _child(task, options)
    against = options.against or [IN_PROCESS, SERVED]
    outcomes: list[Outcome] = []
    if IN_PROCESS in against:
        share = 1.0 if SERVED not in against else 0.6
        seconds = max(1.0, (60 * options.minutes * share / len(tasks) - START_S) / 2)
        for task in tasks:
            outcomes += _in_process(task, options, seconds)
    if SERVED in against:
        outcomes += _served(tasks, options, 60 * options.minutes * (1.0 if IN_PROCESS not in against else 0.4))
    print(f"seed {options.seed}\n\n{table(outcomes)}")
    for outcome in outcomes:
        for line in lines(outcome, options.seed):
            print(line)
        for finding in () if options.no_files else distinct(outcome.findings):
            if finding.number and (path := keep(outcome.task, options.seed, finding.number, finding.problem)):
                print(f"kept: {path}")
    return int(any(outcome.findings for outcome in outcomes))


def _served(tasks: Sequence[str], options: argparse.Namespace, seconds: float) -> list[Outcome]:
    """Fuzz tasks behind a server, in both modes: all, or those whose turn it is where there is no time for all."""
    from tests.fuzz import served  # noqa: PLC0415 - only here is a server needed

    if options.bodies is None:
        first, count = options.seed % len(tasks), max(1, min(len(tasks), int(seconds / SERVED_S)))
        tasks = [*tasks, *tasks][first : first + count]
    seconds = max(5.0, (seconds - START_S) / len(tasks) / 2 - START_S)
    outcomes = []
    with served.serving(tasks) as server:
        for task in tasks:
            for mode in MODES:
                outcomes.append(served.fuzz(server, task, mode, options.seed, _until(options, seconds)))
                print(f"{task}, served, {mode}: {outcomes[-1].bodies} bodies", file=sys.stderr)
    return outcomes


Until = Callable[[], Callable[[float], float]]


def _until(options: argparse.Namespace, seconds: float) -> Until:
    """Make what says which share of a run is done: by bodies, or by the clock from now on."""

    def begin() -> Callable[[float], float]:
        started = time.monotonic()
        if options.bodies is not None:
            return lambda sent: sent / options.bodies
        return lambda _: (time.monotonic() - started) / seconds

    return begin


def _in_process(task: str, options: argparse.Namespace, seconds: float) -> list[Outcome]:
    """Fuzz a task in a process of its own; where that ends before its work does, say at which bodies."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        journal = Path(folder) / "journal"
        length = ["--bodies", str(options.bodies)] if options.bodies is not None else ["--seconds", str(seconds)]
        command = [sys.executable, "-m", "tests.fuzz", "--task", task, "--seed", str(options.seed), *length]
        ended = subprocess.run([*command, "--journal", str(journal)], stdout=subprocess.PIPE, text=True, check=False)
        outcomes = [Outcome.of(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        if ended.returncode:
            mode, number = journal.read_text().split() if journal.exists() else ("start", "0")
            problem = f"the process ended with {ended.returncode} at the batch from {number} on"
            outcomes.append(Outcome(task, mode, findings=[Finding(int(number), problem)]))
    for outcome in outcomes:
        print(f"{task}, {outcome.mode}: {outcome.bodies} bodies, {len(outcome.findings)} findings", file=sys.stderr)
    return outcomes


def _child(task: str, options: argparse.Namespace) -> int:
    from tests.fuzz import child  # noqa: PLC0415 - imports everything that a worker does

    child.run(task, options.seed, _until(options, options.seconds or 1.0), options.journal, HANGS_S)
    return 0


def _only(tasks: Sequence[str], seed: int, number: int) -> int:
    from tests.fuzz import child  # noqa: PLC0415

    if len(tasks) > 1:
        print("--only needs --task", file=sys.stderr)
        return 2
    return child.once(tasks[0], seed, number, _told)


def _told(sent: Sent) -> None:
    print(f"{', '.join(sent.how)}; headers {dict(sent.headers)!r}"[:2000])
    for part in sent.parts:
        print(f"{sent.form} {part.name[:80]!r} {part.content_type!r} {len(part.value)} bytes: {part.value[:1500]!r}")


if __name__ == "__main__":
    sys.exit(main())
