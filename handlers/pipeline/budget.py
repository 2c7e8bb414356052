"""What one request may ask of the engine, whatever its items are. Pure.

costs of a request's items -> tokens, sets of options -> None, or the error that is the answer to all of them
"""

from collections.abc import Iterable, Sequence
from typing import Any

from handlers.config import HandlerConfig
from handlers.errors import ItemError, WorkTooLarge
from handlers.pipeline.micro_batches import Cost


def excess(outcomes: Iterable[Any], costs: Sequence[Cost], config: HandlerConfig) -> ItemError | None:
    """Tell whether the items of a request are too much together.

    Args:
        outcomes: what became of each so far; one that found the request's allowance spent says so for all.
        costs: of those that are good.
        config: has the limits, `max_request_tokens` and `max_groups`.

    Returns:
        The error that every item is answered with; None where they may go on.
    """
    for outcome in outcomes:
        if isinstance(outcome, ItemError) and outcome.type == WorkTooLarge.__name__:
            return outcome
    tokens, limit = sum(cost.tokens for cost in costs), config.max_request_tokens
    if limit is not None and tokens > limit:
        return _error(f"The items of the request come to {tokens} tokens; max_request_tokens is {limit}.")
    groups = len({cost.group for cost in costs})
    if groups > config.max_groups:
        return _error(f"The items of the request have {groups} sets of options; max_groups is {config.max_groups}.")
    return None


def _error(message: str) -> ItemError:
    return ItemError.of(WorkTooLarge(message))
