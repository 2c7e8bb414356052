"""Reads what a command line calls a load: ranges of numbers, and MLPerf's scenarios by name. Pure.

    "1,2,4" | "1:64:x2" | "10:200:10"  -> numbers -> steps (one `Step` for each load to be measured)

MLPerf's scenarios (mlcommons/inference, LoadGen), as far as one server over HTTP can have them:
    SingleStream   sends one request after the other; its result is the p90
    MultiStream    sends queries of 8 requests at once, one query after the other; its result is a query's p99
    Server         sends Poisson arrivals at a rate; its result is the highest rate that keeps the latency threshold
    Offline        sends as many requests at once as the server takes; its result is the throughput
Their minimal durations and counts of queries are up to the caller.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from load.errors import BadRange
from load.generate.attack import Load
from load.generate.closed_loop import ClosedLoop
from load.generate.open_loop import TUNING as OPEN_LOOP
from load.generate.open_loop import OpenLoop
from load.generate.pacers import Bursts, Constant, Pacer, Poisson, Replay
from load.runs.search import Grid

# Requests of a query: MLPerf's rule for MultiStream.
MULTI_STREAM_SAMPLES = 8
# Clients: fewer than TorchServe's default job_queue_size of 100, above which it answers 503.
OFFLINE_CLIENTS = 64


@dataclass(frozen=True, slots=True)
class Step:
    """One load to be measured.

    Attributes:
        kind: "concurrency" or "rate".
        value: number of clients, or requests per second.
        load: what sends it.
    """

    kind: str
    value: float
    load: Load

    def __str__(self) -> str:
        return str(self.load)


def numbers(text: str) -> tuple[float, ...]:
    """Read a list or range: "4", "1,2,4", "10:200:10" (perf_analyzer's start:end:step), "1:64:x2" (doubling).

    Raises:
        BadRange: the text is neither, or holds a number that is not above 0.
    """
    try:
        found = _range(text) if ":" in text else tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 < value < float("inf") for value in found):
        raise BadRange(f"{text!r} is no range of numbers above 0: write 16, 1,2,4 or 10:200:10 or 1:64:x2")
    return found


def _range(text: str) -> tuple[float, ...]:
    start, end, step = (*text.split(":"), "1")[:3] if text.count(":") < 2 else text.split(":")
    value, last = float(start), float(end)
    factor, summand = (float(step[1:]), 0.0) if step.startswith("x") else (1.0, float(step))
    if value <= 0 or last == float("inf") or not (factor > 1 or summand > 0):
        raise ValueError(text)
    found = []
    while value <= last * (1 + 1e-9):
        found.append(value)
        value = value * factor + summand
    return tuple(found)


def grid(text: str) -> Grid:
    """Read what a search goes through: start:end, or start:end:step.

    Raises:
        BadRange: the text is neither.
    """
    parts = text.split(":")
    try:
        low, high, step = (float(part) for part in (*parts, "1")[:3])
    except ValueError:
        low = high = step = 0.0
    if len(parts) > 3 or low <= 0:
        raise BadRange(f"{text!r} cannot be searched: write start:end or start:end:step")
    return Grid(low, high, step)


def closed(clients: float, samples: int = 1) -> Step:
    """Make a step of a closed loop.

    Args:
        clients: number of clients.
        samples: number of requests that each sends at once.

    Raises:
        BadRange: the number of clients is not whole.
    """
    if clients != int(clients):
        raise BadRange(f"concurrency {clients:g} is not a whole number")
    return Step("concurrency", clients, ClosedLoop(int(clients), samples=samples))


def opened(pacer: Pacer, max_in_flight: int = OPEN_LOOP.max_in_flight) -> Step:
    """Make a step of an open loop, with at most `max_in_flight` requests in flight."""
    return Step("rate", pacer.rate_per_s, OpenLoop(pacer, max_in_flight))


def pacer_for(distribution: str, seed: int, burst_size: int) -> Callable[[float], Pacer]:
    """Choose the pacer that is made for a rate.

    Args:
        distribution: one of `DISTRIBUTIONS`.
        seed: decides on Poisson arrivals.
        burst_size: number of requests of a burst.
    """
    makers: dict[str, Callable[[float], Pacer]] = {
        "poisson": lambda rate_per_s: Poisson(rate_per_s, seed),
        "constant": Constant,
        "burst": lambda rate_per_s: Bursts(rate_per_s, burst_size),
    }
    return makers[distribution]


DISTRIBUTIONS = ("poisson", "constant", "burst")


def replay(lines: Iterable[str]) -> Pacer:
    """Read a schedule of perf_analyzer's --request-intervals: gaps in microseconds, one a line, used over and over.

    Raises:
        BadRange: a line is no number, or the gaps make no schedule.
    """
    try:
        return Replay(tuple(float(line) / 1e6 for line in lines if line.strip()))
    except ValueError as error:
        raise BadRange(f"request intervals must be microseconds, one a line: {error}") from error


def mlperf(name: str, clients: Iterable[float], rates: Iterable[float], pace: Callable[[float], Pacer]) -> list[Step]:
    """Make the steps of a scenario.

    Args:
        name: one of SCENARIOS.
        clients: numbers of clients for Offline; OFFLINE_CLIENTS where there are none.
        rates: requests per second for Server.
        pace: makes the pacer for a rate.

    Raises:
        BadRange: Server has no rate.
    """
    if name == "Server":
        steps = [opened(pace(rate)) for rate in rates]
        if not steps:
            raise BadRange("the Server scenario needs --rate, or --rate LOW:HIGH --binary-search to find it")
        return steps
    fixed: dict[str, list[Any]] = {
        "SingleStream": [closed(1)],
        "MultiStream": [closed(1, MULTI_STREAM_SAMPLES)],
        "Offline": [closed(each) for each in clients] or [closed(OFFLINE_CLIENTS)],
    }
    return fixed[name]


SCENARIOS = ("SingleStream", "MultiStream", "Server", "Offline")
