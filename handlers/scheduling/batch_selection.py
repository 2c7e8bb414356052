"""Which ready items share the next micro-batch. Pure: items, limits and a latency model in, a micro-batch out.

    ranked items -> those of the first rank -> by length | by deadline | hurried -> fewest missed deadlines
                 -> riders of lower ranks, where they cost next to nothing

Three orders are weighed. By length: micro-batches with least padding (pipeline.micro_batches), the one with the most
urgent item first. By deadline: the most urgent items together, whatever their lengths. Hurried: likewise, but the first
micro-batch is small enough for its most urgent item to be in time. The one that misses fewest deadlines wins, and of
equals the first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from itertools import takewhile
from math import inf

from handlers.pipeline.micro_batches import OVERHEAD, Overhead, micro_batches
from handlers.scheduling.latency_model import LatencyModel, Line
from handlers.scheduling.request_queue import QueuedItem, Rank


@dataclass(frozen=True, slots=True)
class Tuning:
    """What the selection is tuned by.

    Attributes:
        waves: a stream's share of what is ready is done in so many micro-batches, for who is first need not wait for
            who is last.
        worthwhile_costs: no micro-batch is made shorter than so many times its fixed cost, or the engine would lose
            more than a tenth.
        riders_share: riders may lengthen a micro-batch by this share of its predicted time.
        planned_items: so many of the most urgent items are planned at once; a plan is quadratic in their number, and a
            micro-batch holds fewer.
    """

    waves: int = 2
    worthwhile_costs: float = 10.0
    riders_share: float = 0.25
    planned_items: int = 128


TUNING = Tuning()


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What goes through the model together.

    Attributes:
        items: its items; none where it only prepares the engine.
        tokens: how many they are together, padded.
        predicted_s: how long it will most likely take.
    """

    items: tuple[QueuedItem, ...]
    tokens: int
    predicted_s: float

    @classmethod
    def of(cls, items: Sequence[QueuedItem], model: LatencyModel) -> "MicroBatch":
        """Put items together; the model predicts what they take."""
        tokens = padded_tokens(items)
        return cls(tuple(items), tokens, model.predict_s(tokens))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a micro-batch may hold.

    Attributes:
        max_items: most items.
        max_tokens: most padded tokens; a single item may have more.
        overhead: what one more micro-batch costs, for the plan.
    """

    max_items: int
    max_tokens: int
    overhead: Overhead = OVERHEAD

    def shared(self, tokens: float, line: Line, busy_s: Sequence[float]) -> "Limits":
        """Leave the other streams their part of the work, and make a micro-batch one of several: see `Tuning.waves`.

        Args:
            tokens: that are ready, without padding.
            line: how long micro-batches take.
            busy_s: for how long each stream is still busy; 0 for the one that takes this micro-batch.
        """
        token_s = max(line.token_s, 1e-12)
        # This stream's part, so that all of them end together.
        share = min(tokens, (sum(busy_s) / token_s + tokens) / len(busy_s))
        share = min(share, max(share / TUNING.waves, TUNING.worthwhile_costs * line.fixed_s / token_s))
        return replace(self, max_tokens=min(self.max_tokens, max(1, round(share))))

    def fitting(
        self, taken: Sequence[QueuedItem], candidates: Iterable[QueuedItem], max_tokens: float = inf
    ) -> list[QueuedItem]:
        """List `taken` and as many of the candidates, in their order, as fit; `max_tokens` may be stricter."""
        items = list(taken)
        limit = min(max_tokens, self.max_tokens)
        longest = max(item.cost.length for item in items)
        for item in candidates:
            longest = max(longest, item.cost.length)
            if len(items) >= self.max_items or (len(items) + 1) * longest > limit:
                break
            items.append(item)
        return items

    def are_reached_by(self, micro_batch: MicroBatch) -> bool:
        """Whether a micro-batch can take no more."""
        return len(micro_batch.items) >= self.max_items or micro_batch.tokens >= self.max_tokens


def select(
    ranked: Sequence[tuple[Rank, QueuedItem]],
    limits: Limits,
    model: LatencyModel,
    now_s: float,
    busy_s: Sequence[float] = (0.0,),
) -> MicroBatch:
    """Choose the micro-batch to run next.

    Args:
        ranked: the whole queue, at least one item, by rank and then by urgency.
        limits: what a micro-batch may hold.
        model: predicts how long micro-batches take.
        now_s: the time.
        busy_s: for how long each stream will not take a micro-batch; at least one.
    """
    first = ranked[0][0]
    urgent = [item for _, item in takewhile(lambda each: each[0] == first, ranked[: TUNING.planned_items])]
    if len(urgent) == 1:
        order = [MicroBatch.of(urgent, model)]
    else:
        by_deadline = _by_deadline(urgent, limits, model)
        orders = (_by_length(urgent, limits, model), by_deadline, _hurried(by_deadline, model, now_s))
        # min() keeps the first of equals.
        order = min(orders, key=lambda each: misses(each, model, now_s, busy_s))
    return _with_riders(order[0], [item for _, item in ranked[len(urgent) :]], limits, model)


def misses(order: Sequence[MicroBatch], model: LatencyModel, now_s: float, busy_s: Sequence[float] = (0.0,)) -> int:
    """Count the deadlines that an order is likely to miss, each micro-batch going to the stream that is free first."""
    missed = 0
    free_s = [now_s + busy for busy in busy_s]
    heapify(free_s)
    for each in order:
        ended_s = free_s[0] + model.cautious_s(each.tokens)
        heapreplace(free_s, ended_s)
        missed += sum(item.request.deadline_s < ended_s for item in each.items)
    return missed


def _by_length(items: Sequence[QueuedItem], limits: Limits, model: LatencyModel) -> list[MicroBatch]:
    costs = [item.cost for item in items]
    plan = micro_batches(costs, limits.max_items, limits.max_tokens, limits.overhead)
    order = [MicroBatch.of([items[index] for index in indices], model) for indices in plan]
    return sorted(order, key=lambda each: min(item.request.urgency for item in each.items))


def _by_deadline(items: Sequence[QueuedItem], limits: Limits, model: LatencyModel) -> list[MicroBatch]:
    order = []
    remaining = list(items)
    while remaining:
        first, *others = remaining
        # An item may share whatever its group is equal to: not a number is not even equal to itself.
        taken = limits.fitting([first], [item for item in others if item.cost.group == first.cost.group])
        order.append(MicroBatch.of(taken, model))
        gone = set(taken)
        remaining = [item for item in remaining if item not in gone]
    return order


def _hurried(order: list[MicroBatch], model: LatencyModel, now_s: float) -> list[MicroBatch]:
    items = order[0].items
    due_s = items[0].request.deadline_s
    kept = len(items)
    while kept > 1 and now_s + model.cautious_s(padded_tokens(items[:kept])) > due_s:
        kept -= 1
    if kept == len(items):
        return order
    return [MicroBatch.of(items[:kept], model), MicroBatch.of(items[kept:], model), *order[1:]]


def _with_riders(chosen: MicroBatch, others: Sequence[QueuedItem], limits: Limits, model: LatencyModel) -> MicroBatch:
    """Add items of lower ranks that need no more padding and hardly any time."""
    longest = max(item.cost.length for item in chosen.items)
    group = chosen.items[0].cost.group
    candidates = [item for item in others if item.cost.group == group and item.cost.length <= longest]
    if not candidates:
        return chosen
    token_s = model.line.token_s
    allowed = inf if token_s == 0 else chosen.tokens + TUNING.riders_share * chosen.predicted_s / token_s
    return MicroBatch.of(limits.fitting(chosen.items, candidates, allowed), model)


def padded_tokens(items: Sequence[QueuedItem]) -> int:
    """Count the padded tokens of a micro-batch of these items."""
    return len(items) * max(item.cost.length for item in items)
