"""Parses the command line.

run       measures a model, prints a table, stores the run
report    draws stored runs anew, as a table, CSV or page
compare   prints ratios of two stored runs, with confidence intervals
tune      says what to register a model with, for a latency that is wanted
autoscale writes the rules by which KEDA scales its replicas, and simulates a day of them
"""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from load.autoscale.rules import TUNING as SCALING
from load.autoscale.rules import Wishes
from load.autoscale.study import Plan
from load.generate.expect import TUNING as EXPECT
from load.generate.open_loop import TUNING as OPEN_LOOP
from load.generate.target import TUNING as TARGET
from load.generate.windows import TUNING as WINDOWS
from load.measure.recording import MAX_MEMORY_BYTES
from load.measure.summary import TUNING as VALIDITY
from load.runs.scenarios import DISTRIBUTIONS, SCENARIOS
from load.runs.served import MANAGEMENT_URL, METRICS_URL, URL

SIZES = {"MB": 1 << 20, "GB": 1 << 30}
SIZE = re.compile(r"(\d+(?:\.\d+)?)(MB|GB)")
SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says what is measured with unless an option says otherwise; a number without a source was chosen."""

    # Length of a step's window, and of the load before it opens, s.
    duration_s: float = 10.0
    warm_up_s: float = 1.0
    # Requests of a burst: the batch size of the image models among the examples.
    burst_size: int = 8
    # Share of all requests, in %, that must keep a latency: that of MLPerf's Server scenario.
    percentile: float = 99.0
    # Length of one of tune's many measurements, s.
    tune_duration_s: float = 5.0
    # Largest batch size that tune considers, as that of load/bench, and most workers, one more than usual.
    tune_batch_size: int = 32
    tune_workers: int = 2


DEFAULTS = Tuning()
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")


def duration_s(text: str) -> float:
    """Read "6s", "500ms", "2m", or a number of seconds."""
    match = DURATION.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: write 6s, 500ms or 2m")
    return float(match[1]) * SECONDS[match[2]]


def size_bytes(text: str) -> int:
    """Read "2GB" or "500MB", in powers of 1024."""
    match = SIZE.fullmatch(text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 2GB or 500MB")
    return int(float(match[1]) * SIZES[match[2]])


def pause_s(text: str) -> float:
    """Read a duration that may be 0."""
    return 0.0 if text in ("0", "0s") else duration_s(text)


def address(text: str) -> str:
    """Read a URL; http:// may be left out."""
    return (text if "://" in text else f"http://{text}").rstrip("/")


def positive(text: str) -> float:
    """Read a number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def count(text: str) -> int:
    """Read a whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def percent(text: str) -> float:
    """Read a percentage: 0 < percent <= 100."""
    value = float(text)
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is no percentage: 0 < p <= 100")
    return value


def parser() -> argparse.ArgumentParser:
    """Make the parser of every command with its arguments."""
    top = argparse.ArgumentParser(prog="python -m load", description="A load generator for TorchServe models.")
    commands = top.add_subparsers(dest="command", required=True, metavar="run|report|compare|tune|autoscale")
    _run(commands.add_parser("run", help="measure a model"))
    report = commands.add_parser("report", help="redraw stored runs")
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN.json")
    _outputs(report)
    compare = commands.add_parser("compare", help="print ratios of two stored runs, B over A")
    compare.add_argument("base", type=Path, metavar="A.json")
    compare.add_argument("other", type=Path, metavar="B.json")
    _tune(commands.add_parser("tune", help="say what to register a model with"))
    _autoscale(commands.add_parser("autoscale", help="write KEDA's rules for a model's replicas, from a stored tune"))
    return top


