"""Which waiting items share the next forward pass. Pure: entries, limits and a latency model in, a pass out.

    ranked entries -> those of the first level -> by length | by deadline | hurried -> fewest missed deadlines
                   -> riders of lower levels, where they cost next to nothing

Three orders are weighed. By length: micro-batches with least padding (micro_batches), the one with the most urgent item
first. By deadline: the most urgent items together, whatever their lengths. Hurried: likewise, but the first pass is
small enough for its most urgent item to be in time. The one that misses fewest deadlines wins, and of equals the first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from itertools import takewhile
from math import inf
from typing import Generic, TypeVar

from handlers.pipeline.micro_batches import OVERHEAD, Cost, Overhead, micro_batches
from handlers.scheduling.latency_model import LatencyModel, Line

Key = TypeVar("Key")

# A lane's share of what is ready is done in so many passes, for who is first need not wait for who is last; but none is
# shorter than so many times its fixed cost, or the engine would lose more than a tenth.
WAVES, WORTHWHILE_COSTS = 2, 10.0
# Riders may lengthen a pass by so much of its predicted time.
RIDERS_SHARE = 0.25
# Entries that are planned at once, the most urgent ones: a plan is quadratic, and a pass holds fewer.
PLANNED_ENTRIES = 128


@dataclass(slots=True, eq=False)
class Ticket:
    """One accepted request.

    Attributes:
        number: of its arrival; ties are broken by it.
        arrived_s, deadline_s, expires_s: when it came, when its answer is due, when it stops waiting.
        priority: 1 is first.
        items, tokens: how many, and how long all together; estimated until it is decoded.
        predicted_s: of the answer, from arrival on.
        waiting: items that have not started.
        finished_s: when its last pass so far ended; None before the first.
    """

    number: int
    arrived_s: float
    deadline_s: float
    expires_s: float
    priority: int
    items: int
    tokens: float
    predicted_s: float
    waiting: int
    finished_s: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Entry(Generic[Key]):
    """One decoded item in the queue; `key` is what the caller knows it by."""

    key: Key
    ticket: Ticket
    cost: Cost

    @property
    def urgency(self) -> tuple[float, int]:
        """Earliest deadline first, then first come."""
        return self.ticket.deadline_s, self.ticket.number


@dataclass(frozen=True, slots=True)
class Pass(Generic[Key]):
    """What goes through the model together.

    Attributes:
        entries: its items.
        tokens: padded.
        predicted_s: how long it will most likely take.
    """

    entries: tuple[Entry[Key], ...]
    tokens: int
    predicted_s: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What a pass may hold.

    Attributes:
        max_items: most items.
        max_tokens: most padded tokens; a single item may have more.
        overhead: what one more pass costs, for the plan.
    """

    max_items: int
    max_tokens: int
    overhead: Overhead = OVERHEAD

    def shared(self, tokens: float, line: Line, busy_s: Sequence[float]) -> "Limits":
        """Of a pass that leaves the other lanes theirs, and is one of several: see `WAVES`.

        Args:
            tokens: that are ready, padding not counted.
            line: how long passes take.
            busy_s: how long each lane is busy yet; 0 for the one that takes this pass.
        """
        token_s = max(line.token_s, 1e-12)
        # Of this lane, so that all of them end together.
        share = min(tokens, (sum(busy_s) / token_s + tokens) / len(busy_s))
        share = min(share, max(share / WAVES, WORTHWHILE_COSTS * line.fixed_s / token_s))
        return replace(self, max_tokens=min(self.max_tokens, max(1, round(share))))

    def fitting(
        self, taken: Sequence[Entry[Key]], candidates: Iterable[Entry[Key]], max_tokens: float = inf
    ) -> list[Entry[Key]]:
        """`taken`, and of the candidates, in their order, as many as fit; `max_tokens` may be stricter."""
        entries = list(taken)
        limit = min(max_tokens, self.max_tokens)
        longest = max(entry.cost.length for entry in entries)
        for entry in candidates:
            longest = max(longest, entry.cost.length)
            if len(entries) >= self.max_items or (len(entries) + 1) * longest > limit:
                break
            entries.append(entry)
        return entries


@dataclass(frozen=True, slots=True)
class Rank:
    """Where an entry stands in the queue.

    Attributes:
        level: less is sooner.
        is_late: whether its deadline has passed already.
    """

    level: float
    is_late: bool


