"""Recorded requests and their summary: Exchange -> Recording -> summarise -> Summary.

Only requests that were due within the window count. Terms:
    good         a response with status 200 and, if answers are checked, the right one; others enter no latency
    latency      from the time a request was due (open loop: by its schedule) to the last byte of its response
    throughput   good responses per second; for a closed loop, over whole cycles (`_rate_of_cycles`)
    goodput      good responses within the latency threshold per second; without a threshold, the throughput
    lag          from the time a request was due to the time it was sent: the generator's own delay
"""

import asyncio
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from math import inf

OK = 200
NO_ANSWER = 0  # the status of a request without a response: refused connection, lost connection or timeout
REFUSED = (429, 503)  # statuses of a refusal: the server has not run the request, and the client may retry it later
FAULT = "generator: "  # prefix of an error in this program, which distinguishes it from the server's
MAX_EXCHANGES = 2_000_000  # most requests of a run: 0.4 KB each, so some 800 MB
# Most processor time of the generator, in % of a core: at 100 % the run would measure the generator.
MAX_CPU_PERCENT = 90.0
MAX_LAG_MS = 10.0  # p99 of the lag that is always allowed, in ms: 25 times that of an idle machine (README.md)
# p99 of the lag that is allowed as a share of the p99 latency, so that lag is a small part of a latency.
MAX_LAG_SHARE = 0.1
PERCENTILE = 99.0  # percentage of all requests that must meet a latency target: that of MLPerf's Server scenario
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9}
# Entries of Server-Timing (W3C): a duration in ms by its name, and the items of the micro-batch.
DURATION = re.compile(r"(?:^|,)\s*([\w-]+)\s*;\s*dur=(\d+(?:\.\d+)?)(?![\d.])")
BATCH_SIZE = re.compile(r'(?:^|,)\s*batch\s*;\s*desc="?([1-9]\d*)\b')


class Verdict(StrEnum):
    """The result of a check; a swapped answer is right for another input: the server mixed up two clients."""

    RIGHT = "right"
    WRONG = "wrong"
    SWAPPED = "swapped"


@dataclass(slots=True)
class Exchange:
    """One request and its response; times are in seconds of `time.perf_counter`."""

    due_s: float  # by the schedule of an open loop, or when the client of a closed loop was free
    sent_s: float
    answered_s: float = inf  # when the last byte of the response was read, or the request failed
    status: int = NO_ANSWER
    client: int = 0  # of a closed loop
    source: int = 0  # number of the input
    error: str | None = None  # why there was no response: the name of an exception
    server_timing: str | None = None
    verdict: Verdict | None = None  # None without a check

    @property
    def is_good(self) -> bool:
        """Whether the response has status 200 and, if answers are checked, the right one."""
        return self.status == OK and self.verdict in (None, Verdict.RIGHT)

    @property
    def latency_s(self) -> float:
        """Seconds since the request was due, including the wait to be sent."""
        return self.answered_s - self.due_s


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refused request: its status, its body's `type`, its header Retry-After, and its latency."""

    status: int
    type: str | None
    retry_after: str | None
    latency_ms: float


@dataclass(slots=True)
class Recording:
    """Raw results of a run, including the warm-up, in the order of the responses, and the state of a running one."""

    exchanges: list[Exchange] = field(default_factory=list)
    started_s: float = inf
    opens_s: float = inf  # start and end of the window
    closes_s: float = inf
    cpu_s: float = 0.0  # processor time of this process within the window
    in_flight: int = 0
    throttled: int = 0  # requests that were sent late because of the limit of requests in flight
    unsent: int = 0  # requests that were due within the window and never sent
    refusal: Refusal | None = None  # the first within the window
    warm: asyncio.Event = field(default_factory=asyncio.Event)  # the load has reached its full size
    closed: asyncio.Event = field(default_factory=asyncio.Event)  # the window has closed: send no more requests
    stopped: asyncio.Event = field(default_factory=asyncio.Event)  # the run was stopped early

    def add(self, exchange: Exchange) -> None:
        """Record an exchange; close the window after MAX_EXCHANGES."""
        self.exchanges.append(exchange)
        if len(self.exchanges) == MAX_EXCHANGES:
            self.close()

    def open(self) -> None:
        """Open the window now: requests that are due from now on count."""
        self.opens_s, self.cpu_s = time.perf_counter(), -time.process_time()

    def close(self) -> None:
        if not self.closed.is_set():
            if self.opens_s == inf:
                self.open()
            self.closes_s = time.perf_counter()
            self.cpu_s += time.process_time()
            self.closed.set()

    def stop(self) -> None:
        self.stopped.set()
        self.close()


