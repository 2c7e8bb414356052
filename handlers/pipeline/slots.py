"""The items of a batch on their way: a slot each, and what the headers say of them. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from handlers.engines import Outputs
from handlers.errors import ItemError
from handlers.protocol.requests import Request


@dataclass(slots=True)
class Slot:
    """The place of one item in a batch, and what became of it.

    Attributes:
        outcome: the payload, then the decoded item, then its result; or the ItemError that took their place.
        decoded_at: when decoding ended, on `time.perf_counter`.
        decode_s: seconds that decoding took.
        wait_s: seconds between being decoded and the start of its forward pass.
        forward_s: seconds of its forward pass.
        batch_size: items of its forward pass; 0 when there was none.
    """

    outcome: Any
    decoded_at: float = 0.0
    decode_s: float = 0.0
    wait_s: float = 0.0
    forward_s: float = 0.0
    batch_size: int = 0

    @property
    def is_failed(self) -> bool:
        """Whether an error took the place of the item or its result."""
        return isinstance(self.outcome, ItemError)


@dataclass(frozen=True, slots=True)
class Forward:
    """One pass through the model: the slots of its items, its outputs, the seconds it took."""

    slots: list[Slot]
    outputs: Outputs
    seconds: float


@dataclass(slots=True)
class Batch:
    """One batch on its way.

    Attributes:
        requests: one per row.
        slots: one per item, in the order of the requests' payloads.
        plan: micro-batches of slots, all decoded.
        forwards: what the engine made of them.
    """

    requests: list[Request]
    slots: list[Slot]
    plan: list[list[Slot]]
    forwards: list[Forward] = field(default_factory=list)


def attempt(slots: list[Slot], step: Callable[[list[Slot]], None], give_up: Callable[[Slot, Exception], None]) -> None:
    """Run a step on slots together; where it fails, on halves of them, down to the slots that fail alone.

    Args:
        slots: any number; none is nothing to do.
        step: raises before it has changed any slot.
        give_up: told of each slot that failed by itself, and why.
    """
    if not slots:
        return
    try:
        step(slots)
    except Exception as error:
        if len(slots) == 1:
            give_up(slots[0], error)
            return
        middle = len(slots) // 2
        attempt(slots[:middle], step, give_up)
        attempt(slots[middle:], step, give_up)


def server_timing(slots: Sequence[Slot], encode_s: float) -> str:
    """The Server-Timing header (W3C): durations in milliseconds, of the row's slowest item."""
    parts = {
        "decode": max(slot.decode_s for slot in slots),
        "wait": max(slot.wait_s for slot in slots),
        "forward": max(slot.forward_s for slot in slots),
        "encode": encode_s,
    }
    durations = (f"{name};dur={1000 * seconds:.2f}" for name, seconds in parts.items())
    return ", ".join([*durations, f'batch;desc="{max(slot.batch_size for slot in slots)}"'])
