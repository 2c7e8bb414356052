"""Recorded requests and their summary: Exchange -> Recording -> summarise -> Summary.

Only requests that were due within the window count. Terms:
    good         the answer has status 200 and, where answers are checked, is right; no other enters a latency
    latency      from the moment a request was due (open loop: by its schedule) to the last byte of its answer
    throughput   good answers per second: of a closed loop, over whole cycles (`_of_cycles`)
    goodput      the same of good answers within the latency threshold; without one, the throughput
    lag          from the moment a request was due to the moment it was sent: the generator's own fault
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
# Stands for a status where there was none: refused, cut off or timed out.
NO_ANSWER = 0
# Statuses of a refusal: the server has done no work, and the client may send the request again later.
REFUSED = (429, 503)
# Begins the error of a request that failed in this program, so that it is not taken for the server's.
FAULT = "generator: "
# Most requests that a run records: 0.4 KB each, so some 800 MB.
MAX_EXCHANGES = 2_000_000
# Most processor time of the generator, in % of a core: at 100 % it is the generator that is measured.
MAX_CPU_PERCENT = 90.0
# Lag's p99 that is always allowed, in ms: 25 times that of a machine at rest (README.md).
MAX_LAG_MS = 10.0
# Lag's p99 that is allowed as a share of the latency's: the generator's part must not be what a latency shows.
MAX_LAG_SHARE = 0.1
# Share of all requests, in %, that must keep a latency: that of MLPerf's Server scenario.
PERCENTILE = 99.0
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9}
# Entries of Server-Timing (W3C): a duration in ms by its name, and the items of the micro-batch.
DURATION = re.compile(r"(?:^|,)\s*([\w-]+)\s*;\s*dur=(\d+(?:\.\d+)?)(?![\d.])")
BATCH_SIZE = re.compile(r'(?:^|,)\s*batch\s*;\s*desc="?([1-9]\d*)\b')


class Verdict(StrEnum):
    """The judgement of an answer; a swapped one is right for another input: the server mixed up two callers."""

    RIGHT = "right"
    WRONG = "wrong"
    SWAPPED = "swapped"


@dataclass(slots=True)
class Exchange:
    """One request and what came back for it; times are in seconds of `time.perf_counter`."""

    due_s: float  # by the schedule of an open loop, or when the client of a closed loop was free
    sent_s: float
    answered_s: float = inf  # when the answer's last byte was read, or the request was given up
    status: int = NO_ANSWER
    client: int = 0  # of a closed loop
    source: int = 0  # number of the input
    error: str | None = None  # why there was no answer: the name of an exception
    server_timing: str | None = None
    verdict: Verdict | None = None  # None where answers are not checked

    @property
    def is_good(self) -> bool:
        """Whether the answer has status 200 and, where answers are checked, is right."""
        return self.status == OK and self.verdict in (None, Verdict.RIGHT)

    @property
    def latency_s(self) -> float:
        """Seconds since the request was due: a request that waited to be sent has waited."""
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
    """Raw results of a run, warm-up included, in the order of the answers; and the run's state while it lasts."""

    exchanges: list[Exchange] = field(default_factory=list)
    started_s: float = inf
    opens_s: float = inf  # the window's beginning and end
    closes_s: float = inf
    cpu_s: float = 0.0  # processor time of this process within the window
    in_flight: int = 0
    throttled: int = 0  # requests that were sent late because the limit of requests in flight was reached
    unsent: int = 0  # requests that were due within the window and never sent
    refusal: Refusal | None = None  # the first within the window
    doubts: list[str] = field(default_factory=list)  # reasons not to believe the numbers, beside those of `summarise`
    warm: asyncio.Event = field(default_factory=asyncio.Event)  # the load is at its height
    closed: asyncio.Event = field(default_factory=asyncio.Event)  # no further request is wanted
    stopped: asyncio.Event = field(default_factory=asyncio.Event)  # the run was ended early

    def add(self, exchange: Exchange) -> None:
        """Record an exchange; the window closes where no more can be recorded."""
        self.exchanges.append(exchange)
        if len(self.exchanges) == MAX_EXCHANGES:
            self.doubts.append(f"cut short after {MAX_EXCHANGES:,} requests, the most that are recorded")
            self.close()

    def open(self) -> None:
        """Open the window now: requests count that are due from here on."""
        self.opens_s, self.cpu_s = time.perf_counter(), -time.process_time()

    def close(self) -> None:
        """Close the window now, unless it is closed."""
        if not self.closed.is_set():
            if self.opens_s == inf:
                self.open()
            self.closes_s = time.perf_counter()
            self.cpu_s += time.process_time()
            self.closed.set()

    def stop(self) -> None:
        """End the run early; what was measured is kept."""
        self.stopped.set()
        self.close()


