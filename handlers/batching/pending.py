"""A submitted request, its items and the future of its response, as the scheduler and the core's hosts see them."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from math import inf

from handlers.errors import ItemError
from handlers.pipeline.jobs import Job, Slot, make_slots
from handlers.protocol.requests import Request
from handlers.protocol.responses import Response

Write = Callable[[], Response]


@dataclass(slots=True, eq=False)
class Entry(Slot):
    """An item of a submitted request."""

    request: "Pending" = field(init=False, repr=False)
    size: int = 0  # bytes of its payload


@dataclass(slots=True, eq=False)
class Pending(Job[Entry]):
    """A request until its response is written. Times are in seconds, of `time.perf_counter` or the simulation's.

    An item that can be served is decoding, queued or running, then none of these.
    """

    terms: Mapping[str, object] = field(default_factory=dict)
    priority: int | None = None  # as its client asks, 1 being first; None for the policy's default
    timeout_s: float = inf  # the longest that its client waits; it can only shorten the policy's limits
    level: int = 1  # the priority that it was admitted with
    is_check: bool = False  # see `Request`
    number: int = -1  # the number of requests admitted before it; -1 if it was rejected
    deadline_s: float = inf  # when its answer is due
    due_s: float = inf  # its order within its level: the deadline, or without a target what patience allows
    expires_s: float = inf  # when it stops waiting for its micro-batch
    is_tried: bool = False  # admitted although its answer would be late, to measure it
    work: float = 0.0  # tokens of all its items; an estimate until they are decoded
    decoding: int = 0
    queued: int = 0
    running: int = 0
    has_started: bool = False  # the engine has run an item of it
    is_complete: bool = False  # it can be answered, or was cancelled

    def __post_init__(self) -> None:
        for slot in self.slots:
            slot.request = self

    @classmethod
    def of(cls, request: Request, arrived_s: float) -> "Pending":
        return cls(
            request.form,
            make_slots(request, Entry),
            arrived_s,
            request.is_grpc,
            terms=request.terms,
            is_check=request.is_check,
        )

    def fail(self, error: ItemError) -> None:
        """Replace all items by one error; new slots, since a thread may be decoding an item into its old slot."""
        self.slots = [Entry(error=error) for _ in self.slots]
        self.decoding = self.queued = self.running = 0


class Submitted(Future[Write]):
    """The future of a request's response: its result writes the response, on the thread that calls it."""

    def __init__(self, pending: Pending) -> None:
        super().__init__()
        self._pending = pending  # the core's

    def cancel(self) -> bool:
        """Change nothing: a host calls `Core.cancel` if a client disconnects."""
        return False

    def finish(self, write: Callable[[Pending], Response]) -> None:
        self.set_result(partial(write, self._pending))

    @property
    def is_complete(self) -> bool:
        """Whether the future has its result, or gets it at once."""
        return self._pending.is_complete

    @property
    def rejected_s(self) -> float | None:
        """When it arrived, if it was not admitted, so that its client may retry."""
        return None if self._pending.retry_after_s is None else self._pending.arrived_s