def _run(command: argparse.ArgumentParser) -> None:
    _server(command)
    command.add_argument(
        "-m", "--model", action="append", required=True, help="registered name; given twice, both are measured in turn"
    )
    command.add_argument("-x", "--model-version", metavar="V", help="the model's version; default: its default version")
    _content(command)

    load = command.add_argument_group("load (1,2,4 or 10:200:10 or 1:64:x2)")
    load.add_argument("--concurrency", "--concurrency-range", metavar="RANGE", help="closed loop: number of clients")
    load.add_argument("--rate", "--request-rate-range", metavar="RANGE", help="open loop: requests per second")
    load.add_argument("--request-intervals", type=Path, metavar="FILE", help="open loop: gaps in us, a line each")
    load.add_argument("--scenario", choices=SCENARIOS, help="a scenario of MLPerf")
    load.add_argument("--request-distribution", choices=DISTRIBUTIONS, default="poisson", help="default: poisson")
    load.add_argument(
        "--burst-size",
        type=count,
        default=DEFAULTS.burst_size,
        metavar="N",
        help="requests of a burst; default: %(default)d",
    )
    load.add_argument(
        "--max-in-flight", type=count, default=OPEN_LOOP.max_in_flight, metavar="N", help="default: %(default)d"
    )

    length = command.add_argument_group("length of a measurement")
    length.add_argument(
        "--duration", type=duration_s, default=DEFAULTS.duration_s, metavar="T", help="default: %(default)gs"
    )
    length.add_argument("--requests", type=count, metavar="N", help="measure until so many were answered, instead")
    length.add_argument(
        "--warm-up", type=pause_s, default=DEFAULTS.warm_up_s, metavar="T", help="default: %(default)gs"
    )
    length.add_argument(
        "--repeats", type=count, default=1, metavar="N", help="measure everything so often, interleaved"
    )
    length.add_argument(
        "-s",
        "--stability-percentage",
        type=percent,
        metavar="P",
        help="measure until windows agree within P %%, instead",
    )
    length.add_argument(
        "-p",
        "--measurement-interval",
        type=positive,
        metavar="MS",
        help=f"length of a window; default: {WINDOWS.interval_s * 1e3:g}",
    )
    length.add_argument(
        "--measurement-request-count", type=count, metavar="N", help="least number of answers of a window"
    )
    length.add_argument(
        "-r", "--max-trials", type=count, metavar="N", help=f"most windows; default: {WINDOWS.max_trials}"
    )

    goal = command.add_argument_group("latency that is wanted")
    goal.add_argument(
        "-l", "--latency-threshold", type=positive, metavar="MS", help="most latency that goodput and the search allow"
    )
    words = f"share of requests, in %%, that must keep it; default: {DEFAULTS.percentile:g}"
    goal.add_argument("--percentile", type=percent, metavar="P", help=words)
    goal.add_argument("--binary-search", action="store_true", help="find the highest load of the range that keeps it")
    words = "most lag of the generator at its p99; default: %(default)g"
    goal.add_argument("--max-lag", type=positive, default=VALIDITY.max_lag_ms, metavar="MS", help=words)

    words = f"most memory for what is recorded, as 500MB; default: {MAX_MEMORY_BYTES >> 30}GB"
    command.add_argument("--max-memory", type=size_bytes, default=MAX_MEMORY_BYTES, metavar="SIZE", help=words)
    command.add_argument("--label", help="name of the run in reports; default: the model")
    command.add_argument(
        "-o", "--out", type=Path, metavar="RUN.json", help="store the run; a folder where there are several models"
    )
    _outputs(command)


def _server(command: argparse.ArgumentParser) -> None:
    server = command.add_argument_group("server")
    server.add_argument("-u", "--url", type=address, default=URL, help=f"default: {URL}")
    server.add_argument(
        "--management-url", type=address, default=MANAGEMENT_URL, metavar="URL", help=f"default: {MANAGEMENT_URL}"
    )
    server.add_argument(
        "--metrics-url", type=address, default=METRICS_URL, metavar="URL", help=f"default: {METRICS_URL}"
    )
    server.add_argument("--token", help="inference key, where token authorization is on")
    server.add_argument("--management-token", metavar="TOKEN", help="management key, likewise")
    words = "until a request counts as unanswered; default: %(default)gs"
    server.add_argument("--timeout", type=duration_s, default=TARGET.timeout_s, metavar="T", help=words)


