"""Which items go through the model together. Pure: costs in, indices out.

costs, one per item -> by group -> by length -> micro-batches under max_items and max_tokens
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """What one item asks of a micro-batch.

    Attributes:
        length: size along the padded axis, in tokens; 1 where nothing is padded.
        group: items batch together only when their groups are equal (options of the forward pass).
    """

    length: int = 1
    group: Hashable = None


def micro_batches(costs: Sequence[Cost], max_items: int, max_tokens: int | None = None) -> list[list[int]]:
    """Partition items into micro-batches.

    Args:
        costs: one per item.
        max_items: most items of a micro-batch, at least 1.
        max_tokens: most padded tokens of a micro-batch, items times the longest; None for no limit. An item that is
            longer on its own still gets a micro-batch of its own.

    Returns:
        Lists of indices into `costs`, each index exactly once. Within a group shorter items come first, equal ones
        in their order of arrival.
    """
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, cost in enumerate(costs):
        groups[cost.group].append(index)

    batches: list[list[int]] = []
    for indices in groups.values():
        batch: list[int] = []
        for index in sorted(indices, key=lambda i: costs[i].length):
            # Sorted ascending: the newcomer is the longest, so it alone decides the padding.
            padded_tokens = (len(batch) + 1) * costs[index].length
            if batch and (len(batch) == max_items or (max_tokens is not None and padded_tokens > max_tokens)):
                batches.append(batch)
                batch = []
            batch.append(index)
        batches.append(batch)
    return batches
