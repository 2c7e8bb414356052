"""A request as its client sent it, and its items. Pure.

Items:   contents of a body -> payloads
Request: a payload for each item, or the ItemError that replaces it, and the form of the answer
Terms:   the headers X-Priority and X-Timeout-Ms, and Open Inference parameters, for the scheduler
"""

import threading
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, Protocol

from handlers.aliases import Array
from handlers.errors import InvalidPriority, InvalidTimeout, ItemError, WorkTooLarge
from handlers.protocol import wire
from handlers.protocol.bodies import BodyInfo
from handlers.protocol.responses import Form, OneItem
from handlers.protocol.wire import PRIORITY_HEADER, TIMEOUT_HEADER

Value = bytes | bytearray | str | Mapping[str, Any] | Array


class Allowance:
    """The pixels or characters that all items of one request may have: each takes its part before it is decoded."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, unit: str, amount: int, limit: int) -> None:
        """Take an item's part, in "pixels" or "characters", on any thread; a rejected part stays counted."""
        with self._lock:
            self._taken[unit] += amount
            is_over = self._taken[unit] > limit
        if is_over:
            raise WorkTooLarge(f"The items of the request have more {unit} together than max_request_{unit}, {limit}.")


@dataclass(slots=True)
class Payload:
    """One item as its client sent it: the argument of the hook `decode`.

    Attributes:
        value: the raw body, an item's part of a tensor, or the input fields of a JSON object.
        options: all other fields; `decode` of a task gets them as its `options_class`.
        allowance: the limits of all items of its request together; `decode` takes its part before it works. None for a
            single item, to which only the limits of an item apply.
    """

    value: Value
    options: Any = field(default_factory=dict)
    allowance: Allowance | None = field(default=None, compare=False, repr=False)


Payloads = tuple[Payload | ItemError, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one item in a micro-batch: the return value of the hook `cost`.

    Attributes:
        length: the size along the padded axis, in tokens; 1 if nothing is padded.
        group: the options of a whole micro-batch; items share one only if their groups are equal.
        work: the model's work for it, in tokens, if that is more than its length: generated answers.
        sent: its tokens as the model receives them, for responses that contain their request's sum.
    """

    length: int = 1
    group: Hashable = None
    work: int = 0
    sent: int = 0

    @property
    def tokens(self) -> int:
        """The tokens that count towards the budget of its request."""
        return max(self.length, self.work)


UNIT_COST = Cost()  # the default cost of an item


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A client's items, the form of their answer, and its wishes to the scheduler."""

    payloads: Payloads  # in the client's order
    form: Form = field(default_factory=OneItem)
    terms: Mapping[str, object] = field(default_factory=dict)  # unchecked; see `Terms`
    is_grpc: bool = False  # by TorchServe's own gRPC
    is_check: bool = False  # the model's own sample, which no full queue rejects


class Items(Protocol):
    """Makes items of a request's contents. Each method raises InvalidInput if the whole request is wrong."""

    def of_body(self, body: bytes | bytearray | str, sent: BodyInfo) -> Request:
        """Read a body that is neither JSON nor empty."""

    def of_json(self, document: object, sent: BodyInfo) -> Request:
        """Read parsed JSON that is not an Open Inference request."""

    def of_tensors(self, tensors: Mapping[str, Array], options: Mapping[str, object]) -> Payloads:
        """Make items of the tensors of an Open Inference request, by name; BF16 numbers have the dtype BF16."""


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
