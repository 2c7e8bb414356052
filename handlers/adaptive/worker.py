"""The worker that decides for itself what runs when, on TorchServe's continuous-batching mode.

    frontend's thread     receive -> unpack -> admit or refuse -> decode ---+       +--> split -> answer -> send
    decode threads                                               decode ---+-> queue
    engine's threads                                                            -> micro-batch -> micro-batch -> ...
                                                                                     +-> an item ends, a piece of text

Three kinds of thread around one lock (adaptive.shared_state). TorchServe's own thread hands the connection over with
its first batch and never gets it back (adaptive.frontend): it receives everything in flight, sends an answer when
adaptive.response_timing says that one is due, and so on; requests that an answer leaves out stay in flight and come
again. The engine's threads (adaptive.engine_threads) take one micro-batch after the other from the scheduler, so the
engine waits neither for decoding nor for the frontend. What is done in less time than another thread needs to hear of
it, or comes from a client who is alone, the frontend's thread runs itself.

One worker per model: the frontend polls for all workers of a model under one lock, and an idle worker holds it until a
request comes, while a busy one could not deliver its answers.
"""

import logging
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, NoReturn

from handlers.adaptive.arrivals import Arrivals
from handlers.adaptive.decoder import Decoded, Decoder
from handlers.adaptive.engine_threads import EngineThreads
from handlers.adaptive.fail_fast import Guard
from handlers.adaptive.frontend import Disconnected, Link, Sent
from handlers.adaptive.in_flight import InFlightRequest
from handlers.adaptive.replies import Replies
from handlers.adaptive.response_timing import ResponseTiming
from handlers.adaptive.shared_state import Due, SharedState, State
from handlers.metrics import EXCHANGES, Recorder
from handlers.pipeline.runner import Runner
from handlers.pipeline.warm_up import Rehearsal
from handlers.protocol.responses import Reply
from handlers.scheduling.scheduler import Scheduler
from handlers.scheduling.streams import RunningBatch

logger = logging.getLogger(__name__)


class Stuck(Exception):
    """The engine does not come back."""


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
        self._shared = SharedState(scheduler, timing, recorder)
        self._arrivals = arrivals
        self._decoder = decoder
        self._recorder = recorder
        self._wake = wake
        self._guard = guard
        self._longest_run_s = longest_run_s
        self._replies = Replies(whole, recorder, self._shared.answered)
        self._engine = EngineThreads(self._shared, whole, recorder, guard)
        self._engine.start(streams, rehearsals)

    @property
    def state(self) -> State:
        """How much there is to do, now."""
        return self._shared.state

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
        shared, arrivals = self._shared, self._arrivals
        newcomers: list[InFlightRequest] = []

        def door(id_: str, headers: Mapping[str, Any]) -> bool:
            with shared.lock:
                refused = arrivals.turned_away(id_, headers, time.perf_counter())
            newcomers.extend([refused] if refused else [])
            return refused is None

        def take(id_: str, sent: Sent) -> None:
            if sent.row is None:
                return
            request = self._whole.read(sent.row, sent.headers)
            with shared.lock:
                newcomers.append(arrivals.arrived(id_, request, sent.headers, time.perf_counter()))

        received = link.receive(door, take)
        came_s = time.perf_counter()
        with shared.lock:
            for request in shared.in_flight.take_missing(received):
                shared.abandon(request)
            shared.timing.came(came_s, len(newcomers))
            shared.in_flight.add(newcomers)
        self._decode([request for request in newcomers if request.is_admitted], came_s)

    def _decode(self, requests: Sequence[InFlightRequest], came_s: float) -> None:
        shared = self._shared

        def apart(decoded: list[Decoded]) -> None:
            with shared.lock:
                self._decoded(decoded, came_s)
                shared.wake_engine()
                shared.wake_frontend()

        if decoded := self._decoder.decode(requests, apart):
            with shared.lock:
                self._decoded(decoded, came_s)

    def _decoded(self, items: Sequence[Decoded], came_s: float) -> None:
        self._shared.timing.decoded(time.perf_counter() - came_s)
        self._arrivals.decoded(items)

    def _answers(self) -> dict[str, Reply]:
        """Wait until an answer is due, and work meanwhile where nobody else needs to; replies by id."""
        while isinstance(due := self._next_due(), RunningBatch):
            self._engine.run(due, self._whole)
        for micro_batch in due.finished:
            self._whole.split(micro_batch)
        chunks = {each.request.id: chunk for each in due.tokens if (chunk := self._replies.chunk(each))}
        return chunks | {request.id: self._replies.whole(request) for request in due.complete}

    def _next_due(self) -> Due | RunningBatch:
        """Wait until an answer must go, or this thread is to run a micro-batch itself."""
        shared, scheduler, timing = self._shared, self._shared.scheduler, self._shared.timing
        with shared.lock:
            while True:
                now_s = time.perf_counter()
                # The engine's threads do it too, but all of them may be busy for long.
                shared.expire(now_s)
                if scheduler.is_stuck(now_s, self._longest_run_s):
                    raise Stuck
                situation = shared.situation()
                due_s = timing.due_s(situation)
                if due_s > now_s:
                    most = timing.most_here(situation)
                    if most and (running := self._engine.begin(now_s, most_on_whole=most)):
                        return running
                    shared.wake_engine()
                if shared.is_answer_due(due_s, now_s):
                    timing.goes(now_s, situation)
                    return shared.take_due(with_refused=timing.refusal_due_s(situation) <= now_s)
