"""Count what happens, and send it to Prometheus.

    handler -> Recorder (events, then sums) -> Reporter (once a second, if anything happened) -> emit: a line per sample

TorchServe's frontend parses metrics from lines, and its own histograms have fixed buckets from 0.005 to 10, too coarse
for a batch size or a millisecond. So histograms are kept here and sent as the counters that Prometheus makes of one:
`_bucket{le=...}`, `_sum` and `_count`. One line a second for each series costs less than a line for each batch.
"""

import logging
import threading
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

logger = logging.getLogger(__name__)

# Every counter and histogram, in the order of their definition; deploy/metrics.yaml declares them to the frontend.
COUNTERS: list["Counter"] = []
HISTOGRAMS: list["Histogram"] = []


class Counter:
    """A number that only grows. `labels` names its labels, beside the model's name and version."""

    def __init__(self, name: str, labels: tuple[str, ...] = ()) -> None:
        self.name = name
        self.labels = labels
        COUNTERS.append(self)


class Histogram:
    """Observations counted by size. `bounds` are the buckets' inclusive upper ends, ascending; +Inf is implied."""

    def __init__(self, name: str, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        # The observations up to the bound in the label `le`, cumulative, as Prometheus requires.
        self.bucket = Counter(f"{name}_bucket", ("le",))
        self.sum = Counter(f"{name}_sum")
        self.count = Counter(f"{name}_count")
        HISTOGRAMS.append(self)


class Sample(NamedTuple):
    """An increment of one counter, with the values of the counter's labels."""

    counter: Counter
    labels: tuple[str, ...]
    value: float


# Upper ends of buckets for numbers of items.
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 128, 256)
# Upper ends of buckets for durations in seconds.
SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

ITEMS = Counter("handler_items_total")
ITEM_ERRORS = Counter("handler_item_errors_total", ("type",))
BATCH_SIZE = Histogram("handler_batch_size", SIZES)
DECODE = Histogram("handler_decode_seconds", SECONDS)
# From the end of an item's decoding to its micro-batch.
ENGINE_WAIT = Histogram("handler_engine_wait_seconds", SECONDS)
FORWARD = Histogram("handler_forward_seconds", SECONDS)
ENCODE = Histogram("handler_encode_seconds", SECONDS)

# Answered requests, and the seconds from their arrival at the worker to their responses. The outcome is SUCCESS if any
# item has a result.
SUCCESS = "success"
FAIL = "fail"
REQUESTS = Counter("handler_requests_total", ("outcome",))
OUTCOME_SECONDS = Counter("handler_outcome_seconds_total", ("outcome",))
# The durations of requests with a result. Rejections are answered at once and would lower the quantiles.
REQUEST = Histogram("handler_request_seconds", SECONDS)
# Seconds that items waited in the worker, for decoding and for the engine; ENGINE_WAIT.count is their number.
WORKER_WAIT_SECONDS = Counter("handler_worker_wait_seconds_total")
# Micro-batches by their exact number of items, and the seconds of their phases: INPUT stacks the items, INFER is the
# engine, OUTPUT splits its outputs.
INPUT = "input"
INFER = "infer"
OUTPUT = "output"
EXECUTIONS = Counter("handler_executions_total", ("size",))
EXECUTION_SECONDS = Counter("handler_execution_seconds_total", ("size", "phase"))

