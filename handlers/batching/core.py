"""The worker that forms its own batches, whichever server its requests come from.

    submit(request) -> future     admitted or refused, then decoded
    cancel(request)               what waits of it never runs; the results of what runs are dropped
    close()                       cancels all requests and ends the threads

    calling thread    submit -> admit or refuse -> small items decoded -+               write: split -> answer -> Reply
    decode threads                                 other items decoded -+-> queue
    engine's threads                                                         -> micro-batch -> micro-batch -> ...
    watching thread   what waits too long is expired; a micro-batch that does not come back ends the worker

Any thread may call these three. A future is set on the thread that completes its request, and its result is the
function that writes the reply, on the thread that calls it: `submit(request).result()()`, or with asyncio

    reply = (await asyncio.wrap_future(core.submit(request)))()

TorchServe's wire (handlers.continuous) answers many requests at once and runs small micro-batches on its own thread. It
needs more: `submit_all` and `help`, and to time its exchanges `lock`, `load` and `on_change`. While it holds the lock,
`load` and the `is_complete` of its requests belong together; `on_change` is called with the lock held after each change
of these. `pipeline` takes rows apart, and `guard` watches over its thread.

No thread holds the lock while decoding, running the model, splitting or packing. A bug on one of the threads ends the
process (Guard).
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from math import ceil
from typing import NamedTuple

from handlers.batching.arrivals import Arrivals, Decoder
from handlers.batching.engine import LatencyModel, RunningBatch, Streams
from handlers.batching.guard import Guard
from handlers.batching.policy import Policy
from handlers.batching.scheduler import Scheduler
from handlers.batching.trial import Choice, on_engine
from handlers.engines import Divisible, available_threads
from handlers.errors import EXPIRED
from handlers.metrics import ABANDONED, BEGUN, DEADLINE_MISSES, RAN, RAN_AS_PREDICTED, REFUSALS, Recorder
from handlers.pipeline.flow import FinishedMicroBatch, Pipeline
from handlers.pipeline.task import Task
from handlers.protocol.metadata import Metadata
from handlers.protocol.requests import Request, Slot
from handlers.protocol.responses import Reply

# Seconds between two looks at the engine and at what waits, while nothing is due earlier.
LOOK_S = 1.0
# Milliseconds after which a refused client may come again: the same as Retry-After, but finer.
RETRY_AFTER_MS = "Retry-After-Ms"
# Of an answer to X-Model-Metadata: a rollout waits for 0 before it removes an adaptive version.
IN_FLIGHT = "X-In-Flight"

Write = Callable[[], Reply]
Completed = list[tuple[Request, "Future[Write]"]]


class Stuck(Exception):
    """The engine does not come back."""


class Load(NamedTuple):
    """How much the engine has to do: whether a micro-batch runs, and the seconds that it needs for what is ready."""

    is_running: bool
    queued_s: float


def _streams(choice: Choice) -> Streams:
    """Return the scheduler's streams, which know what micro-batches took on the whole engine and on a stream."""
    (engine, parts), (whole, stream) = choice
    if not parts:
        return Streams(LatencyModel(whole))
    is_whole_faster = not (isinstance(engine, Divisible) and engine.deals_out)
    return Streams(LatencyModel(whole), LatencyModel(stream), len(parts), is_whole_faster=is_whole_faster)


