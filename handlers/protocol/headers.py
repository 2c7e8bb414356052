"""What a request's headers say beside its body. Pure.

X-Priority, X-Timeout-Ms    -> Terms, what it asks of the scheduler; the Open Inference Protocol's parameters
                               priority and timeout say the same to whom the headers do not
none at all                 -> is_grpc: it came by TorchServe's own gRPC
any other, by its name      -> header
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from handlers.errors import InvalidPriority, InvalidTimeout

PRIORITY_HEADER, TIMEOUT_HEADER = "x-priority", "x-timeout-ms"
# int() raises for thousands of digits, and no level has more than these.
MOST_DIGITS = 9

# The parameters of a request that is none of the Open Inference Protocol's.
NO_PARAMETERS: Mapping[str, Any] = {}
# The parameter `timeout` is an integer of 64 bits.
LONGEST_TIMEOUT_US = 2**64 - 1

# Says of a reply whether it is a chunk of its answer that others follow.
STREAM_NEXT = "ts_stream_next"
# TorchServe 0.12.0 ends the worker whose answer to a StreamPredictions lacks this header. A plain Predictions takes it
# too, and nothing tells the two apart. Over HTTP it would begin a stream, so only answers by gRPC have it.
GRPC_HEADERS = {STREAM_NEXT: "false"}


def header(headers: Mapping[str, Any], name: str) -> str | None:
    """Find a header of the request under any case: clients have theirs, and TorchServe's depends on the path."""
    wanted, length = name.lower(), len(name)
    for key, value in headers.items():
        # Every request is asked several times; a name of another length need not be lowered.
        if len(key) == length and key.lower() == wanted and isinstance(value, str):
            return value
    return None


def is_grpc(headers: Mapping[str, Any]) -> bool:
    """Whether a request came by TorchServe's own gRPC: rows of others have the headers that HTTP has, and TorchServe's.

    Args:
        headers: the request's, and for each field {"content-type": as sent}.
    """
    return not any(isinstance(value, str) for value in headers.values())


@dataclass(frozen=True, slots=True)
class Terms:
    """What a client asks for beside its answer.

    Attributes:
        priority: level of the request, 1 being first; None where it does not say.
        timeout_s: how long the client will wait; infinity where it does not say.
    """

    priority: int | None = None
    timeout_s: float = inf

    @classmethod
    def of(
        cls, headers: Mapping[str, Any], priority_levels: int, parameters: Mapping[str, Any] = NO_PARAMETERS
    ) -> "Terms":
        """Read the headers, whatever their case, and the parameters.

        Args:
            headers: the request's.
            priority_levels: how many there are.
            parameters: may have "priority", a level, and "timeout", in microseconds; 0 of either says nothing, as
                Triton has it. A header has the last word on the priority, since a proxy may have set it, and of two
                timeouts the shorter counts.

        Raises:
            InvalidPriority: the value is not a level there is.
            InvalidTimeout: the value is not a time above 0.
        """
        sent = {name.lower(): value for name, value in headers.items() if isinstance(value, str)}
        priority = sent.get(PRIORITY_HEADER)
        timeout_ms = sent.get(TIMEOUT_HEADER)
        asked, timeout_us = parameters.get("priority", 0), parameters.get("timeout", 0)
        level = None if asked == 0 else _level(asked, priority_levels)
        if priority is not None:
            level = _priority(priority, priority_levels)
        header_s = inf if timeout_ms is None else _timeout_ms(timeout_ms) / 1000
        timeout_s = inf if timeout_us == 0 else _timeout_us(timeout_us) / 1e6
        return cls(level, min(header_s, timeout_s))


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


def _level(value: Any, levels: int) -> int:
    if type(value) is int and 1 <= value <= levels:
        return value
    raise InvalidPriority(f"priority must be a whole number from 1 (first) to {levels}, or 0 for the model's own.")


def _timeout_us(value: Any) -> int:
    if type(value) is int and 1 <= value <= LONGEST_TIMEOUT_US:
        return value
    raise InvalidTimeout("timeout must be a whole number of microseconds above 0, or 0 for the model's own.")
