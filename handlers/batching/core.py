"""The worker that forms its own batches, for any server.

    submit(request) -> future     admits or refuses a request, then decodes it
    cancel(request)               waiting items never run; the outputs of running ones are dropped
    close()                       cancels all requests and ends the threads

    calling thread    submit -> admit or refuse -> small items decoded -+               write: split -> pack -> Reply
    decode threads                                 other items decoded -+-> queue
    engine threads                                                          -> micro-batch -> micro-batch -> ...
    watching thread   expires requests that waited too long; a micro-batch that does not return ends the worker

Any thread may call these three. The thread that completes a request sets its future. The future's result writes the
reply on the thread that calls it: `submit(request).result()()`, or with asyncio

    reply = (await asyncio.wrap_future(core.submit(request)))()

handlers.continuous, TorchServe's wire, answers many requests at once and runs small micro-batches on its own thread. So
it also uses `submit_all`, `help` and `pipeline`; with the lock held, it reads `scheduler` and the requests'
`is_complete`. `on_change` is called with the lock held after each change of these.

No thread holds the lock while decoding, running the model, splitting or packing. A bug on one of the threads ends the
process (guard).
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from math import ceil

from handlers.batching import guard
from handlers.batching.arrivals import Arrivals, Decoder
from handlers.batching.engine import LatencyModel, RunningBatch, Streams
from handlers.batching.policy import Policy
from handlers.batching.scheduler import Scheduler
from handlers.batching.trial import Choice, copy_with_engine
from handlers.engines import Divisible, available_threads
from handlers.errors import EXPIRED
from handlers.metrics import ABANDONED, BEGUN, DEADLINE_MISSES, RAN, RAN_AS_PREDICTED, REFUSALS, Recorder
from handlers.pipeline.flow import FinishedMicroBatch, Pipeline
from handlers.pipeline.task import Task
from handlers.protocol.metadata import Metadata
from handlers.protocol.requests import Request, Slot
from handlers.protocol.responses import Reply

CHECK_S = 1.0  # longest seconds between two checks for a stuck engine; a request that expires sooner notifies
# Header with the milliseconds after which a refused client may retry: Retry-After, but finer.
RETRY_AFTER_MS = "Retry-After-Ms"
# Header of an answer to X-Model-Metadata: a rollout waits for 0 before it removes an adaptive version.
IN_FLIGHT = "X-In-Flight"

Write = Callable[[], Reply]
Completions = list[tuple[Request, "Future[Write]"]]


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
        self.lock = threading.Lock()
        self.on_change: Callable[[], None] = lambda: None
        self.scheduler = Scheduler(Policy.of(config, task.overhead), _make_streams(choice))
        self.pipeline = Pipeline(task, recorder)
        self.pending: dict[Request, Future[Write]] = {}  # submitted requests until their replies are written
        self.unsplit: dict[Slot, FinishedMicroBatch] = {}  # items that ran, until their micro-batch is split
        self._recorder, self._longest_run_s = recorder, longest_run_s
        self._work_may_be_due = threading.Condition(self.lock)
        self._check_may_be_due = threading.Condition(self.lock)
        self._next_check_s = 0.0
        self._expired: Completions = []
        self._is_closed = False
        self._arrivals = Arrivals(self.scheduler, recorder, config)
        threads = available_threads(config.decode_threads)
        self._decoder = Decoder(self.pipeline, threads=threads, is_threaded=task.decodes_in_threads)
        streams = [Pipeline(copy_with_engine(task, part), recorder) for part in choice.arrangement.streams]
        self._threads = [guard.start("watch", self._watch)]
        self._threads += [guard.start("engine", self._run_stream, each) for each in streams or [self.pipeline]]

    def submit(self, request: Request) -> "Future[Write]":
        """Submit a request; its future returns the function that writes its reply, or raises CancelledError."""
        (future,) = self.submit_all([request])
        with self.lock:
            self._wake_engine()
        return future

    def submit_all(self, requests: Sequence[Request]) -> "list[Future[Write]]":
        """Submit several requests; those that are ready by then run after the caller's next call of `help`."""
        futures: list[Future[Write]] = [Future() for _ in requests]
        complete: Completions = []
        with self.lock:
            if self._is_closed:
                raise RuntimeError("the worker is closed")
            for request, future in zip(requests, futures, strict=True):
                # From now on `future.cancel` has no effect: the server calls `cancel` if a client disconnects.
                future.set_running_or_notify_cancel()
                self.pending[request] = future
                request.arrived_s = request.arrived_s or time.perf_counter()
                self._arrivals.admit(request)
                if not request.decoding:
                    request.is_complete = True
                    complete.append((request, future))
                elif request.expires_s < self._next_check_s:
                    self._check_may_be_due.notify()
            admitted = [request for request in requests if request.decoding]
        if slots := self._decoder.decode(admitted, self._end_decoding):
            self._end_decoding(slots, is_helping=True)
        self._set_futures(complete)
        return futures

    def cancel(self, request: Request) -> None:
        """Cancel a request whose client has disconnected; no effect after its reply is written."""
        with self.lock:
            if (future := self.pending.pop(request, None)) is None:
                return
            was_complete = request.is_complete
            self.scheduler.cancel(request)
            for slot in request.slots:
                self.unsplit.pop(slot, None)
            request.slots = []
        self._recorder.add(ABANDONED, 1)
        if not was_complete:
            future.set_exception(CancelledError())

    def close(self) -> None:
        """Cancel all requests, and return when the threads have ended, after the running micro-batches."""
        with self.lock:
            self._is_closed = True
            self._work_may_be_due.notify_all()
            self._check_may_be_due.notify()
        for request in list(self.pending):
            self.cancel(request)
        self._decoder.close()
        for thread in self._threads:
            thread.join()

    def help(self, most_items: int) -> bool:
        """Run at most so many items on this thread if nothing runs, without the held lock; else wake the threads."""
        now_s = time.perf_counter()
        if most_items and not self.scheduler.streams.running and (running := self._begin(now_s, most_items)):
            self.lock.release()
            try:
                self._run(running, self.pipeline)
            finally:
                self.lock.acquire()
            return True
        self._wake_engine()
        return False

    def _run_stream(self, stream: Pipeline) -> None:
        while running := self._wait_for_batch():
            self._run(running, self.pipeline if running.is_wide else stream)
            del running  # no thread keeps items while it waits

    def _wait_for_batch(self) -> RunningBatch | None:
        """Return the next micro-batch, or None when the worker is closed."""
        with self.lock:
            while not self._is_closed:
                if running := self._begin(time.perf_counter()):
                    self.on_change()
                    return running
                self._work_may_be_due.wait()
        return None

    def _begin(self, now_s: float, most_on_whole: int | None = None) -> RunningBatch | None:
        """Start the next micro-batch; see `Scheduler.next_batch`. The caller holds the lock."""
        self._expire(now_s)
        queue = self.scheduler.queue
        depth, oldest_s = len(queue.ready), queue.oldest_s(now_s)
        if running := self.scheduler.next_batch(now_s, most_on_whole=most_on_whole):
            self._recorder.record([(BEGUN, (depth, oldest_s))])
        return running

    def _run(self, running: RunningBatch, pipeline: Pipeline) -> None:
        slots = list(running.items)
        started_s = time.perf_counter()
        finished = pipeline.run(slots, listener=partial(self._end_item, running))
        seconds = time.perf_counter() - started_s
        busy_s = seconds if running.is_wide else seconds / self.scheduler.streams.count
        if running.predicted_s > 0:
            self._recorder.record([(RAN_AS_PREDICTED, (busy_s, seconds / running.predicted_s))])
        else:
            self._recorder.record([(RAN, (busy_s,))])
        with self.lock:
            # A micro-batch that was halved took longer than its size does.
            is_whole = len(finished) == 1 and finished[0].size == len(slots)
            self.scheduler.finish(running, seconds, is_typical=is_whole)
            self.unsplit.update((slot, part) for part in finished for slot in part.slots if not slot.is_over)
            complete = self._complete(slots)
            self._wake_engine()
            self.on_change()
        for part in finished:
            if all(slot.is_over for slot in part.slots):
                # All its requests are cancelled or answered: nothing is left to split, and the micro-batch is counted.
                part.slots.clear()
                self.pipeline.split(part)
        self._set_futures(complete)

    def _end_item(self, running: RunningBatch, slot: Slot) -> None:
        """Handle an item that the engine has ended before its micro-batch; called on the engine's own thread."""
        with guard.watch():
            with self.lock:
                self.scheduler.end_item(running, slot)
                complete = self._complete([slot])
                self.on_change()
            self._set_futures(complete)

    def _wake_engine(self) -> None:
        if self.scheduler.queue.ready:
            self._work_may_be_due.notify(self.scheduler.streams.free)

    def _end_decoding(self, slots: Sequence[Slot], *, is_helping: bool = False) -> None:
        with self.lock:
            self._arrivals.end_decoding(slots)
            complete = self._complete(slots)
            if not is_helping:
                self._wake_engine()
                self.on_change()
        self._set_futures(complete)

    def _complete(self, slots: Iterable[Slot]) -> Completions:
        """Mark the requests of these slots that are complete now, and return them. The caller holds the lock."""
        complete = []
        for request in dict.fromkeys(slot.request for slot in slots):
            if not (request.is_complete or request.decoding or request.queued or request.running):
                request.is_complete = True
                complete.append((request, self.pending[request]))
        return complete

    def _set_futures(self, complete: Completions) -> None:
        for request, future in complete:
            future.set_result(partial(self._write, request))

    def _watch(self) -> None:
        while True:
            with self.lock:
                now_s = time.perf_counter()
                self._expire(now_s)
                if self.scheduler.is_stuck(now_s, self._longest_run_s):
                    raise Stuck
                if not self._expired:
                    if self._is_closed:
                        return
                    self._next_check_s = min(now_s + CHECK_S, self.scheduler.queue.next_expiry_s())
                    self._check_may_be_due.wait(max(0.0, self._next_check_s - now_s))
                expired, self._expired = self._expired, []
            self._set_futures(expired)

    def _expire(self, now_s: float) -> None:
        """Fail the requests that waited too long; the watching thread sets their futures. The caller holds the lock."""
        if self._is_closed:
            return  # the watching thread may have ended, and `close` cancels every request
        for request in self.scheduler.queue.expire(now_s):
            request.fail(EXPIRED)
            request.is_complete = True
            self._recorder.add(REFUSALS, 1, EXPIRED.type)
            self._expired.append((request, self.pending[request]))
        if self._expired:
            self._check_may_be_due.notify()
            self.on_change()

    def _write(self, request: Request) -> Reply:
        """Write the reply of a complete request, once."""
        with self.lock:
            if self.pending.pop(request, None) is None:
                raise CancelledError
            others = len(self.pending)
            parts = dict.fromkeys(self.unsplit[slot] for slot in request.slots if slot in self.unsplit)
        for part in parts:
            self._split(part)
        for slot in request.slots:
            if slot.outputs is not None:
                self.pipeline.split_early(slot)
        reply = self.pipeline.pack(request)
        now_s = time.perf_counter()
        timing = f"total;dur={1000 * (now_s - request.arrived_s):.2f}, {reply.headers['Server-Timing']}"
        headers = {"Server-Timing": timing}
        if isinstance(request.form, Metadata):
            headers[IN_FLIGHT] = str(others)
        if request.retry_after_s is not None:
            # Retry-After has whole seconds; a client that reads the other header waits no longer than needed.
            after_ms = max(1, ceil(1000 * request.retry_after_s))
            headers |= {"Retry-After": str(ceil(after_ms / 1000)), RETRY_AFTER_MS: str(after_ms)}
        if request.number >= 0:
            with self.lock:
                is_in_time = self.scheduler.observe_response(request, now_s)
            if not is_in_time:
                self._recorder.add(DEADLINE_MISSES, 1)
        request.slots = []  # slots refer to their request: this frees both at once
        return reply.with_headers(headers)

    def _split(self, part: FinishedMicroBatch) -> None:
        """Split a micro-batch once; a thread that writes another reply of it waits."""
        with part.lock:
            if not part.is_split:
                self.pipeline.split(part)
                part.is_split = True
        with self.lock:
            for slot in part.slots:
                self.unsplit.pop(slot, None)
