"""Count what happens, and send it to Prometheus.

    handler -> Recorder (events, then sums) -> Reporter (once a second, if anything happened) -> emit: a line per sample

TorchServe's frontend parses metrics from lines, and its own histograms have fixed buckets from 0.005 to 10, too coarse
for a batch size or a millisecond. So histograms are kept here and sent as the counters that Prometheus makes of one:
`_bucket{le=...}`, `_sum` and `_count`. One line a second for each series costs less than a line for each batch.

Requests and micro-batches are recorded as events, in one call without a lock; numpy adds up all events of a second at
once. Rare observations are added at once.
"""

import logging
import threading
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

logger = logging.getLogger(__name__)


class Counter(NamedTuple):
    """A number that only grows; `labels` are the names of the labels it has beside the model's name and version."""

    name: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Observations counted by size. `bounds` are the buckets' inclusive upper ends, ascending; +Inf is implied.

    There is one object of each, compared by identity: hashing all bounds for each observation would take long.
    """

    name: str
    bounds: tuple[float, ...]

    @property
    def bucket(self) -> Counter:
        """The number of observations up to the bound in its label `le`, cumulative as Prometheus has it."""
        return Counter(f"{self.name}_bucket", ("le",))

    @property
    def sum(self) -> Counter:
        """The total of the observed values."""
        return Counter(f"{self.name}_sum")

    @property
    def count(self) -> Counter:
        """The number of observations."""
        return Counter(f"{self.name}_count")


class Sample(NamedTuple):
    """An increment of one counter, with the values of the counter's labels."""

    counter: Counter
    labels: tuple[str, ...]
    value: float


# Upper ends of buckets: for numbers of items, and for durations in seconds.
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 128, 256)
SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

ITEMS = Counter("handler_items_total")
ITEM_ERRORS = Counter("handler_item_errors_total", ("Type",))
BATCH_SIZE = Histogram("handler_batch_size", SIZES)
DECODE = Histogram("handler_decode_seconds", SECONDS)
WAIT = Histogram("handler_wait_seconds", SECONDS)
FORWARD = Histogram("handler_forward_seconds", SECONDS)
ENCODE = Histogram("handler_encode_seconds", SECONDS)

# Requests that were answered, and the seconds from their arrival at the worker to their answers; Outcome is SUCCESS
# where any item has a result.
REQUESTS = Counter("handler_requests_total", ("Outcome",))
REQUEST_SECONDS = Counter("handler_request_seconds_total", ("Outcome",))
SUCCESS, FAIL = "success", "fail"
# The same seconds, each request's, of those with a result: refusals come at once and would look like speed.
REQUEST = Histogram("handler_request_seconds", SECONDS)
# Seconds that items waited in the worker, for decoding and for the engine; WAIT.count is their number.
QUEUE_SECONDS = Counter("handler_queue_seconds_total")
# Micro-batches by their exact number of items, and the seconds of their phases: INPUT stacks the items, INFER is the
# engine, OUTPUT takes its outputs apart.
EXECUTIONS = Counter("handler_executions_total", ("Size",))
EXECUTION_SECONDS = Counter("handler_execution_seconds_total", ("Size", "Phase"))
INPUT, INFER, OUTPUT = "input", "infer", "output"

# An adaptive worker observes these as each micro-batch starts: how many items are ready, and the oldest one's age.
QUEUE_DEPTH = Histogram("handler_queue_depth", (0, *SIZES, 512))
QUEUE_AGE = Histogram("handler_queue_age_seconds", SECONDS)
# How long a micro-batch took, as a multiple of what was predicted.
PREDICTION_RATIO = Histogram(
    "handler_forward_prediction_ratio", (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 4.0)
)
# This counter's rate is the share of time that the engine is busy.
ENGINE_BUSY = Counter("handler_engine_busy_seconds_total")
DEADLINE_MISSES = Counter("handler_deadline_misses_total")
REFUSALS = Counter("handler_refusals_total", ("Reason",))
EXCHANGES = Counter("handler_exchanges_total")
# Requests that were dropped because their clients had disconnected.
ABANDONED = Counter("handler_abandoned_total")


# deploy/metrics.yaml declares these to the frontend.
HISTOGRAMS = tuple(each for each in list(globals().values()) if isinstance(each, Histogram))
COUNTERS = (
    *(each for each in list(globals().values()) if isinstance(each, Counter)),
    *(part for each in HISTOGRAMS for part in (each.bucket, each.sum, each.count)),
)

