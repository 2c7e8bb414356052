"""The worker that decides for itself what runs when, on TorchServe's continuous-batching mode.

    frontend's thread     receive -> unpack -> admit or refuse -> decode ---+       +--> split -> answer -> send
    decode threads                                               decode ---+-> queue
    engine's threads                                                            -> micro-batch -> micro-batch -> ...
                                                                                     +-> an item ends, a piece of text

Three kinds of thread around one lock. TorchServe's own thread hands the connection over with its first batch and never
gets it back (adaptive.frontend): it receives everything in flight, sends an answer when adaptive.response_timing says
that one is due, and so on; requests that an answer leaves out stay in flight and come again. The engine's threads, one
a stream, take one micro-batch after the other from the scheduler, so the engine waits neither for decoding nor for the
frontend. Nobody holds the lock while decoding or running the model. An engine that tells what it generates says so on
threads of its own: a request whose items have all ended is complete then, and of one that is streamed a piece is due.

One worker per model: the frontend polls for all workers of a model under one lock, and an idle worker holds it until a
request comes, while a busy one could not deliver its answers.
"""

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple, NoReturn

from handlers.adaptive.arrivals import Arrivals
from handlers.adaptive.decoder import Decoded, Decoder
from handlers.adaptive.fail_fast import Guard
from handlers.adaptive.frontend import Disconnected, Link
from handlers.adaptive.in_flight import InFlight, InFlightRequest
from handlers.adaptive.replies import Replies, Tokens
from handlers.adaptive.response_timing import ResponseTiming, Situation
from handlers.errors import EXPIRED, where
from handlers.metrics import (
    ABANDONED,
    ENGINE_BUSY,
    EXCHANGES,
    PREDICTION_RATIO,
    QUEUE_AGE,
    QUEUE_DEPTH,
    REFUSALS,
    Recorder,
)
from handlers.pipeline.runner import Heard, Runner
from handlers.pipeline.slots import FinishedMicroBatch, Slot
from handlers.pipeline.warm_up import Rehearsal, Step
from handlers.protocol.responses import Reply
from handlers.scheduling.scheduler import Scheduler
from handlers.scheduling.streams import RunningBatch

logger = logging.getLogger(__name__)


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


class Stuck(Exception):
    """The engine does not come back."""


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


