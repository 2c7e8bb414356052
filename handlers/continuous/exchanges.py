"""The thread that exchanges messages with TorchServe's frontend, in its continuous-batching mode.

    receive -> unpack -> core.submit_all -> help, until an answer is due -> split -> pack -> send

It is TorchServe's own thread, which never returns to TorchServe. It also runs micro-batches that take less time than
waking another thread, and those of a single client.
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

from handlers.batching import guard
from handlers.batching.core import Core, Write
from handlers.continuous.frontend import Disconnected, Link, NewRequest
from handlers.continuous.timing import DOUBT_S, HOLD_S, Timing, WorkerState
from handlers.metrics import EXCHANGED, Recorder
from handlers.protocol.requests import Request
from handlers.protocol.responses import Reply

logger = logging.getLogger(__name__)

LONGEST_WAIT_S = 1.0  # longest seconds of a wait, whatever happens


class OpenRequest(NamedTuple):
    """A request in flight, and the future of its reply."""

    request: Request
    future: "Future[Write]"


def select_complete(in_flight: Mapping[str, OpenRequest], *, with_refused: bool) -> list[str]:
    """Return the ids of the complete requests, with the refused ones or without."""
    return [
        id_
        for id_, (request, _) in in_flight.items()
        if request.is_complete and (with_refused or request.retry_after_s is None)
    ]


class Exchanges:
    def __init__(self, core: Core, window: int, recorder: Recorder) -> None:
        """`window` is the most requests in flight, the registration's batch_size."""
        self._core, self._recorder = core, recorder
        self._timing = Timing(window, core.scheduler.policy.has_target)
        self._in_flight: dict[str, OpenRequest] = {}
        self._answer_may_be_due = threading.Condition(core.lock)
        self._doubts_until_s = -inf  # when this thread runs micro-batches again
        self._answer_due_s = -inf  # when this thread stops waiting; minus infinity while it does not wait
        core.on_change = self._wake

    def serve(self, connection: socket.socket) -> NoReturn:
        """Serve the frontend on a connection on which it waits for the answer to a batch, which it then sends again."""
        link = Link(connection)
        with guard.watch():
            try:
                link.send({})
                while True:
                    self._receive(link)
                    answer = self._answer()
                    self._timing.send(time.perf_counter())
                    link.send(answer)
                    self._recorder.record([(EXCHANGED, ())])
            except Disconnected:
                logger.warning("Frontend disconnected.")
        sys.exit(0)

    def _receive(self, link: Link) -> None:
        """Receive an exchange in a separate frame, so that no body is kept while the thread waits."""
        core, new_requests = self._core, dict[str, Request]()

        def unpack(id_: str, new: NewRequest) -> None:
            request = new_requests[id_] = core.pipeline.unpack(new.row, new.headers)
            request.arrived_s = self._timing.estimate_arrival_s(time.perf_counter(), len(self._in_flight))

        ids = link.receive(unpack)
        self._timing.receive(time.perf_counter(), len(self._in_flight))
        # The clients of missing requests have disconnected.
        for id_ in [id_ for id_ in self._in_flight if id_ not in ids]:
            core.cancel(self._in_flight.pop(id_).request)
        if new_requests:
            requests = list(new_requests.values())
            opened = map(OpenRequest, requests, core.submit_all(requests))
            self._in_flight.update(zip(new_requests, opened, strict=True))

    def _answer(self) -> dict[str, Reply]:
        """Wait until an answer is due, and return its replies by id."""
        return {id_: self._in_flight.pop(id_).future.result()() for id_ in self._wait()}

    def _wait(self) -> list[str]:
        """Run micro-batches until an answer is due, and return the ids of its requests."""
        core, timing = self._core, self._timing
        with core.lock:
            while True:
                state, now_s = self._read_state(), time.perf_counter()
                due_s = timing.due_s(state)
                if due_s <= now_s:
                    return select_complete(self._in_flight, with_refused=timing.refusals_due_s(state) <= now_s)
                if core.help(timing.most_inline(state) if now_s > self._doubts_until_s else 0):
                    ended_s = time.perf_counter()
                    if ended_s - now_s > HOLD_S:
                        self._doubts_until_s = ended_s + DOUBT_S
                    continue
                self._answer_due_s = due_s
                self._answer_may_be_due.wait(min(LONGEST_WAIT_S, max(0.0, due_s - now_s)))
                self._answer_due_s = -inf

    def _read_state(self) -> WorkerState:
        """Return the state that the timing depends on. The caller holds the core's lock."""
        requests = [request for request, _ in self._in_flight.values()]
        complete = [request for request in requests if request.is_complete]
        if len(complete) == len(requests):
            # An answer is due, whatever the engine does; a single client waits for it.
            return WorkerState(len(complete), len(complete))
        refused_s = [request.arrived_s for request in complete if request.retry_after_s is not None]
        scheduler = self._core.scheduler
        return WorkerState(
            in_flight=len(requests),
            complete=len(complete),
            refused=len(refused_s),
            oldest_refusal_s=min(refused_s, default=inf),
            is_running=bool(scheduler.streams.running),
            queued_s=scheduler.ready_s,
        )

    def _wake(self) -> None:
        """Wake the thread if a change makes an answer due earlier."""
        if self._answer_due_s > -inf and self._timing.due_s(self._read_state()) < self._answer_due_s:
            self._answer_due_s = -inf
            self._answer_may_be_due.notify()
