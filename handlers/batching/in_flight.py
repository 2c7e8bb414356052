"""The requests that TorchServe's frontend waits for, each one object from its arrival to its reply.

    a request that is complete -> Replies.write -> its answer

Replies are written on the frontend's thread.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

from handlers.batching.request_queue import ScheduledRequest
from handlers.batching.scheduler import Refusal
from handlers.errors import ItemError
from handlers.metrics import DEADLINE_MISSES, Recorder
from handlers.pipeline.flow import Pipeline
from handlers.protocol.metadata import Metadata
from handlers.protocol.requests import Request
from handlers.protocol.responses import Reply

# Milliseconds after which a refused client may come again: what Retry-After says, but finer.
RETRY_AFTER_MS = "Retry-After-Ms"
# Of an answer to X-Model-Metadata: a rollout waits for 0 before it removes an adaptive version.
IN_FLIGHT = "X-In-Flight"


@dataclass(slots=True, eq=False, kw_only=True)
class InFlightRequest(ScheduledRequest):
    """A scheduled request, and what its answer needs.

    Attributes:
        id: what the frontend knows it by.
        request: what it was unpacked to, without its payloads; it has the form of the answer.
        is_admitted: whether the scheduler has taken it.
        retry_after_s: seconds after which a refused client may come again; None where it was not refused.
    """

    id: str
    request: Request
    is_admitted: bool = False
    retry_after_s: float | None = None

    def refuse(self, refusal: Refusal, status: int) -> None:
        """Answer it with the reason why it is not admitted."""
        self.fail(ItemError(status, refusal.reason, refusal.message))
        self.retry_after_s = refusal.retry_after_s


class Replies:
    """Writes replies for one worker."""

    def __init__(self, pipeline: Pipeline, recorder: Recorder, answered: Callable[[InFlightRequest], bool]) -> None:
        """Write nothing yet; `answered` is called with each admitted request that is complete: is it in time?"""
        self._pipeline = pipeline
        self._recorder = recorder
        self._answered = answered

    def write(self, request: InFlightRequest, others: int = 0) -> Reply:
        """Write the answer to a request that is complete.

        Args:
            request: the request.
            others: number of requests that stay in flight; a client that asks for metadata gets it, too.
        """
        for slot in request.slots:
            self._pipeline.split_ended(slot)
        reply = self._pipeline.answer(request.request, request.slots)
        reply = reply.with_headers(_timed(request, reply.headers))
        if isinstance(request.request.form, Metadata):
            reply = reply.with_headers({IN_FLIGHT: str(others)})
        if request.is_admitted and not self._answered(request):
            self._recorder.add(DEADLINE_MISSES, 1)
        if request.retry_after_s is None:
            return reply
        # HTTP knows whole seconds only; a client that reads the other header need not wait for the rest of one.
        after_ms = max(1, ceil(1000 * request.retry_after_s))
        return reply.with_headers({"Retry-After": str(ceil(after_ms / 1000)), RETRY_AFTER_MS: str(after_ms)})


def _timed(request: InFlightRequest, headers: Mapping[str, str]) -> Mapping[str, str]:
    total_ms = 1000 * (time.perf_counter() - request.arrived_s)
    return {**headers, "Server-Timing": f"total;dur={total_ms:.2f}, {headers['Server-Timing']}"}
