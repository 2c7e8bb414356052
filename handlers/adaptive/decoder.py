"""Payloads to priced items for an adaptive worker: what is small at once, whatever may take long on another thread.

a little text          decoded by whoever asks
all else, in pieces    waiting -> decode threads, which take turns between requests -> `then`
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from handlers.adaptive.fail_fast import Guard
from handlers.adaptive.in_flight import InFlightRequest
from handlers.adaptive.length_estimate import size_of
from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.runner import Runner
from handlers.pipeline.slots import Slot
from handlers.protocol.requests import Payload

# A request with more bytes of payload is decoded by other threads, in pieces of so many; less takes microseconds.
LARGE_BYTES = 16 * 1024
# There are at least so many threads, more than cores, so that a few slow decodings leave some for the others.
LEAST_THREADS = 4


class Decoded(NamedTuple):
    """An item after decoding.

    Attributes:
        request: the request that it belongs to.
        slot: holds the item, or its error.
        size: bytes of its payload.
        cost: what the item asks of a micro-batch; None where it failed.
    """

    request: InFlightRequest
    slot: Slot
    size: int
    cost: Cost | None


class _Undecoded(NamedTuple):
    """An item before decoding, and the bytes of its payload."""

    request: InFlightRequest
    slot: Slot
    size: int


Then = Callable[[list[Decoded]], None]


class _Waiting:
    """The pieces of one request that no thread has taken, and how many threads are at work on others of its."""

    def __init__(self, request: InFlightRequest, pieces: Iterable[list[_Undecoded]], then: Then) -> None:
        self.request = request
        self.pieces = deque(pieces)
        self.then = then
        self.busy = 0


class Decoder:
    """Decodes for one worker."""

    def __init__(self, runner: Runner, guard: Guard, *, threads: int, is_threaded: bool) -> None:
        """Start the threads.

        Args:
            runner: the hooks of the task.
            guard: watches over the threads.
            threads: how many there should be.
            is_threaded: whether each item is worth a thread, however small.
        """
        self._runner = runner
        self._is_threaded = is_threaded
        count = max(LEAST_THREADS, threads)
        # A list of photographs leaves threads for whoever comes after it.
        self._most_of_one_request = count // 2
        self._waiting: list[_Waiting] = []
        self._changed = threading.Condition()
        for _ in range(count):
            threading.Thread(target=guard.run, args=(self._work,), name="decode", daemon=True).start()

    def decode(self, requests: Iterable[InFlightRequest], then: Then) -> list[Decoded]:
        """Decode the items of requests that have just been admitted.

        Args:
            requests: the requests; what has failed already is passed over.
            then: is told of each piece that is decoded on another thread, there.

        Returns:
            The items that are decoded by now.
        """
        small: list[_Undecoded] = []
        large: list[_Waiting] = []
        for request in requests:
            items = [_Undecoded(request, slot, _bytes(slot)) for slot in request.slots if not slot.is_failed]
            if self._is_threaded:
                large.append(_Waiting(request, [[item] for item in items], then))
            elif sum(item.size for item in items) > LARGE_BYTES:
                large.append(_Waiting(request, _pieces(items), then))
            else:
                small += items
        if large:
            with self._changed:
                self._waiting += large
                self._changed.notify(sum(len(each.pieces) for each in large))
        return self._decode(small) if small else []

    def _work(self) -> None:
        while True:
            self._decode_next()

    def _decode_next(self) -> None:
        """Wait for a piece and decode it; what it holds is let go of before the next is waited for."""
        with self._changed:
            while (taken := self._take()) is None:
                self._changed.wait()
        piece, owner = taken
        decoded = self._decode(piece)
        with self._changed:
            owner.busy -= 1
            self._changed.notify()
        owner.then(decoded)

    def _take(self) -> tuple[list[_Undecoded], _Waiting] | None:
        """Take a piece of the request that fewest threads work on; of equals, of the one that is due first."""
        # Those that have expired meanwhile are answered.
        self._waiting = [each for each in self._waiting if each.pieces and not each.request.is_complete]
        free = [each for each in self._waiting if each.busy < self._most_of_one_request]
        if not free:
            return None
        first = min(free, key=lambda each: (each.busy, each.request.level, each.request.urgency))
        first.busy += 1
        return first.pieces.popleft(), first

    def _decode(self, items: Sequence[_Undecoded]) -> list[Decoded]:
        slots = [item.slot for item in items]
        for slot in slots:
            self._runner.decode(slot)
        self._runner.prepare(slots)
        costs = {id(slot): cost for slot, cost in self._runner.price(slots)}
        return [Decoded(item.request, item.slot, item.size, costs.get(id(item.slot))) for item in items]


def _pieces(items: Iterable[_Undecoded]) -> Iterator[list[_Undecoded]]:
    """Cut items into pieces of at most LARGE_BYTES; one that has more is a piece by itself."""
    piece: list[_Undecoded] = []
    size = 0
    for item in items:
        if piece and size + item.size > LARGE_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(item)
        size += item.size
    if piece:
        yield piece


def _bytes(slot: Slot) -> int:
    payload = slot.outcome
    return size_of(payload) if isinstance(payload, Payload) else 0
