"""What the threads of one worker share, behind its one lock: requests in flight, scheduler, timing, and who is woken.

    frontend's thread, decode threads, engine's threads -> lock -> SharedState -> the thread that has something to do

Every method wants the lock held but for those that say they take it. Nobody holds it while decoding, running the model,
splitting, packing or talking to the socket.
"""

import threading
import time
from math import inf
from typing import NamedTuple

from handlers.adaptive.in_flight import InFlight, InFlightRequest
from handlers.adaptive.replies import Tokens
from handlers.adaptive.response_timing import ResponseTiming, Situation
from handlers.errors import EXPIRED
from handlers.metrics import ABANDONED, REFUSALS, Recorder
from handlers.pipeline.slots import FinishedMicroBatch, Slot
from handlers.scheduling.scheduler import Scheduler


class State(NamedTuple):
    """How much a worker has to do.

    Attributes:
        in_flight: requests that the frontend waits for.
        waiting_items: items of theirs that have not started.
        running_batches: micro-batches in the engine.
        unanswered_batches: micro-batches that ran and are not split into results yet.
    """

    in_flight: int
    waiting_items: int
    running_batches: int
    unanswered_batches: int


class Due(NamedTuple):
    """An answer that is to go.

    Attributes:
        complete: the requests that it answers.
        finished: the micro-batches that ran since the last one.
        tokens: what those have to send that are not complete.
    """

    complete: list[InFlightRequest]
    finished: list[FinishedMicroBatch]
    tokens: list[Tokens]


class SharedState:
    """The state of one worker.

    Attributes:
        lock: guards all of it.
        scheduler: says what runs when.
        timing: says when to answer.
        in_flight: the requests that the frontend waits for.
        finished: micro-batches that ran and are not split into results yet.
        talking: the requests that have a piece to send, in the order in which it came, with the slot of their item.
    """

    def __init__(self, scheduler: Scheduler, timing: ResponseTiming, recorder: Recorder) -> None:
        """Begin with nothing in flight."""
        self.lock = threading.Lock()
        self.scheduler = scheduler
        self.timing = timing
        self.in_flight = InFlight()
        self.finished: list[FinishedMicroBatch] = []
        self.talking: dict[InFlightRequest, Slot] = {}
        self._recorder = recorder
        self._answer_may_be_due = threading.Condition(self.lock)
        # When the frontend's thread looks again; minus infinity while it is about to.
        self._answer_due_s = -inf
        self._work_may_be_due = threading.Condition(self.lock)

    @property
    def state(self) -> State:
        """How much there is to do, now; takes the lock."""
        with self.lock:
            scheduler = self.scheduler
            return State(len(self.in_flight), scheduler.waiting_items, scheduler.running_batches, len(self.finished))

    def situation(self) -> Situation:
        """Tell what the timing of an answer depends on."""
        counts, scheduler = self.in_flight.count(), self.scheduler
        if counts.complete == counts.in_flight:
            # An answer is due whatever else is so, and a client who is alone waits for it.
            return Situation(counts.in_flight, counts.complete)
        return Situation(
            in_flight=counts.in_flight,
            complete=counts.complete,
            refused=counts.refused,
            oldest_refusal_s=counts.oldest_refusal_s,
            stream_ends_s=scheduler.next_end_s,
            is_stream_free=scheduler.free_streams > 0,
            queued_s=scheduler.ready_s if scheduler.ready_items else 0.0,
            decoding=counts.decoding,
            streamed=counts.streamed,
            pieces=len(self.talking),
            first_pieces=sum(each.stream is not None and not each.stream.has_begun for each in self.talking),
        )

    # -- who waits, and who wakes ------------------------------------------------------------------------------------

    def is_answer_due(self, due_s: float, now_s: float) -> bool:
        """Whether one that is due then is to go now; where it is not, wait until that may have changed."""
        self._answer_due_s = due_s
        if self._answer_due_s > now_s:
            look_s = min(self._answer_due_s, self.scheduler.next_expiry_s)
            self._answer_may_be_due.wait(None if look_s == inf else max(0.0, look_s - now_s))
            return False
        self._answer_due_s = -inf
        return True

    def wait_for_work(self, now_s: float) -> None:
        """Wait until a micro-batch may be due."""
        look_s = self.scheduler.next_look_s()
        self._work_may_be_due.wait(None if look_s == inf else max(0.0, look_s - now_s))

    def wake_engine(self) -> None:
        """Wake the threads of streams that could take a micro-batch."""
        if self.scheduler.ready_items:
            self._work_may_be_due.notify(self.scheduler.free_streams)

    def wake_all_of_engine(self) -> None:
        """Wake every thread of the engine: one may find a step of a rehearsal."""
        self._work_may_be_due.notify_all()

    def wake_frontend(self) -> None:
        """Wake its thread where what just happened makes an answer due before it would look by itself."""
        # One that is at work looks by itself, before it waits.
        if self._answer_due_s > -inf and self.timing.due_s(self.situation()) < self._answer_due_s:
            self._answer_due_s = -inf
            self._answer_may_be_due.notify()

    # -- what changes ------------------------------------------------------------------------------------------------

    def take_due(self, *, with_refused: bool) -> Due:
        """Hand out what an answer holds that goes now, with the refusals or without."""
        finished, self.finished = self.finished, []
        complete = self.in_flight.take_complete(with_refused=with_refused)
        talking, self.talking = self.talking, {}
        tokens = [
            Tokens(request, slot.generated, slot.generated.take())
            for request, slot in talking.items()
            if slot.generated is not None and not request.is_complete
        ]
        return Due(complete, finished, tokens)

    def expire(self, now_s: float) -> bool:
        """Fail the requests that waited too long; whether there were any."""
        expired = self.scheduler.expire(now_s)
        for request in expired:
            request.fail(EXPIRED)
            self._recorder.add(REFUSALS, 1, EXPIRED.type)
        return bool(expired)

    def abandon(self, request: InFlightRequest) -> None:
        """Let go of a request whose client is gone: what waits of it is forgotten, what runs is asked to end."""
        self.scheduler.abandon(request)
        self.talking.pop(request, None)
        if request.stream is not None:
            request.stream.is_abandoned = True
        self._recorder.add(ABANDONED, 1)

    def answered(self, request: InFlightRequest) -> bool:
        """Tell the scheduler of an answer that is complete; whether it is in time. Takes the lock."""
        with self.lock:
            return self.scheduler.answered(request, time.perf_counter())
