"""Which ready items share the next micro-batch. Pure: ranked items and limits in, items out.

ranked items -> those of the first rank -> by length -> the micro-batch of the most urgent one, as much of it as
             leaves that one in time -> riders of lower ranks, of about its length
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import inf

from handlers.batching.engine import Line
from handlers.batching.policy import Policy
from handlers.batching.request_queue import Rank
from handlers.pipeline.micro_batches import OVERHEAD, Overhead, micro_batches
from handlers.protocol.requests import Slot

# Share of the latency target that a micro-batch may take: a request that arrives just after one starts waits for it and
# then for its own.
LONGEST_SHARE = 0.5
# A stream's share of what is ready is done in so many micro-batches, so that the first need not wait for the last.
WAVES = 2
# But none is made shorter than so many times its fixed cost, or the engine would lose more than a tenth.
WORTHWHILE_COSTS = 10.0
# Riders may lengthen a micro-batch by this share of its predicted time, and each fills so much of its padded length.
RIDERS_SHARE, LEAST_FILLED = 0.5, 0.75
# So many of the most urgent items are planned at once; a plan is quadratic in their number.
PLANNED_ITEMS = 128


@dataclass(frozen=True, slots=True)
class Limits:
    """What a micro-batch may hold: items, padded tokens (one item may have more); and what one more of them costs."""

    max_items: int
    max_tokens: int
    overhead: Overhead = OVERHEAD

    @classmethod
    def of(cls, policy: Policy, line: Line) -> "Limits":
        """Return the limits by the configuration and by time, where micro-batches take what the line says."""
        overhead, allowed = policy.overhead, inf
        if line.token_s > 0:
            # The task's own figure is of another machine, or of this one when it had more to itself.
            overhead = replace(overhead, tokens=max(overhead.tokens, round(line.fixed_s / line.token_s)))
            allowed = (LONGEST_SHARE * policy.max_latency_s - line.fixed_s) / line.token_s
        configured = inf if policy.max_tokens is None else policy.max_tokens
        return cls(policy.max_items, int(max(1, min(allowed, configured, 2**31))), overhead)

    def shared(self, tokens: float, line: Line, busy_s: Sequence[float]) -> "Limits":
        """Leave the other streams their part of the ready tokens, and make a micro-batch one of several: see WAVES.

        `busy_s` is for how long each stream is still busy; 0 for the one that takes this micro-batch.
        """
        token_s = max(line.token_s, 1e-12)
        # This stream's part, so that all of them end together.
        share = min(tokens, (sum(busy_s) / token_s + tokens) / len(busy_s))
        share = min(share, max(share / WAVES, WORTHWHILE_COSTS * line.fixed_s / token_s))
        return replace(self, max_tokens=min(self.max_tokens, max(1, round(share))))


def select(ranked: Sequence[tuple[Rank, Slot]], limits: Limits, line: Line, now_s: float) -> Sequence[Slot]:
    """Choose the items of the micro-batch to run next from all ready items, at least one, by rank and then urgency."""
    first = ranked[0][0]
    urgent = [item for _, item in takewhile(lambda each: each[0] == first, ranked[:PLANNED_ITEMS])]
    plan = micro_batches([item.cost for item in urgent], limits.max_items, limits.max_tokens, limits.overhead)
    chosen = [urgent[index] for index in sorted(next(indices for indices in plan if 0 in indices))]
    chosen = _in_time(chosen, line, now_s)
    return _with_riders(chosen, (item for _, item in ranked[len(urgent) :]), limits, line)


def _in_time(items: list[Slot], line: Line, now_s: float) -> list[Slot]:
    """Return as many of the items as leave the first one in time; all of them where it is late even alone."""
    due_s = items[0].request.deadline_s
    for count in range(len(items), 0, -1):
        if now_s + line.at(padded_tokens(items[:count])) <= due_s:
            return items[:count]
    return items


def _with_riders(chosen: Sequence[Slot], others: Iterable[Slot], limits: Limits, line: Line) -> Sequence[Slot]:
    """Add items of lower ranks that need little padding and little time."""
    items = list(chosen)
    longest, group = max(item.cost.length for item in items), items[0].cost.group
    tokens = padded_tokens(items)
    ridden = inf if line.token_s == 0 else tokens + RIDERS_SHARE * line.at(tokens) / line.token_s
    most = min(limits.max_items, int(min(limits.max_tokens, ridden)) // longest)
    for item in others:
        if len(items) >= most:
            break
        if item.cost.group == group and LEAST_FILLED * longest <= item.cost.length <= longest:
            items.append(item)
    return items


def padded_tokens(items: Sequence[Slot]) -> int:
    """Count the padded tokens of a micro-batch of these items."""
    return len(items) * max(item.cost.length for item in items)
