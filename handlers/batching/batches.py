"""Which ready items share the next micro-batch. Pure: ranked items and limits in, items out.

ranked items -> items of the first rank -> by length -> the micro-batch of the most urgent item, cut until it meets
             that item's deadline -> plus riders: items of lower ranks with about its length
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import inf

from handlers.batching.engine import Line
from handlers.batching.pending import Entry
from handlers.batching.policy import Policy
from handlers.batching.request_queue import Rank
from handlers.pipeline.micro_batches import OVERHEAD, Overhead, plan_micro_batches

# Longest micro-batch as a share of the latency target: a request that just misses one waits for two.
LONGEST_SHARE = 0.5
# Micro-batches into which a stream divides its share of the ready items, so that the first need not wait for the last.
WAVES = 2
# Least duration of such a part, in fixed costs of a micro-batch: shorter ones would cost over a tenth of throughput.
WORTHWHILE_COSTS = 10.0
RIDERS_SHARE = 0.5  # most that riders may add to a micro-batch, as a share of its predicted time
LEAST_FILLED = 0.75  # least length of a rider, as a share of its padded length
# Why a micro-batch has no more items: one item was ready; no other was; the most items; the deadline of its first item;
# the most tokens, or the others have other lengths or options.
ALONE, IDLE, FULL, DEADLINE, TOKENS = "alone", "idle", "full", "deadline", "tokens"
PLANNED_ITEMS = 128  # most urgent items that one plan considers; its duration is quadratic in their number


@dataclass(frozen=True, slots=True)
class BatchLimits:
    max_items: int
    max_tokens: int  # padded; a single item may have more
    overhead: Overhead = OVERHEAD

    @classmethod
    def of(cls, policy: Policy, line: Line) -> "BatchLimits":
        """Return the limits by the settings and by time, if micro-batches take the times of `line`."""
        # The task's own number was measured on another machine, or on this one with less load.
        overhead, allowed = policy.overhead.measured(line.fixed_s, line.token_s), inf
        if line.token_s > 0:
            allowed = (LONGEST_SHARE * policy.max_latency_s - line.fixed_s) / line.token_s
        configured = inf if policy.max_tokens is None else policy.max_tokens
        return cls(policy.max_items, int(max(1, min(allowed, configured, 2**31))), overhead)

    def share_out(self, tokens: float, line: Line, busy_s: Sequence[float]) -> "BatchLimits":
        """Leave other streams, busy for `busy_s`, their part of the ready tokens; divide this stream's into WAVES."""
        token_s = max(line.token_s, 1e-12)
        share = min(tokens, (sum(busy_s) / token_s + tokens) / len(busy_s))  # with this part, all streams end together
        share = min(share, max(share / WAVES, WORTHWHILE_COSTS * line.fixed_s / token_s))
        return replace(self, max_tokens=min(self.max_tokens, max(1, round(share))))


def select_items(
    ranked: Sequence[tuple[Rank, Entry]], limits: BatchLimits, line: Line, now_s: float
) -> Sequence[Entry]:
    """Choose the items of the next micro-batch from all ready items, at least one."""
    first = ranked[0][0]
    urgent = [item for _, item in takewhile(lambda each: each[0] == first, ranked[:PLANNED_ITEMS])]
    plan = plan_micro_batches([item.cost for item in urgent], limits.max_items, limits.max_tokens, limits.overhead)
    chosen = [urgent[index] for index in sorted(next(indices for indices in plan if 0 in indices))]
    chosen = _cut_to_deadline(chosen, line, now_s, limits.overhead)
    return _add_riders(chosen, (item for _, item in ranked[len(urgent) :]), limits, line)


def limit_of(items: Sequence[Entry], ready: int, limits: BatchLimits, line: Line, now_s: float) -> str:
    """Return why a micro-batch has no more of the ready items: a label of `handler_micro_batches_total`."""
    if len(items) == ready:
        return IDLE
    if len(items) >= limits.max_items:
        return FULL
    longest = max(item.cost.length for item in items)
    alone_s, longer_s = (line.predict_s(limits.overhead.padded(count) * longest) for count in (1, len(items) + 1))
    is_cut = now_s + alone_s <= items[0].request.deadline_s < now_s + longer_s
    return DEADLINE if is_cut else TOKENS


def _cut_to_deadline(items: list[Entry], line: Line, now_s: float, overhead: Overhead) -> list[Entry]:
    """Return the most items with which the first one is in time; all of them if it is late in any case."""
    due_s = items[0].request.deadline_s
    for count in range(len(items), 0, -1):
        if now_s + line.predict_s(count_padded_tokens(items[:count], overhead)) <= due_s:
            return items[:count]
    return items


def _add_riders(chosen: Sequence[Entry], others: Iterable[Entry], limits: BatchLimits, line: Line) -> Sequence[Entry]:
    """Add items of lower ranks that need little padding and little time."""
    items = list(chosen)
    longest, group = max(item.cost.length for item in items), items[0].cost.group
    tokens = count_padded_tokens(items, limits.overhead)
    most_tokens = inf if line.token_s == 0 else tokens + RIDERS_SHARE * line.predict_s(tokens) / line.token_s
    most = min(limits.max_items, int(min(limits.max_tokens, most_tokens)) // longest)
    for item in others:
        if len(items) >= most:
            break
        if item.cost.group == group and LEAST_FILLED * longest <= item.cost.length <= longest:
            items.append(item)
    return items


def count_padded_tokens(items: Sequence[Entry], overhead: Overhead) -> int:
    """Count the padded tokens of a micro-batch of these items."""
    return overhead.padded(len(items)) * max(item.cost.length for item in items)
