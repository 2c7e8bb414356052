"""The command line: arguments in, nouns of this folder out.

run       measure a model, print a table, store the run
report    stored runs as a table, CSV or page, anew
compare   ratios of two stored runs, with confidence intervals
tune      what to register a model with, for a latency that is wanted
"""

import argparse
import re
from pathlib import Path

from load.generate.expect import TOLERANCE
from load.generate.open_loop import MAX_IN_FLIGHT
from load.runs.scenarios import DISTRIBUTIONS, SCENARIOS
from load.runs.served import MANAGEMENT_URL, METRICS_URL, URL

SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "h": 3600.0}
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")


def duration_s(text: str) -> float:
    """ "6s", "500ms", "2m", or seconds."""
    match = DURATION.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: write 6s, 500ms or 2m")
    return float(match[1]) * SECONDS[match[2]]


def pause_s(text: str) -> float:
    """A duration, or none."""
    return 0.0 if text in ("0", "0s") else duration_s(text)


def address(text: str) -> str:
    """A URL; http:// may be left out."""
    return (text if "://" in text else f"http://{text}").rstrip("/")


def positive(text: str) -> float:
    """A number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def count(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def percent(text: str) -> float:
    """0 < percent <= 100."""
    value = float(text)
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is no percentage: 0 < p <= 100")
    return value


def parser() -> argparse.ArgumentParser:
    """All of it."""
    top = argparse.ArgumentParser(prog="python -m load", description="A load generator for TorchServe models.")
    commands = top.add_subparsers(dest="command", required=True, metavar="run|report|compare|tune")
    _run(commands.add_parser("run", help="measure a model"))
    report = commands.add_parser("report", help="redraw stored runs")
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN.json")
    _outputs(report)
    compare = commands.add_parser("compare", help="ratios of two stored runs, B over A")
    compare.add_argument("base", type=Path, metavar="A.json")
    compare.add_argument("other", type=Path, metavar="B.json")
    _tune(commands.add_parser("tune", help="what to register a model with"))
    return top


def _run(command: argparse.ArgumentParser) -> None:
    _server(command)
    command.add_argument(
        "-m", "--model", action="append", required=True, help="registered name; given twice, both in turn"
    )
    command.add_argument("-x", "--model-version", metavar="V", help="of the model; default: its default version")
    _content(command)

    load = command.add_argument_group("load (1,2,4 or 10:200:10 or 1:64:x2)")
    load.add_argument("--concurrency", "--concurrency-range", metavar="RANGE", help="closed loop: clients")
    load.add_argument("--rate", "--request-rate-range", metavar="RANGE", help="open loop: requests per second")
    load.add_argument("--request-intervals", type=Path, metavar="FILE", help="open loop: gaps in us, a line each")
    load.add_argument("--scenario", choices=SCENARIOS, help="of MLPerf")
    load.add_argument("--request-distribution", choices=DISTRIBUTIONS, default="poisson", help="default: poisson")
    load.add_argument("--burst-size", type=count, default=8, metavar="N", help="of bursts; default: 8")
    load.add_argument(
        "--max-in-flight", type=count, default=MAX_IN_FLIGHT, metavar="N", help=f"default: {MAX_IN_FLIGHT}"
    )

    length = command.add_argument_group("length of a measurement")
    length.add_argument("--duration", type=duration_s, default=10.0, metavar="T", help="default: 10s")
    length.add_argument("--requests", type=count, metavar="N", help="until so many were answered, instead")
    length.add_argument("--warm-up", type=pause_s, default=1.0, metavar="T", help="default: 1s")
    length.add_argument("--repeats", type=count, default=1, metavar="N", help="of everything, interleaved")
    length.add_argument("-s", "--stability-percentage", type=percent, metavar="P", help="until windows agree, instead")
    length.add_argument("-p", "--measurement-interval", type=positive, metavar="MS", help="of a window; default: 5000")
    length.add_argument("--measurement-request-count", type=count, metavar="N", help="a window has so many at least")
    length.add_argument("-r", "--max-trials", type=count, metavar="N", help="windows; default: 10")

    goal = command.add_argument_group("latency that is wanted")
    goal.add_argument("-l", "--latency-threshold", type=positive, metavar="MS", help="of goodput, and of the search")
    goal.add_argument("--percentile", type=percent, metavar="P", help="that must keep it; default: 99")
    goal.add_argument("--binary-search", action="store_true", help="the highest load of the range that keeps it")
    goal.add_argument("--max-lag", type=positive, default=10.0, metavar="MS", help="of the generator; default: 10")

    command.add_argument("--label", help="in reports; default: the model")
    command.add_argument("-o", "--out", type=Path, metavar="RUN.json", help="store it; of several models, a folder")
    _outputs(command)


def _server(command: argparse.ArgumentParser) -> None:
    server = command.add_argument_group("server")
    server.add_argument("-u", "--url", type=address, default=URL, help=f"default: {URL}")
    server.add_argument("--management-url", type=address, default=MANAGEMENT_URL, metavar="URL", help="likewise 8081")
    server.add_argument("--metrics-url", type=address, default=METRICS_URL, metavar="URL", help="likewise 8082")
    server.add_argument("--token", help="inference key, where token authorization is on")
    server.add_argument("--management-token", metavar="TOKEN", help="management key, likewise")
    server.add_argument("--timeout", type=duration_s, default=120.0, metavar="T", help="of a request; default: 120s")


def _content(command: argparse.ArgumentParser) -> None:
    content = command.add_argument_group("requests")
    content.add_argument(
        "-i", "--input", "--input-data", type=Path, nargs="+", required=True, metavar="PATH", help="see README.md"
    )
    content.add_argument("--content-type", metavar="TYPE", help="default: by the names of the files")
    content.add_argument("--seed", type=int, metavar="N", help="mix the inputs at random; also of the arrivals")
    content.add_argument("--expect", metavar="FILE|alone", help="answers; alone: those that each input gets by itself")
    content.add_argument(
        "--tolerance", type=positive, default=TOLERANCE, metavar="X", help=f"of numbers; default: {TOLERANCE}"
    )


def _outputs(command: argparse.ArgumentParser) -> None:
    command.add_argument("-f", "--csv", type=Path, metavar="FILE", help="with perf_analyzer's columns")
    command.add_argument("--html", type=Path, metavar="FILE", help="one page that needs no network")
    command.add_argument("-v", "--verbose", action="store_true", help="say what each number means")


def _tune(command: argparse.ArgumentParser) -> None:
    _server(command)
    command.add_argument("-m", "--model", required=True, help="registered name")
    _content(command)
    command.add_argument(
        "-l", "--latency-threshold-ms", "--latency-threshold", type=positive, required=True, metavar="MS"
    )
    command.add_argument("--percentile", type=percent, default=99.0, metavar="P", help="that must keep it; default: 99")
    command.add_argument("--archive", metavar="FILE", help="in the model store; default: the model's name + .mar")
    command.add_argument("--duration", type=duration_s, default=5.0, metavar="T", help="of a measurement; default: 5s")
    command.add_argument("--max-batch-size", type=count, default=32, metavar="N", help="default: 32")
    command.add_argument("--max-workers", type=count, default=2, metavar="N", help="default: 2")
