"""One request and what came back."""

from dataclasses import dataclass
from enum import StrEnum

OK = 200
# Stands for a status where there was none: refused, cut off or timed out.
NO_ANSWER = 0


class Verdict(StrEnum):
    """What became of an answer that was held against the expected one."""

    RIGHT = "right"
    WRONG = "wrong"
    # The right answer of another request: the server has mixed up two callers.
    SWAPPED = "swapped"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what came back; times are on one monotonic clock.

    Attributes:
        due_s: when it was to be sent: by the schedule of an open loop, or when a closed-loop client was free.
        sent_s: when it was sent.
        answered_s: when its last byte was read, or it was given up.
        status: HTTP status, or NO_ANSWER.
        client: of a closed loop, by number; 0 in an open loop.
        source: number of the input that was sent.
        sent_bytes, received_bytes: of the bodies.
        error: why there was no answer, as a type's name; None where there was one.
        server_timing: the header of that name, as it came.
        verdict: None where answers are not checked.
    """

    due_s: float
    sent_s: float
    answered_s: float
    status: int
    client: int = 0
    source: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    error: str | None = None
    server_timing: str | None = None
    verdict: Verdict | None = None

    @property
    def is_good(self) -> bool:
        """Whether it was answered 200 and, where that was checked, rightly."""
        return self.status == OK and self.verdict in (None, Verdict.RIGHT)

    @property
    def latency_s(self) -> float:
        """From the moment it was due: a request that waited to be sent has waited."""
        return self.answered_s - self.due_s

    @property
    def lag_s(self) -> float:
        """How late the generator sent it."""
        return self.sent_s - self.due_s


def together(exchanges: list[Exchange]) -> Exchange:
    """Several requests sent at once, as one: answered when the last was, and good if all were.

    Args:
        exchanges: at least one; of one client and one moment.
    """
    last = max(exchanges, key=lambda exchange: exchange.answered_s)
    worst = next((exchange for exchange in exchanges if not exchange.is_good), last)
    return Exchange(
        due_s=min(exchange.due_s for exchange in exchanges),
        sent_s=min(exchange.sent_s for exchange in exchanges),
        answered_s=last.answered_s,
        status=worst.status,
        client=last.client,
        source=worst.source,
        sent_bytes=sum(exchange.sent_bytes for exchange in exchanges),
        received_bytes=sum(exchange.received_bytes for exchange in exchanges),
        error=worst.error,
        server_timing=last.server_timing,
        verdict=worst.verdict,
    )
