"""A submitted request: admitted or rejected, then decoded.

Pending -> admit        -> in the queue, or complete with its own error
admitted -> Decoder     -> small texts at once, on the calling thread; other items on the decode threads
decoded  -> end_decoding -> the scheduler
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import count as count_from
from math import inf
from queue import PriorityQueue
from typing import NamedTuple

import numpy as np

from handlers.batching import guard
from handlers.batching.equal_items import Cache, key_of
from handlers.batching.pending import Entry, Pending
from handlers.batching.scheduler import Scheduler
from handlers.config import HandlerConfig
from handlers.errors import InvalidInput, ItemError
from handlers.metrics import CACHE_HITS, CACHE_MISSES, REJECTIONS, Recorder
from handlers.pipeline.failures import find_excess
from handlers.pipeline.flow import Pipeline
from handlers.protocol.requests import Payload, Terms

LARGE_BYTES = 16 * 1024  # bytes of payload from which other threads decode a request; less takes microseconds
LEAST_THREADS = 4  # least decode threads: a few slow decodings leave some for other requests
# Weight of the latest item in the mean of tokens per byte: about twenty items follow a change of language.
LATEST_WEIGHT = 0.1
NUMBER_BYTES = 8  # bytes that a JSON number counts as

OnDecoded = Callable[[Sequence[Entry]], None]


class Arrivals:
    """Admits requests to one scheduler. The caller holds its lock."""

    def __init__(
        self, scheduler: Scheduler, recorder: Recorder, config: HandlerConfig, cache: Cache | None = None
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._recorder = recorder
        self._cache = cache
        self._per_byte = 0.0  # tokens per byte of payload; 0 while every item counts as one token, as images do

    def admit(self, request: Pending) -> None:
        """Admit or reject a request; afterwards a request without items to decode is complete."""
        scheduler = self._scheduler
        if all(slot.payload is None for slot in request.slots):
            return
        if request.terms:
            try:
                terms = Terms.of(request.terms, scheduler.policy.priority_levels)
            except InvalidInput as error:
                request.fail(ItemError.of(error))
                return
            request.priority, request.timeout_s = terms.priority, terms.timeout_s
        if self._cache is not None and not request.is_check:
            self._look_up(request, self._cache)
        tokens = 0.0
        for slot in request.slots:
            if slot.payload is not None:
                slot.size = _count_bytes(slot.payload)
                tokens += max(1.0, self._per_byte * slot.size)
        if not tokens:
            if excess := find_excess(request.slots, self._config):
                request.fail(excess)
            return
        if rejection := scheduler.admit(request, tokens):
            request.fail(ItemError(self._config.scheduling.overload_status, rejection.reason, rejection.message))
            request.retry_after_s = rejection.retry_after_s
            self._recorder.add(REJECTIONS, 1, rejection.reason)

    def _look_up(self, request: Pending, cache: Cache) -> None:
        """Give items the results of equal ones before them."""
        hits = misses = 0
        for slot in request.slots:
            if slot.payload is not None and (key := key_of(slot.payload, is_kept=False)) is not None:
                slot.key = key
                if (found := cache.get(key)) is None:
                    misses += 1
                else:
                    hits += 1
                    slot.payload, slot.is_cached = None, True
                    slot.result, slot.cost = found
        for counter, value in ((CACHE_HITS, hits), (CACHE_MISSES, misses)):
            if value:
                self._recorder.add(counter, value)

    def end_decoding(self, slots: Sequence[Entry]) -> None:
        """Pass decoded items to the scheduler, and learn the length of such payloads."""
        for slot in slots:
            request = slot.request
            if slot.error is None and slot.size and (slot.cost.length > 1 or self._per_byte):
                per_byte = slot.cost.length / slot.size
                self._per_byte += (LATEST_WEIGHT if self._per_byte else 1.0) * (per_byte - self._per_byte)
            # The budget of a request can be checked after its last item is decoded.
            is_last = request.decoding == 1 and len(request.slots) > 1
            if is_last and (error := find_excess(request.slots, self._config)):
                self._scheduler.queue.remove(request)
                request.fail(error)
            else:
                self._scheduler.queue.end_decoding(slot)


class _Job(NamedTuple):
    """A request of which a decode thread decodes the next item; lower tuples go first."""

    decoded: float  # items of the request so far
    level: int = 0
    due_s: float = 0.0
    number: int = 0
    slots: Iterator[Entry] = iter(())
    on_decoded: OnDecoded = lambda _: None


class Decoder:
    def __init__(self, pipeline: Pipeline, *, threads: int, is_threaded: bool, is_sharing: bool) -> None:
        """`is_threaded`: whether the threads decode every item, however small; `is_sharing`: whether equal ones share.

        An item that is decoded may have changed its payload, so its key is made before.
        """
        self._pipeline, self._is_sharing = pipeline, is_sharing
        self._is_threaded = is_threaded
        count = max(LEAST_THREADS, threads)
        # A list of photographs leaves threads idle for later requests. Two lists take all of them: the next one that is
        # free takes the request with the fewest decoded items.
        self._most_of_one_request = count // 2
        self._jobs: PriorityQueue[_Job] = PriorityQueue()
        self._numbers = count_from(0)
        self._threads = [guard.start("decode", self._work) for _ in range(count)]

    def decode(self, requests: Iterable[Pending], on_decoded: OnDecoded) -> list[Entry]:
        """Decode items and return them; the decode threads take the others, and call `on_decoded` with each."""
        small: list[Entry] = []
        for request in requests:
            slots = [slot for slot in request.slots if slot.is_open]
            if not self._is_threaded and sum(slot.size for slot in slots) <= LARGE_BYTES:
                small += slots
                continue
            left = iter(slots)  # threads may share the iterator of a list
            for _ in range(min(len(slots), self._most_of_one_request)):
                self._jobs.put(_Job(0, request.level, request.due_s, next(self._numbers), left, on_decoded))
        self._decode(small)
        return small

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(_Job(inf, number=next(self._numbers)))
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while self._decode_next():
            pass

    def _decode_next(self) -> bool:
        """Wait for an item and decode it, in a separate frame, so that no thread keeps an item while it waits."""
        job = self._jobs.get()
        # An expired request has its response already.
        if (slot := next(job.slots, None)) is None or slot.request.is_complete:
            return job.decoded < inf
        self._decode([slot])
        self._jobs.put(job._replace(decoded=job.decoded + 1, number=next(self._numbers)))
        job.on_decoded([slot])
        return True

    def _decode(self, slots: Sequence[Entry]) -> None:
        for slot in slots:
            is_shared = self._is_sharing and not slot.request.is_check
            if is_shared and slot.key is None and slot.payload is not None:
                slot.key = key_of(slot.payload)
            self._pipeline.decode(slot)
        self._pipeline.prepare(slots)


def _count_bytes(payload: Payload) -> int:
    value = payload.value
    return sum(map(_size, value.values())) if isinstance(value, Mapping) else _size(value)


def _size(value: object) -> int:
    if isinstance(value, np.ndarray | np.generic):  # an item of a one-dimensional tensor is a numpy number
        return int(value.nbytes)
    if not isinstance(value, list):
        return len(value) if isinstance(value, Sized) else 0
    # Nested JSON numbers: assume that all lists of one depth are as long as the first.
    count = 1
    while isinstance(value, list) and value:
        count *= len(value)
        value = value[0]
    return NUMBER_BYTES * count
