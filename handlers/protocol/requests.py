"""A request from its arrival to its reply, and its items. Pure.

Request: one Slot for each item, the form of its answer, and its place in the queue
Slot:    payload -> decoded item -> result, or the ItemError that replaces it
Items:   contents of a body -> payloads
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
    """The pixels or characters that all items of one request may have: each takes its part before it is decoded."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, unit: str, amount: int, limit: int) -> None:
        """Take an item's part, in "pixels" or "characters", on any thread; a refused part stays counted."""
        with self._lock:
            self._taken[unit] += amount
            is_over = self._taken[unit] > limit
        if is_over:
            raise WorkTooLarge(f"The items of the request have more {unit} together than max_request_{unit}, {limit}.")


@dataclass(slots=True)
class Payload:
    """One item as its client sent it: the argument of the hook `decode`.

    Attributes:
        value: the raw body, an item's part of a tensor, or the input fields of a JSON object.
        options: all other fields; `decode` of a task gets them as its `options_class`, unless it reads them itself.
        allowance: the limits of all items of its request together; `decode` takes its part before it works. None for a
            single item, to which only the limits of an item apply.
    """

    value: Value
    options: Any = field(default_factory=dict)
    allowance: Allowance | None = field(default=None, compare=False, repr=False)


Payloads = tuple[Payload | ItemError, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one item in a micro-batch: the return value of the hook `cost`.

    Attributes:
        length: the size along the padded axis, in tokens; 1 if nothing is padded.
        group: the options of a whole micro-batch; items share one only if their groups are equal.
        work: the model's work for it, in tokens, if that is more than its length: generated answers.
    """

    length: int = 1
    group: Hashable = None
    work: int = 0

    @property
    def tokens(self) -> int:
        """The tokens that count towards the budget of its request."""
        return max(self.length, self.work)


UNIT_COST = Cost()  # the default cost of an item


@dataclass(slots=True, eq=False)
class Slot:
    """One item of a request, and the time that each step took."""

    outcome: Any  # the payload, then the decoded item, then its result; or the ItemError that replaced it
    request: "Request" = field(init=False, repr=False)  # set in an adaptive worker
    size: int = 0  # bytes of its payload
    cost: Cost = UNIT_COST  # known once it is prepared
    decoded_at: float = 0.0  # in seconds of `time.perf_counter`
    decode_s: float = 0.0
    wait_s: float = 0.0  # from the end of decoding to the start of its micro-batch
    forward_s: float = 0.0  # duration of its micro-batch
    batch_size: int = 0  # items of its micro-batch; 0 without one
    tokens: int = 0  # tokens of its item, special ones included; 0 if it has no result
    # Its micro-batch returns nothing for it: the engine has ended it early, or its request was cancelled.
    is_over: bool = False
    outputs: Mapping[str, NDArray[Any]] | None = field(default=None, repr=False)  # (1, ...), if it has ended early

    @property
    def is_failed(self) -> bool:
        return isinstance(self.outcome, ItemError)


@dataclass(slots=True, eq=False)
class Request:
    """One request from its arrival to its reply. Times are in seconds, of `time.perf_counter` or the simulation's."""

    payloads: Payloads  # in the client's order; none once they are in `slots`
    form: Form = field(default_factory=OneItem)
    terms: Mapping[str, Any] = field(default_factory=dict)  # what it asks of the scheduler, unchecked; see `Terms`
    slots: list[Slot] = field(default_factory=list)
    is_grpc: bool = False  # by TorchServe's own gRPC
    arrived_s: float = 0.0  # when it reached the server, or an estimate; 0 until it is submitted

    # The scheduler's. An item that can be served is decoding, queued or running, then none of these.
    priority: int | None = None  # as its client asks, 1 being first; None for the policy's default
    timeout_s: float = inf  # the longest that its client waits; it can only shorten the policy's limits
    level: int = 1  # the priority that it was admitted with
    number: int = -1  # the number of requests admitted before it; -1 if it was refused
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
    retry_after_s: float | None = None  # seconds after which a refused client may retry

    def fail(self, error: ItemError) -> None:
        """Replace all outcomes by one error; new slots, since a thread may be decoding an item into its old slot."""
        self.slots = [Slot(error) for _ in self.slots]
        self.decoding = self.queued = self.running = 0


class Items(Protocol):
    """Makes items of a request's contents. Each method raises InvalidInput if the whole request is wrong."""

    def of_body(self, body: bytes | bytearray | str, sent: BodyInfo) -> Request:
        """Read a body that is neither JSON nor empty."""

    def of_json(self, document: Any, sent: BodyInfo) -> Request:
        """Read parsed JSON that is not an Open Inference request."""

    def of_tensors(self, tensors: Mapping[str, NDArray[Any]], options: Mapping[str, Any]) -> Payloads:
        """Make items of the tensors of an Open Inference request, by name; BF16 numbers have the dtype BF16."""
