"""A request as it arrives: admitted or refused, then decoded; what is small at once, all else on other threads.

Request, headers -> arrived -> InFlightRequest: admitted, or complete with its own error
admitted         -> Decoder -> a little text at once; everything else item by item, in which decode threads take turns
decoded items    -> decoded -> the scheduler
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import count as count_from
from queue import PriorityQueue
from typing import Any, NamedTuple

import numpy as np

from handlers.batching.in_flight import InFlightRequest
from handlers.batching.scheduler import Scheduler
from handlers.batching.shared_state import Guard
from handlers.config import HandlerConfig
from handlers.errors import InvalidInput, ItemError
from handlers.metrics import REFUSALS, Recorder
from handlers.pipeline.flow import Pipeline
from handlers.pipeline.slots import Slot, excess
from handlers.protocol.headers import Terms
from handlers.protocol.requests import Payload, Request

# A request with more bytes of payload is decoded by other threads; less takes microseconds.
LARGE_BYTES = 16 * 1024
# There are at least so many threads, more than cores, so that a few slow decodings leave some for the others.
LEAST_THREADS = 4
# Share of the latest item in the mean of tokens a byte: a change of language is followed within some twenty.
LATEST_WEIGHT = 0.1
# A number of JSON counts as so many bytes.
NUMBER_BYTES = 8


class Arrived(NamedTuple):
    """An item on its way through decoding: its slot, and the bytes of its payload."""

    request: InFlightRequest
    slot: Slot
    size: int


OnDecoded = Callable[[Sequence[Arrived]], None]


class Arrivals:
    """Takes requests in for one scheduler, whose lock the caller holds."""

    def __init__(self, scheduler: Scheduler, recorder: Recorder, config: HandlerConfig) -> None:
        """Expect requests; `config` has what they may ask for, and the status of those that are refused."""
        self._config = config
        self._scheduler = scheduler
        self._recorder = recorder
        # Tokens a byte of payload; 0 while every item counted as one, as images do.
        self._per_byte = 0.0

    def arrived(self, id_: str, request: Request, headers: Mapping[str, Any], came_s: float) -> InFlightRequest:
        """Admit a request or refuse it; one that holds nothing to do is complete already."""
        slots = [Slot(payload) for payload in request.payloads]
        sizes = [size_of(payload) for payload in request.payloads if isinstance(payload, Payload)]
        # Each payload lives until it is decoded, in its slot, and no longer.
        request.payloads = ()
        arrived = InFlightRequest(id=id_, request=request, slots=slots, arrived_s=came_s)
        if all(slot.is_failed for slot in slots):
            return arrived
        try:
            terms = Terms.of(headers, self._scheduler.policy.priority_levels, request.terms)
        except InvalidInput as error:
            arrived.fail(ItemError.of(error))
            return arrived
        arrived.priority, arrived.timeout_s = terms.priority, terms.timeout_s
        refusal = self._scheduler.admit(arrived, sum(max(1.0, self._per_byte * size) for size in sizes))
        if refusal is None:
            arrived.is_admitted = True
        else:
            arrived.refuse(refusal, self._config.scheduling.overload_status)
            self._recorder.add(REFUSALS, 1, refusal.reason)
        return arrived

    def decoded(self, items: Sequence[Arrived]) -> None:
        """Hand decoded items to the scheduler, and learn how long such payloads turn out to be."""
        for item in items:
            cost = item.slot.cost
            if cost is not None and item.size and (cost.length > 1 or self._per_byte):
                per_byte = cost.length / item.size
                self._per_byte += (LATEST_WEIGHT if self._per_byte else 1.0) * (per_byte - self._per_byte)
            if error := self._excess(item):
                self._scheduler.queue.remove(item.request)
                item.request.fail(error)
            else:
                self._scheduler.queue.decoded(item.request, item.slot, cost)

    def _excess(self, item: Arrived) -> ItemError | None:
        """Return the error of a request whose items are too much together, once the last of them is decoded."""
        request = item.request
        if request.decoding != 1 or len(request.slots) == 1:
            return None
        return excess(request.slots, self._config)


class _Waiting(NamedTuple):
    """A request of which a decode thread is to take the next item; those of the lowest order are taken first."""

    taken: int
    level: int
    due_s: float
    number: int
    request: InFlightRequest
    items: Iterator[Arrived]
    on_decoded: OnDecoded


class Decoder:
    """Decodes for one worker."""

    def __init__(self, pipeline: Pipeline, guard: Guard, *, threads: int, is_threaded: bool) -> None:
        """Start the threads; with `is_threaded` each item is worth one, however small."""
        self._pipeline = pipeline
        self._is_threaded = is_threaded
        count = max(LEAST_THREADS, threads)
        # A list of photographs leaves threads for requests that come after it.
        self._most_of_one_request = count // 2
        self._waiting: PriorityQueue[_Waiting] = PriorityQueue()
        self._numbers = count_from(0)
        for _ in range(count):
            threading.Thread(target=guard.run, args=(self._work,), name="decode", daemon=True).start()

    def decode(self, requests: Iterable[InFlightRequest], on_decoded: OnDecoded) -> list[Arrived]:
        """Decode the items of requests that have just been admitted, and return those that are decoded by now.

        `on_decoded` is called with each other item, on the thread that decodes it.
        """
        small: list[Arrived] = []
        for request in requests:
            items = [
                Arrived(request, slot, size_of(slot.outcome) if isinstance(slot.outcome, Payload) else 0)
                for slot in request.slots
                if not slot.is_failed
            ]
            if not self._is_threaded and sum(item.size for item in items) <= LARGE_BYTES:
                small += items
                continue
            # Threads share the iterator of a list, which is safe.
            left = iter(items)
            for _ in range(min(len(items), self._most_of_one_request)):
                waiting = _Waiting(0, request.level, request.due_s, next(self._numbers), request, left, on_decoded)
                self._waiting.put(waiting)
        self._decode(small)
        return small

    def _work(self) -> None:
        while True:
            self._decode_next()

    def _decode_next(self) -> None:
        """Wait for an item and decode it; what it holds is let go of before the next is waited for."""
        waiting = self._waiting.get()
        # A request that has expired meanwhile is answered.
        if waiting.request.is_complete or (item := next(waiting.items, None)) is None:
            return
        self._decode([item])
        self._waiting.put(waiting._replace(taken=waiting.taken + 1, number=next(self._numbers)))
        waiting.on_decoded([item])

    def _decode(self, items: Sequence[Arrived]) -> None:
        slots = [item.slot for item in items]
        for slot in slots:
            self._pipeline.decode(slot)
        self._pipeline.prepare(slots)


def size_of(payload: Payload) -> int:
    """Count the bytes or characters of a payload's input."""
    value = payload.value
    return sum(map(_bytes, value.values())) if isinstance(value, Mapping) else _bytes(value)


def _bytes(value: Any) -> int:
    # A number is what an item of a one-dimensional tensor is.
    if isinstance(value, np.ndarray | np.generic):
        return int(value.nbytes)
    if not isinstance(value, list):
        return len(value) if isinstance(value, Sized) else 0
    # Numbers of JSON, nested; the first of each list tells for the others.
    count = 1
    while isinstance(value, list) and value:
        count *= len(value)
        value = value[0]
    return NUMBER_BYTES * count
