"""Find the items at fault after a step failed, or the request whose items are too much, and replace them by errors.

step on some items raises -> the step again on each half -> ... -> a single item that fails -> its ItemError
"""

import logging
from collections.abc import Callable, Sequence

from handlers.config import HandlerConfig
from handlers.errors import (
    INTERNAL_ERROR,
    OUT_OF_MEMORY,
    OUT_OF_TIME,
    InvalidInput,
    ItemError,
    OutOfMemory,
    OutOfTime,
    WorkTooLarge,
    WrongOutput,
    where,
)
from handlers.pipeline.jobs import AnySlot, Slot, fold

logger = logging.getLogger(__name__)


def isolate(slots: Sequence[AnySlot], step: Callable[[Sequence[AnySlot]], object], error: Exception) -> None:
    """Repeat a step that failed on halves of its slots, down to equal ones; if time is up, all fail at once."""
    left = [slot for slot in slots if not slot.is_over]
    if isinstance(error, OutOfTime) or len(fold(slots)) == 1:
        for slot in left:  # if time is up, halves would take longer still
            fail(slot, error)
    else:
        groups = fold(left)
        middle = len(groups) // 2
        for part in (groups[:middle], groups[middle:]):
            half = [slot for group in part for slot in group]
            try:
                if half:
                    step(half)
            except Exception as again:
                isolate(half, step, again)


def fail(slot: Slot, error: Exception) -> None:
    """Replace an item by the ItemError of the exception that it has caused."""
    if isinstance(error, OutOfMemory | MemoryError):
        slot.fail(OUT_OF_MEMORY)
    elif isinstance(error, OutOfTime):
        slot.fail(OUT_OF_TIME)
    elif isinstance(error, InvalidInput):
        slot.fail(ItemError.of(error))  # only the engine can find out that it cannot compute with the item
    elif isinstance(error, WrongOutput):
        logger.error("An item failed: %s", error)  # its message contains names, datatypes and shapes, never a payload
        slot.fail(ItemError(WrongOutput.code, WrongOutput.__name__, str(error)))
    else:
        logger.error("An item failed: %s", where(error))
        slot.fail(INTERNAL_ERROR)


def find_excess(slots: Sequence[Slot], config: HandlerConfig) -> ItemError | None:
    """Return the error of a request whose items are too much together, or None."""
    for slot in slots:  # if one item exceeds the request's allowance, all items get its error
        if slot.error is not None and slot.error.type == WorkTooLarge.__name__:
            return slot.error
    costs = [slot.cost for slot in slots if slot.error is None]
    tokens, limit = sum(cost.tokens for cost in costs), config.max_request_tokens
    groups = len({cost.group for cost in costs})
    if limit is not None and tokens > limit:
        message = f"The items of the request come to {tokens} tokens; max_request_tokens is {limit}."
    elif groups > config.max_groups:
        message = f"The items of the request have {groups} sets of options; max_groups is {config.max_groups}."
    else:
        return None
    return ItemError.of(WorkTooLarge(message))
