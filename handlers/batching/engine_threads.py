"""The threads of a worker's engine, one a stream: each takes one micro-batch after the other from the scheduler.

    scheduler -> next_batch -> run -> finished micro-batches      -> the frontend's thread, which splits and answers
                                 +--> an item ends
    nobody waits            -> a step of a rehearsal

An engine may end an item before its micro-batch, and reports that on threads of its own: a request whose items have all
ended is complete then.
"""

import logging
import threading
import time
from collections.abc import Sequence

from handlers.batching.engine import RunningBatch
from handlers.batching.shared_state import Guard, SharedState
from handlers.errors import where
from handlers.metrics import ENGINE_BUSY, PREDICTION_RATIO, QUEUE_AGE, QUEUE_DEPTH, Recorder
from handlers.pipeline.flow import Pipeline, SlotListener
from handlers.pipeline.slots import Slot
from handlers.warm_up import Rehearsal, Step

logger = logging.getLogger(__name__)


class EngineThreads:
    """Runs micro-batches for one worker."""

    def __init__(self, shared: SharedState, whole: Pipeline, recorder: Recorder, guard: Guard) -> None:
        """Run nothing yet; `whole` is the task on its whole engine."""
        self._shared = shared
        self._whole = whole
        self._recorder = recorder
        self._guard = guard

    def start(self, streams: Sequence[Pipeline], rehearsals: Sequence[Rehearsal]) -> None:
        """Start a thread for each stream, with what it can do while nobody waits."""
        for stream, rehearsal in zip(streams, rehearsals, strict=True):
            work = (self._run_stream, stream, rehearsal)
            threading.Thread(target=self._guard.run, args=work, name="engine", daemon=True).start()

    def run(self, running: RunningBatch, pipeline: Pipeline) -> None:
        """Run a micro-batch that the scheduler has begun, on the calling thread."""
        shared, scheduler = self._shared, self._shared.scheduler
        slots = [item.slot for item in running.items]
        started_s = time.perf_counter()
        finished = pipeline.run(slots, listener=self._listener(running))
        seconds = time.perf_counter() - started_s
        self._recorder.add(ENGINE_BUSY, seconds if running.is_wide else seconds / scheduler.streams.count)
        if running.predicted_s > 0:
            self._recorder.observe(PREDICTION_RATIO, seconds / running.predicted_s)
        with shared.lock:
            # A micro-batch that was halved took longer than such a one takes.
            is_whole = len(finished) == 1 and finished[0].size == len(slots)
            scheduler.finish(running, seconds, is_typical=is_whole)
            shared.finished += finished
            shared.wake_engine()
            shared.wake_frontend()

    def begin(self, now_s: float, *, most_on_whole: int | None = None) -> RunningBatch | None:
        """Have the scheduler begin the next micro-batch, where there is one; see its `next_batch`. Wants the lock."""
        scheduler = self._shared.scheduler
        depth, oldest_s = len(scheduler.queue.ready), scheduler.queue.oldest_s(now_s)
        if running := scheduler.next_batch(now_s, most_on_whole=most_on_whole):
            self._recorder.observe(QUEUE_DEPTH, depth)
            self._recorder.observe(QUEUE_AGE, oldest_s)
        return running

    def _run_stream(self, stream: Pipeline, rehearsal: Rehearsal) -> None:
        step = _next_step(rehearsal)
        while True:
            running = self._next_batch(step)
            if running.items:
                self.run(running, self._whole if running.is_wide else stream)
            elif step is not None:
                step = _next_step(rehearsal) if self._rehearse(running, step, rehearsal) else None
            # No thread holds on to items while it waits.
            del running

    def _next_batch(self, step: Step | None) -> RunningBatch:
        """Wait for a micro-batch to run; one without items stands for the step of a rehearsal, while nobody waits."""
        shared = self._shared
        with shared.lock:
            while True:
                now_s = time.perf_counter()
                shared.expire(now_s)
                if running := self.begin(now_s):
                    shared.wake_frontend()
                    return running
                if step and not shared.in_flight and (running := shared.scheduler.rehearse(step, now_s)):
                    return running
                shared.wait_for_work()

    def _rehearse(self, running: RunningBatch, step: Step, rehearsal: Rehearsal) -> bool:
        """Run a step; whether that went well."""
        started_s, is_good = time.perf_counter(), True
        try:
            step.run()
        except Exception as error:
            # A request of that shape may fail likewise, with its own error.
            logger.error("A rehearsal failed: %s", where(error))
            is_good = False
        seconds = time.perf_counter() - started_s
        rehearsal.ended(seconds)
        with self._shared.lock:
            self._shared.scheduler.finish(running, seconds, is_typical=False)
            self._shared.wake_all_of_engine()
        return is_good

    def _listener(self, running: RunningBatch) -> SlotListener:
        """Return what is called for each item that ends before its micro-batch."""
        shared = self._shared
        items = {id(item.slot): item for item in running.items}

        def listen(slot: Slot) -> None:
            with self._guard.watch(), shared.lock:
                shared.scheduler.ended(running, items[id(slot)])
                shared.wake_frontend()

        return listen


def _next_step(rehearsal: Rehearsal) -> Step | None:
    try:
        return rehearsal.next_step()
    except Exception as error:
        logger.error("A task's samples cannot be rehearsed: %s", where(error))
        return None
