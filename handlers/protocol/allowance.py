"""What the items of one request may ask for together, counted while they are decoded. Any thread may ask.

an item alone                   -> UNLIMITED: it is held to the limits of an item
several items of one request    -> the same Allowance for each of them
"""

import threading
from collections import Counter
from typing import Protocol

from handlers.errors import WorkTooLarge


class Allowance(Protocol):
    """Each item takes from it what it needs, before work is spent on it."""

    def take(self, unit: str, amount: int, limit: int) -> None:
        """Take a part of what the request has.

        Args:
            unit: of what: "pixels", "characters".
            amount: how many this item has.
            limit: how many all items may have, the setting `max_request_<unit>`.

        Raises:
            WorkTooLarge: there is not so much left.
        """


class _Unlimited:
    """That of an item which is alone in its request."""

    def take(self, unit: str, amount: int, limit: int) -> None:
        """See `Allowance.take`; never refuses."""


UNLIMITED = _Unlimited()


class SharedAllowance:
    """That of several items."""

    def __init__(self) -> None:
        """Start with nothing taken."""
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, unit: str, amount: int, limit: int) -> None:
        """See `Allowance.take`; what is refused stays counted, so that it does not matter who asks first."""
        with self._lock:
            self._taken[unit] += amount
            is_over = self._taken[unit] > limit
        if is_over:
            raise WorkTooLarge(f"The items of the request have more {unit} together than max_request_{unit}, {limit}.")
