"""A request from its arrival to its reply, its items, and how a task makes items of what it contains. Pure.

Request: one Slot for each item, the form of its answer, and its place in the queue
Slot:    payload -> decoded item -> result, or the ItemError that replaces it
"""

import threading
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from numpy.typing import NDArray

from handlers.errors import ItemError, WorkTooLarge
from handlers.protocol.bodies import BodyInfo
from handlers.protocol.responses import Form, OneItem

Value = bytes | bytearray | str | Mapping[str, Any] | NDArray[Any]


class Allowance:
    """What the items of one request may ask for together: each takes what it needs before work is spent on it."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, unit: str, amount: int, limit: int) -> None:
        """Take an item's part of what the request has; any thread may. The unit is "pixels" or "characters".

        What is refused stays counted, so that it does not matter which item asks first.

        Raises:
            WorkTooLarge: all items have more than `limit`, the setting `max_request_<unit>`.
        """
        with self._lock:
            self._taken[unit] += amount
            is_over = self._taken[unit] > limit
        if is_over:
            raise WorkTooLarge(f"The items of the request have more {unit} together than max_request_{unit}, {limit}.")


@dataclass(slots=True)
class Payload:
    """One item as its client sent it.

    Attributes:
        value: the raw body, what a tensor holds for this item, or the input fields of a JSON object.
        options: everything that is not input; it is not checked yet.
        allowance: what the items of its request may ask for together; `decode` takes from it before it spends work.
            None for an item that is alone: only the limits of an item apply.
    """

    value: Value
    options: Mapping[str, Any] = field(default_factory=dict)
    allowance: Allowance | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one item asks of a micro-batch.

    Attributes:
        length: its size along the padded axis, in tokens; 1 where nothing is padded.
        group: the options that hold for a whole micro-batch; items share one only when their groups are equal.
        work: what the model does for it altogether, in tokens, where that is more than its length: answers that are
            generated.
    """

    length: int = 1
    group: Hashable = None
    work: int = 0

    @property
    def tokens(self) -> int:
        """What counts towards the budget of its request."""
        return max(self.length, self.work)


# The cost of an item that nothing is known of.
UNIT_COST = Cost()


@dataclass(slots=True, eq=False)
class Slot:
    """One item of a request, and the time that each step took."""

    outcome: Any  # the payload, then the decoded item, then its result; or the ItemError that replaced it
    request: "Request" = field(init=False, repr=False)  # set in an adaptive worker
    size: int = 0  # bytes of its payload
    cost: Cost = UNIT_COST  # known once it is prepared
    decoded_at: float = 0.0  # in seconds of `time.perf_counter`
    decode_s: float = 0.0
    wait_s: float = 0.0  # from being decoded to the start of its micro-batch
    forward_s: float = 0.0  # of its micro-batch
    batch_size: int = 0  # items of its micro-batch; 0 without one
    tokens: int = 0  # of its item, special ones included; 0 if it has no result
    # Nothing that its micro-batch returns is for it: the engine has ended it before, or its request was cancelled.
    is_over: bool = False
    outputs: Mapping[str, NDArray[Any]] | None = field(default=None, repr=False)  # (1, ...), if it ended before

    @property
    def is_failed(self) -> bool:
        """Whether an error took the place of the item or its result."""
        return isinstance(self.outcome, ItemError)


@dataclass(slots=True, eq=False)
class Request:
    """One request from its arrival to its reply. Times are in seconds, of `time.perf_counter` or the simulation's."""

    payloads: tuple[Payload | ItemError, ...]  # in the client's order; none once they are in `slots`
    form: Form = field(default_factory=OneItem)
    terms: Mapping[str, Any] = field(default_factory=dict)  # what it asks of the scheduler, unchecked; see `Terms`
    slots: list[Slot] = field(default_factory=list)
    is_grpc: bool = False  # by TorchServe's own gRPC
    arrived_s: float = 0.0  # when it reached the server, or an estimate; 0 until it is submitted

    # The scheduler's. An item that can be served is decoding, queued or running, then none of these.
    priority: int | None = None  # as its client asks, 1 being first; None for the policy's default
    timeout_s: float = inf  # how long its client waits; it can only shorten the policy's limits
    level: int = 1  # priority that it was admitted with
    number: int = -1  # how many were admitted before it; -1 if it was not
    deadline_s: float = inf  # when its answer is due
    due_s: float = inf  # its order within its level: the deadline, or without a target what patience allows
    expires_s: float = inf  # when it stops waiting for its micro-batch
    is_tried: bool = False  # admitted although its answer would be late, to find out
    work: float = 0.0  # tokens of all its items; an estimate until they are decoded
    decoding: int = 0
    queued: int = 0
    running: int = 0
    has_started: bool = False  # work of the engine was spent on it
    is_complete: bool = False  # nothing more is done for it: it can be answered, or was cancelled
    retry_after_s: float | None = None  # when a client that was refused may come again

    def fail(self, error: ItemError) -> None:
        """Answer it with one error, whatever becomes of its items: a thread may be decoding one into its old slot."""
        self.slots = [Slot(error) for _ in self.slots]
        self.decoding = self.queued = self.running = 0


class Items(Protocol):
    """How what a request holds becomes items. Each method raises InvalidInput where the request is wrong as a whole."""

    def of_body(self, body: bytes | bytearray | str, sent: BodyInfo) -> Request:
        """Read a body that is no JSON, at least one byte."""

    def of_json(self, document: Any, sent: BodyInfo) -> Request:
        """Read parsed JSON, which is no Open Inference request."""

    def of_tensors(
        self, tensors: Mapping[str, NDArray[Any]], options: Mapping[str, Any]
    ) -> tuple[Payload | ItemError, ...]:
        """Make items of the tensors of an Open Inference request, by name; numbers of BF16 have the dtype BF16."""
