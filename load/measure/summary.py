"""Sums up a run's raw results. Pure.

    Recording -> summarise -> Summary

Only requests that were due within the window count. Definitions:
    good         an answer that has status 200 and, where answers are checked, is right; no other enters a latency
    latency      the ms from the moment a request was due (open loop: by its schedule) to the last byte of its answer
    throughput   the good answers per second; load/measure/rates.py counts them for each kind of load
    goodput      the same of good answers within the latency threshold; without a threshold, the throughput
    lag          the ms from the moment a request was due to the moment it was sent: the generator's own fault
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from load.measure.exchange import FAULT, NO_ANSWER, OK, Exchange, Verdict
from load.measure.latencies import Latencies
from load.measure.rates import Rate
from load.measure.recording import Recording
from load.measure.server_timing import Timings


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says when a run is not to be believed."""

    # Processor time of the generator, in % of a core: at 100 % it is the generator that is measured. Its closed loop
    # gets there at 13,000/s (README, "What it costs").
    max_cpu_percent: float = 90.0
    # Lag's p99, as a share of the latency's p99: what the generator adds to the latency must not be what it shows.
    max_lag_share: float = 0.1
    # Lag's p99 that is always allowed, in ms: 25 times that of a machine at rest (0.4 ms, README, "What it costs").
    max_lag_ms: float = 10.0


TUNING = Tuning()
INTERRUPTED = "ended early"


@dataclass(frozen=True, slots=True)
class Summary:
    """One run, summed up in the terms above.

    Attributes:
        completed: number of good answers.
        in_time: number of good answers within the latency threshold.
        unsent: number of requests that were due and never sent.
        throughput_per_s, goodput_per_s: as defined above.
        latencies: latencies of the good answers.
        lag: lags of all requests that were sent.
        statuses: status -> number of requests that ended with it; NO_ANSWER is one of them.
        errors: reason -> number of requests that had no answer for it.
        verdicts: verdict -> number of answers; empty where answers are not checked.
        sent_bytes, received_bytes: sums of the bodies' lengths.
        timings: what the answers' headers say of the server's time.
        window_s: length of the window.
        cpu_percent: processor time that this process used within the window, in % of one core.
        invalid_reasons: reasons why the numbers are not to be believed; empty when they are.
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
        """Number of requests that were due, whatever became of them."""
        return sum(self.statuses.values()) + self.unsent

    @property
    def is_interrupted(self) -> bool:
        """Whether the run was ended early."""
        return INTERRUPTED in self.invalid_reasons

    @property
    def failures(self) -> dict[int, int]:
        """Statuses other than 200 -> number of requests that ended with them."""
        return {status: count for status, count in sorted(self.statuses.items()) if status != OK}

    def latency_ms(self, percent: float) -> float:
        """Return a percentile of the latencies in ms.

        Raises:
            ValueError: there is no good answer.
        """
        return self.latencies.percentile_ms(percent)


def summarise(
    recording: Recording,
    rate: Rate,
    latency_threshold_ms: float | None = None,
    max_lag_ms: float = TUNING.max_lag_ms,
) -> Summary:
    """Sum up a run that is over.

    Args:
        recording: what was recorded, with a window that has closed.
        rate: the definition of throughput for this kind of load.
        latency_threshold_ms: most latency of an answer that goodput counts; None counts every good answer.
        max_lag_ms: the run is invalid if the lag's p99 exceeds this, and a tenth of the latency's p99.
    """
    opens_s, closes_s = recording.opens_s, recording.closes_s
    threshold_s = float("inf") if latency_threshold_ms is None else latency_threshold_ms / 1e3

    def is_in_time(exchange: Exchange) -> bool:
        return exchange.is_good and exchange.latency_s <= threshold_s

    # One after the other, since as objects they would take several times the memory of the recording.
    counted = (exchange for exchange in recording.exchanges if exchange.due_s >= opens_s)
    latencies, lag = Latencies(), Latencies()
    statuses: Counter[int] = Counter()
    errors: Counter[str] = Counter()
    verdicts: Counter[Verdict] = Counter()
    in_time = sent_bytes = received_bytes = 0
    for each in counted:
        lag.add(each.lag_s)
        statuses[each.status] += 1
        in_time += is_in_time(each)
        sent_bytes += each.sent_bytes
        received_bytes += each.received_bytes
        if each.is_good:
            latencies.add(each.latency_s)
        if each.status == NO_ANSWER:
            errors[each.error or ""] += 1
        if each.verdict is not None:
            verdicts[each.verdict] += 1
    good = (each for each in recording.exchanges if each.due_s >= opens_s and each.is_good)
    cpu_percent = 100 * recording.cpu_s / (closes_s - opens_s)
    return Summary(
        completed=latencies.count,
        in_time=in_time,
        throughput_per_s=rate(recording.exchanges, opens_s, closes_s, lambda exchange: exchange.is_good),
        goodput_per_s=rate(recording.exchanges, opens_s, closes_s, is_in_time),
        latencies=latencies,
        lag=lag,
        unsent=recording.unsent,
        statuses=dict(sorted(statuses.items())),
        errors=dict(errors),
        verdicts=dict(verdicts),
        sent_bytes=sent_bytes,
        received_bytes=received_bytes,
        timings=Timings.of(each.server_timing for each in good),
        window_s=closes_s - opens_s,
        cpu_percent=cpu_percent,
        invalid_reasons=(*_faults(errors), *_doubts(recording, latencies, lag, max_lag_ms, cpu_percent)),
    )


def _faults(errors: Mapping[str, int]) -> Iterator[str]:
    """Yield how many requests have failed for a reason that is not the server's."""
    if faults := sum(count for error, count in errors.items() if error.startswith(FAULT)):
        yield f"{faults} requests failed in the generator itself"


def _doubts(
    recording: Recording, latencies: Latencies, lag: Latencies, max_lag_ms: float, cpu_percent: float
) -> Iterator[str]:
    """Yield every other reason not to believe the numbers, and by how much."""
    yield from recording.doubts
    if recording.is_stopped:
        yield INTERRUPTED
    if not latencies.count:
        yield "no good answer"
    if recording.throttled:
        yield f"{recording.throttled} requests waited because the limit of requests in flight was reached"
    if recording.unsent:
        yield f"{recording.unsent} requests that were due were never sent"
    allowed_ms = max(max_lag_ms, TUNING.max_lag_share * latencies.percentile_ms(99) if latencies.count else 0.0)
    if lag.count and (late_ms := lag.percentile_ms(99)) > allowed_ms:
        yield (
            f"the generator fell behind: one request in a hundred was sent {late_ms:.1f} ms late or more, "
            f"{allowed_ms:.1f} ms are allowed"
        )
    if cpu_percent > TUNING.max_cpu_percent:
        yield f"the generator used {cpu_percent:.0f} % of its core: it may be what was measured, not the server"