class Core:
    """Batches the requests of one task; see the module's first lines."""

    def __init__(self, task: Task, choice: Choice, recorder: Recorder, longest_run_s: float) -> None:
        """Start the threads.

        Args:
            task: loaded; it runs on the chosen engine from here on.
            choice: the engine and its streams, which have run, and what micro-batches took on them.
            recorder: counts.
            longest_run_s: seconds after which a micro-batch that still runs is stuck, and the worker of no more use:
                TorchServe does not notice while it is asked for new requests.
        """
        config, task.engine = task.config, choice.arrangement.whole
        self.lock = threading.Lock()
        self.on_change: Callable[[], None] = lambda: None
        self.scheduler = Scheduler(Policy.of(config, task.overhead), _streams(choice))
        self.pipeline = Pipeline(task, recorder)
        # Submitted requests until their replies are written, and what ran until it is split.
        self.pending: dict[Request, Future[Write]] = {}
        self.unsplit: dict[Slot, FinishedMicroBatch] = {}
        self._recorder, self._longest_run_s = recorder, longest_run_s
        self._work_may_be_due, self._look_may_be_due = threading.Condition(self.lock), threading.Condition(self.lock)
        self._next_look_s = 0.0
        self._expired: Completed = []
        self._is_closed = False
        self.guard = guard = Guard()
        self._arrivals = Arrivals(self.scheduler, recorder, config)
        threads = available_threads(config.decode_threads)
        self._decoder = Decoder(self.pipeline, guard, threads=threads, is_threaded=task.decodes_in_threads)
        on_streams = [on_engine(task, part) for part in choice.arrangement.streams] or [task]
        self._threads = [guard.start("watch", self._watch)]
        for each in on_streams:
            stream = self.pipeline if each is task else Pipeline(each, recorder)
            self._threads.append(guard.start("engine", self._run_stream, stream))

    def submit(self, request: Request) -> "Future[Write]":
        """Take a request in; its future returns what writes its reply, or raises CancelledError."""
        (future,) = self.submit_all([request])
        with self.lock:
            self._wake_engine()
        return future

    def submit_all(self, requests: Sequence[Request]) -> "list[Future[Write]]":
        """Take several in, and leave what is ready to the caller's next call of `help`."""
        futures: list[Future[Write]] = [Future() for _ in requests]
        complete: Completed = []
        with self.lock:
            if self._is_closed:
                raise RuntimeError("the worker is closed")
            for request, future in zip(requests, futures, strict=True):
                # A client that goes away cancels its request, not the future alone.
                future.set_running_or_notify_cancel()
                self.pending[request] = future
                request.arrived_s = request.arrived_s or request.came_s
                self._arrivals.admit(request)
                if not request.decoding:
                    request.is_complete = True
                    complete.append((request, future))
                elif request.expires_s < self._next_look_s:
                    self._look_may_be_due.notify()
            admitted = [request for request in requests if request.decoding]
        if decoded := self._decoder.decode(admitted, self._decoded):
            self._decoded(decoded, is_helping=True)
        self._tell(complete)
        return futures

    def cancel(self, request: Request) -> None:
        """Forget a request whose client is gone; one that is answered already is left alone."""
        with self.lock:
            if (future := self.pending.pop(request, None)) is None:
                return
            is_told = request.is_complete
            self.scheduler.cancel(request)
            for slot in request.slots:
                self.unsplit.pop(slot, None)
            request.slots = []
        self._recorder.add(ABANDONED, 1)
        if not is_told:
            future.set_exception(CancelledError())

    def close(self) -> None:
        """Cancel all requests, and return when the threads have ended: after the micro-batches that run."""
        with self.lock:
            self._is_closed = True
            self._work_may_be_due.notify_all()
            self._look_may_be_due.notify()
        for request in list(self.pending):
            self.cancel(request)
        self._decoder.close()
        for thread in self._threads:
            thread.join()

    # -- for the thread of TorchServe's wire -------------------------------------------------------------------------

    def load(self) -> Load:
        """Return how much the engine has to do. The caller holds the lock."""
        return Load(bool(self.scheduler.streams.running), self.scheduler.ready_s)

    def help(self, most_items: int) -> bool:
        """Run a micro-batch of so many items at most on the calling thread, where none runs; else wake the engine's.

        The caller holds the lock, which is released while the model runs.
        """
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

    # -- the engine --------------------------------------------------------------------------------------------------

    def _run_stream(self, stream: Pipeline) -> None:
        while running := self._next_batch():
            self._run(running, self.pipeline if running.is_wide else stream)
            # No thread holds on to items while it waits.
            del running

    def _next_batch(self) -> RunningBatch | None:
        """Wait for a micro-batch to run, and return None when the worker is closed."""
        with self.lock:
            while not self._is_closed:
                if running := self._begin(time.perf_counter()):
                    self.on_change()
                    return running
                self._work_may_be_due.wait()
        return None

    def _begin(self, now_s: float, most_on_whole: int | None = None) -> RunningBatch | None:
        """Have the scheduler begin the next micro-batch, where there is one; see its `next_batch`. Wants the lock."""
        self._expire(now_s)
        queue = self.scheduler.queue
        depth, oldest_s = len(queue.ready), queue.oldest_s(now_s)
        if running := self.scheduler.next_batch(now_s, most_on_whole=most_on_whole):
            self._recorder.record([(BEGUN, (depth, oldest_s))])
        return running

    def _run(self, running: RunningBatch, pipeline: Pipeline) -> None:
        """Run a micro-batch that the scheduler has begun, on the calling thread."""
        slots = list(running.items)
        started_s = time.perf_counter()
        finished = pipeline.run(slots, listener=partial(self._ended, running))
        seconds = time.perf_counter() - started_s
        busy_s = seconds if running.is_wide else seconds / self.scheduler.streams.count
        if running.predicted_s > 0:
            self._recorder.record([(RAN_AS_PREDICTED, (busy_s, seconds / running.predicted_s))])
        else:
            self._recorder.record([(RAN, (busy_s,))])
        with self.lock:
            # A micro-batch that was halved took longer than such a one takes.
            is_whole = len(finished) == 1 and finished[0].size == len(slots)
            self.scheduler.finish(running, seconds, is_typical=is_whole)
            self.unsplit.update((slot, part) for part in finished for slot in part.slots if not slot.is_over)
            complete = self._completed(slots)
            self._wake_engine()
            self.on_change()
        for part in finished:
            if all(slot.is_over for slot in part.slots):
                # Nobody is left who would have it split; it is counted.
                part.slots.clear()
                self.pipeline.split(part)
        self._tell(complete)

    def _ended(self, running: RunningBatch, slot: Slot) -> None:
        """Note that the engine has ended an item before its micro-batch, on a thread of its own."""
        with self.guard.watch():
            with self.lock:
                self.scheduler.ended(running, slot)
                complete = self._completed([slot])
                self.on_change()
            self._tell(complete)

    def _wake_engine(self) -> None:
        """Wake the threads of streams that could take a micro-batch."""
        if self.scheduler.queue.ready:
            self._work_may_be_due.notify(self.scheduler.streams.free)

    # -- requests ----------------------------------------------------------------------------------------------------

    def _decoded(self, slots: Sequence[Slot], *, is_helping: bool = False) -> None:
        with self.lock:
            self._arrivals.note(slots)
            complete = self._completed(slots)
            if not is_helping:
                self._wake_engine()
                self.on_change()
        self._tell(complete)

    def _completed(self, slots: Iterable[Slot]) -> Completed:
        """Return the requests of slots that are complete by now, and their futures. Wants the lock."""
        complete = []
        for request in dict.fromkeys(slot.request for slot in slots):
            if not (request.is_complete or request.decoding or request.queued or request.running):
                request.is_complete = True
                complete.append((request, self.pending[request]))
        return complete

    def _tell(self, complete: Completed) -> None:
        for request, future in complete:
            future.set_result(partial(self._write, request))

    def _watch(self) -> None:
        """Expire what waits too long, whether or not anything else happens, and notice an engine that is stuck."""
        while True:
            with self.lock:
                now_s = time.perf_counter()
                self._expire(now_s)
                if self.scheduler.is_stuck(now_s, self._longest_run_s):
                    raise Stuck
                if not self._expired:
                    if self._is_closed:
                        return
                    self._next_look_s = min(now_s + LOOK_S, self.scheduler.queue.next_expiry_s())
                    self._look_may_be_due.wait(max(0.0, self._next_look_s - now_s))
                expired, self._expired = self._expired, []
            self._tell(expired)

    def _expire(self, now_s: float) -> None:
        """Fail the requests that waited too long; the watching thread sets their futures. The caller holds the lock."""
        if self._is_closed:
            # The watching thread may have ended, and `close` cancels every request.
            return
        for request in self.scheduler.queue.expire(now_s):
            request.fail(EXPIRED)
            request.is_complete = True
            self._recorder.add(REFUSALS, 1, EXPIRED.type)
            self._expired.append((request, self.pending[request]))
        if self._expired:
            self._look_may_be_due.notify()
            self.on_change()

    def _write(self, request: Request) -> Reply:
        """Write the reply of a request that is complete, once."""
        with self.lock:
            if self.pending.pop(request, None) is None:
                raise CancelledError
            others = len(self.pending)
            parts = dict.fromkeys(self.unsplit[slot] for slot in request.slots if slot in self.unsplit)
        for part in parts:
            self._split(part)
        for slot in request.slots:
            if slot.outputs is not None:
                self.pipeline.split_ended(slot)
        reply = self.pipeline.answer(request)
        now_s = time.perf_counter()
        timing = f"total;dur={1000 * (now_s - request.arrived_s):.2f}, {reply.headers['Server-Timing']}"
        headers = {**reply.headers, "Server-Timing": timing}
        if isinstance(request.form, Metadata):
            headers[IN_FLIGHT] = str(others)
        if request.retry_after_s is not None:
            # HTTP knows whole seconds only; a client that reads the other header need not wait for the rest of one.
            after_ms = max(1, ceil(1000 * request.retry_after_s))
            headers |= {"Retry-After": str(ceil(after_ms / 1000)), RETRY_AFTER_MS: str(after_ms)}
        if request.number >= 0:
            with self.lock:
                is_in_time = self.scheduler.answered(request, now_s)
            if not is_in_time:
                self._recorder.add(DEADLINE_MISSES, 1)
        # Slots know their request: this frees both at once.
        request.slots = []
        return Reply(reply.status, reply.body, reply.content_type, headers)

    def _split(self, part: FinishedMicroBatch) -> None:
        """Split a micro-batch; whoever writes the reply of another request of it meanwhile waits."""
        with part.lock:
            if not part.is_split:
                self.pipeline.split(part)
                part.is_split = True
        with self.lock:
            for slot in part.slots:
                self.unsplit.pop(slot, None)
