"""The worker that forms its own batches, for any server.

    calling thread    submit -> admit or reject -> small items decoded -+               write: split -> pack -> Response
    decode threads                                 other items decoded -+-> queue
    engine threads                                                          -> micro-batch -> micro-batch -> ...
    watching thread   expires requests that waited too long; a micro-batch that does not return ends the worker

Any thread may call its methods; small items wait for the `step` after their `submit`. The thread that completes a
request sets its future, then calls `on_change`, also after a micro-batch. The future's result writes the response on
the thread that calls it: `future.result()()`, or with asyncio `(await asyncio.wrap_future(future))()`.

No thread holds the lock while decoding, running the model, splitting or packing, or calling its host. A bug on one of
the threads ends the process (guard).
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import partial

from handlers.batching import guard
from handlers.batching.arrivals import Arrivals, Decoder
from handlers.batching.engine import LatencyModel, RunningBatch, Streams
from handlers.batching.equal_items import Cache
from handlers.batching.pending import Entry, Pending, Submitted
from handlers.batching.policy import Policy
from handlers.batching.scheduler import Scheduler
from handlers.batching.trial import Choice, copy_with_engine
from handlers.engines import Divisible, available_threads
from handlers.errors import EXPIRED
from handlers.metrics import ABANDONED, DEADLINE_MISSES, RAN, RAN_AS_PREDICTED, REJECTIONS, Recorder, begin_event
from handlers.pipeline.flow import FinishedMicroBatch, Pipeline
from handlers.pipeline.task import Task, inputs_of
from handlers.protocol.requests import Request
from handlers.protocol.responses import Response

CHECK_S = 1.0  # longest seconds between two checks for a stuck engine; a request that expires sooner notifies


class Stuck(Exception):
    """A micro-batch does not return."""


def _make_streams(choice: Choice) -> Streams:
    """Return the scheduler's streams, with the trial's measurements of the whole engine and of a stream."""
    (engine, parts), (whole, stream) = choice
    if not parts:
        return Streams(LatencyModel(whole))
    is_whole_faster = not (isinstance(engine, Divisible) and engine.deals_out)
    return Streams(LatencyModel(whole), LatencyModel(stream), len(parts), is_whole_faster=is_whole_faster)


class Core:
    def __init__(self, task: Task, choice: Choice, recorder: Recorder, longest_run_s: float) -> None:
        """Start the threads; a micro-batch that runs for `longest_run_s` seconds is stuck, and the worker ends."""
        config, task.engine = task.config, choice.arrangement.whole
        self._lock = threading.Lock()
        self.on_change: Callable[[], None] = lambda: None
        self._cache = Cache(config.cache_mib * 2**20) if config.cache_mib else None
        policy, is_caching = Policy.of(config, inputs_of(task).overhead), self._cache is not None
        self._scheduler = Scheduler(policy, _make_streams(choice), is_caching=is_caching)
        self._pipeline = Pipeline(task, recorder)
        self._pending: dict[Pending, Submitted] = {}  # submitted requests until their responses are written
        # Items that ran, until their micro-batch is split.
        self._unsplit: dict[Entry, FinishedMicroBatch[Entry]] = {}
        self._recorder, self._longest_run_s = recorder, longest_run_s
        self._work_may_be_due = threading.Condition(self._lock)
        self._check_may_be_due = threading.Condition(self._lock)
        self._next_check_s = 0.0
        self._expired: list[Submitted] = []
        self._is_closed = False
        self._arrivals = Arrivals(self._scheduler, recorder, config, self._cache)
        threads = available_threads(config.decode_threads)
        is_sharing = task.results.is_repeatable if config.share_equal is None else config.share_equal
        self._decoder = Decoder(
            self._pipeline, threads=threads, is_threaded=inputs_of(task).in_threads, is_sharing=is_sharing
        )
        streams = [Pipeline(copy_with_engine(task, part), recorder) for part in choice.arrangement.streams]
        self._threads = [guard.start("watch", self._watch)]
        self._threads += [guard.start("engine", self._run_stream, each) for each in streams or [self._pipeline]]

    def unpack(self, row: Mapping[str, object], headers: Mapping[str, object]) -> Request:
        """Read a request as `Pipeline.unpack` does."""
        return self._pipeline.unpack(row, headers)

    def submit(self, arrivals: Iterable[tuple[Request, float]]) -> list[Submitted]:
        """Submit requests, with the times of their arrival; the future of a cancelled one raises CancelledError."""
        requests = [Pending.of(request, arrived_s) for request, arrived_s in arrivals]
        submitted = [Submitted(request) for request in requests]
        complete = list[Submitted]()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the worker is closed")
            for request, future in zip(requests, submitted, strict=True):
                self._pending[request] = future
                self._arrivals.admit(request)
                if not request.decoding:
                    request.is_complete = True
                    complete.append(future)
                elif request.expires_s < self._next_check_s:
                    self._check_may_be_due.notify()
        admitted = [request for request in requests if request.decoding]
        if slots := self._decoder.decode(admitted, self._end_decoding):
            self._end_decoding(slots, is_helping=True)
        self._set_futures(complete)
        return submitted

    def cancel(self, submitted: Submitted) -> None:
        """Cancel a request whose client has disconnected; its waiting items never run. A written one stays."""
        request = submitted._pending  # noqa: SLF001
        with self._lock:
            if self._pending.pop(request, None) is None:
                return
            was_complete = request.is_complete
            self._scheduler.cancel(request)
            for slot in request.slots:
                self._unsplit.pop(slot, None)
            request.slots = []
        self._recorder.add(ABANDONED, 1)
        if not was_complete:
            submitted.set_exception(CancelledError())

    def close(self) -> None:
        """Cancel all requests, and return when the threads have ended, after the running micro-batches."""
        with self._lock:
            self._is_closed = True
            self._work_may_be_due.notify_all()
            self._check_may_be_due.notify()
        for submitted in list(self._pending.values()):
            self.cancel(submitted)
        self._decoder.close()
        for thread in self._threads:
            thread.join()

    @property
    def is_running(self) -> bool:
        """Whether a micro-batch is in the engine."""
        return bool(self._scheduler.streams.running)

    def step(self, most_items: Callable[[float], int] = lambda _: 0) -> bool:
        """Run a micro-batch on this thread and return whether one ran; else wake the threads.

        If nothing runs, `most_items` returns its most items, by the seconds that an idle engine needs for all of them.
        """
        with self._lock:
            if not self._scheduler.queue.ready:
                return False
            most = 0 if self.is_running else most_items(self._scheduler.ready_s)
            running = self._begin(time.perf_counter(), most) if most else None
            if running is None:
                self._wake_engine()
                return False
        try:
            self._run(running, self._pipeline)
        except BaseException as error:
            guard.end(error)
        return True

    def _run_stream(self, stream: Pipeline) -> None:
        while running := self._wait_for_batch():
            self._run(running, self._pipeline if running.is_wide else stream)
            del running  # no thread keeps items while it waits

    def _wait_for_batch(self) -> RunningBatch | None:
        """Return the next micro-batch, or None when the worker is closed."""
        with self._lock:
            while not self._is_closed:
                if running := self._begin(time.perf_counter()):
                    return running
                self._work_may_be_due.wait()
        return None

    def _begin(self, now_s: float, most_on_whole: int | None = None) -> RunningBatch | None:
        """Start the next micro-batch; see `Scheduler.next_batch`. The caller holds the lock."""
        self._expire(now_s)
        queue = self._scheduler.queue
        depth, oldest_s = len(queue.ready), queue.oldest_s(now_s)
        if running := self._scheduler.next_batch(now_s, most_on_whole=most_on_whole):
            self._recorder.record([(begin_event(running.reason), (depth, oldest_s))])
        return running

    def _run(self, running: RunningBatch, pipeline: Pipeline) -> None:
        slots = running.items
        started_s = time.perf_counter()
        finished = pipeline.run(slots, listener=partial(self._end_item, running))
        seconds = time.perf_counter() - started_s
        busy_s = seconds if running.is_wide else seconds / self._scheduler.streams.count
        if running.predicted_s > 0:
            self._recorder.record([(RAN_AS_PREDICTED, (busy_s, seconds / running.predicted_s))])
        else:
            self._recorder.record([(RAN, (busy_s,))])
        with self._lock:
            # A micro-batch that was halved took longer than its size does.
            is_whole = len(finished) == 1 and finished[0].size == running.size
            self._scheduler.finish(running, seconds, is_typical=is_whole)
            self._unsplit.update((slot, part) for part in finished for slot in part.slots if not slot.is_over)
            complete = self._complete(slots)
            self._wake_engine()
        for part in finished:
            if all(slot.is_over for slot in part.slots):
                # All its requests are cancelled or answered: nothing is left to split, and the micro-batch is counted.
                part.groups.clear()
                self._pipeline.split(part)
        self._set_futures(complete)
        if not complete:
            self.on_change()

    def _end_item(self, running: RunningBatch, slot: Entry) -> None:
        """Handle an item that the engine has ended before its micro-batch; called on the engine's own thread."""
        with guard.watch():
            with self._lock:
                self._scheduler.end_item(running, slot)
                complete = self._complete([slot])
            self._set_futures(complete)

    def _wake_engine(self) -> None:
        if self._scheduler.queue.ready:
            self._work_may_be_due.notify(self._scheduler.streams.free)

    def _end_decoding(self, slots: Sequence[Entry], *, is_helping: bool = False) -> None:
        with self._lock:
            self._arrivals.end_decoding(slots)
            complete = self._complete(slots)
            if not is_helping:
                self._wake_engine()
        self._set_futures(complete)

    def _complete(self, slots: Iterable[Entry]) -> list[Submitted]:
        """Mark the requests of these slots that are complete now, and return them. The caller holds the lock."""
        complete = []
        for request in dict.fromkeys(slot.request for slot in slots):
            if not (request.is_complete or request.decoding or request.queued or request.running):
                request.is_complete = True
                complete.append(self._pending[request])
        return complete

    def _set_futures(self, complete: Sequence[Submitted]) -> None:
        for future in complete:
            future.finish(self._write)
        if complete:
            self.on_change()

    def _watch(self) -> None:
        while True:
            with self._lock:
                now_s = time.perf_counter()
                self._expire(now_s)
                if self._scheduler.is_stuck(now_s, self._longest_run_s):
                    raise Stuck
                if not self._expired:
                    if self._is_closed:
                        return
                    self._next_check_s = min(now_s + CHECK_S, self._scheduler.queue.next_expiry_s())
                    self._check_may_be_due.wait(max(0.0, self._next_check_s - now_s))
                expired, self._expired = self._expired, []
            self._set_futures(expired)

    def _expire(self, now_s: float) -> None:
        """Fail the requests that waited too long; the watching thread sets their futures. The caller holds the lock."""
        if self._is_closed:
            return  # the watching thread may have ended, and `close` cancels every request
        for request in self._scheduler.queue.expire(now_s):
            request.fail(EXPIRED)
            request.is_complete = True
            self._recorder.add(REJECTIONS, 1, EXPIRED.type)
            self._expired.append(self._pending[request])
        if self._expired:
            self._check_may_be_due.notify()

    def _write(self, request: Pending) -> Response:
        """Write the response of a complete request, once."""
        with self._lock:
            if self._pending.pop(request, None) is None:
                raise CancelledError
            others = len(self._pending)
            parts = dict.fromkeys(self._unsplit[slot] for slot in request.slots if slot in self._unsplit)
        for part in parts:
            self._split(part)
        for slot in request.slots:
            if slot.outputs is not None:
                self._pipeline.split_early(slot)
                self._keep([slot])
        response = self._pipeline.pack(request, others)
        if request.number >= 0:
            with self._lock:
                is_in_time = self._scheduler.observe_response(request, time.perf_counter())
            if not is_in_time:
                self._recorder.add(DEADLINE_MISSES, 1)
        request.slots = []  # slots refer to their request: this frees both at once
        return response

    def _keep(self, slots: Iterable[Entry]) -> None:
        """Keep results for later requests."""
        if self._cache is not None:
            for slot in slots:
                if slot.key is not None and slot.error is None and slot.result is not None:
                    self._cache.put(slot.key, slot.result, slot.cost)

    def _split(self, part: FinishedMicroBatch[Entry]) -> None:
        """Split a micro-batch once; a thread that writes another response of it waits."""
        with part.lock:
            if not part.is_split:
                self._pipeline.split(part)
                self._keep([group[0] for group in part.groups])
                part.is_split = True
        with self._lock:
            for slot in part.slots:
                self._unsplit.pop(slot, None)
