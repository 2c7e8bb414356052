"""The thread that exchanges messages with TorchServe's frontend, in its continuous-batching mode.

    receive -> unpack -> core.submit_all -> help, until an answer is due -> split -> answer -> send

TorchServe's own thread is this thread: it hands the connection over with its first batch and never gets it back. It
also runs micro-batches that take less time than waking another thread, and those of a client who is alone.
"""

import logging
import socket
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from math import inf
from typing import NamedTuple, NoReturn

from handlers.batching.core import Core, Write
from handlers.continuous.frontend import Disconnected, Link, Sent
from handlers.continuous.timing import Situation, Timing
from handlers.metrics import EXCHANGED, Recorder
from handlers.protocol.requests import Request
from handlers.protocol.responses import Reply

logger = logging.getLogger(__name__)

# Seconds after which the thread looks again, whatever happens.
LONGEST_WAIT_S = 1.0


class InFlight(NamedTuple):
    """A request that the frontend waits for."""

    request: Request
    future: "Future[Write]"


def due(in_flight: Mapping[str, InFlight], *, with_refused: bool) -> list[str]:
    """Return the ids of the requests that go with an answer now, with the refusals or without."""
    return [
        id_
        for id_, (request, _) in in_flight.items()
        if request.is_complete and (with_refused or request.retry_after_s is None)
    ]


class Exchanges:
    """Answers exchanges with whatever the core has completed."""

    def __init__(self, core: Core, window: int, recorder: Recorder) -> None:
        """Prepare; `window` is the most requests that are in flight, the registration's batch_size."""
        self._core, self._recorder = core, recorder
        self._timing = Timing(window, core.scheduler.policy.has_target)
        self._in_flight: dict[str, InFlight] = {}
        self._answer_may_be_due = threading.Condition(core.lock)
        # When this thread stops waiting; minus infinity while it does not wait.
        self._answer_due_s = -inf
        core.on_change = self._wake

    def serve(self, connection: socket.socket) -> NoReturn:
        """Answer the frontend on a connection where it waits for the answer to a batch, which it then sends again.

        Raises:
            SystemExit: the frontend is gone, and so must the worker be.
        """
        link = Link(connection)
        with self._core.guard.watch():
            try:
                link.send({})
                while True:
                    self._receive(link)
                    link.send(self._answers())
                    self._recorder.record([(EXCHANGED, ())])
            except Disconnected:
                logger.warning("Frontend disconnected.")
        sys.exit(0)

    def _receive(self, link: Link) -> None:
        """Take in what has come; nothing here holds on to a body while its answer is waited for."""
        core, newcomers = self._core, dict[str, Request]()

        def take(id_: str, sent: Sent) -> None:
            request = newcomers[id_] = core.pipeline.unpack(sent.row, sent.headers)
            request.arrived_s = self._timing.arrived_s(time.perf_counter(), len(self._in_flight))

        ids = link.receive(take)
        self._timing.received_s = time.perf_counter()
        # Clients of requests that are missing are gone.
        for id_ in [id_ for id_ in self._in_flight if id_ not in ids]:
            core.cancel(self._in_flight.pop(id_).request)
        if newcomers:
            futures = core.submit_all(list(newcomers.values()))
            self._in_flight.update(zip(newcomers, map(InFlight, newcomers.values(), futures), strict=True))

    def _answers(self) -> dict[str, Reply]:
        """Wait until an answer is due, and help meanwhile; replies by id."""
        return {id_: self._in_flight.pop(id_).future.result()() for id_ in self._wait()}

    def _wait(self) -> list[str]:
        """Return the ids of the requests that go with the next answer, once it is due."""
        core, timing = self._core, self._timing
        with core.lock:
            while True:
                situation, now_s = self._situation(), time.perf_counter()
                due_s = timing.due_s(situation)
                if due_s <= now_s:
                    return due(self._in_flight, with_refused=timing.refusal_due_s(situation) <= now_s)
                if core.help(timing.most_inline(situation)):
                    continue
                self._answer_due_s = due_s
                self._answer_may_be_due.wait(min(LONGEST_WAIT_S, max(0.0, due_s - now_s)))
                self._answer_due_s = -inf

    def _situation(self) -> Situation:
        """Return what the timing of an answer depends on. Wants the core's lock."""
        requests = [request for request, _ in self._in_flight.values()]
        complete = [request for request in requests if request.is_complete]
        if len(complete) == len(requests):
            # An answer is due whatever else is so, and a client who is alone waits for it.
            return Situation(len(complete), len(complete))
        refused_s = [request.arrived_s for request in complete if request.retry_after_s is not None]
        oldest_s = min(refused_s, default=inf)
        return Situation(len(requests), len(complete), len(refused_s), oldest_s, *self._core.load())

    def _wake(self) -> None:
        """Wake the thread if what just happened makes an answer due earlier."""
        if self._answer_due_s > -inf and self._timing.due_s(self._situation()) < self._answer_due_s:
            self._answer_due_s = -inf
            self._answer_may_be_due.notify()
