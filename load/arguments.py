"""The command line: flags as checked values; an error is one line."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from load.expect import TOLERANCE
from load.generate import MAX_IN_FLIGHT, TIMEOUT_S
from load.results import MAX_LAG_MS
from load.served import Served
from torchserve_client import InvalidPayload, transport

IMPOSSIBLE = 2
SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "h": 3600.0}


class Parser(argparse.ArgumentParser):
    """A parser whose error is one line."""

    def error(self, message: str) -> NoReturn:
        """Print the error and end with exit code 2."""
        self.exit(IMPOSSIBLE, f"load: {message}; see {self.prog} --help\n")


def duration_s(text: str) -> float:
    """Read "6s", "500ms", "2m", or a number of seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: write 6s, 500ms or 2m")
    return float(match[1]) * SECONDS[match[2]]


def address(text: str) -> str:
    """Read a URL; http:// may be left out."""
    try:
        return transport.address(text if "://" in text else f"http://{text}")
    except InvalidPayload as error:
        raise argparse.ArgumentTypeError(error.message) from None


def above_0(kind: type[int] | type[float], most: float = 1e12) -> Callable[[str], float]:
    """Return a reader of numbers: 0 < number <= most."""

    def number(text: str) -> float:
        value = kind(text)
        if not 0 < value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not above 0, or is too much")
        return value

    return number


def numbers(kind: type[int] | type[float]) -> Callable[[str], tuple[float, ...]]:
    """Return a reader of numbers above 0: "1,2,4", "10:200:10" (start:end:step, as perf_analyzer's) or "1:64:x2"."""

    def read(text: str) -> tuple[float, ...]:
        try:
            found = _range(*text.split(":")) if ":" in text else [float(part) for part in text.split(",")]
            if all(0 < value < float("inf") and value == kind(value) for value in found) and found:
                return tuple(map(kind, found))
        except (ValueError, TypeError, OverflowError):
            pass
        what = "whole numbers" if kind is int else "numbers"
        raise argparse.ArgumentTypeError(f"{text!r}: write {what} above 0 as 16, 1,2,4, 10:200:10 or 1:64:x2")

    return read


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
    """Return the parser of every command with its arguments."""
    top = Parser(prog="python -m load", description="A load generator for TorchServe's models.")
    commands = top.add_subparsers(dest="command", required=True, metavar="run|search|tune|report")
    _run(commands.add_parser("run", help="measure a model, print a table, store the run"))
    _run(commands.add_parser("search", help="find the highest load that keeps a latency"))
    _tune(commands.add_parser("tune", help="find what to register a model with, for a latency"))
    report = commands.add_parser("report", help="draw stored runs, and compare the later ones with the first")
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN.json")
    _html(report)
    return top


def _server(command: argparse.ArgumentParser) -> None:
    default, add = Served(""), command.add_argument_group("server and requests").add_argument
    add("-u", "--url", type=address, default=default.url, help="default: %(default)s")
    add("--management-url", type=address, default=default.management_url, metavar="URL", help="default: %(default)s")
    add("--token", help="inference key, where token authorization is on")
    add("--management-token", metavar="TOKEN", help="management key, likewise")
    add("--timeout", type=duration_s, default=TIMEOUT_S, metavar="T", help="of a request; default: %(default)gs")
    add("-i", "--input", "--input-data", type=Path, nargs="+", required=True, metavar="PATH", help="files and folders")
    add("--content-type", metavar="TYPE", help="media type; default: by the names of the files")
    add("--percentile", type=above_0(float, 100), metavar="P", help="of the latency to keep; default: 99")


def _run(command: argparse.ArgumentParser) -> None:
    _server(command)
    add = command.add_argument
    add("-m", "--model", action="append", required=True, help="given twice, both are measured in turn")
    add("-x", "--model-version", metavar="V", help="default: the model's default version")
    add("--label", help="name of the run in reports; default: the model")
    add("-o", "--out", type=Path, metavar="RUN.json", help="store the run; of several models: a folder")
    add("--expect", metavar="FILE|alone", help="right answers; alone: those that each input gets by itself")
    add("--tolerance", type=above_0(float), default=TOLERANCE, metavar="X", help="of numbers; default: %(default)g")
    add("-l", "--latency-threshold", type=above_0(float), metavar="MS", help="of goodput and of a search")
    _html(command)

    load = command.add_argument_group("load: 1,2,4 or 10:200:10 or 1:64:x2")
    add = load.add_mutually_exclusive_group(required=True).add_argument
    add("--concurrency", "--concurrency-range", type=numbers(int), metavar="RANGE", help="closed loop: clients")
    add("--rate", "--request-rate-range", type=numbers(float), metavar="RANGE", help="open loop: requests per second")
    add = load.add_argument
    add("--request-distribution", choices=("poisson", "constant"), default="poisson", help="default: %(default)s")
    add("--seed", type=int, default=0, metavar="N", help="of Poisson arrivals; default: %(default)d")
    add("--max-in-flight", type=above_0(int), default=MAX_IN_FLIGHT, metavar="N", help="default: %(default)d")
    add("--max-lag", type=above_0(float), default=MAX_LAG_MS, metavar="MS", help="at its p99; default: %(default)g")

    add = command.add_argument_group("length of a measurement").add_argument
    add("--duration", type=duration_s, default=10.0, metavar="T", help="default: %(default)gs")
    add("--warm-up", type=duration_s, default=1.0, metavar="T", help="default: %(default)gs")
    add("--repeats", type=above_0(int), default=1, metavar="N", help="measure everything so often, in turn")


def _html(command: argparse.ArgumentParser) -> None:
    command.add_argument("--html", type=Path, metavar="FILE", help="write one page that needs no network")


def _tune(command: argparse.ArgumentParser) -> None:
    _server(command)
    add = command.add_argument
    add("-m", "--model", required=True, help="registered name")
    add("-l", "--latency-threshold", type=above_0(float), required=True, metavar="MS")
    add("--archive", metavar="FILE", help="its file name in the model store; default: the model's own")
    add("--duration", type=duration_s, default=5.0, metavar="T", help="of a measurement; default: %(default)gs")
    add("--max-batch-size", type=above_0(int), default=32, metavar="N", help="default: %(default)d")
    add("-o", "--out", type=Path, metavar="TUNE.json", help="store the result")
