"""What a request's headers say beside its body. Pure.

X-Priority, X-Timeout-Ms    -> Terms, what it asks of the scheduler
none at all                 -> is_grpc: it came by gRPC
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from handlers.errors import InvalidPriority, InvalidTimeout

PRIORITY_HEADER, TIMEOUT_HEADER = "x-priority", "x-timeout-ms"
# int() raises for thousands of digits, and no level has more than these.
MOST_DIGITS = 9


# TorchServe 0.12.0 ends the worker whose answer to a StreamPredictions lacks this header. A plain Predictions takes it
# too, and nothing tells the two apart. Over HTTP it would begin a stream, so only answers by gRPC have it.
GRPC_HEADERS = {"ts_stream_next": "false"}


def is_grpc(headers: Mapping[str, Any]) -> bool:
    """Whether a request came by gRPC: TorchServe gives the rows of others the headers that HTTP has, and its own.

    Args:
        headers: the request's, and for each field {"content-type": as sent}.
    """
    return not any(isinstance(value, str) for value in headers.values())


@dataclass(frozen=True, slots=True)
class Terms:
    """What a client asks for beside its answer.

    Attributes:
        priority: level of the request, 1 being first; None where the headers do not say.
        timeout_s: how long the client will wait; infinity where the headers do not say.
    """

    priority: int | None = None
    timeout_s: float = inf

    @classmethod
    def of(cls, headers: Mapping[str, Any], priority_levels: int) -> "Terms":
        """Read the headers, whatever their case.

        Raises:
            InvalidPriority: the value is not a level there is.
            InvalidTimeout: the value is not a number of milliseconds above 0.
        """
        sent = {name.lower(): value for name, value in headers.items() if isinstance(value, str)}
        priority = sent.get(PRIORITY_HEADER)
        timeout_ms = sent.get(TIMEOUT_HEADER)
        return cls(
            None if priority is None else _priority(priority, priority_levels),
            inf if timeout_ms is None else _timeout_ms(timeout_ms) / 1000,
        )


def _priority(text: str, levels: int) -> int:
    if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS and 1 <= int(text) <= levels:
        return int(text)
    raise InvalidPriority(f"X-Priority must be a whole number from 1 (first) to {levels}.")


def _timeout_ms(text: str) -> float:
    try:
        timeout_ms = float(text)
    except ValueError:
        timeout_ms = 0.0
    if not (isfinite(timeout_ms) and timeout_ms > 0):
        raise InvalidTimeout("X-Timeout-Ms must be a number of milliseconds above 0.")
    return timeout_ms
