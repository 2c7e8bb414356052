"""Which waiting items run next, when, and which requests are rejected. Pure: the caller passes the time.

    admit -> rejected (503), or decoding -> failed, or queued -> expired (504), or behind all others, or running -> done

A request is admitted if its response can be expected in time:

    work before it and its own (seconds of the engine) + allowance -> after its deadline? rejected : admitted

The allowance covers errors of the prediction: sending the response, later requests that go first, and micro-batches
that take longer than usual. Every late response adds to it, every other response subtracts a little. Each priority has
its own: low priorities are late because others overtake them, and that must not reject the first.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import ceil, inf

from handlers.batching.batches import ALONE, BatchLimits, count_padded_tokens, limit_of, select_items
from handlers.batching.engine import RunningBatch, Streams, finish_s
from handlers.batching.pending import Entry, Pending
from handlers.batching.policy import Policy
from handlers.batching.request_queue import RequestQueue, Work

LATE_ADDS = 0.03  # change of an allowance by a late response, as a share of the target
IN_TIME_SUBTRACTS = 0.0001  # change by any other response: under overload, few responses are late in the long run
MOST_ALLOWANCE = 0.5  # largest allowance, as a share of the target, so that no history rejects every request
# Longest turn of a rejected client, in latency targets: 10 s at the examples' target. Then turns start again from the
# time that the queue needs, since rejected clients may not come again.
MOST_TURN = 20.0
HURRIED_TRY = 16  # of the requests that an idle worker would reject for a short timeout, one in this many is tried


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a request is not admitted: QueueFull or Overloaded, a sentence for its client, and when to retry."""

    reason: str
    message: str
    retry_after_s: float


