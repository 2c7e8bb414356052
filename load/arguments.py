"""The command line: flags as checked values; an error is one line."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from load.expect import TOLERANCE
from load.generate import MAX_IN_FLIGHT, TIMEOUT_S
from load.results import PERCENTILE
from load.served import Served
from torchserve_client import InvalidPayload, transport
from torchserve_client.arguments import Parser, duration_s, number

RANGES = "16, 1,2,4, 10:200:10 or 1:64:x2"
IMAGE = "-i examples/mobilenet-v2/espresso.jpg"


def address(text: str) -> str:
    """Parse a URL; http:// is optional."""
    try:
        return transport.address(text if "://" in text else f"http://{text}")
    except InvalidPayload as error:
        raise argparse.ArgumentTypeError(error.message) from None


def numbers(kind: type[int] | type[float]) -> Callable[[str], tuple[float, ...]]:
    """Return a parser of numbers above 0: "1,2,4", "10:200:10" (start:end:step) or "1:64:x2"."""

    def parse(text: str) -> tuple[float, ...]:
        try:
            found = _range(*text.split(":")) if ":" in text else [float(part) for part in text.split(",")]
            if all(0 < value < float("inf") and value == kind(value) for value in found) and found:
                return tuple(map(kind, found))
        except (ValueError, TypeError, OverflowError):
            pass
        what = "whole numbers" if kind is int else "numbers"
        raise argparse.ArgumentTypeError(f"{text!r}: write {what} above 0 as {RANGES}")

    return parse


def _range(start: str, end: str, step: str = "1") -> list[float]:
    value, last = float(start), float(end)
    factor, summand = (float(step[1:]), 0.0) if step.startswith("x") else (1.0, float(step))
    if value <= 0 or last == float("inf") or not (factor > 1 or summand > 0):
        raise ValueError(start)
    found = []
    while value <= last * (1 + 1e-9):
        found.append(value)
        value = value * factor + summand
    return found


def parser() -> Parser:
    program = "torchserve-batching load"
    top = Parser(
        prog=program,
        description="Send load to models of a TorchServe and measure the responses.",
        examples=(
            f"{program} run -m mobilenet-v2 {IMAGE} --concurrency 1,16 --html page.html",
            f"{program} search -m mobilenet-v2 {IMAGE} --rate 5:100:5 --latency-threshold 400",
        ),
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")

    def add(name: str, words: str, *examples: str) -> argparse.ArgumentParser:
        lines = [f"{program} {name} {each}" for each in examples]
        return commands.add_parser(name, help=words, description=f"{words.capitalize()}.", examples=lines)

    call = f"-m mobilenet-v2 {IMAGE}"
    both = "-m stock -m ours -i photographs/ --concurrency 1:32:x2 --repeats 5 --out runs/"
    _run(add("run", "measure models, print a table, store the runs", f"{call} --concurrency 16 --duration 6s", both))
    search = add(
        "search",
        "find the highest load that meets a latency target",
        f"{call} --rate 10:200:5 --latency-threshold 200",
        f"{call} --concurrency 1:64 -l 500 --percentile 95",
    )
    _run(search, is_search=True)
    words = "draw stored runs, and compare the later ones with the first"
    report = add("report", words, "run.json", "runs/stock.json runs/ours.json --html page.html")
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN.json", help="files that --out has written")
    _html(report)
    return top


def _server(command: argparse.ArgumentParser) -> None:
    default, add = Served(""), command.add_argument_group("server").add_argument
    urls = {"TORCHSERVE_URL": default.url, "TORCHSERVE_MANAGEMENT_URL": default.management_url}
    url, management_url = (os.environ.get(name, value) for name, value in urls.items())
    add("-u", "--url", type=address, default=url, help="inference API; default: $TORCHSERVE_URL or port 8080")
    words = "management API; default: $TORCHSERVE_MANAGEMENT_URL or port 8081"
    add("--management-url", type=address, default=management_url, metavar="URL", help=words)
    words = "TorchServe's key_file.json, if the server requires tokens"
    add("--token-file", type=Path, metavar="FILE", help=words)
    words = "time for one request, such as 120, 120s or 2m; default: %(default)gs"
    add("--timeout", type=duration_s, default=TIMEOUT_S, metavar="T", help=words)
    add = command.add_argument_group("requests").add_argument
    words = "files and folders to send"
    add("-i", "--input", type=Path, nargs="+", required=True, metavar="PATH", help=words)
    add("--content-type", metavar="TYPE", help="media type; default: by the names of the files")


def _target(command: argparse.ArgumentParser, *, is_required: bool) -> None:
    add = command.add_argument_group("latency target").add_argument
    kind, words = number(float, 0, is_open=True), "maximum latency of a response"
    add("-l", "--latency-threshold", type=kind, required=is_required, metavar="MS", help=words)
    words = "percentage of all requests that must meet it; default: %(default)g"
    add("--percentile", type=number(float, 0, 100, is_open=True), default=PERCENTILE, metavar="P", help=words)


def _run(command: argparse.ArgumentParser, *, is_search: bool = False) -> None:
    positive, whole = number(float, 0, is_open=True), number(int, 1)
    add = command.add_argument
    words = "registered name; repeat it to measure several models in turn"
    add("-m", "--model", action="append", required=True, help=words)
    add("-x", "--model-version", metavar="V", help="version of the model; default: its default version")
    _server(command)

    load = command.add_argument_group("load", f"RANGE is {RANGES}")
    add = load.add_mutually_exclusive_group(required=True).add_argument
    words = "closed loop: number of clients"
    add("--concurrency", type=numbers(int), metavar="RANGE", help=words)
    add("--rate", type=numbers(float), metavar="RANGE", help="open loop: requests per second")
    add = load.add_argument
    words = "arrivals of an open loop; default: %(default)s"
    add("--request-distribution", choices=("poisson", "constant"), default="poisson", help=words)
    words = "maximum requests in flight of an open loop; default: %(default)d"
    add("--max-in-flight", type=whole, default=MAX_IN_FLIGHT, metavar="N", help=words)

    _target(command, is_required=is_search)
    add = command.add_argument_group("length of a step").add_argument
    words = "time to measure, such as 6s; default: %(default)gs"
    add("--duration", type=duration_s, default=10.0, metavar="T", help=words)
    add("--warm-up", type=duration_s, default=1.0, metavar="T", help="time before that; default: %(default)gs")
    words = "repeat all measurements N times, interleaved; default: 1"
    add("--repeats", type=whole, default=1, metavar="N", help=words)

    add = command.add_argument_group("checks").add_argument
    add("--expect", metavar="FILE|alone", help="expected answers; alone: the answers to each input sent by itself")
    words = "difference that numbers of an answer may have; default: %(default)g"
    add("--tolerance", type=positive, default=TOLERANCE, metavar="X", help=words)

    add = _html(command).add_argument
    add("--label", help="name of the run; default: the model")
    add("-o", "--out", type=Path, metavar="RUN.json", help="file to store the run in; for several models: a folder")


def _html(command: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = command.add_argument_group("output")
    group.add_argument("--html", type=Path, metavar="FILE", help="write one page that needs no network")
    return group
