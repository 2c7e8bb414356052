"""Which waiting items run next, when, and who is refused. Pure: every method is told the time; nothing sleeps.

A request holds one or more items; each item goes its own way:

    admit ──> refused                         503: the queue is full, or its answer cannot be expected in time
      │
      └─────> decoding ──> failed             its own error
                 │
                 └───────> queued ──> expired 504: it waited longer than it may (timeout_action: reject)
                             │  ^
                             │  └─ late       it waits behind all that are not (timeout_action: delay)
                             v
                          running ──> done    one by one where the engine tells (`ended`), else with its micro-batch

request_queue decides the order, batches what shares a micro-batch, and engine how many run at once.

A request is admitted where its answer can be expected in time:

    work ahead of it and its own (seconds of the engine) + allowance -> after its deadline? refused : admitted

The allowance stands for what the prediction cannot know: the way of the answer, requests that come later and go first,
a micro-batch that takes longer than others. Every late answer adds to it, every other one takes a little away. Each
priority has its own: low priorities are late because they are overtaken, which is no reason to refuse the first.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import ceil, inf

from handlers.batching.batches import Limits, padded_tokens, select
from handlers.batching.engine import RunningBatch, Streams, done_in_s
from handlers.batching.policy import Policy
from handlers.batching.request_queue import RequestQueue, Work
from handlers.errors import ItemError
from handlers.protocol.requests import Request, Slot

# What an answer changes of its priority's allowance, as shares of the target: where more comes than can be
# served, few are late in the long run.
LATE_ADDS, IN_TIME_TAKES = 0.03, 0.0001
# The most that an allowance is, as a share of the target, so that no history refuses everybody.
MOST_ALLOWANCE = 0.5
# The longest that a turn keeps a client away, in latency targets; then turns begin anew from the time that the queue
# takes. Who was refused need not come again, and then no turn is needed: 10 s at the examples' target of 0.5 s.
MOST_TURN = 20.0
# Of the requests that an idle worker would refuse because they allow too little, one in so many is tried.
HURRIED_TRY = 16


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not admitted: QueueFull or Overloaded, a sentence for its client, and when to come again."""

    reason: str
    message: str
    retry_after_s: float


