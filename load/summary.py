"""What a load run's raw results amount to. Pure.

    exchanges of each client -> summarise -> Summary (throughput, latencies, statuses)

Definitions:
    latency      from the first byte sent to the last byte read, of requests that were answered 200; others never enter.
    percentile   nearest rank: the smallest latency that at least this share of the requests did not exceed.
    throughput   sum over the clients of their own rate: requests answered 200, over the time from the client's first
                 send to its last answer. A closed-loop client sends when its answer came, so that time is whole cycles
                 and nothing is cut off at either end, although a batching server answers in bursts.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OK = 200
# Stands for a status where there was none: refused, cut off or timed out.
NO_ANSWER = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what came back.

    Attributes:
        sent_at_s, answered_at_s: on one monotonic clock.
        status: HTTP status, or NO_ANSWER.
    """

    sent_at_s: float
    answered_at_s: float
    status: int

    @property
    def latency_s(self) -> float:
        """How long the client waited."""
        return self.answered_at_s - self.sent_at_s


@dataclass(frozen=True, slots=True)
class Summary:
    """One run, summed up.

    Attributes:
        completed: requests answered 200.
        throughput_per_s: as defined above.
        latencies_s: of the completed requests, ascending.
        statuses: how many requests ended with each status, NO_ANSWER among them.
    """

    completed: int
    throughput_per_s: float
    latencies_s: tuple[float, ...]
    statuses: Mapping[int, int]

    def latency_s(self, percent: float) -> float:
        """A percentile of the latencies; ValueError where nothing completed."""
        return percentile(self.latencies_s, percent)

    @property
    def failures(self) -> dict[int, int]:
        """Statuses other than 200, and how often."""
        return {status: count for status, count in sorted(self.statuses.items()) if status != OK}


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile.

    Args:
        ascending: values, sorted.
        percent: 0 < percent <= 100.

    Raises:
        ValueError: there are no values, or percent is out of range.
    """
    if not ascending or not 0 < percent <= 100:
        raise ValueError(f"no percentile {percent:g} of {len(ascending)} values")
    return ascending[math.ceil(percent * len(ascending) / 100) - 1]


def summarise(clients: Sequence[Sequence[Exchange]]) -> Summary:
    """Sum up a run.

    Args:
        clients: each client's exchanges, in their order.
    """
    exchanges = [exchange for own in clients for exchange in own]
    latencies_s = sorted(exchange.latency_s for exchange in exchanges if exchange.status == OK)
    return Summary(
        completed=len(latencies_s),
        throughput_per_s=sum(_rate_per_s(own) for own in clients),
        latencies_s=tuple(latencies_s),
        statuses=dict(Counter(exchange.status for exchange in exchanges)),
    )


def _rate_per_s(own: Sequence[Exchange]) -> float:
    completed = sum(exchange.status == OK for exchange in own)
    return completed / (own[-1].answered_at_s - own[0].sent_at_s) if completed else 0.0
