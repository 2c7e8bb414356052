"""The thread that exchanges messages with TorchServe's frontend, in its continuous-batching mode.

    receive -> unpack -> core.submit -> core.step, until an answer is due -> split -> pack -> send

It is TorchServe's own thread, which never returns to TorchServe. It also runs micro-batches that take less time than
waking another thread, and those of a single client.
"""

import logging
import socket
import sys
import threading
import time
from collections.abc import Mapping
from math import inf
from typing import NoReturn

from handlers.batching import guard
from handlers.batching.core import Core
from handlers.batching.pending import Submitted
from handlers.continuous.frontend import Disconnected, Link, NewRequest
from handlers.continuous.timing import DOUBT_S, HOLD_S, Timing, WorkerState
from handlers.metrics import EXCHANGED, Recorder
from handlers.protocol.requests import Request
from handlers.protocol.responses import Response

logger = logging.getLogger(__name__)

LONGEST_WAIT_S = 1.0  # longest seconds of a wait, whatever happens


def select_complete(in_flight: Mapping[str, Submitted], *, with_rejected: bool) -> list[str]:
    """Return the ids of the complete requests, with the rejected ones or without."""
    return [id_ for id_, each in in_flight.items() if each.is_complete and (with_rejected or each.rejected_s is None)]


class Exchanges:
    def __init__(self, core: Core, window: int, recorder: Recorder, *, has_target: bool) -> None:
        """`window` is the most requests in flight, the registration's batch_size; `has_target` is of latency."""
        self._core, self._recorder = core, recorder
        self._timing = Timing(window, has_target)
        self._in_flight: dict[str, Submitted] = {}
        self._has_changed = threading.Event()  # so that an answer may be due
        self._doubts_until_s = -inf  # when this thread runs micro-batches again
        core.on_change = self._has_changed.set

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
        core, timing, arrivals = self._core, self._timing, dict[str, tuple[Request, float]]()

        def unpack(id_: str, new: NewRequest) -> None:
            request = core.unpack(new.row, new.headers)
            arrivals[id_] = request, timing.estimate_arrival_s(time.perf_counter(), len(self._in_flight))

        ids = link.receive(unpack)
        timing.receive(time.perf_counter(), len(self._in_flight))
        # The clients of missing requests have disconnected.
        for id_ in [id_ for id_ in self._in_flight if id_ not in ids]:
            core.cancel(self._in_flight.pop(id_))
        if arrivals:
            self._in_flight.update(zip(arrivals, core.submit(arrivals.values()), strict=True))

    def _answer(self) -> dict[str, Response]:
        """Wait until an answer is due, and return its responses by id."""
        return {id_: self._in_flight.pop(id_).result()() for id_ in self._wait()}

    def _wait(self) -> list[str]:
        """Run micro-batches until an answer is due, and return the ids of its requests."""
        timing = self._timing
        while True:
            self._has_changed.clear()
            state, now_s = self._read_state(), time.perf_counter()
            due_s = timing.due_s(state)
            if due_s <= now_s:
                return select_complete(self._in_flight, with_rejected=timing.rejections_due_s(state) <= now_s)
            if not self._core.step(self._most_items):
                self._has_changed.wait(min(LONGEST_WAIT_S, max(0.0, due_s - now_s)))
            elif (ended_s := time.perf_counter()) - now_s > HOLD_S:
                self._doubts_until_s = ended_s + DOUBT_S

    def _most_items(self, queued_s: float) -> int:
        is_doubtful = time.perf_counter() <= self._doubts_until_s
        return 0 if is_doubtful else self._timing.most_inline(len(self._in_flight), queued_s)

    def _read_state(self) -> WorkerState:
        """Return the state that the timing depends on."""
        submitted = self._in_flight.values()
        complete = [each for each in submitted if each.is_complete]
        rejected_s = [each.rejected_s for each in complete if each.rejected_s is not None]
        return WorkerState(
            in_flight=len(submitted),
            complete=len(complete),
            rejected=len(rejected_s),
            oldest_rejection_s=min(rejected_s, default=inf),
            is_running=self._core.is_running,
        )
