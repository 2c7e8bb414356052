"""An exchange: one request and what came back for it, over HTTP with the server's frontend."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

OK = 200
# Stands for a status where there was none: refused, cut off or timed out.
NO_ANSWER = 0
# Begins the error of a request that failed in this program, so that nobody takes it for the server's.
FAULT = "generator: "


class Verdict(StrEnum):
    """The judgement of an answer that was held against the expected one."""

    RIGHT = "right"
    WRONG = "wrong"
    # The right answer of another request: the server has mixed up two callers.
    SWAPPED = "swapped"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what came back for it; times are in seconds of one monotonic clock.

    Attributes:
        due_s: when the request was to be sent: by the schedule of an open loop, or when a closed-loop client was free.
        sent_s: when the request was sent.
        answered_s: when the answer's last byte was read, or the request was given up.
        status: HTTP status, or NO_ANSWER.
        client: number of the client of a closed loop; 0 in an open loop.
        source: number of the input that was sent.
        sent_bytes, received_bytes: lengths of the bodies.
        error: name of the exception where there was no answer, or what `fault` says where it is the generator's own;
            None where there was an answer.
        server_timing: the answer's Server-Timing header as it came; None where it has none.
        verdict: the judgement of the answer; None where answers are not checked.
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
        """Whether the answer has status 200 and, where answers are checked, is right."""
        return self.status == OK and self.verdict in (None, Verdict.RIGHT)

    @property
    def latency_s(self) -> float:
        """Seconds since the request was due: a request that waited to be sent has waited."""
        return self.answered_s - self.due_s

    @property
    def lag_s(self) -> float:
        """Seconds by which the generator sent the request late."""
        return self.sent_s - self.due_s


def fault(problem: Exception) -> str:
    """Name an exception that is no word of network or server: its kind, and the line that raised it."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
    return f"{FAULT}{type(problem).__name__}{place}"


def together(exchanges: list[Exchange]) -> Exchange:
    """Count requests that were sent at once as one: answered when the last was, and good if all were.

    Args:
        exchanges: at least one; all of one client, sent at one moment.
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
