"""Decide which items go through the model together. Pure: costs in, indices out.

costs, one per item -> by group -> by length -> micro-batches under max_items and max_tokens, with least padding
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from handlers.engines.ladder import round_up
from handlers.protocol.requests import Cost

__all__ = ["OVERHEAD", "Cost", "Overhead", "plan_micro_batches"]

# The most tokens of an overhead: more than any plan has.
MOST_OVERHEAD = 2**31


@dataclass(frozen=True, slots=True)
class Overhead:
    """The cost of one more micro-batch: a split pays only if it saves more padding than this.

    Attributes:
        tokens: the cost in padded tokens. Measured with MiniLM on OpenVINO behind TorchServe on two cores, with 16 and
            64 clients: 32 gives 248 and 330 texts/s, 100 gives 285 and 356, 250 gives 290 and 369. (A loop that keeps
            the weights in the cache pays 1 ms, or 32 tokens; a server does not.)
        items: the cost in items, each as long as the longest. A model that runs once for every position (generation)
            takes about as long for an almost empty run as for this many items.
        sizes: the engine pads a micro-batch to one of these numbers of items, if it has no more than the largest.
    """

    tokens: int = 250
    items: int = 0
    sizes: tuple[int, ...] = ()

    def padded(self, items: int) -> int:
        return round_up(items, self.sizes) if self.sizes else items

    def measured(self, fixed_s: float, token_s: float) -> "Overhead":
        """Return the overhead for micro-batches of fixed_s + token_s * tokens seconds, if it is more than this one.

        A GPU that waits for its kernels to be started takes as long for one token as for thousands.
        """
        tokens = fixed_s / token_s if token_s * MOST_OVERHEAD > fixed_s else MOST_OVERHEAD * (fixed_s > 0)
        return replace(self, tokens=max(self.tokens, round(tokens)))


# The overhead of a model that runs once for a micro-batch.
OVERHEAD = Overhead()


def plan_micro_batches(
    costs: Sequence[Cost], max_items: int, max_tokens: int | None = None, overhead: Overhead = OVERHEAD
) -> list[list[int]]:
    """Partition items into micro-batches: lists of indices into `costs`, which contain each index exactly once.

    Padded tokens are the items times the longest; an item with more than `max_tokens` gets a separate micro-batch.
    Within a group shorter items come first, and equal ones in their order of arrival.
    """
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
    """Cut ascending lengths so that all micro-batches together cost least, and return the end of each.

    A micro-batch costs its overhead plus its padded tokens, its padded number of items times the last length. The
    cheapest way to end at each position follows from the cheapest ways to end before it (dynamic programming over at
    most `max_items` predecessors).
    """
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
