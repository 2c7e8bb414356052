"""Runs `make bench`: this deployment against its peers, as one table of ratios.

    python -m load.bench                      the parts of the plain bench, in at most 25 minutes on two cores
    python -m load.bench default --rounds 5   one part, or one that stands beside them

Each part gets an equal share of the minutes that are left, and begins no round that would end later. Progress goes to
stderr, the table to stdout and, as JSON, to build/bench.json. Exit codes: 1 when a part could not be measured, 2 for
the command line, 130 for Ctrl-C.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

import orjson
from rich.console import Console

from deploy.build.archive import ArchiverFailed
from deploy.run.server import ServerError
from deploy.sandbox import NotStarted
from load.bench import archives, gateway, int8, machine, modes, peer_process, peers, resnet, retrieval, texts, vision
from load.bench.rounds import Bench, progress
from load.bench.table import Row, markdown, rendered
from load.errors import LoadError
from torchserve_client.errors import ClientError


class Part(NamedTuple):
    """A part: what it measures, the environments of .extras that it needs, and whether the plain bench has it."""

    rows: Callable[[Bench], Iterator[Row]]
    extras: tuple[str, ...] = ()
    is_plain: bool = True


PARTS = {
    "resnet": Part(resnet.rows),
    "texts": Part(texts.embedding),
    "translation": Part(texts.translation),
    "poisson": Part(modes.poisson),
    "int8": Part(int8.rows, ("int8",)),
    "retrieval": Part(retrieval.rows, ("infinity",), is_plain=False),
    "vision": Part(vision.rows, is_plain=False),
    "gateway": Part(gateway.rows, is_plain=False),
    "default": Part(modes.default, is_plain=False),
    "peers": Part(peers.rows, ("peers", "pytriton", "infinity"), is_plain=False),
}
PLAIN = [name for name, part in PARTS.items() if part.is_plain]
ERRORS = (LoadError, ServerError, ClientError, ArchiverFailed, NotStarted, BrokenProcessPool, OSError)
# Exit codes: 128 + SIGINT, 128 + SIGTERM.
INTERRUPTED = 130
TERMINATED = 143


def main(arguments: list[str]) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m load.bench", description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: {', '.join(PLAIN)}")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a measurement; default: 5")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured; default: 3")
    parser.add_argument("--minutes", type=float, default=25.0, help="of all parts together; default: 25")
    parser.add_argument("--classifier", choices=archives.CLASSIFIERS, help="default: as the processor's speed allows")
    parser.add_argument("--json", type=Path, default="build/bench.json", metavar="FILE", help="default: %(default)s")
    parser.add_argument("--markdown", action="store_true", help="print the table as GitHub's markdown")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(PARTS)}")
    if options.seconds <= 0 or options.rounds < 1 or options.minutes <= 0:
        parser.error("--seconds and --minutes must be more than 0, --rounds at least 1")
    # A signal unwinds like an exception, so that what was started is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        return measure(options)
    except KeyboardInterrupt:
        print("bench: interrupted; its servers are stopped", file=sys.stderr)
        return INTERRUPTED


def measure(options: argparse.Namespace) -> int:
    """Measure the parts one after the other, and print one table of all; return the exit code."""
    names, failed, rows, remarks = options.parts or PLAIN, 0, list[Row](), Counter[str]()
    for extra in dict.fromkeys(extra for name in names for extra in PARTS[name].extras):
        progress(f"environment: .extras/{extra}")
        peer_process.build_environment(extra)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    classifier = options.classifier or archives.classifier()
    ends_s = time.monotonic() + 60 * options.minutes
    for number, name in enumerate(names):
        started_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
            until_s = started_s + (ends_s - started_s) / (len(names) - number)
            bench = Bench(Path(folder), classifier, options.rounds, options.seconds, until_s, remarks)
            try:
                rows += PARTS[name].rows(bench)
            except ERRORS as error:
                bench.remark(f"{name}: not measured: {error}")
                failed += 1
        progress(f"{name} took {(time.monotonic() - started_s) / 60:.1f} minutes")
    where = machine.described("openvino", "ctranslate2", "torch", "torchserve")
    method = f"{options.rounds} interleaved rounds at most, of {options.seconds:g} s each; median (min..max)"
    # Infinite figures, percentiles of which more than 1 % failed, are null.
    table = {"machine": where, "method": method, "rows": [row.to_json() for row in rows], "remarks": remarks}
    options.json.write_bytes(orjson.dumps(table, option=orjson.OPT_INDENT_2))
    print(f"{where}\n{method}\n")
    if options.markdown:
        print(markdown(rows))
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(rendered(rows))
    print("\n".join(["", *(f"{count} times: {line}" if count > 1 else line for line, count in remarks.items())]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
