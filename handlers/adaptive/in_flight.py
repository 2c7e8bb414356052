"""The requests that TorchServe's frontend waits for, each with its slots. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, NamedTuple

from handlers.errors import InvalidPriority, InvalidTimeout, ItemError
from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.slots import Slot
from handlers.protocol.requests import Request
from handlers.scheduling.batch_selection import Ticket

PRIORITY_HEADER, TIMEOUT_HEADER = "x-priority", "x-timeout-ms"
MOST_DIGITS = 9


@dataclass(slots=True, eq=False)
class Flight:
    """One request from the exchange that brought it to the one that answers it.

    Attributes:
        request: as it was unpacked.
        slots: one per item.
        came_s: when it was first seen.
        ticket: its place in the schedule; None where it was refused, or wrong as a whole.
        undecoded: slots whose decoding has not ended.
        unfinished: slots without a result or an error.
        costs: of the items that are decoded.
        retry_after_s: for its client, where it was refused.
    """

    request: Request
    came_s: float
    slots: list[Slot] = field(default_factory=list)
    ticket: Ticket | None = None
    undecoded: int = 0
    unfinished: int = 0
    costs: list[tuple["Place", Cost]] = field(default_factory=list)
    retry_after_s: float | None = None

    @property
    def is_complete(self) -> bool:
        """Whether it can be answered."""
        return self.unfinished == 0

    def fail(self, error: ItemError, retry_after_s: float | None = None) -> None:
        """Answer it with an error, whatever became of its items."""
        for slot in self.slots:
            slot.outcome = error
        self.undecoded = self.unfinished = 0
        self.retry_after_s = retry_after_s


class Place(NamedTuple):
    """What the schedule knows an item by."""

    flight: Flight
    slot: Slot


@dataclass(frozen=True, slots=True)
class Terms:
    """What a request's headers ask of the schedule.

    Attributes:
        priority: 1 is first; None where they do not say.
        timeout_s: how long its client will wait; infinity where they do not say.
    """

    priority: int | None = None
    timeout_s: float = inf

    @classmethod
    def of(cls, headers: Mapping[str, Any], priority_levels: int) -> "Terms":
        """Read X-Priority and X-Timeout-Ms, whatever their case.

        Raises:
            InvalidPriority, InvalidTimeout: not a level there is; not a number of milliseconds above 0.
        """
        sent = {name.lower(): value for name, value in headers.items() if isinstance(value, str)}
        priority = sent.get(PRIORITY_HEADER)
        timeout_ms = sent.get(TIMEOUT_HEADER)
        return cls(
            None if priority is None else _priority(priority, priority_levels),
            inf if timeout_ms is None else _timeout_ms(timeout_ms) / 1000,
        )


def _priority(text: str, levels: int) -> int:
    # int() raises for thousands of digits.
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
