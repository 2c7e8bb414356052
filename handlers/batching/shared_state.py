"""What the threads of one worker share, behind its one lock: requests in flight, scheduler, timing, and who is woken.

    frontend's thread, decode threads, engine's threads -> lock -> SharedState -> the thread that has something to do

The caller of a method holds the lock, but for `answered`. No thread holds it while decoding, running the model,
splitting, packing or talking to the socket.

A bug on one of these threads ends the worker's process (`Guard`): TorchServe's frontend then answers the requests in
flight with 500, and starts another worker.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, NamedTuple

from handlers.batching.in_flight import InFlightRequest
from handlers.batching.scheduler import Scheduler
from handlers.batching.timing import Situation, Timing
from handlers.errors import EXPIRED, where
from handlers.metrics import ABANDONED, REFUSALS, Recorder
from handlers.pipeline.slots import FinishedMicroBatch

logger = logging.getLogger(__name__)

# Seconds after which the frontend's thread looks in any case whether the engine is stuck.
LONGEST_WAIT_S = 1.0


def _end_process() -> None:
    os._exit(1)


class Guard:
    """Watches over threads."""

    def __init__(self, die: Callable[[], Any] = _end_process) -> None:
        """Watch over threads; `die` is called for a bug, and ends this process."""
        self._die = die

    def run(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do a thread's work."""
        with self.watch():
            work(*arguments)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """End the worker with whatever is raised inside."""
        try:
            yield
        except BaseException as error:
            logger.critical("The worker's thread %s failed: %s", threading.current_thread().name, where(error))
            logging.shutdown()
            self._die()


class Due(NamedTuple):
    """What goes with an answer: complete requests, and micro-batches to split first."""

    complete: list[InFlightRequest]
    finished: list[FinishedMicroBatch]


class SharedState:
    """The state of one worker.

    Attributes:
        lock: guards all of it.
        scheduler: decides what runs when.
        timing: decides when to answer.
        in_flight: the requests that the frontend waits for, by id.
        finished: micro-batches that ran and are not split into results yet.
    """

    def __init__(self, scheduler: Scheduler, timing: Timing, recorder: Recorder) -> None:
        """Begin with nothing in flight."""
        self.lock = threading.Lock()
        self.scheduler = scheduler
        self.timing = timing
        self.in_flight: dict[str, InFlightRequest] = {}
        self.finished: list[FinishedMicroBatch] = []
        self._recorder = recorder
        self._answer_may_be_due = threading.Condition(self.lock)
        # When the frontend's thread stops waiting; minus infinity where it does not wait.
        self._answer_due_s = -inf
        self._work_may_be_due = threading.Condition(self.lock)

    def situation(self) -> Situation:
        """Return what the timing of an answer depends on."""
        complete = [request for request in self.in_flight.values() if request.is_complete]
        if len(complete) == len(self.in_flight):
            # An answer is due whatever else is so, and a client who is alone waits for it.
            return Situation(len(complete), len(complete))
        refused_s = [request.arrived_s for request in complete if request.retry_after_s is not None]
        return Situation(
            in_flight=len(self.in_flight),
            complete=len(complete),
            refused=len(refused_s),
            oldest_refusal_s=min(refused_s, default=inf),
            is_running=bool(self.scheduler.streams.running),
            queued_s=self.scheduler.ready_s,
        )

    # -- who waits, and who wakes ------------------------------------------------------------------------------------

    def wait_for_answer(self, due_s: float, now_s: float) -> None:
        """Wait until an answer is due, which it is then unless something happens earlier, or a request expires."""
        self._answer_due_s = due_s
        look_s = min(due_s, self.scheduler.queue.next_expiry_s())
        self._answer_may_be_due.wait(min(LONGEST_WAIT_S, max(0.0, look_s - now_s)))
        self._answer_due_s = -inf

    def wait_for_work(self) -> None:
        """Wait until a micro-batch may be due."""
        self._work_may_be_due.wait()

    def wake_engine(self) -> None:
        """Wake the threads of streams that could take a micro-batch."""
        if self.scheduler.queue.ready:
            self._work_may_be_due.notify(self.scheduler.streams.free)

    def wake_all_of_engine(self) -> None:
        """Wake every thread of the engine: one may find a step of a rehearsal."""
        self._work_may_be_due.notify_all()

    def wake_frontend(self) -> None:
        """Wake its thread where what just happened makes an answer due earlier."""
        if self._answer_due_s > -inf and self.timing.due_s(self.situation()) < self._answer_due_s:
            self._answer_due_s = -inf
            self._answer_may_be_due.notify()

    # -- what changes ------------------------------------------------------------------------------------------------

    def received(self, ids: Collection[str], newcomers: Iterable[InFlightRequest], now_s: float) -> None:
        """Take in what an exchange brought: the ids of all requests in flight, and those that are new.

        Requests that it lacks are forgotten: their clients are gone.
        """
        self.timing.received_s = now_s
        for request in [request for id_, request in self.in_flight.items() if id_ not in ids]:
            del self.in_flight[request.id]
            self.scheduler.queue.remove(request)
            self._recorder.add(ABANDONED, 1)
        self.in_flight.update((request.id, request) for request in newcomers)

    def take_due(self, *, with_refused: bool) -> Due:
        """Remove and return what goes with an answer now, with the refusals or without."""
        finished, self.finished = self.finished, []
        complete = [
            request
            for request in self.in_flight.values()
            if request.is_complete and (with_refused or request.retry_after_s is None)
        ]
        for request in complete:
            del self.in_flight[request.id]
        return Due(complete, finished)

    def expire(self, now_s: float) -> None:
        """Fail the requests that waited too long."""
        for request in self.scheduler.queue.expire(now_s):
            request.fail(EXPIRED)
            self._recorder.add(REFUSALS, 1, EXPIRED.type)

    def answered(self, request: InFlightRequest) -> bool:
        """Tell the scheduler of an answer that is complete; whether it is in time. Takes the lock."""
        with self.lock:
            return self.scheduler.answered(request, time.perf_counter())
