"""Which waiting items run next, when, and who is refused. Pure: every method is told the time; nothing sleeps.

A request holds one or more items; each item goes its own way:

    admit ──> refused                         503: the queue is full, or its answer cannot be expected in time
      │
      └─────> decoding ──> failed             its own error; the caller's business
                 │
                 └───────> queued ──> expired 504: it waited longer than it may (timeout_action: reject)
                             │  ^
                             │  └─ late       it waits behind all that are not (timeout_action: delay)
                             v
                          running ──> done    one by one where the engine tells (`ended`), else with its micro-batch:
                                              `finish` teaches the latency model what that took

The order is request_queue's business, what shares a micro-batch batch_selection's, how many run at once streams', and
who is refused admission's.

Size: what a micro-batch may hold is batch_size's. Within that it takes its stream's share of what is ready, and not
always all of it (batch_selection.Limits).

Hold: a micro-batch that is not full waits for items that are here and being decoded, for at most its fixed cost: that
is what running them apart would cost (the ski-rental bound). A lone request is never held.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import ceil, inf

from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.slots import Slot
from handlers.pipeline.warm_up import Step
from handlers.scheduling.admission import Admission, Refusal
from handlers.scheduling.batch_selection import Limits, MicroBatch, select
from handlers.scheduling.batch_size import BatchSize
from handlers.scheduling.latency_model import LatencyModel, Line
from handlers.scheduling.policy import Policy
from handlers.scheduling.request_queue import QueuedItem, RequestQueue, ScheduledRequest, Work
from handlers.scheduling.streams import RunningBatch, Streams, done_in_s


@dataclass(slots=True)
class Scheduler:
    """The queue of one worker, and its engine.

    Attributes:
        policy: what the worker is held to.
        streams: of its engine.
        held_until_s: until when the next micro-batch waits for what is being decoded; infinity where none does.
    """

    policy: Policy
    streams: Streams
    held_until_s: float = inf
    _queue: RequestQueue = field(init=False)
    _admission: Admission = field(init=False)
    _size: BatchSize = field(init=False)
    _numbers: Iterator[int] = field(default_factory=count)
    _held_since_s: float | None = None

    def __post_init__(self) -> None:
        """Start with an empty queue."""
        self._size = BatchSize(self.policy)
        self._queue = RequestQueue(self.policy, self._size.patience_s)
        self._admission = Admission(self.policy)

    # -- what a worker asks ------------------------------------------------------------------------------------------

    @property
    def free_streams(self) -> int:
        """How many micro-batches could start beside those that run."""
        return self.streams.free

    @property
    def next_end_s(self) -> float:
        """When the first of the running micro-batches should end; infinity while the engine is idle."""
        return self.streams.next_end_s

    @property
    def next_expiry_s(self) -> float:
        """When `expire` may next have something; infinity when never."""
        return self._queue.next_expiry_s()

    def is_stuck(self, now_s: float, longest_s: float) -> bool:
        """Whether a micro-batch has run for longer than that."""
        return any(now_s - running.started_s > longest_s for running in self.streams.running)

    @property
    def stream_count(self) -> int:
        """How many micro-batches may run at the same time."""
        return self.streams.count

    @property
    def running_batches(self) -> int:
        """How many micro-batches run now."""
        return len(self.streams.running)

    @property
    def waiting_items(self) -> int:
        """How many items wait, decoded or not."""
        return self._queue.items

    @property
    def ready_items(self) -> int:
        """How many items are ready to run."""
        return len(self._queue.ready)

    @property
    def ready_s(self) -> float:
        """How long the engine has to do with what is ready."""
        return self._ends_s(self._queue.ready_work, [0.0] * self.streams.count)

    def oldest_s(self, now_s: float) -> float:
        """Tell for how many seconds the oldest ready item has been here; 0 without any."""
        return self._queue.oldest_s(now_s)

    def next_look_s(self) -> float:
        """Tell when `next_batch` or `expire` may have something although nothing happens; infinity when never."""
        return min(self.held_until_s, self.next_expiry_s)

    # -- requests ----------------------------------------------------------------------------------------------------

    def admit(self, request: ScheduledRequest, tokens: float) -> Refusal | None:
        """Take a request in, or say why not.

        Args:
            request: what came, now; slots that failed already are not counted.
            tokens: estimate of the lengths of all its items together.

        Returns:
            None where it is admitted: its items are to be decoded, and `decoded` is to be told of each.
        """
        now_s, policy = request.arrived_s, self.policy
        request.level = policy.default_priority if request.priority is None else request.priority
        request.tokens = tokens
        request.deadline_s = now_s + min(policy.max_latency_s, request.timeout_s)
        request.due_s = min(request.deadline_s, now_s + self._queue.patience_s)
        request.expires_s = now_s + min(policy.queue_timeout_s, request.timeout_s)
        self._size.came(request.level, now_s)
        items = sum(not slot.is_failed for slot in request.slots)
        if not self._admission.has_room(self._queue.items, items):
            everything = self._queue.ahead(inf, inf, now_s)
            return self._admission.queue_full(self._queue.items, self._done_in_s(everything, now_s))
        request.number = next(self._numbers)
        request.decoding = items
        if request.deadline_s == inf:
            # It is in time whenever it is done: nothing is to be predicted.
            self._queue.add(request)
            return None
        ahead = self._queue.ahead(request.level, request.due_s, now_s)
        work_s = self._done_in_s(Work(ahead.items + items, ahead.tokens + tokens), now_s)
        own_s = self.streams.expected(tokens).token_s * tokens / self.streams.count
        is_idle = not ahead.items and not any(running.items for running in self.streams.running)
        if refusal := self._admission.overloaded(request, work_s, own_s=own_s, is_idle=is_idle):
            request.decoding = 0
            return refusal
        self._queue.add(request)
        return None

    def decoded(self, request: ScheduledRequest, slot: Slot, cost: Cost | None) -> None:
        """Note that an item of a request is decoded, or has failed where `cost` is None."""
        self._queue.decoded(request, slot, cost)

    def withdraw(self, request: ScheduledRequest) -> None:
        """Forget a request that is still being decoded; the caller fails it."""
        self._queue.withdraw(request)

    def abandon(self, request: ScheduledRequest) -> None:
        """Forget a request for whose answer nobody waits; whether what runs of it ends is the engine's business."""
        self._queue.abandon(request)

    def expire(self, now_s: float) -> Sequence[ScheduledRequest]:
        """Remove the requests that waited too long, where these are rejected; the caller fails them."""
        return self._queue.expire(now_s)

    def answered(self, request: ScheduledRequest, now_s: float) -> bool:
        """Learn from an answer that is complete; whether it came by its deadline."""
        self._admission.answered(request, now_s)
        return now_s <= request.deadline_s

    # -- the engine --------------------------------------------------------------------------------------------------

    def next_batch(self, now_s: float, *, most_on_whole: int | None = None) -> RunningBatch | None:
        """Start the micro-batch that is to run now; None where there is none, or no stream is free for it.

        Args:
            now_s: the time.
            most_on_whole: of who has only the whole engine to run it on, the most items that it is to hold; nothing
                may be running then. None of a stream's thread.
        """
        self.held_until_s = inf
        ready = self._queue.ready_work
        if not ready.items or not self.streams.free:
            return None
        is_wide = most_on_whole is not None or self.streams.is_wide(ready.items)
        model = self.streams.model(is_wide=is_wide)
        ranked = self._queue.ranked(now_s)
        is_courteous = self._size.is_courteous(ranked[0][1].request.level, now_s)
        limits = self._size.limits(model.line, model.margin, is_courteous=is_courteous)
        if most_on_whole is not None:
            limits = replace(limits, max_items=min(limits.max_items, most_on_whole))
        busy_s = [0.0] if is_wide else self.streams.residuals_s(now_s)
        micro_batch = select(ranked, limits.shared(ready.tokens, model.line, busy_s), model, now_s, busy_s)
        held_until_s = self._hold(micro_batch, limits, model, now_s)
        if held_until_s > now_s:
            self.held_until_s = held_until_s
            return None
        self._held_since_s = None
        self._queue.take(micro_batch.items)
        return self.streams.begin(micro_batch, now_s, is_wide=is_wide)

    def ended(self, running: RunningBatch, item: QueuedItem, now_s: float) -> None:
        """Note that the engine has ended one item, while others of its micro-batch go on."""
        running.ended.add(item)
        item.request.running -= 1
        item.request.finished_s = now_s

    def finish(self, running: RunningBatch, seconds: float, *, is_telling: bool = True) -> None:
        """Note that a micro-batch has ended.

        Args:
            running: what `next_batch` returned.
            seconds: how long it took.
            is_telling: False where it failed, so that its time says nothing.
        """
        self.streams.end(running, seconds, is_telling=is_telling)
        if is_telling:
            self._size.batch_s.observe(seconds)
            self._queue.patience_s = self._size.patience_s
        for item in running.items:
            if item not in running.ended:
                item.request.running -= 1
                item.request.finished_s = running.started_s + seconds

    def rehearse(self, step: Step, now_s: float) -> RunningBatch | None:
        """Start a micro-batch of nobody's items, which prepares the engine; None where it has no room for it."""
        if self.streams.running if step.is_wide else not self.streams.free:
            return None
        model = self.streams.model(is_wide=step.is_wide)
        nobody = MicroBatch((), step.tokens, model.predict_s(step.tokens))
        return self.streams.begin(nobody, now_s, is_wide=step.is_wide)

    def limits(self, line: Line, margin: float) -> Limits:
        """Tell what a micro-batch may hold; see BatchSize."""
        return self._size.limits(line, margin)

    def _hold(self, micro_batch: MicroBatch, limits: Limits, model: LatencyModel, now_s: float) -> float:
        """Tell until when a micro-batch waits for what is being decoded; now where it does not."""
        if limits.are_reached_by(micro_batch) or not self._queue.is_any_decoding:
            return now_s
        if self._held_since_s is None:
            self._held_since_s = now_s
        due_s = min(item.request.deadline_s for item in micro_batch.items)
        return min(self._held_since_s + model.line.fixed_s, due_s - model.cautious_s(micro_batch.tokens))

    # -- time --------------------------------------------------------------------------------------------------------

    def _done_in_s(self, work: Work, now_s: float) -> float:
        """Tell how long it takes until what runs and then so much work is done."""
        return self._ends_s(work, self.streams.residuals_s(now_s))

    def _ends_s(self, work: Work, busy_s: Sequence[float]) -> float:
        """Tell the same of streams that are busy for so long, in micro-batches as `next_batch` would make them."""
        line = self.streams.expected(work.tokens / max(1, work.items))
        limits = self.limits(line, self.streams.narrow.margin)
        max_tokens = limits.shared(work.tokens, line, busy_s).max_tokens
        # An item alone in its micro-batch may be longer than any limit.
        needed = max(ceil(work.items / limits.max_items), ceil(work.tokens / max_tokens), self.streams.count)
        micro_batches = min(work.items, needed)
        return done_in_s(busy_s, micro_batches * line.fixed_s + work.tokens * line.token_s, micro_batches)
