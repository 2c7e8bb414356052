"""Keep the state of the items of a batch: a slot for each, and what the headers say of them. Pure.

payload -> Slot -> decoded item -> result, or the ItemError that takes its place
slots   -> attempt: a step on all of them, or on halves where it fails
slots   -> server_timing: the header of their request's answer
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from handlers.engines import Outputs
from handlers.errors import ItemError, OutOfTime
from handlers.protocol.requests import Request


@dataclass(slots=True)
class Slot:
    """The place of one item in a batch, and what became of it.

    Attributes:
        outcome: the payload, then the decoded item, then its result; or the ItemError that took their place.
        decoded_at: when decoding ended, in seconds of `time.perf_counter`.
        decode_s: how many seconds decoding took.
        wait_s: how many seconds passed between being decoded and the start of its micro-batch.
        forward_s: how many seconds its micro-batch took.
        batch_size: how many items its micro-batch had; 0 when there was none.
    """

    outcome: Any
    decoded_at: float = 0.0
    decode_s: float = 0.0
    wait_s: float = 0.0
    forward_s: float = 0.0
    batch_size: int = 0

    def queue_s(self, came_s: float) -> float:
        """Say how many seconds of its request's stay the item waited, for its decoding and for the engine.

        Args:
            came_s: when the request came, in seconds of `time.perf_counter`; the item has been in a micro-batch.
        """
        return max(0.0, self.decoded_at + self.wait_s - self.decode_s - came_s)

    @property
    def is_failed(self) -> bool:
        """Whether an error took the place of the item or its result."""
        return isinstance(self.outcome, ItemError)


@dataclass(frozen=True, slots=True)
class FinishedMicroBatch:
    """A micro-batch that went through the model.

    Attributes:
        slots: those of its items, in order.
        outputs: what the engine gave, arrays of shape (B, ...).
        seconds: how long `collate` and `forward` took.
    """

    slots: list[Slot]
    outputs: Outputs
    seconds: float


@dataclass(slots=True)
class Batch:
    """A batch that TorchServe formed, on its way.

    Attributes:
        requests: one per row.
        slots: one per item, in the order of the requests' payloads.
        plan: the micro-batches, as lists of slots whose items are decoded.
        finished: the micro-batches that ran, with what the engine made of them.
    """

    requests: list[Request]
    slots: list[Slot]
    plan: list[list[Slot]]
    finished: list[FinishedMicroBatch] = field(default_factory=list)


def attempt(slots: list[Slot], step: Callable[[list[Slot]], None], give_up: Callable[[Slot, Exception], None]) -> None:
    """Run a step on slots together; where it fails, run it on halves of them, down to the slots that fail alone.

    Where time is up, all of them are given up at once.

    Args:
        slots: any number of slots; with none, nothing is done.
        step: called with the slots or a part of them; where it raises, it must not have changed any.
        give_up: called with each slot that failed by itself, and with the error.
    """
    if not slots:
        return
    try:
        step(slots)
    except OutOfTime as error:
        # Halves would take longer still.
        for slot in slots:
            give_up(slot, error)
    except Exception as error:
        if len(slots) == 1:
            give_up(slots[0], error)
            return
        middle = len(slots) // 2
        attempt(slots[:middle], step, give_up)
        attempt(slots[middle:], step, give_up)


def server_timing(slots: Sequence[Slot], encode_s: float) -> str:
    """Write the Server-Timing header (W3C): the durations of the request's slowest item, in milliseconds."""
    decode_s, wait_s, forward_s, batch_size = 0.0, 0.0, 0.0, 0
    for slot in slots:
        decode_s, wait_s = max(decode_s, slot.decode_s), max(wait_s, slot.wait_s)
        forward_s, batch_size = max(forward_s, slot.forward_s), max(batch_size, slot.batch_size)
    return (
        f"decode;dur={1000 * decode_s:.2f}, wait;dur={1000 * wait_s:.2f}, forward;dur={1000 * forward_s:.2f}, "
        f'encode;dur={1000 * encode_s:.2f}, batch;desc="{batch_size}"'
    )