class Latencies:
    """Durations, whose percentiles are exact (nearest rank)."""

    def __init__(self, values_s: Iterable[float] = ()) -> None:
        """Sort durations in seconds."""
        self._sorted_ms = sorted(1e3 * value_s for value_s in values_s)

    def __len__(self) -> int:
        return len(self._sorted_ms)

    def percentile_ms(self, percent: float) -> float:
        """Return the smallest value in ms that at least `percent` of the values do not exceed.

        Raises:
            ValueError: there are no values, or percent is not in 0 < percent <= 100.
        """
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
    """One run, summed up in the terms above."""

    in_time: int  # good answers within the latency threshold
    unsent: int  # requests that were due and never sent
    throughput_per_s: float
    goodput_per_s: float
    latencies: Latencies  # of the good answers
    lag: Latencies  # of all requests that were sent
    statuses: Mapping[int, int]  # status, NO_ANSWER among them -> requests that ended with it
    errors: Mapping[str, int]  # reason -> requests that had no answer for it
    verdicts: Mapping[Verdict, int]
    server_ms: Mapping[str, float]  # name in Server-Timing -> mean over the good answers that have it
    requests_by_batch_size: Mapping[int, int]  # items of a micro-batch -> good answers that were in such a one
    window_s: float
    cpu_percent: float  # processor time of this process within the window, in % of one core
    invalid_reasons: tuple[str, ...] = ()  # reasons to distrust the numbers; empty if there are none

    @property
    def completed(self) -> int:
        """Number of good answers."""
        return len(self.latencies)

    @property
    def requests(self) -> int:
        """Number of requests that were due, whatever their outcome."""
        return sum(self.statuses.values()) + self.unsent

    @property
    def outcomes(self) -> dict[str, int]:
        """Requests by their outcome: each has one, and a wrong answer or a missing one is a failure."""
        refused = sum(self.statuses.get(status, 0) for status in REFUSED)
        failed = self.requests - self.completed - refused
        return {"in time": self.in_time, "late": self.completed - self.in_time, "refused": refused, "failed": failed}

    @property
    def failures(self) -> dict[int, int]:
        """Statuses other than 200 -> number of requests that ended with them."""
        return {status: count for status, count in self.statuses.items() if status != OK}

    @property
    def mean_batch_size(self) -> float | None:
        """Mean over micro-batches, not requests: one of n items answered n; None where no answer names its size."""
        batches = sum(count / size for size, count in self.requests_by_batch_size.items())
        return sum(self.requests_by_batch_size.values()) / batches if batches else None

    def latency_ms(self, percent: float) -> float:
        """Return a percentile of the latencies in ms; ValueError where there is no good answer."""
        return self.latencies.percentile_ms(percent)


def summarise(
    recording: Recording,
    is_closed_loop: bool,
    latency_threshold_ms: float | None = None,
    max_lag_ms: float = MAX_LAG_MS,
) -> Summary:
    """Sum up a run whose window has closed; `max_lag_ms` is the lag's p99 that is always allowed."""
    threshold_s = inf if latency_threshold_ms is None else latency_threshold_ms / 1e3

    def is_in_time(exchange: Exchange) -> bool:
        return exchange.is_good and exchange.latency_s <= threshold_s

    counted = [each for each in recording.exchanges if each.due_s >= recording.opens_s]
    good = [each for each in counted if each.is_good]
    window_s = recording.closes_s - recording.opens_s

    def rate(counts: Callable[[Exchange], bool]) -> float:
        if is_closed_loop:
            return _of_cycles(counted, counts)
        # Those that came within the window, whenever they were due.
        came = sum(
            recording.opens_s <= each.answered_s < recording.closes_s and counts(each) for each in recording.exchanges
        )
        return came / window_s

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
    return replace(summary, invalid_reasons=tuple(_doubts(recording, summary, max_lag_ms)))


def _of_cycles(exchanges: Iterable[Exchange], counts: Callable[[Exchange], bool]) -> float:
    """Return the answers per second of a closed loop: the sum of its clients' own rates over whole cycles.

    A client sends when its answer has come, so that the time from its first send to its last answer is whole cycles. A
    batching server answers in bursts, and a window that cuts one off would be wrong by it.
    """
    clients: defaultdict[int, list[Exchange]] = defaultdict(list)
    for each in exchanges:
        clients[each.client].append(each)
    return sum(sum(map(counts, rows)) / (rows[-1].answered_s - rows[0].sent_s) for rows in clients.values())


def _doubts(recording: Recording, summary: Summary, max_lag_ms: float) -> Iterator[str]:
    """Yield every reason to distrust the numbers, with its size."""
    if faults := sum(count for error, count in summary.errors.items() if error.startswith(FAULT)):
        yield f"{faults} requests failed in the generator itself"
    yield from recording.doubts
    if recording.stopped.is_set():
        yield "ended early"
    if not summary.completed:
        yield "no good answer"
    if recording.throttled:
        yield f"{recording.throttled} requests waited because the limit of requests in flight was reached"
    if recording.unsent:
        yield f"{recording.unsent} requests that were due were never sent"
    allowed_ms = max(max_lag_ms, MAX_LAG_SHARE * summary.latency_ms(99) if summary.completed else 0.0)
    if summary.lag and (late_ms := summary.lag.percentile_ms(99)) > allowed_ms:
        yield (
            f"the generator fell behind: one request in a hundred was sent {late_ms:.1f} ms late or more, "
            f"{allowed_ms:.1f} ms are allowed"
        )
    if summary.cpu_percent > MAX_CPU_PERCENT:
        yield f"the generator used {summary.cpu_percent:.0f} % of its core: it may be what was measured, not the server"


# Headers whose parse is remembered: one or two MB.
@lru_cache(maxsize=4096)
def parse_timing(header: str) -> tuple[dict[str, float], int | None]:
    """Return the durations in ms of a Server-Timing header by name, and the items of the micro-batch.

    The handlers write decode;dur=1.61, forward;dur=178.20, batch;desc="8"; what is not understood is left out.
    """
    size = BATCH_SIZE.search(header)
    return {name: float(ms) for name, ms in DURATION.findall(header)}, size and int(size[1])
