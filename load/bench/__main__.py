"""`make bench`: this deployment against its peers, as one table of ratios.

Progress goes to stderr, the table to stdout. A number that falls short is reported, not an error.
"""

import argparse
import signal
import sys
from types import FrameType

from deploy.archive import ArchiverFailed
from deploy.server import ServerError
from load.bench import adaptive, client, resnet, texts, translation
from load.bench.peers import BenchError
from torchserve_client.management import ManagementError

BENCHMARKS = {
    "resnet": resnet.run,
    "texts": texts.run,
    "translation": translation.run,
    "client": client.run,
    "adaptive": adaptive.run,
}

# Of a shell, for a program that a signal ended.
INTERRUPTED, TERMINATED = 130, 143


def main(arguments: list[str]) -> int:
    """Measure and print; 1 with one line when a peer cannot be measured."""
    parser = argparse.ArgumentParser(prog="python -m load.bench", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--seconds", type=float, default=8.0, help="of one measurement; default: 8")
    parser.add_argument("--rounds", type=int, default=3, help="of everything, interleaved; default: 3")
    parser.add_argument("--markdown", action="store_true", help="print the table as GitHub's markdown")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(BENCHMARKS)}")
    if options.seconds <= 0 or options.rounds < 1:
        parser.error("--seconds must be more than 0, --rounds at least 1")
    # An end from outside unwinds like any other, so that what was started is stopped.
    signal.signal(signal.SIGTERM, _terminate)
    try:
        for name in options.names or BENCHMARKS:
            print(BENCHMARKS[name](rounds=options.rounds, duration_s=options.seconds, is_markdown=options.markdown))
            print(flush=True)
    except KeyboardInterrupt:
        print("bench: interrupted; its servers are stopped", file=sys.stderr)
        return INTERRUPTED
    except (BenchError, ServerError, ManagementError, ArchiverFailed, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


def _terminate(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
    sys.exit(TERMINATED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
