"""The engine as the scheduler sees it: which micro-batches run, and what the next one may take. Pure.

    nothing runs, one item waits     -> wide: the micro-batch takes the whole engine, where that is faster for one item
    otherwise                        -> narrow: each takes a stream, its part of the engine, beside the others

A micro-batch on a stream takes longer, but less than as many times longer as there are streams
(handlers.engines.Divisible): side by side they end sooner than one after the other. With one stream every
micro-batch is wide. Each width has a latency model.

Requests are admitted by what micro-batches on a stream take. If that were overestimated once (a machine that stood
still, warm-up beside a busy neighbour), all would be refused but who comes alone, nothing would run on a stream and
teach better, and so for ever. So when only wide micro-batches have run lately, a stream is taken to be no slower than
its part of the engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from math import inf

from handlers.scheduling.batch_selection import MicroBatch
from handlers.scheduling.latency_model import LatencyModel, Line
from handlers.scheduling.request_queue import QueuedItem

# So many wide micro-batches in a row make what is known of narrow ones doubtful.
DOUBTFUL_WIDE_IN_A_ROW = 8


@dataclass(frozen=True, slots=True, eq=False)
class RunningBatch:
    """A micro-batch in the engine.

    Attributes:
        micro_batch: what it holds.
        is_wide: whether it takes the whole engine.
        started_s: when it started.
        ends_s: when it should end.
        ended: those of its items that the engine has ended before the others.
    """

    micro_batch: MicroBatch
    is_wide: bool
    started_s: float
    ends_s: float
    ended: set[QueuedItem] = field(default_factory=set)

    @property
    def items(self) -> Sequence[QueuedItem]:
        """The items that it holds."""
        return self.micro_batch.items


class Streams:
    """The streams of one engine, and what runs on them."""

    def __init__(
        self, wide: LatencyModel, narrow: LatencyModel | None = None, count: int = 1, *, is_lone_wide: bool = True
    ) -> None:
        """Start with nothing running.

        Args:
            wide: how long micro-batches take that have the engine to themselves.
            narrow: how long they take on a stream; needed for more than one.
            count: micro-batches that may run at the same time.
            is_lone_wide: whether one item alone is faster on the whole engine than on a stream.
        """
        self.count = count
        self._is_lone_wide = is_lone_wide
        self.wide = wide
        self.narrow = narrow or wide
        self.running: list[RunningBatch] = []
        self._wide_in_a_row = 0

    @property
    def free(self) -> int:
        """How many streams nothing runs on; a wide micro-batch takes all of them."""
        return 0 if any(each.is_wide for each in self.running) else self.count - len(self.running)

    def is_wide(self, items: int) -> bool:
        """Whether the next micro-batch takes the whole engine, where so many items wait."""
        return not self.running and (self.count == 1 or (items == 1 and self._is_lone_wide))

    def model(self, *, is_wide: bool) -> LatencyModel:
        """Give the latency model of one width."""
        return self.wide if is_wide else self.narrow

    def expected(self, tokens: float) -> Line:
        """Tell what micro-batches of about so many tokens take on a stream."""
        narrow, wide = self.narrow.line, self.wide.line
        if self._wide_in_a_row < DOUBTFUL_WIDE_IN_A_ROW:
            return narrow
        part = Line(self.count * wide.fixed_s, self.count * wide.token_s)
        return min(narrow, part, key=lambda line: line.at(tokens))

    def begin(self, micro_batch: MicroBatch, now_s: float, *, is_wide: bool) -> RunningBatch:
        """Note that a micro-batch starts."""
        running = RunningBatch(micro_batch, is_wide, now_s, now_s + micro_batch.predicted_s)
        self.running.append(running)
        return running

    def end(self, running: RunningBatch, seconds: float, *, is_telling: bool) -> None:
        """Note that it has ended after so long; `is_telling` where that says how long such a micro-batch takes."""
        self.running.remove(running)
        self._wide_in_a_row = self._wide_in_a_row + 1 if running.is_wide else 0
        if is_telling:
            self.model(is_wide=running.is_wide).observe(running.micro_batch.tokens, seconds)

    @property
    def next_end_s(self) -> float:
        """When the first of the running micro-batches should end; infinity where none runs."""
        return min((running.ends_s for running in self.running), default=inf)

    def residuals_s(self, now_s: float) -> list[float]:
        """Tell for how long each stream is still busy, in ascending order."""
        left_s = sorted(max(0.0, running.ends_s - now_s) for running in self.running)
        if any(running.is_wide for running in self.running):
            return left_s * self.count
        return [0.0] * (self.count - len(left_s)) + left_s


def done_in_s(busy_s: Sequence[float], work_s: float, micro_batches: int) -> float:
    """Tell when streams are done with work that they can begin once they are free.

    Args:
        busy_s: for how long each stream is busy first; at least one.
        work_s: all of the work, in seconds of one stream.
        micro_batches: how many it is cut into, all alike, each going to the stream that is free first.

    Returns:
        Seconds from now until the last one ends; 0 where there is none.
    """
    free_s = list(busy_s)
    heapify(free_s)
    ended_s = 0.0
    for _ in range(micro_batches):
        ended_s = free_s[0] + work_s / micro_batches
        heapreplace(free_s, ended_s)
    return ended_s
