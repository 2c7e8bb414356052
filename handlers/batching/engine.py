"""The engine as the scheduler sees it: running micro-batches, and how long each takes. Pure.

    nothing runs, few items wait     -> wide: the micro-batch has the whole engine
    otherwise                        -> narrow: each micro-batch has a stream, beside the others

With one stream every micro-batch is wide. Each width has a latency model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

from handlers.batching.pending import Entry

FORGETTING = 0.98  # weight of earlier micro-batches after each new one: about the last fifty decide
# Least weight of the warm-up's measurements, so that a long spell of one size leaves the other sizes known.
LEAST_SEED_WEIGHT = 0.01
# Most items per stream that share the whole engine: eight on two cores, where this was measured.
MOST_WIDE_ITEMS_PER_STREAM = 4
DOUBTFUL_AFTER_WIDE = 8  # wide micro-batches in a row after which the narrow model is doubtful


@dataclass(frozen=True, slots=True)
class Line:
    """seconds = fixed_s + token_s * tokens."""

    fixed_s: float
    token_s: float

    def predict_s(self, tokens: float) -> float:
        return self.fixed_s + self.token_s * tokens


class LatencyModel:
    """A line of durations by least squares of the relative error, so that one interruption hardly moves it."""

    def __init__(self, seeds: Iterable[tuple[int, float]] = ()) -> None:
        """Start from the warm-up's (padded tokens, seconds); without any, the prediction is 0 seconds."""
        self._seeds = [0.0] * 5
        self._latest = [0.0] * 5
        self._seed_weight = 1.0
        for tokens, seconds in seeds:
            self._seeds = _add_sample(self._seeds, tokens, seconds)
        self.line = self._fit()

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from one micro-batch of at least 1 padded token and more than 0 seconds."""
        self._seed_weight = max(LEAST_SEED_WEIGHT, FORGETTING * self._seed_weight)
        self._latest = _add_sample([FORGETTING * each for each in self._latest], tokens, seconds)
        self.line = self._fit()

    def _fit(self) -> Line:
        uu, uv, vv, su, sv = (
            latest + self._seed_weight * seed for latest, seed in zip(self._latest, self._seeds, strict=True)
        )
        if not uu:
            return Line(0.0, 0.0)
        determinant = uu * vv - uv * uv
        # Samples of one size do not determine the slope: assume that half of the time is fixed.
        if determinant <= 1e-9 * uu * vv:
            return Line(su / uu / 2, sv / vv / 2)
        fixed_s, token_s = (su * vv - sv * uv) / determinant, (sv * uu - su * uv) / determinant
        if token_s < 0:
            return Line(su / uu, 0.0)
        return Line(fixed_s, token_s) if fixed_s >= 0 else Line(0.0, sv / vv)


def _add_sample(sums: Sequence[float], tokens: int, seconds: float) -> list[float]:
    """Add one sample to the sums of the normal equations, with u = 1 / seconds and v = tokens / seconds."""
    u, v = 1 / seconds, tokens / seconds
    return [total + each for total, each in zip(sums, (u * u, u * v, v * v, u, v), strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class RunningBatch:
    items: Sequence[Entry]
    tokens: int  # padded
    predicted_s: float
    is_wide: bool  # whether it has the whole engine
    started_s: float
    size: int  # number of its items that differ
    reason: str  # why it has no more items: see `handlers.batching.batches.limit_of`
    ended: set[Entry] = field(default_factory=set)  # before the others


class Streams:
    """The streams of one engine, the micro-batches that run on them, and a latency model for each width."""

    def __init__(
        self, wide: LatencyModel, narrow: LatencyModel | None = None, count: int = 1, *, is_whole_faster: bool = True
    ) -> None:
        """`is_whole_faster`: whether one item is faster on the whole engine than on a stream."""
        self.wide, self.narrow, self.count = wide, narrow or wide, count
        self._is_whole_faster = is_whole_faster
        self.running: list[RunningBatch] = []
        self._wide_in_a_row = 0

    @property
    def free(self) -> int:
        """How many streams are idle; a wide micro-batch uses all of them."""
        return 0 if any(each.is_wide for each in self.running) else self.count - len(self.running)

    def is_wide(self, items: int, tokens: float) -> bool:
        """Whether so many items of so many tokens get the whole engine, as their first responses come sooner."""
        if self.running or (self.count > 1 and not self._is_whole_faster):
            return False
        if self.count == 1 or items == 1:
            return True
        narrow_s = self.narrow.line.predict_s(tokens / items)
        gain = self.count * self.wide.line.predict_s(tokens / items) / narrow_s if narrow_s else 1.0
        most = MOST_WIDE_ITEMS_PER_STREAM * self.count
        return items < (most if gain <= 1 else min(most, (self.count - gain) / (gain - 1)))

    def model(self, *, is_wide: bool) -> LatencyModel:
        return self.wide if is_wide else self.narrow

    def narrow_line(self, tokens: float) -> Line:
        """Return a stream's line; until one ran, at most its part of the engine, or no run would correct it."""
        if self._wide_in_a_row < DOUBTFUL_AFTER_WIDE:
            return self.narrow.line
        wide = self.wide.line
        part = Line(self.count * wide.fixed_s, self.count * wide.token_s)
        return min(self.narrow.line, part, key=lambda line: line.predict_s(tokens))

    def begin(
        self, items: Sequence[Entry], size: int, tokens: int, now_s: float, *, is_wide: bool, reason: str = ""
    ) -> RunningBatch:
        """Begin a micro-batch of items of which `size` differ."""
        predicted_s = self.model(is_wide=is_wide).line.predict_s(tokens)
        self.running.append(RunningBatch(tuple(items), tokens, predicted_s, is_wide, now_s, size, reason))
        return self.running[-1]

    def end(self, running: RunningBatch, seconds: float, *, is_typical: bool) -> None:
        """End a micro-batch; `is_typical` if others of its size will take as long."""
        self.running.remove(running)
        self._wide_in_a_row = self._wide_in_a_row + 1 if running.is_wide else 0
        if is_typical:
            self.model(is_wide=running.is_wide).observe(running.tokens, seconds)

    def busy_s(self, now_s: float) -> list[float]:
        """Return the seconds for which each stream is still busy, in ascending order."""
        left_s = sorted(max(0.0, each.started_s + each.predicted_s - now_s) for each in self.running)
        if any(running.is_wide for running in self.running):
            return left_s * self.count
        return [0.0] * (self.count - len(left_s)) + left_s


def finish_s(busy_s: Sequence[float], work_s: float, micro_batches: int) -> float:
    """Return the seconds until busy streams finish equal micro-batches of `work_s` in all, the freest one first."""
    free_s = list(busy_s)
    heapify(free_s)
    ended_s = 0.0
    for _ in range(micro_batches):
        ended_s = free_s[0] + work_s / micro_batches
        heapreplace(free_s, ended_s)
    return ended_s
