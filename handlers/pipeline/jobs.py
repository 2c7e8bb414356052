"""A request at work: a Slot for each item, from its payload to its result. Pure."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from handlers.aliases import Array
from handlers.errors import ItemError
from handlers.protocol.requests import UNIT_COST, Cost, Payload, Request
from handlers.protocol.responses import Form


@dataclass(slots=True, eq=False)
class Slot:
    """One item of a request: its payload, then the task's item, then its result; or its error. And its steps' times."""

    payload: Payload | None = None  # until it is decoded
    error: ItemError | None = None  # in place of all others
    item: Any = None  # until it is split
    result: object = None
    cost: Cost = UNIT_COST  # known once it is prepared
    decoded_at: float = 0.0  # in seconds of `time.perf_counter`
    decode_s: float = 0.0
    wait_s: float = 0.0  # from the end of decoding to the start of its micro-batch
    forward_s: float = 0.0  # duration of its micro-batch
    batch_size: int = 0  # items of its micro-batch; 0 without one
    # Its micro-batch returns nothing for it: the engine has ended it early, or its request was cancelled.
    is_over: bool = False
    outputs: Mapping[str, Array] | None = field(default=None, repr=False)  # (1, ...), if it has ended early
    key: Hashable = None  # items of equal keys have equal results; None if that is unknown
    is_cached: bool = False  # its result is of an earlier request

    @property
    def is_open(self) -> bool:
        """Whether it has neither an error nor the result of an earlier request."""
        return self.error is None and not self.is_cached

    def fail(self, error: ItemError) -> None:
        self.payload = self.item = self.result = None
        self.error = error


AnySlot = TypeVar("AnySlot", bound=Slot)


@dataclass(slots=True, eq=False)
class Job(Generic[AnySlot]):
    """A request while it is answered: unlike the request, it keeps no payload that is decoded."""

    form: Form
    slots: list[AnySlot]
    arrived_s: float  # when the request reached the server, or an estimate
    is_grpc: bool = False
    retry_after_s: float | None = None  # seconds after which a rejected client may retry


def make_job(arrived_s: float, request: Request) -> Job[Slot]:
    return Job(request.form, make_slots(request, Slot), arrived_s, request.is_grpc)


def make_slots(request: Request, kind: type[AnySlot]) -> list[AnySlot]:
    return [kind(each) if isinstance(each, Payload) else kind(error=each) for each in request.payloads]


def fold(slots: Sequence[AnySlot]) -> list[list[AnySlot]]:
    """Group the slots of equal items, in the order of the first of each group."""
    if len(slots) == 1:
        return [[*slots]]
    groups = dict[object, list[AnySlot]]()
    for slot in slots:
        groups.setdefault(slot if slot.key is None else (slot.key,), []).append(slot)
    return [*groups.values()]
