"""What the items of one request may ask for together, counted while they are decoded."""

import threading
from collections import Counter

from handlers.errors import WorkTooLarge


class Allowance:
    """That of a request with several items: each takes from it what it needs, before work is spent on it."""

    def __init__(self) -> None:
        """Start with nothing taken."""
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, unit: str, amount: int, limit: int) -> None:
        """Take a part of what the request has; any thread may.

        What is refused stays counted, so that it does not matter which item asks first.

        Args:
            unit: of what: "pixels", "characters".
            amount: how many this item has.
            limit: how many all items may have, the setting `max_request_<unit>`.

        Raises:
            WorkTooLarge: there is not so much left.
        """
        with self._lock:
            self._taken[unit] += amount
            is_over = self._taken[unit] > limit
        if is_over:
            raise WorkTooLarge(f"The items of the request have more {unit} together than max_request_{unit}, {limit}.")


class _Unlimited(Allowance):
    """That of an item which is alone in its request: it is held to the limits of an item."""

    def take(self, unit: str, amount: int, limit: int) -> None:
        """Refuse nothing."""


UNLIMITED = _Unlimited()
