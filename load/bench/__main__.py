"""Runs `make bench`: this deployment against its peers, as one table of ratios.

    python -m load.bench                  every part, but those that stand apart (OPTIONAL)
    python -m load.bench translation      one of them

A part takes at most 20 minutes: it begins no round that would end after `--minutes`. Progress goes to stderr, the table
to stdout. A number that falls short is reported, and is no error.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType

from deploy.archive import ArchiverFailed
from deploy.server import ServerError
from load.bench import (
    adaptive,
    client,
    cost,
    default,
    gateway,
    highest_rate,
    impatient,
    int8,
    ready,
    resnet,
    scoring,
    tensors,
    texts,
    threads,
    translation,
    translation_mixed,
)
from load.bench.peers import BenchError
from load.bench.progress import progress
from load.bench.rounds import Rounds
from torchserve_client.management import ManagementError

BENCHMARKS: dict[str, Callable[..., str]] = {
    "resnet": resnet.run,
    "texts": texts.run,
    "translation": translation.run,
    "translation-mixed": translation_mixed.run,
    "client": client.run,
    "gateway": gateway.run,
    "adaptive-embedding": partial(adaptive.run, adaptive.EMBEDDING),
    "adaptive-resnet": partial(adaptive.run, adaptive.RESNET),
    "highest-rate": highest_rate.run,
    "default": partial(default.run, default.RESNET),
    "default-embedding": partial(default.run, default.EMBEDDING),
    "default-mnist": partial(default.run, default.MNIST),
    "cheap-language-id": partial(default.run, default.LANGUAGE_ID),
    "cheap-tokenizer": partial(default.run, default.TOKENIZER),
    "impatient": impatient.run,
    "ready": ready.run,
    "cost": cost.run,
    "threads": threads.run,
    "ray": scoring.run,
    "tensors": tensors.run,
    "int8": int8.run,
}
# Measured where they are named: they need an environment of their own, compare with nobody, or say more of the
# machine's mood than of ours.
OPTIONAL = ("ray", "tensors", "int8", "cost", "threads", "cheap-language-id", "cheap-tokenizer")

# Of the 20 minutes that a part may take, two are left for what follows the last round: servers that start and stop.
MINUTES = 18.0
# Exit codes of a shell for a program that a signal ended.
INTERRUPTED, TERMINATED = 130, 143


def main(arguments: list[str]) -> int:
    """Measure and print.

    Args:
        arguments: the command line.

    Returns:
        The exit code; 1, with one line on stderr, when a peer cannot be measured.
    """
    parser = argparse.ArgumentParser(prog="python -m load.bench", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)}; default: all but {', '.join(OPTIONAL)}"
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="length of one measurement; default: 8")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured; default: 3")
    words = f"no round of a part begins that would end later; default: {MINUTES:g}"
    parser.add_argument("--minutes", type=float, default=MINUTES, help=words)
    parser.add_argument("--markdown", action="store_true", help="print the table as GitHub's markdown")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(BENCHMARKS)}")
    if options.seconds <= 0 or options.rounds < 1 or options.minutes <= 0:
        parser.error("--seconds and --minutes must be more than 0, --rounds at least 1")
    # An end from outside unwinds like any other, so that what was started is stopped.
    signal.signal(signal.SIGTERM, _terminate)
    try:
        for name in parts(options.names):
            started_s = time.monotonic()
            rounds = Rounds.within(options.rounds, options.minutes * 60)
            print(BENCHMARKS[name](rounds=rounds, duration_s=options.seconds, is_markdown=options.markdown))
            print(flush=True)
            progress(f"{name} took {(time.monotonic() - started_s) / 60:.1f} minutes")
    except KeyboardInterrupt:
        print("bench: interrupted; its servers are stopped", file=sys.stderr)
        return INTERRUPTED
    except (BenchError, ServerError, ManagementError, ArchiverFailed, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


def parts(names: Sequence[str]) -> list[str]:
    """List the parts to measure: those named, with what belongs to them (NAME-...); without names, all but optional."""
    if not names:
        return [name for name in BENCHMARKS if name not in OPTIONAL]
    return [name for name in BENCHMARKS if any(name == named or name.startswith(f"{named}-") for named in names)]


def _terminate(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
    sys.exit(TERMINATED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
