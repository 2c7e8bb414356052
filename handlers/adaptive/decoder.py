"""Payloads to priced items for an adaptive worker: what is small at once, whatever may take long on another thread."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from handlers.adaptive.fail_fast import Guard
from handlers.adaptive.in_flight import InFlightRequest
from handlers.adaptive.length_estimate import size_of
from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.runner import Runner
from handlers.pipeline.slots import Slot
from handlers.protocol.requests import Payload

# Payloads of more bytes are decoded by a thread of their own; smaller texts take microseconds together.
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


class Decoder:
    """Decodes for one worker."""

    def __init__(self, runner: Runner, guard: Guard, *, threads: int, is_threaded: bool) -> None:
        """Make the threads.

        Args:
            runner: the hooks of the task.
            guard: watches over the threads.
            threads: how many there should be.
            is_threaded: whether each item is worth a thread, however small.
        """
        self._runner = runner
        self._guard = guard
        self._is_threaded = is_threaded
        self._pool = ThreadPoolExecutor(max(LEAST_THREADS, threads), "decode")

    def decode(self, requests: Iterable[InFlightRequest], then: Callable[[list[Decoded]], None]) -> list[Decoded]:
        """Decode the items of requests that have just been admitted.

        Args:
            requests: the requests; what has failed already is passed over.
            then: is told of each item that is decoded on another thread, there.

        Returns:
            The items that are decoded by now.
        """
        small = []
        for request in requests:
            for slot in request.slots:
                if slot.is_failed:
                    continue
                item = _Undecoded(request, slot, _bytes(slot))
                if self._is_threaded or item.size > LARGE_BYTES:
                    self._pool.submit(self._guard.run, self._apart, item, then)
                else:
                    small.append(item)
        return self._decode(small) if small else []

    def _apart(self, item: _Undecoded, then: Callable[[list[Decoded]], None]) -> None:
        then(self._decode([item]))

    def _decode(self, items: list[_Undecoded]) -> list[Decoded]:
        slots = [item.slot for item in items]
        for slot in slots:
            self._runner.decode(slot)
        self._runner.prepare(slots)
        costs = {id(slot): cost for slot, cost in self._runner.price(slots)}
        return [Decoded(item.request, item.slot, item.size, costs.get(id(item.slot))) for item in items]


def _bytes(slot: Slot) -> int:
    payload = slot.outcome
    return size_of(payload) if isinstance(payload, Payload) else 0
