"""What a run's raw results amount to. Pure.

    Recording -> summarise -> Summary

Counted are the requests that were due within the window. Definitions:
    good         answered 200 and, where answers are checked, rightly. Others never enter a latency.
    latency      ms from the moment a request was due (open loop: by its schedule) to the last byte of its answer.
    throughput   good answers per second; see load/measure/rates.py for each kind of load.
    goodput      the same of good answers within the latency threshold; without one, the throughput.
    lag          ms between the moment a request was due and the moment it was sent: the generator's own fault.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from load.measure.exchange import NO_ANSWER, OK, Exchange, Verdict
from load.measure.latencies import Latencies
from load.measure.rates import Rate
from load.measure.recording import Recording
from load.measure.server_timing import Timings

# A generator that needs more of its core than this is what was measured.
MAX_CPU_PERCENT = 90.0
# Of the latency's p99: what the generator adds to it must not be what it shows.
MAX_LAG_SHARE = 0.1
INTERRUPTED = "ended early"


@dataclass(frozen=True, slots=True)
class Summary:
    """One run, summed up; the terms are those above.

    Attributes:
        completed: good answers.
        in_time: those within the latency threshold.
        unsent: requests that were due and never sent.
        throughput_per_s, goodput_per_s: as defined above.
        latencies: of the good answers.
        lag: of all that was sent.
        statuses: how many requests ended with each status, NO_ANSWER among them.
        errors: how often a request had no answer, by reason.
        verdicts: how many answers were right, wrong and another request's; empty where they are not checked.
        sent_bytes, received_bytes: of the bodies.
        timings: what the server said of its time.
        window_s: how long was measured.
        cpu_percent: of one core, this process's own use within the window.
        invalid_reasons: why the numbers are not to be believed; empty when they are.
    """

    completed: int
    in_time: int
    unsent: int
    throughput_per_s: float
    goodput_per_s: float
    latencies: Latencies
    lag: Latencies
    statuses: Mapping[int, int]
    errors: Mapping[str, int]
    verdicts: Mapping[Verdict, int]
    sent_bytes: int
    received_bytes: int
    timings: Timings
    window_s: float
    cpu_percent: float
    invalid_reasons: tuple[str, ...]

    @property
    def is_valid(self) -> bool:
        """Whether the numbers are to be believed."""
        return not self.invalid_reasons

    @property
    def requests(self) -> int:
        """How many were due, whatever became of them."""
        return sum(self.statuses.values()) + self.unsent

    @property
    def is_interrupted(self) -> bool:
        """Whether it was ended early."""
        return INTERRUPTED in self.invalid_reasons

    @property
    def failures(self) -> dict[int, int]:
        """Statuses other than 200, and how often."""
        return {status: count for status, count in sorted(self.statuses.items()) if status != OK}

    def latency_ms(self, percent: float) -> float:
        """A percentile of the latencies; ValueError where nothing completed."""
        return self.latencies.percentile_ms(percent)


def summarise(
    recording: Recording, rate: Rate, latency_threshold_ms: float | None = None, max_lag_ms: float = 10.0
) -> Summary:
    """Sum up a run that is over.

    Args:
        recording: the run, closed.
        rate: how throughput is counted.
        latency_threshold_ms: of goodput.
        max_lag_ms: the run is invalid if the lag's p99 exceeds it, and MAX_LAG_SHARE of the latency's.
    """
    opens_s, closes_s = recording.opens_s, recording.closes_s
    counted = [exchange for exchange in recording.exchanges if exchange.due_s >= opens_s]
    good = [exchange for exchange in counted if exchange.is_good]
    threshold_s = float("inf") if latency_threshold_ms is None else latency_threshold_ms / 1e3

    def is_in_time(exchange: Exchange) -> bool:
        return exchange.is_good and exchange.latency_s <= threshold_s

    latencies = Latencies(exchange.latency_s for exchange in good)
    lag = Latencies(exchange.lag_s for exchange in counted)
    cpu_percent = 100 * recording.cpu_s / (closes_s - opens_s)
    return Summary(
        completed=len(good),
        in_time=sum(map(is_in_time, good)),
        throughput_per_s=rate(recording.exchanges, opens_s, closes_s, lambda exchange: exchange.is_good),
        goodput_per_s=rate(recording.exchanges, opens_s, closes_s, is_in_time),
        latencies=latencies,
        lag=lag,
        unsent=recording.unsent,
        statuses=dict(sorted(Counter(exchange.status for exchange in counted).items())),
        errors=dict(Counter(exchange.error or "" for exchange in counted if exchange.status == NO_ANSWER)),
        verdicts=dict(Counter(exchange.verdict for exchange in counted if exchange.verdict is not None)),
        sent_bytes=sum(exchange.sent_bytes for exchange in counted),
        received_bytes=sum(exchange.received_bytes for exchange in counted),
        timings=Timings.of(exchange.server_timing for exchange in good),
        window_s=closes_s - opens_s,
        cpu_percent=cpu_percent,
        invalid_reasons=tuple(_doubts(recording, latencies, lag, max_lag_ms, cpu_percent)),
    )


def _doubts(
    recording: Recording, latencies: Latencies, lag: Latencies, max_lag_ms: float, cpu_percent: float
) -> Iterator[str]:
    """Every reason not to believe the numbers, with by how much."""
    yield from recording.doubts
    if recording.is_stopped:
        yield INTERRUPTED
    if not latencies.count:
        yield "no good answer"
    if recording.throttled:
        yield f"{recording.throttled} requests waited because the limit of requests in flight was reached"
    if recording.unsent:
        yield f"{recording.unsent} requests that were due were never sent"
    allowed_ms = max(max_lag_ms, MAX_LAG_SHARE * latencies.percentile_ms(99) if latencies.count else 0.0)
    if lag.count and (late_ms := lag.percentile_ms(99)) > allowed_ms:
        yield (
            f"the generator fell behind: one request in a hundred was sent {late_ms:.1f} ms late or more, "
            f"{allowed_ms:.1f} ms are allowed"
        )
    if cpu_percent > MAX_CPU_PERCENT:
        yield f"the generator used {cpu_percent:.0f} % of its core: it may be what was measured, not the server"
