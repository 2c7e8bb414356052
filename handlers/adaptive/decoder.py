"""Payloads to priced items for an adaptive worker: what is small at once, whatever may take long on another thread."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from handlers.adaptive.fail_fast import Guard
from handlers.adaptive.in_flight import Place
from handlers.adaptive.length_estimate import size_of
from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.runner import Runner
from handlers.protocol.requests import Payload

# Payloads of more bytes are decoded by a thread of their own; smaller texts take microseconds together.
LARGE_BYTES = 16 * 1024
# More than there are cores, so that a few slow decodings leave threads for the others.
LEAST_THREADS = 4


class Decoded(NamedTuple):
    """An item after decoding.

    Attributes:
        place: of its slot, which holds the item or an error.
        size: of its payload in bytes.
        cost: of the item; None where it failed.
    """

    place: Place
    size: int
    cost: Cost | None


class Decoder:
    """Decodes for one worker."""

    def __init__(self, runner: Runner, guard: Guard, *, threads: int, is_threaded: bool) -> None:
        """Make the threads.

        Args:
            runner: of the task.
            guard: over the threads.
            threads: that there should be.
            is_threaded: whether each item is worth a thread, however small.
        """
        self._runner = runner
        self._guard = guard
        self._is_threaded = is_threaded
        self._pool = ThreadPoolExecutor(max(LEAST_THREADS, threads), "decode")

    def decode(self, places: Sequence[Place], then: Callable[[list[Decoded]], None]) -> list[Decoded]:
        """Decode all.

        Args:
            places: of payloads.
            then: told of each item that is decoded on another thread, there.

        Returns:
            Those that are decoded by now.
        """
        small = []
        for place in places:
            if self._is_threaded or _bytes(place) > LARGE_BYTES:
                self._pool.submit(self._guard.run, self._apart, place, then)
            else:
                small.append(place)
        return self._decode(small) if small else []

    def _apart(self, place: Place, then: Callable[[list[Decoded]], None]) -> None:
        then(self._decode([place]))

    def _decode(self, places: Sequence[Place]) -> list[Decoded]:
        slots = [place.slot for place in places]
        sizes = [_bytes(place) for place in places]
        for slot in slots:
            self._runner.decode(slot)
        self._runner.prepare(slots)
        costs = {id(slot): cost for slot, cost in self._runner.price(slots)}
        return [Decoded(place, size, costs.get(id(place.slot))) for place, size in zip(places, sizes, strict=True)]


def _bytes(place: Place) -> int:
    """Size of a payload; none where an error has taken its place."""
    outcome = place.slot.outcome
    return size_of(outcome) if isinstance(outcome, Payload) else 0