@dataclass(slots=True)
class Scheduler:
    policy: Policy
    streams: Streams
    is_caching: bool = False  # whether keys are needed when items have run
    queue: RequestQueue = field(init=False)
    _numbers: Iterator[int] = field(default_factory=count)
    # By priority, as a share of the target.
    _allowances: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    _hurried: int = 0
    _check: Pending | None = None  # the latest sample that was admitted beside the limits
    # When the latest rejected client should retry: turns are as far apart as the engine needs for each request.
    _turn_s: float = 0.0

    def __post_init__(self) -> None:
        self.queue = RequestQueue(self.policy)

    @property
    def ready_s(self) -> float:
        """Seconds that an idle engine needs for the ready items."""
        return self._finish_s(self.queue.ready_work, inf) if self.queue.ready else 0.0

    def is_stuck(self, now_s: float, longest_s: float) -> bool:
        return any(now_s - running.started_s > longest_s for running in self.streams.running)

    def admit(self, request: Pending, tokens: float) -> Rejection | None:
        """Admit a request, whose items go to `RequestQueue.end_decoding`, or return the reason for its rejection."""
        now_s, policy, queue = request.arrived_s, self.policy, self.queue
        request.level = policy.default_priority if request.priority is None else request.priority
        request.work = tokens
        request.deadline_s = now_s + min(policy.max_latency_s, request.timeout_s)
        request.due_s = min(request.deadline_s, now_s + queue.patience_s)
        request.expires_s = now_s + min(policy.queue_timeout_s, request.timeout_s)
        items = sum(slot.is_open for slot in request.slots)
        if request.is_check and (self._check is None or self._check.is_complete):
            # Before all others and without a deadline: it shows whether the engine runs, and teaches nothing.
            self._check, request.level, request.due_s = request, 0, now_s
            request.deadline_s = request.expires_s = inf
        elif queue.items and queue.items + items > policy.max_queue_items:  # an empty queue accepts any number
            message = f"{queue.items} items wait; max_queue_items is {policy.max_queue_items}."
            return Rejection("QueueFull", message, self._finish_s(queue.work_before(inf, inf, now_s), now_s))
        # Without a deadline every response is in time.
        if request.deadline_s < inf and (rejection := self._reject_late(request, items)):
            return rejection
        request.number = next(self._numbers)
        request.decoding = items
        queue.add(request)
        return None

    def _reject_late(self, request: Pending, items: int) -> Rejection | None:
        """Reject a request of so many items if its response would be late."""
        now_s, policy = request.arrived_s, self.policy
        before = self.queue.work_before(request.level, request.due_s, now_s)
        work_s = self._finish_s(Work(before.items + items, before.tokens + request.work), now_s)
        expected_s = work_s + self._allowances[request.level] * self.queue.patience_s
        if now_s + expected_s <= request.deadline_s:
            return None
        is_idle = not before.items and not self.streams.running
        if is_idle and self._may_try(request.timeout_s):
            request.is_tried = True
            return None
        allowed_s = min(policy.max_latency_s, request.timeout_s)
        limit = f"latency_target_ms is {1000 * allowed_s:.0f}"
        if request.timeout_s < policy.max_latency_s:
            limit = f"the request allows {1000 * request.timeout_s:g}"
        message = f"The response would take about {1000 * expected_s:.0f} ms; {limit}."
        room_s = now_s + expected_s - allowed_s
        if self._finish_s(Work(items, request.work), inf) > allowed_s:
            # An idle engine would be late, too: this request gets no turn before those that waiting helps.
            return Rejection("Overloaded", message, room_s - now_s)
        # Retries of consecutive rejections are as far apart as the engine needs for each request.
        turn_s = self._turn_s + self.streams.narrow_line(request.work).token_s * request.work / self.streams.count
        self._turn_s = room_s if turn_s > now_s + MOST_TURN * self.queue.patience_s else max(room_s, turn_s)
        return Rejection("Overloaded", message, self._turn_s - now_s)

    def _may_try(self, timeout_s: float) -> bool:
        """Whether an idle worker tries a request that it expects to be late: one in HURRIED_TRY of hurried ones."""
        if timeout_s >= self.policy.max_latency_s:
            return True
        self._hurried = (self._hurried + 1) % HURRIED_TRY
        return self._hurried == 0

    def observe_response(self, request: Pending, now_s: float) -> bool:
        """Learn from a complete response; return whether it met its deadline."""
        is_in_time = now_s <= request.deadline_s
        if request.deadline_s < inf and not request.is_tried:
            allowance = self._allowances[request.level] + (-IN_TIME_SUBTRACTS if is_in_time else LATE_ADDS)
            self._allowances[request.level] = min(MOST_ALLOWANCE, max(0.0, allowance))
        return is_in_time

    def cancel(self, request: Pending) -> None:
        """Remove a request: its waiting items never run, and the outputs of running ones are dropped."""
        self.queue.remove(request)
        for slot in request.slots:
            slot.is_over = True
        request.is_complete = True

    def next_batch(self, now_s: float, *, most_on_whole: int | None = None) -> RunningBatch | None:
        """Start the next micro-batch, of `most_on_whole` items if only the whole engine can be used, or return None."""
        if not self.queue.ready or not self.streams.free:
            return None
        ranked, equal = self.queue.rank(now_s)
        ready = Work(len(ranked), sum(item.cost.length for _, item in ranked))
        is_wide = most_on_whole is not None or self.streams.is_wide(*ready)
        if ready.items == 1:
            ((_, item),) = ranked
            return self._begin((item,), equal, item.cost.length, now_s, is_wide=is_wide, reason=ALONE)
        line = self.streams.model(is_wide=is_wide).line
        limits = BatchLimits.of(self.policy, line)
        if most_on_whole is not None:
            limits = replace(limits, max_items=min(limits.max_items, most_on_whole))
        limits = limits.share_out(ready.tokens, line, [0.0] if is_wide else self.streams.busy_s(now_s))
        items = select_items(ranked, limits, line, now_s)
        reason, tokens = limit_of(items, ready.items, limits, line, now_s), count_padded_tokens(items, limits.overhead)
        return self._begin(items, equal, tokens, now_s, is_wide=is_wide, reason=reason)

    def _begin(
        self,
        items: Sequence[Entry],
        equal: Mapping[Entry, list[Entry]],
        tokens: int,
        now_s: float,
        *,
        is_wide: bool,
        reason: str,
    ) -> RunningBatch:
        """Begin a micro-batch of items, and of those that are equal to them."""
        all_items = [each for item in items for each in (item, *equal.get(item, ()))] if equal else items
        self.queue.start(all_items)
        if not self.is_caching:
            # From now on only a group needs a key, and a key may contain a body.
            for item in items:
                item.key = None
                for each in equal.get(item, ()):
                    item.key = each.key = id(item)
        return self.streams.begin(all_items, len(items), tokens, now_s, is_wide=is_wide, reason=reason)

    def end_item(self, running: RunningBatch, item: Entry) -> None:
        running.ended.add(item)
        item.request.running -= 1

    def finish(self, running: RunningBatch, seconds: float, *, is_typical: bool = True) -> None:
        """End a micro-batch; `is_typical` is False if others of its size will take another time."""
        self.streams.end(running, seconds, is_typical=is_typical)
        for item in running.items:
            if item not in running.ended:
                item.request.running -= 1

    def _finish_s(self, work: Work, now_s: float) -> float:
        """Return the seconds until this work finishes as `next_batch` runs it; `now_s` is infinity if idle."""
        streams = self.streams
        if not streams.running and work.items and streams.is_wide(*work):
            busy_s, line = [0.0], streams.wide.line
        else:
            busy_s = streams.busy_s(now_s)
            line = streams.narrow_line(work.tokens / max(1, work.items))
        micro_batches = work.items
        if micro_batches > 1:
            limits = BatchLimits.of(self.policy, line)
            max_tokens = limits.share_out(work.tokens, line, busy_s).max_tokens
            # An item in a micro-batch of its own may exceed every limit.
            needed = max(ceil(work.items / limits.max_items), ceil(work.tokens / max_tokens), len(busy_s))
            micro_batches = min(work.items, needed)
        return finish_s(busy_s, micro_batches * line.fixed_s + work.tokens * line.token_s, micro_batches)
