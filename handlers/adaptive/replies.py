"""Requests in flight to replies, for an adaptive worker: a piece of an answer, or the whole of it.

    what was generated since the last piece -> Replies.chunk -> an event, and the headers with the first
    a request that is complete              -> Replies.whole -> its answer, or the last events of it

All of it is the frontend's thread's.
"""

import logging
import time
from collections.abc import Callable, Mapping
from math import ceil
from typing import NamedTuple

from handlers.adaptive.in_flight import InFlightRequest
from handlers.adaptive.streamed_answer import Diverged
from handlers.errors import INTERNAL_ERROR, where
from handlers.metrics import DEADLINE_MISSES, FIRST_PIECE, PIECES, Recorder
from handlers.pipeline.runner import Runner
from handlers.pipeline.slots import Generated
from handlers.protocol import streaming
from handlers.protocol.responses import Reply

logger = logging.getLogger(__name__)


# Milliseconds after which a refused client may come again: what Retry-After says, but finer.
RETRY_AFTER_MS = "Retry-After-Ms"


class Tokens(NamedTuple):
    """What was generated for a request that is streamed since its last piece, and in which run of its item."""

    request: InFlightRequest
    generated: Generated
    tokens: list[int]


class Replies:
    """Writes replies for one worker."""

    def __init__(self, runner: Runner, recorder: Recorder, answered: Callable[[InFlightRequest], bool]) -> None:
        """Write none yet.

        Args:
            runner: the task's hooks on its whole engine.
            recorder: counts.
            answered: is told of each request that was admitted, as its answer is complete; whether that is in time.
        """
        self._runner = runner
        self._recorder = recorder
        self._answered = answered

    def chunk(self, told: Tokens) -> Reply | None:
        """Write a piece of an answer; None where its tokens make no text that is certain yet."""
        request, stream = told.request, told.request.stream
        if stream is None or stream.is_broken:
            return None
        try:
            text = stream.add(told.generated, told.generated.pieces.add(told.tokens))
        except Exception as error:
            self._break(request, error)
            return None
        if not text:
            return None
        self._recorder.add(PIECES, 1)
        headers: Mapping[str, str] = {}
        if not stream.has_begun:
            stream.has_begun = True
            self._recorder.observe(FIRST_PIECE, time.perf_counter() - request.arrived_s)
            headers = {**streaming.HEADERS, **self._timed(request, self._runner.headers(request.slots))}
        return streaming.chunk(streaming.piece(text), headers)

    def whole(self, request: InFlightRequest) -> Reply:
        """Write the answer to a request that is complete; of one that is streamed, what is left of it."""
        text = self._end(request)
        reply = self._runner.answer(request.request, request.slots)
        reply = reply.with_headers(self._timed(request, reply.headers))
        if request.is_admitted and not self._answered(request):
            self._recorder.add(DEADLINE_MISSES, 1)
        if request.stream is not None:
            reply = streaming.last(text, reply, has_begun=request.stream.has_begun)
        if request.retry_after_s is None:
            return reply
        # HTTP knows whole seconds only; a client that reads the other header need not wait for the rest of one.
        after_ms = max(1, ceil(1000 * request.retry_after_s))
        return reply.with_headers({"Retry-After": str(ceil(after_ms / 1000)), RETRY_AFTER_MS: str(after_ms)})

    def _end(self, request: InFlightRequest) -> str:
        """Turn what was generated for a request into its results; give the rest of its text, where it is streamed."""
        texts = [self._runner.end(slot) for slot in request.slots]
        if (stream := request.stream) is None:
            return ""
        (slot,), (text,) = request.slots, texts
        if slot.generated is not None and not (slot.is_failed or stream.is_broken):
            try:
                return stream.add(slot.generated, text)
            except Diverged as error:
                self._break(request, error)
        if stream.is_broken:
            slot.outcome = INTERNAL_ERROR
        return ""

    def _break(self, request: InFlightRequest, error: Exception) -> None:
        """Have a streamed answer end with an error: its engine is asked to go on no further."""
        if request.stream is not None:
            request.stream.is_broken = True
        if isinstance(error, Diverged):
            logger.error("A streamed answer failed: its second run was not like its first")
        else:
            logger.error("A streamed answer failed: %s", where(error))

    def _timed(self, request: InFlightRequest, headers: Mapping[str, str]) -> Mapping[str, str]:
        total_ms = 1000 * (time.perf_counter() - request.arrived_s)
        return {**headers, "Server-Timing": f"total;dur={total_ms:.2f}, {headers['Server-Timing']}"}