# A counter, with the values of its labels.
Series = tuple[Counter, tuple[str, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """A kind of event, and what each of its values means; one object of each kind, compared by identity.

    Attributes:
        counts: grow by one with each event.
        values: for each value of an event what it is added to, and observed by.
    """

    counts: tuple[Series, ...]
    values: tuple[tuple[Series | Histogram, ...], ...]


# Values: seconds of encoding the answer, seconds since the request came, seconds that its items waited.
SUCCEEDED = Event(
    ((REQUESTS, (SUCCESS,)),), ((ENCODE,), ((REQUEST_SECONDS, (SUCCESS,)), REQUEST), ((QUEUE_SECONDS, ()),))
)
FAILED = Event(((REQUESTS, (FAIL,)),), ((ENCODE,), ((REQUEST_SECONDS, (FAIL,)),), ((QUEUE_SECONDS, ()),)))


@lru_cache(maxsize=256)
def item_event(error_type: str | None, *, has_run: bool) -> Event:
    """Return the event of an answered item. Values: seconds of decoding, and of waiting where it has run.

    Args:
        error_type: of its error; None where it has a result.
        has_run: whether it has been in a micro-batch.
    """
    counted: Series = (ITEMS, ()) if error_type is None else (ITEM_ERRORS, (error_type,))
    return Event((counted,), ((DECODE,), (WAIT,)) if has_run else ((DECODE,),))


@lru_cache(maxsize=1024)
def execution_event(size: int) -> Event:
    """Return the event of a micro-batch. Values: seconds of its three phases, of the first two, and its size."""
    label = str(size)
    phases = tuple(((EXECUTION_SECONDS, (label, phase)),) for phase in (INPUT, INFER, OUTPUT))
    return Event(((EXECUTIONS, (label,)),), (*phases, (FORWARD,), (BATCH_SIZE,)))


# Values: how many items were ready as a micro-batch began, and the age of the oldest.
BEGUN = Event((), ((QUEUE_DEPTH,), (QUEUE_AGE,)))
# Values: seconds of the engine, and these as a multiple of what was predicted, if anything was.
RAN = Event((), (((ENGINE_BUSY, ()),),))
RAN_AS_PREDICTED = Event((), (((ENGINE_BUSY, ()),), (PREDICTION_RATIO,)))
EXCHANGED = Event(((EXCHANGES, ()),), ())

# An event that happened, with a number for each of its values.
Happened = tuple[Event, Sequence[float]]


class Recorder:
    """Adds up what happens until it is drained. Any thread may call it.

    Attributes:
        record: counts events that happened together: those of a request and its items, or of a micro-batch.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._happened: deque[Iterable[Happened]] = deque()
        self._sums: dict[Series, float] = defaultdict(int, {(each.sum, ()): 0 for each in HISTOGRAMS})
        # Of each histogram, its bounds and the observations in each bucket.
        self._bounds = {histogram: histogram.bounds for histogram in HISTOGRAMS}
        self._counts = {histogram: [0] * (len(histogram.bounds) + 1) for histogram in HISTOGRAMS}
        # The first drain declares every histogram at zero: quantiles are wrong while lower buckets are missing.
        self._is_declared = False
        # A deque's append is atomic, so this needs no lock; the lock guards the sums.
        self.record: Callable[[Iterable[Happened]], None] = self._happened.append

    def add_bound(self, histogram: Histogram, bound: float) -> None:
        """Add a bucket to a histogram, before anything is recorded: the latency target."""
        self._bounds[histogram] = tuple(sorted({*histogram.bounds, bound}))
        self._counts[histogram] = [0] * (len(self._bounds[histogram]) + 1)

    def add(self, counter: Counter, value: float, *labels: str) -> None:
        """Count `value` more."""
        with self._lock:
            self._sums[counter, labels] += value

    def observe(self, histogram: Histogram, value: float) -> None:
        """Count one observation."""
        with self._lock:
            self._counts[histogram][bisect_left(self._bounds[histogram], value)] += 1
            self._sums[histogram.sum, ()] += value

    def drain(self) -> list[Sample]:
        """Return the increments since the last call and forget them; none when nothing happened."""
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
        return samples

    def _add_up(self) -> None:
        """Add up the events recorded so far. The caller holds the lock."""
        rows: dict[Event, list[Sequence[float]]] = defaultdict(list)
        for _ in range(len(self._happened)):
            for event, values in self._happened.popleft():
                rows[event].append(values)
        for event, of_event in rows.items():
            for series in event.counts:
                self._sums[series] += len(of_event)
            for column, meanings in zip(np.array(of_event, np.float64).T, event.values, strict=True):
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
    """Drains a recorder into `emit` once an interval, from a thread of its own."""

    def __init__(
        self,
        recorder: Recorder,
        emit: Callable[[Sample], None],
        interval_s: float = 1.0,
    ) -> None:
        """Prepare the thread; `start` starts it.

        Args:
            recorder: what is drained.
            emit: called with every sample.
            interval_s: seconds between two reports.
        """
        self.recorder = recorder
        self._emit = emit
        self._interval_s = interval_s
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Send the zeros, then what follows."""
        self.report()
        self._thread.start()

    def stop(self) -> None:
        """Send what is left and end the thread."""
        self._is_stopped.set()
        self._thread.join()

    def report(self) -> None:
        """Send everything recorded so far."""
        if samples := self.recorder.drain():
            for sample in samples:
                self._emit(sample)

    def _run(self) -> None:
        is_over = False
        while not is_over:
            # After the end, one more report sends what was recorded since the last.
            is_over = self._is_stopped.wait(self._interval_s)
            try:
                self.report()
            except Exception as error:
                # This report is lost; later ones are not. The message may say more than a log should.
                logger.error("Metrics could not be reported: %s", type(error).__name__)