class Latencies:
    """Durations, whose percentiles are exact (nearest rank)."""

    def __init__(self, values_s: Iterable[float] = ()) -> None:
        self._sorted_ms = sorted(1e3 * value_s for value_s in values_s)

    def __len__(self) -> int:
        return len(self._sorted_ms)

    def percentile_ms(self, percent: float) -> float:
        """Return the smallest value in ms that at least `percent` of the values do not exceed."""
        if not self or not 0 < percent <= 100:
            raise ValueError(f"no percentile {percent:g} of {len(self)} values")
        # A product that rounding puts just above a whole number must not become the next one.
        return self._sorted_ms[max(math.ceil(percent / 100 * len(self) - 1e-9), 1) - 1]

    def statistics_ms(self) -> dict[str, float]:
        """Return min, mean, each of PERCENTILES and max in ms; empty without values."""
        if not self:
            return {}
        percentiles = {name: self.percentile_ms(percent) for name, percent in PERCENTILES.items()}
        mean_ms = math.fsum(self._sorted_ms) / len(self)
        return {"min": self._sorted_ms[0], "mean": mean_ms, **percentiles, "max": self._sorted_ms[-1]}


@dataclass(frozen=True, slots=True)
class Summary:
    in_time: int  # good responses within the latency threshold
    unsent: int  # requests that were due and never sent
    throughput_per_s: float
    goodput_per_s: float
    latencies: Latencies  # of the good responses
    lag: Latencies  # of all requests that were sent
    statuses: Mapping[int, int]  # status, or NO_ANSWER -> number of requests
    errors: Mapping[str, int]  # reason for having no response -> number of requests
    verdicts: Mapping[Verdict, int]
    server_ms: Mapping[str, float]  # name in Server-Timing -> mean over the good responses with it
    requests_by_batch_size: Mapping[int, int]  # items of a micro-batch -> good responses from such micro-batches
    window_s: float
    cpu_percent: float  # processor time of this process within the window, in % of one core
    invalid_reasons: tuple[str, ...] = ()  # reasons to distrust the numbers; empty for a valid run

    @property
    def completed(self) -> int:
        return len(self.latencies)

    @property
    def requests(self) -> int:
        """Number of requests that were due, with any outcome."""
        return sum(self.statuses.values()) + self.unsent

    @property
    def outcomes(self) -> dict[str, int]:
        """Requests by outcome: each has one; a wrong or a missing response is a failure."""
        refused = sum(self.statuses.get(status, 0) for status in REFUSED)
        failed = self.requests - self.completed - refused
        return {"in time": self.in_time, "late": self.completed - self.in_time, "refused": refused, "failed": failed}

    @property
    def failures(self) -> dict[int, int]:
        return {status: count for status, count in self.statuses.items() if status != OK}

    @property
    def mean_batch_size(self) -> float | None:
        """Mean over micro-batches, not requests: n requests share one of n items; None if no response has its size."""
        batches = sum(count / size for size, count in self.requests_by_batch_size.items())
        return sum(self.requests_by_batch_size.values()) / batches if batches else None

    def latency_ms(self, percent: float) -> float:
        return self.latencies.percentile_ms(percent)


