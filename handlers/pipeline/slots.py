"""Keep the state of the items of a batch: a slot for each, and what the headers say of them. Pure.

payload -> Slot -> decoded item -> result, or the ItemError that takes its place
slots   -> attempt: a step on all of them, or on halves where it fails
tokens  -> Generated -> Pieces: text as it comes, and in the end the result, before the micro-batch is done
slots   -> server_timing: the header of their request's answer
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from handlers.engines import Outputs
from handlers.errors import ItemError, OutOfTime
from handlers.protocol.requests import Request


class Pieces(Protocol):
    """Makes text of one item's tokens as they come. What it gives, joined, is the text of the item's result."""

    def add(self, tokens: Sequence[int]) -> str:
        """Take the tokens that come next; give the text that is certain by now and was not given yet, maybe none."""

    def end(self) -> tuple[str, Any]:
        """Give the rest of the text, and the item's result, the same that `split` makes of the engine's outputs."""


@dataclass(slots=True)
class Generated:
    """What an engine has generated for one item, in one run of it.

    Attributes:
        pieces: makes text of it.
        tokens: those that `pieces` has not been given.
        is_ended: whether nothing more comes.
        is_split: whether it has become the item's result.
    """

    pieces: Pieces
    tokens: list[int] = field(default_factory=list)
    is_ended: bool = False
    is_split: bool = False

    def take(self) -> list[int]:
        """Remove the tokens that `pieces` has not been given, and hand them out."""
        tokens, self.tokens = self.tokens, []
        return tokens


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
        tokens: how many tokens its item had, special ones included; 0 where it has no result.
        generated: what the engine has generated for the item so far, where it tells while it runs.
    """

    outcome: Any
    decoded_at: float = 0.0
    decode_s: float = 0.0
    wait_s: float = 0.0
    forward_s: float = 0.0
    batch_size: int = 0
    tokens: int = 0
    generated: Generated | None = field(default=None, repr=False)

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

    @property
    def is_ended(self) -> bool:
        """Whether the engine has ended the item, though its micro-batch may run on."""
        return self.generated is not None and self.generated.is_ended


@dataclass(frozen=True, slots=True)
class FinishedMicroBatch:
    """A micro-batch that went through the model.

    Attributes:
        slots: those of its items that did not end before it did, in order.
        outputs: what the engine gave for these, arrays of shape (B, ...).
        seconds: how long `collate` and `forward` took.
        size: how many items it had, those included that ended before.
        collate_s: how many of the seconds `collate` took.
    """

    slots: list[Slot]
    outputs: Outputs
    seconds: float
    size: int
    collate_s: float


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

    Those that the engine had ended by then have their answer, and are left out. Where time is up, all of the others are
    given up at once.

    Args:
        slots: any number of slots; with none, nothing is done.
        step: called with the slots or a part of them; where it raises, it must not have changed any that is not ended.
        give_up: called with each slot that failed by itself, and with the error.
    """
    if not slots:
        return
    try:
        step(slots)
    except OutOfTime as error:
        # Halves would take longer still.
        for slot in slots:
            if not slot.is_ended:
                give_up(slot, error)
    except Exception as error:
        left = [slot for slot in slots if not slot.is_ended]
        if left and len(slots) == 1:
            give_up(left[0], error)
        else:
            middle = len(left) // 2
            attempt(left[:middle], step, give_up)
            attempt(left[middle:], step, give_up)


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
