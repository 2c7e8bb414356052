"""Decide which items go through the model together. Pure: costs in, indices out.

costs, one per item -> by group -> by length -> micro-batches under max_items and max_tokens, with least padding
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from handlers.engines import round_up
from handlers.protocol.requests import Cost

__all__ = ["OVERHEAD", "Cost", "Overhead", "plan_micro_batches"]

MOST_OVERHEAD = 2**31  # the most tokens of an overhead: more than any plan has


@dataclass(frozen=True, slots=True)
class Overhead:
    """The cost of one more micro-batch: a split pays only if it saves more padding than this."""

    # In padded tokens. Measured with MiniLM on OpenVINO behind TorchServe on two cores, 16 and 64 clients: 32 gives
    # 248 and 330 texts/s, 100 gives 285 and 356, 250 gives 290 and 369.
    tokens: int = 250
    # In items, each as long as the longest: generation runs about as long for an almost empty micro-batch.
    items: int = 0
    # The engine pads a micro-batch to one of these numbers of items, if it has no more than the largest.
    sizes: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()  # and one of texts to one of these lengths, if it is no longer

    def padded(self, items: int) -> int:
        return round_up(items, self.sizes) if self.sizes else items

    def measured(self, fixed_s: float, token_s: float) -> "Overhead":
        """Return it for runs of fixed_s + token_s * tokens seconds, if more: a GPU takes as long for one token."""
        tokens = fixed_s / token_s if token_s * MOST_OVERHEAD > fixed_s else MOST_OVERHEAD * (fixed_s > 0)
        return replace(self, tokens=max(self.tokens, round(tokens)))


OVERHEAD = Overhead()  # the overhead of a model that runs once for a micro-batch


def plan_micro_batches(
    costs: Sequence[Cost], max_items: int, max_tokens: int | None = None, overhead: Overhead = OVERHEAD
) -> list[list[int]]:
    """Partition the indices of `costs` by length; an item of over `max_tokens` has its own micro-batch."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, cost in enumerate(costs):
        groups[cost.group].append(index)

    batches: list[list[int]] = []
    for indices in groups.values():
        indices.sort(key=lambda index: costs[index].length)
        lengths = [costs[index].length for index in indices]
        start = 0
        for end in _find_cuts(lengths, max_items, max_tokens, overhead):
            batches.append(indices[start:end])
            start = end
    return batches


def _find_cuts(lengths: Sequence[int], max_items: int, max_tokens: int | None, overhead: Overhead) -> list[int]:
    """Return the ends that divide ascending lengths at the least cost, by dynamic programming over `max_items`."""
    if lengths[0] == lengths[-1]:
        # There is no padding to save: each micro-batch has as many items as fit.
        size = max_items if max_tokens is None else max(1, min(max_items, max_tokens // lengths[0]))
        return [*range(size, len(lengths), size), len(lengths)]
    best: list[float] = [0.0]
    previous = [0]
    padded = [overhead.padded(items) for items in range(min(max_items, len(lengths)) + 1)]
    for end in range(1, len(lengths) + 1):
        longest = lengths[end - 1]
        fixed, cheapest, cut = overhead.tokens + overhead.items * longest, float("inf"), end - 1
        for start in range(end - 1, max(-1, end - 1 - max_items), -1):
            if max_tokens is not None and (end - start) * longest > max_tokens and end - start > 1:
                break
            total = best[start] + fixed + padded[end - start] * longest
            if total < cheapest:
                cheapest, cut = total, start
        best.append(cheapest)
        previous.append(cut)
    cuts = []
    end = len(lengths)
    while end > 0:
        cuts.append(end)
        end = previous[end]
    return cuts[::-1]
