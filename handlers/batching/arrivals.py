"""A request as it is submitted: admitted or refused, then decoded.

Request -> admit   -> in the queue, or complete with its own error
admitted -> Decoder -> small texts at once, on the calling thread; other items on the decode threads, in turn
decoded  -> note    -> the scheduler
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import count as count_from
from math import inf
from queue import PriorityQueue
from typing import Any, NamedTuple

import numpy as np

from handlers.batching.guard import Guard
from handlers.batching.scheduler import Scheduler
from handlers.config import HandlerConfig
from handlers.errors import InvalidInput, ItemError
from handlers.metrics import REFUSALS, Recorder
from handlers.pipeline.flow import Pipeline
from handlers.pipeline.limits import excess
from handlers.protocol.requests import Payload, Request, Slot
from handlers.protocol.terms import Terms

# A request with more bytes of payload is decoded by other threads; less takes microseconds.
LARGE_BYTES = 16 * 1024
# There are at least so many threads, more than cores, so that a few slow decodings leave some for the others.
LEAST_THREADS = 4
# Share of the latest item in the mean of tokens a byte: a change of language is followed within some twenty.
LATEST_WEIGHT = 0.1
# A number of JSON counts as so many bytes.
NUMBER_BYTES = 8


OnDecoded = Callable[[Sequence[Slot]], None]


class Arrivals:
    """Takes requests in for one scheduler. The caller holds its lock."""

    def __init__(self, scheduler: Scheduler, recorder: Recorder, config: HandlerConfig) -> None:
        self._config = config
        self._scheduler = scheduler
        self._recorder = recorder
        # Tokens a byte of payload; 0 while every item counted as one, as images do.
        self._per_byte = 0.0

    def admit(self, request: Request) -> None:
        """Admit a request or refuse it; one that has nothing to decode then is complete."""
        tokens = 0.0
        for slot in request.slots:
            slot.request = request
            if isinstance(slot.outcome, Payload):
                slot.size = _size(slot.outcome)
                tokens += max(1.0, self._per_byte * slot.size)
        scheduler = self._scheduler
        if not tokens:
            return
        if request.terms:
            try:
                terms = Terms.of(request.terms, scheduler.policy.priority_levels)
            except InvalidInput as error:
                request.fail(ItemError.of(error))
                return
            request.priority, request.timeout_s = terms.priority, terms.timeout_s
        if refusal := scheduler.admit(request, tokens):
            request.fail(ItemError(self._config.scheduling.overload_status, refusal.reason, refusal.message))
            request.retry_after_s = refusal.retry_after_s
            self._recorder.add(REFUSALS, 1, refusal.reason)

    def note(self, slots: Sequence[Slot]) -> None:
        """Hand decoded items to the scheduler, and learn how long such payloads turn out to be."""
        for slot in slots:
            request, is_good = slot.request, not isinstance(slot.outcome, ItemError)
            if is_good and slot.size and (slot.cost.length > 1 or self._per_byte):
                per_byte = slot.cost.length / slot.size
                self._per_byte += (LATEST_WEIGHT if self._per_byte else 1.0) * (per_byte - self._per_byte)
            # The items of a request may be too much together, once the last of them is decoded.
            is_last = request.decoding == 1 and len(request.slots) > 1
            if is_last and (error := excess(request.slots, self._config)):
                self._scheduler.queue.remove(request)
                request.fail(error)
            else:
                self._scheduler.queue.decoded(slot)


class _Waiting(NamedTuple):
    """A request of which a decode thread is to take the next item; those of the lowest order are taken first."""

    taken: float
    level: int = 0
    due_s: float = 0.0
    number: int = 0
    slots: Iterator[Slot] = iter(())
    on_decoded: OnDecoded = lambda _: None


class Decoder:
    """Decodes for one worker; with `is_threaded` each item is worth a thread, however small."""

    def __init__(self, pipeline: Pipeline, guard: Guard, *, threads: int, is_threaded: bool) -> None:
        self._pipeline = pipeline
        self._is_threaded = is_threaded
        count = max(LEAST_THREADS, threads)
        # A list of photographs leaves threads for requests that come after it.
        self._most_of_one_request = count // 2
        self._waiting: PriorityQueue[_Waiting] = PriorityQueue()
        self._numbers = count_from(0)
        self._threads = [guard.start("decode", self._work) for _ in range(count)]

    def decode(self, requests: Iterable[Request], on_decoded: OnDecoded) -> list[Slot]:
        """Decode the items of requests that have just been admitted, and return those that are decoded by now.

        `on_decoded` is called with each other item, on the thread that decodes it.
        """
        small: list[Slot] = []
        for request in requests:
            slots = [slot for slot in request.slots if not isinstance(slot.outcome, ItemError)]
            if not self._is_threaded and sum(slot.size for slot in slots) <= LARGE_BYTES:
                small += slots
                continue
            # Threads share the iterator of a list, which is safe.
            left = iter(slots)
            for _ in range(min(len(slots), self._most_of_one_request)):
                self._waiting.put(_Waiting(0, request.level, request.due_s, next(self._numbers), left, on_decoded))
        self._decode(small)
        return small

    def close(self) -> None:
        """End the threads, once each has decoded its item."""
        for _ in self._threads:
            self._waiting.put(_Waiting(inf, number=next(self._numbers)))
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while self._decode_next():
            pass

    def _decode_next(self) -> bool:
        """Wait for an item and decode it; what it holds is let go of before the next is waited for."""
        waiting = self._waiting.get()
        # A request that has expired meanwhile is answered.
        if (slot := next(waiting.slots, None)) is None or slot.request.is_complete:
            return waiting.taken < inf
        self._decode([slot])
        self._waiting.put(waiting._replace(taken=waiting.taken + 1, number=next(self._numbers)))
        waiting.on_decoded([slot])
        return True

    def _decode(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            self._pipeline.decode(slot)
        self._pipeline.prepare(slots)


def _size(payload: Payload) -> int:
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
