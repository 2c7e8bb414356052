"""Whether the items of a request are too much together. Pure."""

from collections.abc import Sequence

from handlers.config import HandlerConfig
from handlers.errors import ItemError, WorkTooLarge
from handlers.protocol.requests import Slot


def find_excess(slots: Sequence[Slot], config: HandlerConfig) -> ItemError | None:
    """Return the error of a request whose items are too much together, or None."""
    # If one item exceeds the request's allowance, all items get its error.
    for slot in slots:
        if isinstance(slot.outcome, ItemError) and slot.outcome.type == WorkTooLarge.__name__:
            return slot.outcome
    costs = [slot.cost for slot in slots if not slot.is_failed]
    tokens, limit = sum(cost.tokens for cost in costs), config.max_request_tokens
    groups = len({cost.group for cost in costs})
    if limit is not None and tokens > limit:
        message = f"The items of the request come to {tokens} tokens; max_request_tokens is {limit}."
    elif groups > config.max_groups:
        message = f"The items of the request have {groups} sets of options; max_groups is {config.max_groups}."
    else:
        return None
    return ItemError.of(WorkTooLarge(message))