def choose(
    ranked: Sequence[tuple[Rank, Entry[Key]]],
    limits: Limits,
    model: LatencyModel,
    now_s: float,
    busy_s: Sequence[float] = (0.0,),
) -> Pass[Key]:
    """The pass to run next.

    Args:
        ranked: the whole queue, at least one entry, by rank and then by urgency.
        limits: of a pass.
        model: predicts how long passes take.
        now_s: the time.
        busy_s: how long each lane will not take a pass; at least one.
    """
    first = ranked[0][0]
    urgent = [entry for _, entry in takewhile(lambda each: each[0] == first, ranked[:PLANNED_ENTRIES])]
    if len(urgent) == 1:
        passes = [_pass(urgent, model)]
    else:
        by_deadline = _by_deadline(urgent, limits, model)
        orders = (_by_length(urgent, limits, model), by_deadline, _hurried(by_deadline, model, now_s))
        # min() keeps the first of equals.
        passes = min(orders, key=lambda order: misses(order, model, now_s, busy_s))
    return _with_riders(passes[0], [entry for _, entry in ranked[len(urgent) :]], limits, model)


def misses(passes: Sequence[Pass[Key]], model: LatencyModel, now_s: float, busy_s: Sequence[float] = (0.0,)) -> int:
    """How many deadlines an order is likely to miss, each pass going to the lane that is free first."""
    missed = 0
    free_s = [now_s + busy for busy in busy_s]
    heapify(free_s)
    for each in passes:
        ended_s = free_s[0] + model.cautious_s(each.tokens)
        heapreplace(free_s, ended_s)
        missed += sum(entry.ticket.deadline_s < ended_s for entry in each.entries)
    return missed


def _by_length(entries: Sequence[Entry[Key]], limits: Limits, model: LatencyModel) -> list[Pass[Key]]:
    costs = [entry.cost for entry in entries]
    indices = micro_batches(costs, limits.max_items, limits.max_tokens, limits.overhead)
    passes = [_pass([entries[i] for i in micro_batch], model) for micro_batch in indices]
    return sorted(passes, key=lambda each: min(entry.urgency for entry in each.entries))


def _by_deadline(entries: Sequence[Entry[Key]], limits: Limits, model: LatencyModel) -> list[Pass[Key]]:
    passes = []
    remaining = list(entries)
    while remaining:
        first, *others = remaining
        # Whatever its group is equal to: not a number is not even equal to itself.
        taken = limits.fitting([first], [entry for entry in others if entry.cost.group == first.cost.group])
        passes.append(_pass(taken, model))
        gone = set(taken)
        remaining = [entry for entry in remaining if entry not in gone]
    return passes


def _hurried(passes: list[Pass[Key]], model: LatencyModel, now_s: float) -> list[Pass[Key]]:
    entries = passes[0].entries
    due_s = entries[0].ticket.deadline_s
    kept = len(entries)
    while kept > 1 and now_s + model.cautious_s(padded_tokens(entries[:kept])) > due_s:
        kept -= 1
    if kept == len(entries):
        return passes
    return [_pass(entries[:kept], model), _pass(entries[kept:], model), *passes[1:]]


def _with_riders(chosen: Pass[Key], others: Sequence[Entry[Key]], limits: Limits, model: LatencyModel) -> Pass[Key]:
    """The pass with items of lower ranks that need no more padding and hardly any time."""
    longest = max(entry.cost.length for entry in chosen.entries)
    group = chosen.entries[0].cost.group
    candidates = [entry for entry in others if entry.cost.group == group and entry.cost.length <= longest]
    if not candidates:
        return chosen
    token_s = model.line.token_s
    allowed = inf if token_s == 0 else chosen.tokens + RIDERS_SHARE * chosen.predicted_s / token_s
    return _pass(limits.fitting(chosen.entries, candidates, allowed), model)


def _pass(entries: Sequence[Entry[Key]], model: LatencyModel) -> Pass[Key]:
    tokens = padded_tokens(entries)
    return Pass(tuple(entries), tokens, model.predict_s(tokens))


def padded_tokens(entries: Sequence[Entry[Key]]) -> int:
    """What a pass of these holds."""
    return len(entries) * max(entry.cost.length for entry in entries)