@dataclass(slots=True)
class Scheduler:
    """The queue of one worker, and its engine."""

    policy: Policy
    streams: Streams
    queue: RequestQueue = field(init=False)
    _numbers: Iterator[int] = field(default_factory=count)
    # By priority, as a share of the target.
    _allowances: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    _hurried: int = 0
    # When the latest of those refused should come again: each has a turn, as the engine has time for it.
    _turn_s: float = 0.0

    def __post_init__(self) -> None:
        """Start with an empty queue."""
        self.queue = RequestQueue(self.policy)

    @property
    def ready_s(self) -> float:
        """How long an idle engine needs for what is ready."""
        return self._done_in_s(self.queue.ready_work, inf) if self.queue.ready else 0.0

    def is_stuck(self, now_s: float, longest_s: float) -> bool:
        """Whether a micro-batch has run for longer than that."""
        return any(now_s - running.started_s > longest_s for running in self.streams.running)

    def admit(self, request: Request, tokens: float) -> Refusal | None:
        """Take in a request that has just come, or return why not; `tokens` estimates the lengths of all its items.

        The items of one that is admitted are to be decoded; each goes to `RequestQueue.decoded`.
        """
        now_s, policy, queue = request.arrived_s, self.policy, self.queue
        request.level = policy.default_priority if request.priority is None else request.priority
        request.work = tokens
        request.deadline_s = now_s + min(policy.max_latency_s, request.timeout_s)
        request.due_s = min(request.deadline_s, now_s + self.queue.patience_s)
        request.expires_s = now_s + min(policy.queue_timeout_s, request.timeout_s)
        items = sum(not isinstance(slot.outcome, ItemError) for slot in request.slots)
        # An empty queue takes any number.
        if queue.items and queue.items + items > policy.max_queue_items:
            message = f"{queue.items} items wait; max_queue_items is {policy.max_queue_items}."
            return Refusal("QueueFull", message, self._done_in_s(queue.ahead(inf, inf, now_s), now_s))
        # Without a deadline it is in time whenever it is done.
        if request.deadline_s < inf and (refusal := self._overloaded(request, items)):
            return refusal
        request.number = next(self._numbers)
        request.decoding = items
        queue.add(request)
        return None

    def _overloaded(self, request: Request, items: int) -> Refusal | None:
        """Refuse a request of so many items whose answer would come too late."""
        now_s, policy = request.arrived_s, self.policy
        ahead = self.queue.ahead(request.level, request.due_s, now_s)
        work_s = self._done_in_s(Work(ahead.items + items, ahead.tokens + request.work), now_s)
        expected_s = work_s + self._allowances[request.level] * self.queue.patience_s
        if now_s + expected_s <= request.deadline_s:
            return None
        is_idle = not ahead.items and not self.streams.running
        if is_idle and self._tries_anyway(request.timeout_s):
            request.is_tried = True
            return None
        allowed_s = min(policy.max_latency_s, request.timeout_s)
        limit = f"max_latency_ms is {1000 * allowed_s:.0f}"
        if request.timeout_s < policy.max_latency_s:
            limit = f"the request allows {1000 * request.timeout_s:g}"
        message = f"The answer would take about {1000 * expected_s:.0f} ms; {limit}."
        room_s = now_s + expected_s - allowed_s
        if self._done_in_s(Work(items, request.work), inf) > allowed_s:
            # Not even an idle engine would be in time: it takes no turn from those whom waiting helps.
            return Refusal("Overloaded", message, room_s - now_s)
        # Requests that are refused one after the other come again as far apart as the engine needs for each.
        turn_s = self._turn_s + self.streams.expected(request.work).token_s * request.work / self.streams.count
        self._turn_s = room_s if turn_s > now_s + MOST_TURN * self.queue.patience_s else max(room_s, turn_s)
        return Refusal("Overloaded", message, self._turn_s - now_s)

    def _tries_anyway(self, timeout_s: float) -> bool:
        """Whether an idle worker takes what it would refuse, or it would never learn better.

        It takes each request that allows what the policy allows, and of those that allow less one in HURRIED_TRY.
        """
        if timeout_s >= self.policy.max_latency_s:
            return True
        self._hurried = (self._hurried + 1) % HURRIED_TRY
        return self._hurried == 0

    def answered(self, request: Request, now_s: float) -> bool:
        """Learn from an answer that is complete; whether it came by its deadline."""
        is_in_time = now_s <= request.deadline_s
        if request.deadline_s < inf and not request.is_tried:
            allowance = self._allowances[request.level] + (-IN_TIME_TAKES if is_in_time else LATE_ADDS)
            self._allowances[request.level] = min(MOST_ALLOWANCE, max(0.0, allowance))
        return is_in_time

    def cancel(self, request: Request) -> None:
        """Forget a request: what waits of it never runs, and the results of what runs are dropped."""
        self.queue.remove(request)
        for slot in request.slots:
            slot.is_over = True
        request.is_complete = True

    # -- the engine ----------------------------------------------------------------------------------------------------

    def next_batch(self, now_s: float, *, most_on_whole: int | None = None) -> RunningBatch | None:
        """Start the micro-batch that is to run now; None where there is none, or no stream is free for it.

        `most_on_whole` is the most items for a thread that has only the whole engine, while nothing runs.
        """
        ready = self.queue.ready_work
        if not ready.items or not self.streams.free:
            return None
        is_wide = most_on_whole is not None or self.streams.is_wide(*ready)
        if ready.items == 1:
            (item,) = self.queue.ready
            return self._begin((item,), item.cost.length, now_s, is_wide=is_wide)
        line = self.streams.model(is_wide=is_wide).line
        limits = Limits.of(self.policy, line)
        if most_on_whole is not None:
            limits = replace(limits, max_items=min(limits.max_items, most_on_whole))
        limits = limits.shared(ready.tokens, line, [0.0] if is_wide else self.streams.residuals_s(now_s))
        items = select(self.queue.ranked(now_s), limits, line, now_s)
        return self._begin(items, padded_tokens(items), now_s, is_wide=is_wide)

    def _begin(self, items: Sequence[Slot], tokens: int, now_s: float, *, is_wide: bool) -> RunningBatch:
        self.queue.take(items)
        return self.streams.begin(items, tokens, now_s, is_wide=is_wide)

    def ended(self, running: RunningBatch, item: Slot) -> None:
        """Note that the engine has ended one item, while others of its micro-batch go on."""
        running.ended.add(item)
        item.request.running -= 1

    def finish(self, running: RunningBatch, seconds: float, *, is_typical: bool = True) -> None:
        """Note that a micro-batch has ended; `is_typical` is False where others of its size will take another time."""
        self.streams.end(running, seconds, is_typical=is_typical)
        for item in running.items:
            if item not in running.ended:
                item.request.running -= 1

    def _done_in_s(self, work: Work, now_s: float) -> float:
        """Return how long it takes until what runs and then so much work is done, in micro-batches of `next_batch`.

        `now_s` is infinity if nothing runs any more.
        """
        streams = self.streams
        if not streams.running and work.items and streams.is_wide(*work):
            busy_s, line = [0.0], streams.wide.line
        else:
            busy_s = streams.residuals_s(now_s)
            line = streams.expected(work.tokens / max(1, work.items))
        micro_batches = work.items
        if micro_batches > 1:
            limits = Limits.of(self.policy, line)
            max_tokens = limits.shared(work.tokens, line, busy_s).max_tokens
            # An item alone in its micro-batch may be longer than any limit.
            needed = max(ceil(work.items / limits.max_items), ceil(work.tokens / max_tokens), len(busy_s))
            micro_batches = min(work.items, needed)
        return done_in_s(busy_s, micro_batches * line.fixed_s + work.tokens * line.token_s, micro_batches)