class AdaptiveWorker:
    """Answers exchanges with whatever the scheduler has finished."""

    def __init__(
        self,
        whole: Runner,
        streams: Sequence[Runner],
        scheduler: Scheduler,
        *,
        rehearsals: Sequence[Rehearsal],
        arrivals: Arrivals,
        decoder: Decoder,
        timing: ResponseTiming,
        recorder: Recorder,
        wake: Callable[[], Any],
        guard: Guard,
        longest_run_s: float = inf,
    ) -> None:
        """Start the engine's threads.

        Args:
            whole: the task's hooks on its whole engine.
            streams: the same on each of its streams; one that is the whole where there is no other.
            scheduler: is seeded with what warm-up took.
            rehearsals: for each stream what it can do while nobody waits.
            arrivals: admits or refuses what comes.
            decoder: decodes what is admitted.
            timing: says when to answer, for the registration's window.
            recorder: counts.
            wake: is told of every exchange, for the metrics.
            guard: watches over the threads.
            longest_run_s: seconds after which a micro-batch that still runs is stuck, and the worker of no more use:
                TorchServe does not notice while it is asked for new requests.
        """
        self._whole = whole
        self._scheduler = scheduler
        self._arrivals = arrivals
        self._decoder = decoder
        self._timing = timing
        self._recorder = recorder
        self._wake = wake
        self._guard = guard
        self._longest_run_s = longest_run_s
        self._replies = Replies(whole, recorder, self._answered)
        self._in_flight = InFlight()
        self._finished: list[FinishedMicroBatch] = []
        # The requests that have a piece to send, in the order in which it came, with the slot of their item.
        self._talking: dict[InFlightRequest, Slot] = {}
        self._lock = threading.Lock()
        self._answer_may_be_due = threading.Condition(self._lock)
        # When the frontend's thread looks again; minus infinity while it is about to.
        self._answer_due_s = -inf
        self._work_may_be_due = threading.Condition(self._lock)
        for stream, rehearsal in zip(streams, rehearsals, strict=True):
            work = (self._run_stream, stream, rehearsal)
            threading.Thread(target=guard.run, args=work, name="engine", daemon=True).start()

    @property
    def state(self) -> State:
        """How much there is to do, now."""
        with self._lock:
            scheduler = self._scheduler
            return State(len(self._in_flight), scheduler.waiting_items, scheduler.running_batches, len(self._finished))

    # -- the frontend's thread ---------------------------------------------------------------------------------------

    def serve(self, connection: socket.socket) -> NoReturn:
        """Answer the frontend from here on.

        Args:
            connection: where the frontend waits for the answer to a batch; it sends that batch again.

        Raises:
            SystemExit: the frontend is gone, and so must the worker be.
        """
        link = Link(connection)
        with self._guard.watch():
            try:
                link.send({})
                while True:
                    self._exchange(link)
            except Disconnected:
                logger.warning("Frontend disconnected.")
        sys.exit(0)

    def _exchange(self, link: Link) -> None:
        self._receive(link)
        link.send(self._answers())
        self._recorder.add(EXCHANGES, 1)
        self._wake()

    def _receive(self, link: Link) -> None:
        """Take in what has come; nothing here holds on to a body while its answer is waited for."""
        received = link.receive()
        came_s = time.perf_counter()
        read = self._whole.read
        newcomers = [(id_, read(sent.row, sent.headers), sent.headers) for id_, sent in received.items() if sent]
        with self._lock:
            for request in self._in_flight.take_missing(received):
                self._abandon(request)
            self._timing.came(came_s, len(newcomers))
            requests = [self._arrivals.arrived(id_, request, headers, came_s) for id_, request, headers in newcomers]
            self._in_flight.add(requests)
        self._decode([request for request in requests if request.is_admitted], came_s)

    def _answers(self) -> dict[str, Reply]:
        """Wait until an answer is due, and work meanwhile where nobody else needs to; replies by id."""
        while isinstance(due := self._next_due(), RunningBatch):
            self._run(due, self._whole)
        for micro_batch in due.finished:
            self._whole.split(micro_batch)
        chunks = {each.request.id: chunk for each in due.tokens if (chunk := self._replies.chunk(each))}
        return chunks | {request.id: self._replies.whole(request) for request in due.complete}

    def _next_due(self) -> Due | RunningBatch:
        """Wait until an answer must go, or this thread is to run a micro-batch itself.

        It does so for a lone client: nobody else comes meanwhile, and no other thread needs to be woken.
        """
        with self._lock:
            while True:
                now_s = time.perf_counter()
                # The engine's threads do it too, but all of them may be busy for long.
                self._expire(now_s)
                if self._scheduler.is_stuck(now_s, self._longest_run_s):
                    raise Stuck
                situation = self._situation()
                if self._timing.is_lone(situation) and (running := self._scheduler.next_batch(now_s)):
                    return running
                self._wake_engine()
                self._answer_due_s = self._timing.due_s(situation)
                if self._answer_due_s <= now_s:
                    break
                look_s = min(self._answer_due_s, self._scheduler.next_expiry_s)
                self._answer_may_be_due.wait(None if look_s == inf else max(0.0, look_s - now_s))
            self._answer_due_s = -inf
            self._timing.goes(now_s, situation)
            finished, self._finished = self._finished, []
            complete = self._in_flight.take_complete()
            talking, self._talking = self._talking, {}
            tokens = [
                Tokens(request, slot.generated, slot.generated.take())
                for request, slot in talking.items()
                if slot.generated is not None and not request.is_complete
            ]
            return Due(complete, finished, tokens)

    def _answered(self, request: InFlightRequest) -> bool:
        with self._lock:
            return self._scheduler.answered(request, time.perf_counter())

    def _wake_engine(self) -> None:
        """Wake the threads of streams that could take a micro-batch."""
        if self._scheduler.ready_items:
            self._work_may_be_due.notify(self._scheduler.free_streams)

    def _wake_frontend(self) -> None:
        """Wake its thread where what just happened makes an answer due before it would look by itself."""
        if self._timing.due_s(self._situation()) < self._answer_due_s:
            self._answer_may_be_due.notify()

    def _situation(self) -> Situation:
        counts, scheduler = self._in_flight.count(), self._scheduler
        return Situation(
            in_flight=counts.in_flight,
            complete=counts.complete,
            refused=counts.refused,
            oldest_refusal_s=counts.oldest_refusal_s,
            stream_ends_s=scheduler.next_end_s,
            is_stream_free=scheduler.free_streams > 0,
            queued_s=scheduler.ready_s,
            decoding=counts.decoding,
            streamed=counts.streamed,
            pieces=len(self._talking),
            first_pieces=sum(each.stream is not None and not each.stream.has_begun for each in self._talking),
        )

    def _abandon(self, request: InFlightRequest) -> None:
        """Let go of a request whose client is gone: what waits of it is forgotten, what runs is asked to end."""
        self._scheduler.abandon(request)
        self._talking.pop(request, None)
        if request.stream is not None:
            request.stream.is_abandoned = True
        self._recorder.add(ABANDONED, 1)

    # -- decoding ----------------------------------------------------------------------------------------------------

    def _decode(self, requests: Sequence[InFlightRequest], came_s: float) -> None:
        def apart(decoded: list[Decoded]) -> None:
            with self._lock:
                self._decoded(decoded, came_s)
                self._wake_engine()
                self._wake_frontend()

        if decoded := self._decoder.decode(requests, apart):
            with self._lock:
                self._decoded(decoded, came_s)

    def _decoded(self, items: Sequence[Decoded], came_s: float) -> None:
        self._timing.decoded(time.perf_counter() - came_s)
        self._arrivals.decoded(items)

    # -- the engine's threads ----------------------------------------------------------------------------------------

    def _run_stream(self, stream: Runner, rehearsal: Rehearsal) -> None:
        step = _next_step(rehearsal)
        while True:
            running = self._next_batch(step)
            if running.items:
                self._run(running, self._whole if running.is_wide else stream)
            elif step is not None:
                is_good = self._rehearse(running, step, rehearsal)
                step = _next_step(rehearsal) if is_good else None
            # Its items' results are their requests' business from here on.
            del running

    def _rehearse(self, running: RunningBatch, step: Step, rehearsal: Rehearsal) -> bool:
        """Run a step; whether that went well."""
        started_s = time.perf_counter()
        try:
            step.run()
            is_good = True
        except Exception as error:
            # A request of that shape may fail likewise, with an error of its own.
            logger.error("A rehearsal failed: %s", where(error))
            is_good = False
        seconds = time.perf_counter() - started_s
        rehearsal.ended(seconds)
        with self._lock:
            self._scheduler.finish(running, seconds, is_telling=False)
            self._work_may_be_due.notify_all()
        return is_good

    def _run(self, running: RunningBatch, runner: Runner) -> None:
        slots = [item.slot for item in running.items]
        started_s = time.perf_counter()
        finished = runner.run(slots, heard=self._heard(running))
        seconds = time.perf_counter() - started_s
        self._recorder.add(ENGINE_BUSY, seconds if running.is_wide else seconds / self._scheduler.stream_count)
        if running.micro_batch.predicted_s > 0:
            self._recorder.observe(PREDICTION_RATIO, seconds / running.micro_batch.predicted_s)
        with self._lock:
            # A micro-batch that was halved took longer than such a one takes, one without its longest maybe less.
            is_whole = len(finished) == 1 and finished[0].size == len(slots) and not self._is_any_over(running)
            self._scheduler.finish(running, seconds, is_telling=is_whole)
            self._timing.micro_batch_ended()
            self._finished += finished
            self._wake_engine()
            self._wake_frontend()

    def _heard(self, running: RunningBatch) -> Heard:
        """Listen to what is generated in a micro-batch; the engine's threads wait meanwhile."""
        items = {id(item.slot): item for item in running.items}

        def heard(slot: Slot, tokens: Sequence[int], is_last: bool) -> bool:
            request, generated = items[id(slot)].request, slot.generated
            # All requests here are of those that came; the scheduler knows a part of them only.
            assert isinstance(request, InFlightRequest) and generated is not None  # noqa: S101
            if request.stream is None and not is_last:
                # Nobody looks at it before it has ended.
                generated.tokens += tokens
                return False
            with self._guard.watch(), self._lock:
                generated.tokens += tokens
                if is_last:
                    generated.is_ended = True
                    self._scheduler.ended(running, items[id(slot)], time.perf_counter())
                    self._wake_frontend()
                elif request.stream is not None and not request.stream.is_over:
                    # The frontend's thread knows already where others have something to send, or this one has.
                    is_news = request not in self._talking and not (self._talking and request.stream.has_begun)
                    self._talking[request] = slot
                    if is_news:
                        self._wake_frontend()
            return request.stream is not None and request.stream.is_over

        return heard

    def _is_any_over(self, running: RunningBatch) -> bool:
        requests = (item.request for item in running.items)
        return any(isinstance(each, InFlightRequest) and each.stream and each.stream.is_over for each in requests)

    def _next_batch(self, step: Step | None) -> RunningBatch:
        """Wait for a micro-batch to run; one without items stands for the step of a rehearsal, while nobody waits."""
        with self._lock:
            while True:
                now_s = time.perf_counter()
                if self._expire(now_s):
                    self._wake_frontend()
                depth, oldest_s = self._scheduler.ready_items, self._scheduler.oldest_s(now_s)
                if running := self._scheduler.next_batch(now_s):
                    self._recorder.observe(QUEUE_DEPTH, depth)
                    self._recorder.observe(QUEUE_AGE, oldest_s)
                    self._wake_frontend()
                    return running
                if step and not self._in_flight and (running := self._scheduler.rehearse(step, now_s)):
                    return running
                look_s = self._scheduler.next_look_s()
                self._work_may_be_due.wait(None if look_s == inf else max(0.0, look_s - now_s))

    def _expire(self, now_s: float) -> bool:
        """Fail the requests that waited too long; whether there were any."""
        expired = self._scheduler.expire(now_s)
        for request in expired:
            request.fail(EXPIRED)
            self._recorder.add(REFUSALS, 1, EXPIRED.type)
        return bool(expired)


def _next_step(rehearsal: Rehearsal) -> Step | None:
    try:
        return rehearsal.next_step()
    except Exception as error:
        logger.error("A task's samples cannot be rehearsed: %s", where(error))
        return None
