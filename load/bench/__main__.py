"""Runs `make bench`: a comparison of this deployment with its peers, as one table of ratios."""

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import orjson
from rich.console import Console

from deploy.archives.archive import ArchiverFailed
from deploy.nodes.run import ServerError
from load import LoadError
from load.bench import archives, peer_process
from load.bench.rounds import Bench, Row, describe_machine, progress, render
from load.sandbox import NotStarted
from torchserve_client.arguments import Parser, number
from torchserve_client.errors import ClientError


class Part(NamedTuple):
    place: str  # "module:function", Bench -> rows
    extras: tuple[str, ...] = ()  # environments of .extras that it needs
    is_plain: bool = True  # whether `make bench` includes it

    def measure(self, bench: Bench) -> Iterator[Row]:
        module, _, name = self.place.partition(":")
        rows: Iterator[Row] = getattr(import_module(module), name)(bench)
        return rows


PARTS = {
    "resnet": Part("load.bench.images:measure"),
    "texts": Part("load.bench.texts:measure_embedding"),
    "translation": Part("load.bench.texts:measure_translation"),
    "poisson": Part("load.bench.images:measure_poisson"),
    "int8": Part("load.bench.int8:measure", ("int8",)),
    "trained": Part("load.bench.trained:measure", ("int8",), is_plain=False),
    "gpu": Part("load.bench.gpu:measure", is_plain=False),
    "hosts": Part("load.bench.hosts:measure", is_plain=False),
    "processes": Part("load.bench.processes:measure", is_plain=False),
    "peers": Part("load.bench.peers:measure", ("peers", "pytriton", "infinity"), is_plain=False),
}
PLAIN = [name for name, part in PARTS.items() if part.is_plain]
ERRORS = (LoadError, ServerError, ClientError, ArchiverFailed, NotStarted, BrokenProcessPool, OSError)
# Exit codes: 128 + SIGINT, 128 + SIGTERM.
INTERRUPTED = 130
TERMINATED = 143


def parser() -> Parser:
    command = Parser(
        prog="torchserve-batching bench",
        description="Compare this deployment with its peers.",
        examples=("torchserve-batching bench texts --minutes 10", "torchserve-batching bench poisson"),
    )
    words = f"{', '.join(PARTS)}; default: {', '.join(PLAIN)}"
    command.add_argument("parts", nargs="*", metavar="PART", help=words)
    positive = number(float, 0, is_open=True)
    add = command.add_argument_group("measurements").add_argument
    add("--seconds", type=positive, default=5.0, metavar="S", help="length of a measurement; default: %(default)g s")
    add(
        "--rounds",
        type=number(int, 1),
        default=3,
        metavar="N",
        help="most repeats of all measurements; default: %(default)d",
    )
    add("--minutes", type=positive, default=25.0, metavar="M", help="time for all parts; default: %(default)g minutes")
    words = "example that classifies images; default: %(default)s"
    add("--classifier", choices=archives.CLASSIFIERS, default="resnet-152", help=words)
    add = command.add_argument_group("output").add_argument
    words = "file for the table as JSON; default: %(default)s"
    add("--json", type=Path, default=Path("build/bench.json"), metavar="FILE", help=words)
    return command


def main(arguments: list[str]) -> int:
    command = parser()
    options = command.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        command.error(f"unknown parts {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    # A signal raises an exception, so that context managers stop the servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        return measure(options)
    except LoadError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted; the servers are stopped", file=sys.stderr)
        return INTERRUPTED


def measure(options: argparse.Namespace) -> int:
    names, failed, rows, remarks = options.parts or PLAIN, 0, list[Row](), Counter[str]()
    for extra in dict.fromkeys(extra for name in names for extra in PARTS[name].extras):
        progress(f"environment: .extras/{extra}")
        peer_process.build_environment(extra)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    ends_s = time.monotonic() + 60 * options.minutes
    for index, name in enumerate(names):
        started_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
            until_s = started_s + (ends_s - started_s) / (len(names) - index)
            bench = Bench(Path(folder), options.classifier, options.rounds, options.seconds, until_s, remarks)
            try:
                rows += PARTS[name].measure(bench)
            except ERRORS as error:
                bench.remark(f"{name}: not measured: {error}")
                failed += 1
        progress(f"{name} took {(time.monotonic() - started_s) / 60:.1f} minutes")
    where = describe_machine("openvino", "ctranslate2", "torch", "torchserve")
    method = f"at most {options.rounds} interleaved rounds of {options.seconds:g} s each; median (min..max)"
    # Infinite figures, p99 if over 1 % of requests failed, are null.
    table = {"machine": where, "method": method, "rows": [row.to_json() for row in rows], "remarks": remarks}
    options.json.write_bytes(orjson.dumps(table, option=orjson.OPT_INDENT_2))
    print(f"{where}\n{method}\n")
    Console(width=None if sys.stdout.isatty() else 200).print(render(rows))
    print("\n".join(["", *(f"{count} times: {line}" if count > 1 else line for line, count in remarks.items())]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
