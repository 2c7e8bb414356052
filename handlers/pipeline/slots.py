"""The state of items on their way through the model: a slot for each. Pure.

payload -> Slot -> decoded item -> result, or the ItemError that takes its place
slots   -> excess: whether a request asks for too much
slots   -> attempt: a step on all of them, or on halves where it fails
slots   -> server_timing: the header of their request's answer
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from handlers.config import HandlerConfig
from handlers.engines import Outputs
from handlers.errors import ItemError, OutOfTime, WorkTooLarge
from handlers.pipeline.micro_batches import Cost


@dataclass(slots=True)
class Slot:
    """The place of one item on its way, and what became of it.

    Attributes:
        outcome: the payload, then the decoded item, then its result; or the ItemError that took their place.
        cost: what the item asks of a micro-batch; None before it is prepared, and where it failed by then.
        decoded_at: when decoding ended, in seconds of `time.perf_counter`.
        decode_s: how many seconds decoding took.
        wait_s: how many seconds passed between being decoded and the start of its micro-batch.
        forward_s: how many seconds its micro-batch took.
        batch_size: how many items its micro-batch had; 0 when there was none.
        tokens: how many tokens its item had, special ones included; 0 where it has no result.
        is_ended: whether the engine has ended the item, though its micro-batch may run on.
        outputs: the engine's outputs of an item that has ended so, (1, ...), until they are split.
    """

    outcome: Any
    cost: Cost | None = None
    decoded_at: float = 0.0
    decode_s: float = 0.0
    wait_s: float = 0.0
    forward_s: float = 0.0
    batch_size: int = 0
    tokens: int = 0
    is_ended: bool = False
    outputs: Outputs | None = field(default=None, repr=False)

    def queue_s(self, came_s: float) -> float:
        """Return the seconds that the item waited, for decoding and for the engine, since its request came."""
        return max(0.0, self.decoded_at + self.wait_s - self.decode_s - came_s)

    @property
    def is_failed(self) -> bool:
        """Whether an error took the place of the item or its result."""
        return isinstance(self.outcome, ItemError)


@dataclass(frozen=True, slots=True)
class FinishedMicroBatch:
    """A micro-batch that went through the model, until it is split.

    Attributes:
        slots: those of its items that did not end before it did, in order.
        outputs: the engine's, for these: arrays of shape (B, ...).
        seconds: how long `collate` and `forward` took.
        size: how many items it had, with those that ended before.
        collate_s: how long `collate` took.
    """

    slots: list[Slot]
    outputs: Outputs
    seconds: float
    size: int
    collate_s: float


def excess(slots: Sequence[Slot], config: HandlerConfig) -> ItemError | None:
    """Return the error of a request whose items are too much together; None where they may go on.

    Args:
        slots: those of one request; an item that found its allowance spent speaks for all.
        config: has the limits, `max_request_tokens` and `max_groups`.
    """
    for slot in slots:
        if isinstance(slot.outcome, ItemError) and slot.outcome.type == WorkTooLarge.__name__:
            return slot.outcome
    costs = [slot.cost for slot in slots if slot.cost is not None]
    tokens, limit = sum(cost.tokens for cost in costs), config.max_request_tokens
    groups = len({cost.group for cost in costs})
    if limit is not None and tokens > limit:
        message = f"The items of the request come to {tokens} tokens; max_request_tokens is {limit}."
    elif groups > config.max_groups:
        message = f"The items of the request have {groups} sets of options; max_groups is {config.max_groups}."
    else:
        return None
    return ItemError.of(WorkTooLarge(message))


def attempt(slots: list[Slot], step: Callable[[list[Slot]], None], give_up: Callable[[Slot, Exception], None]) -> None:
    """Run a step on slots together; where it fails, run it on halves of them, down to the slots that fail alone.

    Items that the engine had ended by then are left out. Where time is up, all others are given up at once.

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
