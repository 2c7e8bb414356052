"""The requests that TorchServe's frontend waits for, each one object from its arrival to its reply.

    what was generated since the last piece -> Replies.chunk -> an event, and the headers with the first
    a request that is complete              -> Replies.whole -> its answer, or the last events of it

Replies are written on the frontend's thread.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from handlers.batching.request_queue import ScheduledRequest
from handlers.batching.scheduler import Refusal
from handlers.errors import INTERNAL_ERROR, ItemError, where
from handlers.metrics import DEADLINE_MISSES, FIRST_PIECE, PIECES, Recorder
from handlers.pipeline.flow import Pipeline
from handlers.pipeline.slots import Generated
from handlers.protocol import streaming
from handlers.protocol.metadata import Metadata
from handlers.protocol.requests import Request
from handlers.protocol.responses import Reply

logger = logging.getLogger(__name__)

# Milliseconds after which a refused client may come again: what Retry-After says, but finer.
RETRY_AFTER_MS = "Retry-After-Ms"
# Of an answer to X-Model-Metadata: a rollout waits for 0 before it removes an adaptive version.
IN_FLIGHT = "X-In-Flight"


class Diverged(Exception):
    """A second run of the engine made other text than the first, of which a part was sent."""


@dataclass(slots=True)
class StreamedAnswer:
    """How far an answer that is sent in pieces has come.

    A micro-batch that fails is run again, in halves. What was sent of an item stays sent, so the second run's text has
    to begin with it.

    Attributes:
        has_begun: whether a chunk was sent.
        is_broken: whether the rest cannot be sent, so that it ends with an error.
        is_abandoned: whether its client is gone.
    """

    has_begun: bool = False
    is_broken: bool = False
    is_abandoned: bool = False
    _sent: str = ""
    _text: str = ""
    _generated: Generated | None = field(default=None, repr=False)

    @property
    def is_over(self) -> bool:
        """Whether nobody needs what is generated from here on."""
        return self.is_broken or self.is_abandoned

    def add(self, generated: Generated, text: str) -> str:
        """Take the next piece of a run's text, and return what is to be sent of it.

        Raises:
            Diverged: what was sent already is not how this run's text begins.
        """
        if generated is not self._generated:
            self._generated, self._text = generated, ""
        self._text += text
        sent = len(self._sent)
        if self._text[:sent] != self._sent[: len(self._text)]:
            raise Diverged
        new = self._text[sent:]
        self._sent += new
        return new


@dataclass(slots=True, eq=False, kw_only=True)
class InFlightRequest(ScheduledRequest):
    """A scheduled request, and what its answer needs.

    Attributes:
        id: what the frontend knows it by.
        request: what it was unpacked to, without its payloads; it has the form of the answer.
        is_admitted: whether the scheduler has taken it.
        retry_after_s: seconds after which a refused client may come again; None where it was not refused.
        stream: its answer, where that is sent in pieces; None where it is not.
    """

    id: str
    request: Request
    is_admitted: bool = False
    retry_after_s: float | None = None
    stream: StreamedAnswer | None = None

    def refuse(self, refusal: Refusal, status: int) -> None:
        """Answer it with the reason why it is not admitted."""
        self.fail(ItemError(status, refusal.reason, refusal.message))
        self.retry_after_s = refusal.retry_after_s


class Tokens(NamedTuple):
    """What was generated for a streamed request since its last piece, and in which run of its item."""

    request: InFlightRequest
    generated: Generated
    tokens: list[int]


class Replies:
    """Writes replies for one worker."""

    def __init__(self, pipeline: Pipeline, recorder: Recorder, answered: Callable[[InFlightRequest], bool]) -> None:
        """Write nothing yet; `answered` is called with each admitted request that is complete: is it in time?"""
        self._pipeline = pipeline
        self._recorder = recorder
        self._answered = answered

    def chunk(self, new: Tokens) -> Reply | None:
        """Write a piece of an answer; None where its tokens make no text that is certain yet."""
        request, stream = new.request, new.request.stream
        if stream is None or stream.is_broken:
            return None
        try:
            text = stream.add(new.generated, new.generated.pieces.add(new.tokens))
        except Exception as error:
            _break(stream, error)
            return None
        if not text:
            return None
        self._recorder.add(PIECES, 1)
        headers: Mapping[str, str] = {}
        if not stream.has_begun:
            stream.has_begun = True
            self._recorder.observe(FIRST_PIECE, time.perf_counter() - request.arrived_s)
            headers = {**streaming.HEADERS, **_timed(request, self._pipeline.headers(request.slots))}
        return streaming.chunk(streaming.piece(text), headers)

    def whole(self, request: InFlightRequest, others: int = 0) -> Reply:
        """Write the answer to a request that is complete; of one that is streamed, what is left of it.

        Args:
            request: the request.
            others: number of requests that stay in flight; a client that asks for metadata gets it, too.
        """
        text = self._end(request)
        reply = self._pipeline.answer(request.request, request.slots)
        reply = reply.with_headers(_timed(request, reply.headers))
        if isinstance(request.request.form, Metadata):
            reply = reply.with_headers({IN_FLIGHT: str(others)})
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
        """Turn what was generated for a request into its results; return the rest of its text, where it is streamed."""
        texts = [self._pipeline.end(slot) for slot in request.slots]
        if (stream := request.stream) is None:
            return ""
        (slot,), (text,) = request.slots, texts
        if slot.generated is not None and not (slot.is_failed or stream.is_broken):
            try:
                return stream.add(slot.generated, text)
            except Diverged as error:
                _break(stream, error)
        if stream.is_broken:
            slot.outcome = INTERNAL_ERROR
        return ""


def _break(stream: StreamedAnswer, error: Exception) -> None:
    """Have a streamed answer end with an error: its engine is asked to go on no further."""
    stream.is_broken = True
    if isinstance(error, Diverged):
        logger.error("A streamed answer failed: its second run was not like its first")
    else:
        logger.error("A streamed answer failed: %s", where(error))


def _timed(request: InFlightRequest, headers: Mapping[str, str]) -> Mapping[str, str]:
    total_ms = 1000 * (time.perf_counter() - request.arrived_s)
    return {**headers, "Server-Timing": f"total;dur={total_ms:.2f}, {headers['Server-Timing']}"}