# An adaptive worker observes these as each micro-batch starts: the number of ready items, and the age of the oldest.
QUEUE_DEPTH = Histogram("handler_queue_depth", (0, *SIZES, 512))
QUEUE_AGE = Histogram("handler_queue_age_seconds", SECONDS)
# Micro-batches by the reason for which they had no more items; see `handlers.batching.batches.limit_of`.
MICRO_BATCHES = Counter("handler_micro_batches_total", ("reason",))
# The duration of a micro-batch as a multiple of its prediction.
PREDICTION_RATIO = Histogram(
    "handler_forward_prediction_ratio", (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 4.0)
)
# This counter's rate is the share of time that the engine is busy.
ENGINE_BUSY = Counter("handler_engine_busy_seconds_total")
DEADLINE_MISSES = Counter("handler_deadline_misses_total")
REJECTIONS = Counter("handler_rejections_total", ("reason",))
FORMER = {REJECTIONS: Counter("handler_refusals_total", ("reason",))}  # names of 0.3, which 0.4 emits, too
EXCHANGES = Counter("handler_exchanges_total")
ABANDONED = Counter("handler_abandoned_total")  # requests that were dropped because their clients had disconnected
CACHE_HITS = Counter("handler_cache_hits_total")  # items that got the result of an earlier one, and the others
CACHE_MISSES = Counter("handler_cache_misses_total")


Series = tuple[Counter, tuple[str, ...]]  # a counter, with the values of its labels


class EventKind:
    """Its `counts` grow by one, its `meanings` by the values, with each event; recorders group by identity."""

    def __init__(self, counts: tuple[Series, ...], *meanings: tuple[Series | Histogram, ...]) -> None:
        self.counts = counts
        self.meanings = meanings


# Values: seconds of encoding the response, seconds since the request arrived, seconds that its items waited.
SUCCEEDED = EventKind(
    ((REQUESTS, (SUCCESS,)),), (ENCODE,), ((OUTCOME_SECONDS, (SUCCESS,)), REQUEST), ((WORKER_WAIT_SECONDS, ()),)
)
FAILED = EventKind(((REQUESTS, (FAIL,)),), (ENCODE,), ((OUTCOME_SECONDS, (FAIL,)),), ((WORKER_WAIT_SECONDS, ()),))


@lru_cache(maxsize=256)
def item_event(error_type: str | None, *, has_run: bool) -> EventKind:
    """Return the event of an item; values: seconds of decoding, and of waiting if in a micro-batch."""
    counted: Series = (ITEMS, ()) if error_type is None else (ITEM_ERRORS, (error_type,))
    return EventKind((counted,), (DECODE,), (ENGINE_WAIT,)) if has_run else EventKind((counted,), (DECODE,))


@lru_cache(maxsize=1024)
def execution_event(size: int) -> EventKind:
    """Return the event of a micro-batch. Values: seconds of its three phases, of the first two, and its size."""
    label = str(size)
    phases = [((EXECUTION_SECONDS, (label, phase)),) for phase in (INPUT, INFER, OUTPUT)]
    return EventKind(((EXECUTIONS, (label,)),), *phases, (FORWARD,), (BATCH_SIZE,))


@lru_cache(maxsize=8)
def begin_event(reason: str) -> EventKind:
    """Return the event of a micro-batch that begins; values: the number of ready items, and the age of the oldest."""
    return EventKind(((MICRO_BATCHES, (reason,)),), (QUEUE_DEPTH,), (QUEUE_AGE,))


# Values: seconds of the engine, and these as a multiple of the prediction, if there was one.
RAN = EventKind((), ((ENGINE_BUSY, ()),))
RAN_AS_PREDICTED = EventKind((), ((ENGINE_BUSY, ()),), (PREDICTION_RATIO,))
EXCHANGED = EventKind(((EXCHANGES, ()),))

Event = tuple[EventKind, Sequence[float]]  # one event, with a number for each value of its kind