def _content(command: argparse.ArgumentParser) -> None:
    content = command.add_argument_group("requests")
    content.add_argument(
        "-i", "--input", "--input-data", type=Path, nargs="+", required=True, metavar="PATH", help="see README.md"
    )
    content.add_argument("--content-type", metavar="TYPE", help="media type; default: by the names of the files")
    content.add_argument("--seed", type=int, metavar="N", help="mix the inputs at random, and decide on the arrivals")
    content.add_argument(
        "--expect", metavar="FILE|alone", help="right answers; alone: those that each input gets by itself"
    )
    content.add_argument(
        "--tolerance", type=positive, default=EXPECT.tolerance, metavar="X", help="of numbers; default: %(default)g"
    )


def _outputs(command: argparse.ArgumentParser) -> None:
    command.add_argument("-f", "--csv", type=Path, metavar="FILE", help="write CSV with perf_analyzer's columns")
    command.add_argument("--html", type=Path, metavar="FILE", help="write one page that needs no network")
    command.add_argument("-v", "--verbose", action="store_true", help="say what each number means")


def _tune(command: argparse.ArgumentParser) -> None:
    _server(command)
    command.add_argument("-m", "--model", required=True, help="registered name")
    _content(command)
    command.add_argument(
        "-l", "--latency-threshold-ms", "--latency-threshold", type=positive, required=True, metavar="MS"
    )
    words = "share of requests, in %%, that must keep it; default: %(default)g"
    command.add_argument("--percentile", type=percent, default=DEFAULTS.percentile, metavar="P", help=words)
    command.add_argument("--archive", metavar="FILE", help="its file name in the model store; default: the model's own")
    words = "length of a measurement; default: %(default)gs"
    command.add_argument("--duration", type=duration_s, default=DEFAULTS.tune_duration_s, metavar="T", help=words)
    sizes, workers = DEFAULTS.tune_batch_size, DEFAULTS.tune_workers
    command.add_argument("--max-batch-size", type=count, default=sizes, metavar="N", help="default: %(default)d")
    command.add_argument("--max-workers", type=count, default=workers, metavar="N", help="default: %(default)d")
    command.add_argument("-o", "--out", type=Path, metavar="TUNE.json", help="store the result, for `autoscale`")


def _autoscale(command: argparse.ArgumentParser) -> None:
    defaults = Wishes()
    command.add_argument("tune", type=Path, metavar="TUNE.json", help="what `tune --out` stored")
    command.add_argument(
        "--min-replicas", type=count, default=defaults.min_replicas, metavar="N", help="default: %(default)d"
    )
    command.add_argument(
        "--max-replicas", type=count, default=defaults.max_replicas, metavar="N", help="default: %(default)d"
    )
    words = f"until a new replica answers; default: as tune measured, and {SCALING.assumed_start_s:g}s"
    command.add_argument("--cold-start", type=duration_s, metavar="T", help=words)
    command.add_argument("--adaptive", action="store_true", help="the replicas run in adaptive mode")
    command.add_argument(
        "--deployment", default=defaults.deployment, metavar="NAME", help="that is scaled; default: %(default)s"
    )
    command.add_argument("--prometheus", default=defaults.prometheus, metavar="URL", help="default: %(default)s")
    command.add_argument("-o", "--out", type=Path, metavar="FILE.yaml", help="write there; default: print")

    day = command.add_argument_group("simulated day")
    plan = Plan()
    day.add_argument("--simulate", type=Path, metavar="FILE.html", help="run a day with these rules, and draw it")
    day.add_argument("--sweep", action="store_true", help="print what other numbers would do, too")
    words = "held rates of a replica that the day's most requests are; default: %(default)g"
    day.add_argument("--peak", type=positive, default=plan.replicas_at_peak, metavar="N", help=words)
    words = "length of the day; shorter ones are steeper; default: %(default)g"
    day.add_argument("--hours", type=positive, default=plan.hours, metavar="H", help=words)
    day.add_argument("--seed", type=int, default=plan.seed, metavar="N", help="of its arrivals; default: %(default)d")