def summarise(recording: Recording, is_closed_loop: bool, latency_threshold_ms: float | None = None) -> Summary:
    """Summarise a run whose window has closed."""
    threshold_s = inf if latency_threshold_ms is None else latency_threshold_ms / 1e3

    def is_in_time(exchange: Exchange) -> bool:
        return exchange.is_good and exchange.latency_s <= threshold_s

    counted = [each for each in recording.exchanges if each.due_s >= recording.opens_s]
    good = [each for each in counted if each.is_good]
    window_s = recording.closes_s - recording.opens_s

    def rate(counts: Callable[[Exchange], bool]) -> float:
        if is_closed_loop:
            return _rate_of_cycles(counted, counts)
        # Responses within the window, also to requests that were due before it.
        responses = (each for each in recording.exchanges if recording.opens_s <= each.answered_s < recording.closes_s)
        return sum(map(counts, responses)) / window_s

    parsed = [parse_timing(each.server_timing) for each in good if each.server_timing]
    durations_ms: defaultdict[str, list[float]] = defaultdict(list)
    for durations, _ in parsed:
        for name, duration_ms in durations.items():
            durations_ms[name].append(duration_ms)
    summary = Summary(
        in_time=sum(map(is_in_time, good)),
        unsent=recording.unsent,
        throughput_per_s=rate(lambda exchange: exchange.is_good),
        goodput_per_s=rate(is_in_time),
        latencies=Latencies(each.latency_s for each in good),
        lag=Latencies(each.sent_s - each.due_s for each in counted),
        statuses=dict(sorted(Counter(each.status for each in counted).items())),
        errors=Counter(each.error or "" for each in counted if each.status == NO_ANSWER),
        verdicts=Counter(each.verdict for each in counted if each.verdict is not None),
        server_ms={name: math.fsum(values) / len(values) for name, values in durations_ms.items()},
        requests_by_batch_size=dict(sorted(Counter(size for _, size in parsed if size).items())),
        window_s=window_s,
        cpu_percent=100 * recording.cpu_s / window_s,
    )
    return replace(summary, invalid_reasons=tuple(_invalid_reasons(recording, summary)))


def _rate_of_cycles(exchanges: Iterable[Exchange], counts: Callable[[Exchange], bool]) -> float:
    """Return responses per second over clients' whole cycles, which a burst at the window's end cannot distort."""
    clients: defaultdict[int, list[Exchange]] = defaultdict(list)
    for each in exchanges:
        clients[each.client].append(each)
    return sum(sum(map(counts, rows)) / (rows[-1].answered_s - rows[0].sent_s) for rows in clients.values())


def _invalid_reasons(recording: Recording, summary: Summary) -> Iterator[str]:
    """Yield every reason to distrust the numbers, with its size."""
    if faults := sum(count for error, count in summary.errors.items() if error.startswith(FAULT)):
        yield f"{faults} requests failed in the generator itself"
    if len(recording.exchanges) >= MAX_EXCHANGES:
        yield f"stopped after {MAX_EXCHANGES:,} requests, the limit of a run"
    if recording.stopped.is_set():
        yield "ended early"
    if not summary.completed:
        yield "no good response"
    if recording.throttled:
        yield f"{recording.throttled} requests waited because of the limit of requests in flight"
    if recording.unsent:
        yield f"{recording.unsent} requests that were due were never sent"
    allowed_ms = max(MAX_LAG_MS, MAX_LAG_SHARE * summary.latency_ms(99) if summary.completed else 0.0)
    if summary.lag and (late_ms := summary.lag.percentile_ms(99)) > allowed_ms:
        yield (
            f"the generator fell behind: its p99 send lag was {late_ms:.1f} ms, and at most {allowed_ms:.1f} ms are "
            "allowed"
        )
    if summary.cpu_percent > MAX_CPU_PERCENT:
        yield f"the generator used {summary.cpu_percent:.0f} % of its core, and may have limited the server's load"


# Cached headers: one or two MB.
@lru_cache(maxsize=4096)
def parse_timing(header: str) -> tuple[dict[str, float], int | None]:
    """Return the ms of Server-Timing entries by name, and the items of the micro-batch of batch;desc="8"."""
    size = BATCH_SIZE.search(header)
    return {name: float(ms) for name, ms in DURATION.findall(header)}, size and int(size[1])