class Recorder:
    """Adds up what happens until it is drained. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[Iterable[Event]] = deque()
        self._sums: dict[Series, float] = defaultdict(int, {(each.sum, ()): 0 for each in HISTOGRAMS})
        # The bounds of each histogram, and its number of observations in each bucket.
        self._bounds = {histogram: histogram.bounds for histogram in HISTOGRAMS}
        self._counts = {histogram: [0] * (len(histogram.bounds) + 1) for histogram in HISTOGRAMS}
        # The first drain declares every histogram at zero: quantiles are wrong while lower buckets are missing.
        self._is_declared = False
        # Records events that happened together: a request and its items, or a micro-batch. A deque's append is atomic,
        # so this needs no lock; the lock guards the sums.
        self.record: Callable[[Iterable[Event]], None] = self._events.append

    def add_bound(self, histogram: Histogram, bound: float) -> None:
        """Add a bucket to a histogram, for the latency target. Nothing may have been recorded before."""
        self._bounds[histogram] = tuple(sorted({*histogram.bounds, bound}))
        self._counts[histogram] = [0] * (len(self._bounds[histogram]) + 1)

    def add(self, counter: Counter, value: float, *labels: str) -> None:
        with self._lock:
            self._sums[counter, labels] += value

    def observe(self, histogram: Histogram, value: float) -> None:
        with self._lock:
            self._counts[histogram][bisect_left(self._bounds[histogram], value)] += 1
            self._sums[histogram.sum, ()] += value

    def drain(self) -> list[Sample]:
        """Return the increments since the previous call and forget them; an empty list if nothing happened."""
        with self._lock:
            self._add_up()
            samples = [
                Sample(counter, labels, value)
                for (counter, labels), value in self._sums.items()
                if value or not self._is_declared
            ]
            self._sums.clear()
            for histogram, counts in self._counts.items():
                if self._is_declared and not any(counts):
                    continue
                bounds = (*(f"{bound:g}" for bound in self._bounds[histogram]), "+Inf")
                for bound, cumulative in zip(bounds, accumulate(counts), strict=True):
                    if cumulative or not self._is_declared:
                        samples.append(Sample(histogram.bucket, (bound,), cumulative))
                samples.append(Sample(histogram.count, (), sum(counts)))
                self._counts[histogram] = [0] * len(counts)
            self._is_declared = True
        return samples + [each._replace(counter=FORMER[each.counter]) for each in samples if each.counter in FORMER]

    def _add_up(self) -> None:
        """Add up the events recorded so far. The caller holds the lock."""
        rows: dict[EventKind, list[Sequence[float]]] = defaultdict(list)
        for _ in range(len(self._events)):
            for kind, values in self._events.popleft():
                rows[kind].append(values)
        for kind, of_kind in rows.items():
            for series in kind.counts:
                self._sums[series] += len(of_kind)
            for column, meanings in zip(np.array(of_kind, np.float64).T, kind.meanings, strict=True):
                total = float(column.sum())
                for meaning in meanings:
                    if isinstance(meaning, Histogram):
                        counts, buckets = self._counts[meaning], np.searchsorted(self._bounds[meaning], column)
                        added = np.bincount(buckets, minlength=len(counts)).tolist()
                        self._counts[meaning] = [count + more for count, more in zip(counts, added, strict=True)]
                        self._sums[meaning.sum, ()] += total
                    else:
                        self._sums[meaning] += total


class Reporter:
    """Drains a recorder into `emit`, once an interval, on a separate thread."""

    def __init__(self, recorder: Recorder, emit: Callable[[Sample], None], interval_s: float = 1.0) -> None:
        self.recorder = recorder
        self._emit = emit
        self._interval_s = interval_s
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Send the zeros, then start the thread."""
        self.report()
        self._thread.start()

    def stop(self) -> None:
        """Send the remaining samples and end the thread."""
        self._is_stopped.set()
        self._thread.join()

    def report(self) -> None:
        for sample in self.recorder.drain():
            self._emit(sample)

    def _run(self) -> None:
        is_over = False
        while not is_over:
            # After `stop`, one more report sends the events since the previous one.
            is_over = self._is_stopped.wait(self._interval_s)
            try:
                self.report()
            except Exception as error:
                # This report is lost; later ones are not. The message may contain more than a log should.
                logger.error("Metrics could not be reported: %s", type(error).__name__)
