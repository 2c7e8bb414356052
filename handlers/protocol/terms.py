"""The terms of a request for the scheduler. Pure.

headers X-Priority, X-Timeout-Ms; Open Inference parameters priority, timeout -> Terms
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from handlers.errors import InvalidPriority, InvalidTimeout
from handlers.protocol import wire
from handlers.protocol.wire import PRIORITY_HEADER, TIMEOUT_HEADER

TERMS_HEADERS = wire.TERMS_HEADERS
MOST_DIGITS = 9  # the most digits of a level; int() raises for thousands of digits
LONGEST_TIMEOUT_US = 2**64 - 1  # in microseconds: the parameter `timeout` is an integer of 64 bits


@dataclass(frozen=True, slots=True)
class Terms:
    """A request's priority and timeout."""

    priority: int | None = None  # a level, 1 being first; None if the client states none
    timeout_s: float = inf  # the longest that the client waits; infinity if it states none

    @classmethod
    def of(cls, sent: Mapping[str, Any], priority_levels: int) -> "Terms":
        """Read PRIORITY_HEADER, TIMEOUT_HEADER and the parameters "priority", a level, and "timeout", in microseconds.

        A parameter of 0 means none, as in Triton. The header's priority wins over the parameter's, since a proxy may
        have set it; the shorter of two timeouts wins.
        """
        level, timeout_us = sent.get("priority", 0), sent.get("timeout", 0)
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
        # float() accepts 1_000 and the digits of every script.
        milliseconds = float(timeout_ms) if timeout_ms.isascii() and "_" not in timeout_ms else 0.0
    except ValueError:
        milliseconds = 0.0
    if not (isfinite(milliseconds) and milliseconds > 0):
        raise InvalidTimeout("X-Timeout-Ms must be a number of milliseconds above 0.")
    return milliseconds / 1000
