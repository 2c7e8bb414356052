"""The engine as the scheduler sees it: how long micro-batches take, which run, and on what part of it. Pure.

    nothing runs, few items wait     -> wide: the micro-batch takes the whole engine
    otherwise                        -> narrow: each takes a stream, its part of the engine, beside the others

With one stream every micro-batch is wide. Each width has a latency model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

from handlers.protocol.requests import Slot

# Every micro-batch makes what was learned from those before it count for so much less: the latest fifty decide.
FORGETTING = 0.98
# What warm-up measured never counts for less than this, so that a long spell of one size leaves the others known.
LEAST_SEED_WEIGHT = 0.01
# At most so many items a stream share the whole engine: eight on two cores, where it was tried.
MOST_WIDE_ITEMS_PER_STREAM = 4
# So many wide micro-batches in a row make what is known of narrow ones doubtful.
DOUBTFUL_AFTER_WIDE = 8


@dataclass(frozen=True, slots=True)
class Line:
    """seconds = fixed_s + token_s * tokens."""

    fixed_s: float
    token_s: float

    def at(self, tokens: float) -> float:
        """Return the seconds of a micro-batch of that many padded tokens."""
        return self.fixed_s + self.token_s * tokens


class LatencyModel:
    """How long a micro-batch takes, as a line: what each one costs, and what each padded token adds.

    Least squares of the relative error, with exponential forgetting. The relative error of a sample is
    line / seconds - 1, linear in both coefficients, so the normal equations are two, and five sums hold all that is
    known. A micro-batch that was interrupted and took ten times as long has a relative error of at most one: it hardly
    moves the line.
    """

    def __init__(self, seeds: Iterable[tuple[int, float]] = ()) -> None:
        """Start from what warm-up ran: (padded tokens, seconds) each; without any, nothing is taken to last."""
        self._seeds = [0.0] * 5
        self._latest = [0.0] * 5
        self._seed_weight = 1.0
        for tokens, seconds in seeds:
            self._seeds = _added(self._seeds, tokens, seconds)
        self.line = self._fitted()

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from one micro-batch of that many padded tokens, at least 1, that took so many seconds, above 0."""
        self._seed_weight = max(LEAST_SEED_WEIGHT, FORGETTING * self._seed_weight)
        self._latest = _added([FORGETTING * each for each in self._latest], tokens, seconds)
        self.line = self._fitted()

    def _fitted(self) -> Line:
        uu, uv, vv, su, sv = (
            latest + self._seed_weight * seed for latest, seed in zip(self._latest, self._seeds, strict=True)
        )
        if not uu:
            return Line(0.0, 0.0)
        determinant = uu * vv - uv * uv
        # Samples of a single size say nothing of the slope: half of the time is taken to be fixed.
        if determinant <= 1e-9 * uu * vv:
            return Line(su / uu / 2, sv / vv / 2)
        fixed_s, token_s = (su * vv - sv * uv) / determinant, (sv * uu - su * uv) / determinant
        if token_s < 0:
            return Line(su / uu, 0.0)
        return Line(fixed_s, token_s) if fixed_s >= 0 else Line(0.0, sv / vv)


def _added(sums: Sequence[float], tokens: int, seconds: float) -> list[float]:
    """Add one sample to the sums of the normal equations, with u = 1 / seconds and v = tokens / seconds."""
    u, v = 1 / seconds, tokens / seconds
    return [total + each for total, each in zip(sums, (u * u, u * v, v * v, u, v), strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class RunningBatch:
    """A micro-batch in the engine."""

    items: Sequence[Slot]
    tokens: int  # padded ones of all items
    predicted_s: float
    is_wide: bool  # whether it takes the whole engine
    started_s: float
    ended: set[Slot] = field(default_factory=set)  # before the others


class Streams:
    """The streams of one engine, and what runs on them.

    `wide` and `narrow` know how long micro-batches take on the whole engine, and on a stream beside others.
    """

    def __init__(
        self, wide: LatencyModel, narrow: LatencyModel | None = None, count: int = 1, *, is_whole_faster: bool = True
    ) -> None:
        """Start with nothing running; `is_whole_faster` where the whole engine is faster for one item than a stream."""
        self.wide, self.narrow, self.count = wide, narrow or wide, count
        self._is_whole_faster = is_whole_faster
        self.running: list[RunningBatch] = []
        self._wide_in_a_row = 0

    @property
    def free(self) -> int:
        """How many streams nothing runs on; a wide micro-batch takes all of them."""
        return 0 if any(each.is_wide for each in self.running) else self.count - len(self.running)

    def is_wide(self, items: int, tokens: float) -> bool:
        """Whether the next micro-batch takes the whole engine, where so many items of so many tokens wait.

        Side by side, c streams do g = c * wide / narrow times as much as the whole engine does. That gain is worth the
        longer first answers once k = (c - g) / (g - 1) items wait.
        """
        if self.running or (self.count > 1 and not self._is_whole_faster):
            return False
        if self.count == 1 or items == 1:
            return True
        narrow_s = self.narrow.line.at(tokens / items)
        gain = self.count * self.wide.line.at(tokens / items) / narrow_s if narrow_s else 1.0
        most = MOST_WIDE_ITEMS_PER_STREAM * self.count
        return items < (most if gain <= 1 else min(most, (self.count - gain) / (gain - 1)))

    def model(self, *, is_wide: bool) -> LatencyModel:
        """Return the latency model of one width."""
        return self.wide if is_wide else self.narrow

    def expected(self, tokens: float) -> Line:
        """Return the line of micro-batches of about so many tokens on a stream.

        While only wide ones run, a stream is taken to be no slower than its part of the engine: an estimate that is far
        too high would refuse all who would have to share, and nothing would run on a stream and correct it.
        """
        if self._wide_in_a_row < DOUBTFUL_AFTER_WIDE:
            return self.narrow.line
        wide = self.wide.line
        part = Line(self.count * wide.fixed_s, self.count * wide.token_s)
        return min(self.narrow.line, part, key=lambda line: line.at(tokens))

    def begin(self, items: Sequence[Slot], tokens: int, now_s: float, *, is_wide: bool) -> RunningBatch:
        """Note that a micro-batch starts."""
        predicted_s = self.model(is_wide=is_wide).line.at(tokens)
        self.running.append(RunningBatch(tuple(items), tokens, predicted_s, is_wide, now_s))
        return self.running[-1]

    def end(self, running: RunningBatch, seconds: float, *, is_typical: bool) -> None:
        """Note that a micro-batch has ended; `is_typical` where others of its size will take as long."""
        self.running.remove(running)
        self._wide_in_a_row = self._wide_in_a_row + 1 if running.is_wide else 0
        if is_typical:
            self.model(is_wide=running.is_wide).observe(running.tokens, seconds)

    def residuals_s(self, now_s: float) -> list[float]:
        """Return for how long each stream is still busy, in ascending order."""
        left_s = sorted(max(0.0, each.started_s + each.predicted_s - now_s) for each in self.running)
        if any(running.is_wide for running in self.running):
            return left_s * self.count
        return [0.0] * (self.count - len(left_s)) + left_s


def done_in_s(busy_s: Sequence[float], work_s: float, micro_batches: int) -> float:
    """Return in how many seconds streams that are busy for so long first are done with equal micro-batches.

    `work_s` is all of the work, in seconds of one stream; each micro-batch goes to the stream that is free first.
    """
    free_s = list(busy_s)
    heapify(free_s)
    ended_s = 0.0
    for _ in range(micro_batches):
        ended_s = free_s[0] + work_s / micro_batches
        heapreplace(free_s, ended_s)
    return ended_s
