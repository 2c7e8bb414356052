"""A request at work: a Slot for each item, from its payload to its result, and the headers of its response. Pure."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Generic, TypeVar

from handlers.aliases import Array
from handlers.errors import ItemError
from handlers.protocol.metadata import Metadata
from handlers.protocol.requests import UNIT_COST, Cost, Payload, Request
from handlers.protocol.responses import GRPC_HEADERS, Form
from handlers.protocol.wire import CACHE_HEADER, SPACE_HEADER, TOKENS_HEADER


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
    groups = dict[object, list[AnySlot]]()
    for slot in slots:
        groups.setdefault(slot if slot.key is None else (slot.key,), []).append(slot)
    return [*groups.values()]


VERSION_HEADER = "X-Model-Version"  # header with the model's version, for clients and routers of several versions
# Header with the milliseconds after which a rejected client may retry: Retry-After, but finer.
RETRY_AFTER_MS = "Retry-After-Ms"
# Header of an answer to X-Model-Metadata: a rollout waits for 0 before it removes an adaptive version.
IN_FLIGHT = "X-In-Flight"


def headers_of(
    job: Job[AnySlot], model: Metadata, others: int | None, started_s: float, ended_s: float
) -> dict[str, str]:
    """Return the headers of a response that is written from `started_s` on; `others` are None in classic mode."""
    headers = {} if model.version is None else {VERSION_HEADER: model.version}
    if model.vector_space is not None:
        headers[SPACE_HEADER.title()] = model.vector_space
    timing = server_timing(job.slots, ended_s - started_s)
    headers["Server-Timing"] = (
        timing if others is None else f"total;dur={1000 * (ended_s - job.arrived_s):.2f}, {timing}"
    )
    if tokens := sum(slot.cost.sent for slot in job.slots if slot.error is None):
        headers[TOKENS_HEADER] = str(tokens)
    if job.is_grpc:
        headers |= GRPC_HEADERS
    if others is not None and isinstance(job.form, Metadata):
        headers[IN_FLIGHT] = str(others)
    if job.slots and all(slot.is_cached for slot in job.slots):
        headers[CACHE_HEADER] = "hit"
    if job.retry_after_s is not None:
        # Retry-After has whole seconds; a client that reads the other header waits no longer than needed.
        after_ms = max(1, ceil(1000 * job.retry_after_s))
        headers |= {"Retry-After": str(ceil(after_ms / 1000)), RETRY_AFTER_MS: str(after_ms)}
    return headers


def server_timing(slots: Sequence[Slot], encode_s: float) -> str:
    """Write the Server-Timing header (W3C) with the durations of the request's slowest item, in milliseconds."""
    decode_s, wait_s, forward_s, batch_size = 0.0, 0.0, 0.0, 0
    for slot in slots:
        decode_s, wait_s = max(decode_s, slot.decode_s), max(wait_s, slot.wait_s)
        forward_s, batch_size = max(forward_s, slot.forward_s), max(batch_size, slot.batch_size)
    return (
        f"decode;dur={1000 * decode_s:.2f}, wait;dur={1000 * wait_s:.2f}, forward;dur={1000 * forward_s:.2f}, "
        f'encode;dur={1000 * encode_s:.2f}, batch;desc="{batch_size}"'
    )
