"""A process that fuzzes one task in both modes, and says before each batch which it is."""

import faulthandler
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.fuzz import bodies, in_process
from tests.fuzz.in_process import MODES
from tests.fuzz.kinds import KINDS
from tests.fuzz.run import FUZZED, Fuzzer, batches_from, is_decoded
from tests.fuzz.sent import Sent


def silence() -> None:
    """Keep TorchServe's metrics, a line each, and the worker's log off the terminal."""
    logging.getLogger("ts").addHandler(logging.NullHandler())
    logging.getLogger("ts").propagate = False
    logging.getLogger().addHandler(logging.NullHandler())


def no_note(numbers: Sequence[int]) -> None:
    """Take no note of a batch."""


def run(task: str, seed: int, until: Callable[[], Callable[[float], float]], journal: Path, hangs_s: float) -> None:
    """Fuzz; print an outcome as a line for each mode."""
    silence()
    for mode in MODES:

        def note(numbers: Sequence[int], mode: str = mode) -> None:
            journal.write_text(f"{mode} {numbers[0]}")
            faulthandler.dump_traceback_later(hangs_s, exit=True)

        with in_process.started(task, mode) as target:
            outcome = Fuzzer(KINDS[task], target, seed, mode, note).run(batches_from(0), until())
        print(outcome.to_json(), flush=True)
    faulthandler.cancel_dump_traceback_later()


def once(task: str, seed: int, number: int, tell: Callable[[Sent], None]) -> int:
    """Send one request alone and with its batch, in both modes; return 1 where an answer is not as it should be."""
    silence()
    tell(bodies.request(KINDS[task], seed, number))
    found = 0
    for mode in MODES:
        with in_process.started(task, mode) as target:
            (answer,) = target.answers([bodies.request(KINDS[task], seed, number)], decodes=is_decoded(number))
            print(f"{mode}: {answer.status} after {answer.seconds:.3f} s: {answer.body[:1500]!r}")
            fuzzer = Fuzzer(KINDS[task], target, seed, mode, no_note)
            fuzzer.batch(range(number - number % FUZZED, number - number % FUZZED + FUZZED))
            for finding in fuzzer.outcome.findings:
                print(f"{mode}: {finding.number}: {finding.problem} {finding.log}", file=sys.stderr)
                found += finding.number == number
    return int(found > 0)
