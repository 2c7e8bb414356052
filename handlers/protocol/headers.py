"""What a request's headers say beside its body. Pure.

X-Priority, X-Timeout-Ms    -> Terms, what it asks of the scheduler; as do the Open Inference Protocol's parameters
                               priority and timeout
none at all                 -> is_grpc: it came by TorchServe's own gRPC
any other, by its name      -> header; of a field of a form, content_type
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite
from typing import Any

from handlers.errors import InvalidPriority, InvalidTimeout

PRIORITY_HEADER, TIMEOUT_HEADER = "x-priority", "x-timeout-ms"
# int() raises for thousands of digits, and no level has more than these.
MOST_DIGITS = 9
CHARSET = re.compile(r"(?:^|;)\s*charset\s*=\s*[\"']?([^;\"'\s]*)")

# The parameters of a request in another form than the Open Inference Protocol's.
NO_PARAMETERS: Mapping[str, Any] = {}
# The parameter `timeout` is an integer of 64 bits.
LONGEST_TIMEOUT_US = 2**64 - 1

# TorchServe 0.12.0 ends the worker whose answer to a StreamPredictions lacks this header. A Predictions takes it too,
# and cannot be told from the other. Over HTTP it would begin a stream, so only answers by gRPC have it.
GRPC_HEADERS = {"ts_stream_next": "false"}


def header(headers: Mapping[str, Any], name: str) -> str | None:
    """Find a header of the request under any case: clients have theirs, and TorchServe's depends on the path."""
    wanted, length = name.lower(), len(name)
    for key, value in headers.items():
        # Every request is asked several times; a name of another length need not be lowered.
        if len(key) == length and key.lower() == wanted and isinstance(value, str):
            return value
    return None


def content_type(headers: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Return the media type of one field and its charset, both in lower case; "" if its client stated none."""
    part = headers.get(name)
    media_type, charset = _media_type(part["content-type"]) if isinstance(part, Mapping) else ("", "")
    # TorchServe drops the parameters of a body's type; the request's own header has them.
    sent = header(headers, "Content-Type") if media_type and not charset else None
    of_header = _media_type(sent) if sent else ("", "")
    return of_header if of_header[0] == media_type else (media_type, charset)


@lru_cache(maxsize=256)
def _media_type(content_type: str) -> tuple[str, str]:
    media_type, _, parameters = content_type.lower().partition(";")
    found = CHARSET.search(parameters)
    return media_type.strip(), found[1] if found else ""


def is_grpc(headers: Mapping[str, Any]) -> bool:
    """Whether a request came by TorchServe's own gRPC: rows of others have headers, HTTP's and TorchServe's."""
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
            parameters: may have "priority", a level, and "timeout", in microseconds; 0 of either says nothing, as in
                Triton. The header's priority comes first, since a proxy may have set it; of two timeouts the shorter
                counts.

        Raises:
            InvalidPriority: the value is not a level there is.
            InvalidTimeout: the value is not a time above 0.
        """
        sent = {name.lower(): value for name, value in headers.items() if isinstance(value, str)}
        level, timeout_us = parameters.get("priority", 0), parameters.get("timeout", 0)
        if type(level) is not int or not 0 <= level <= priority_levels:
            raise InvalidPriority(
                f"priority must be a whole number from 1 (first) to {priority_levels}, or 0 for the model's own."
            )
        if type(timeout_us) is not int or not 0 <= timeout_us <= LONGEST_TIMEOUT_US:
            raise InvalidTimeout("timeout must be a whole number of microseconds above 0, or 0 for the model's own.")
        if (text := sent.get(PRIORITY_HEADER)) is not None:
            level = int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else 0
            if not 1 <= level <= priority_levels:
                raise InvalidPriority(f"X-Priority must be a whole number from 1 (first) to {priority_levels}.")
        header_s = inf if (text := sent.get(TIMEOUT_HEADER)) is None else _seconds(text)
        return cls(level or None, min(header_s, timeout_us / 1e6 or inf))


def _seconds(timeout_ms: str) -> float:
    try:
        # Python reads 1_000 and the digits of every script.
        milliseconds = float(timeout_ms) if timeout_ms.isascii() and "_" not in timeout_ms else 0.0
    except ValueError:
        milliseconds = 0.0
    if not (isfinite(milliseconds) and milliseconds > 0):
        raise InvalidTimeout("X-Timeout-Ms must be a number of milliseconds above 0.")
    return milliseconds / 1000
