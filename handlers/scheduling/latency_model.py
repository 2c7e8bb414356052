"""How long a forward pass takes, learned from those that were. Pure: sizes and seconds in, a prediction out.

    observe(tokens, seconds) -> samples by size, the latest of each -> robust fit -> predict_s(tokens)

The time of a pass is taken as `fixed_s + token_s * tokens`: what every pass costs, and what each padded token adds (an
image is one token). Attention grows faster than that, but lengths are bounded and the fit follows the traffic.

Fit: least squares of the *relative* error (residual over the observed time), under Huber's weights (Huber 1964, with
the usual tuning constant 1.345), both coefficients kept at or above zero. A pass that was interrupted and took ten
times as long has a relative residual of at most one, so it can hardly pull the line.

Memory: samples are kept by size, in classes that double, a few of each. A long spell of small passes thus does not
make the model forget what large ones take; what is older than others counts for less.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from statistics import median

# Of one size class; eight medians' worth of noise in a class, a dozen classes between 1 and 4096 tokens.
SAMPLES_PER_CLASS = 8
# A sample counts half for every so many passes since, and never nothing.
HALF_LIFE_PASSES = 64
LEAST_WEIGHT = 0.02
# Warm-up counts as little as passes that long ago: it had the machine to itself.
SEED_AGE_PASSES = 128
# Huber's constant: 95 % of the efficiency of least squares where errors are Gaussian.
HUBER = 1.345
# The scale of Gaussian errors from their median absolute value.
MAD_TO_SIGMA = 1.4826
LEAST_SCALE = 0.01
ITERATIONS = 4
# A fit serves this many observations before it is made anew, once there are enough of them.
PASSES_PER_FIT = 4
EARLY_PASSES = 16
# Ratios of real to predicted that the margin is read from.
REMEMBERED_RATIOS = 64
MARGIN_QUANTILE = 0.9
MOST_MARGIN = 2.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One pass: its padded tokens, its seconds, and how many had gone before it."""

    tokens: int
    seconds: float
    number: int


@dataclass(frozen=True, slots=True)
class Line:
    """seconds = fixed_s + token_s * tokens."""

    fixed_s: float
    token_s: float

    def at(self, tokens: float) -> float:
        """Seconds of a pass of that many tokens."""
        return self.fixed_s + self.token_s * tokens


class LatencyModel:
    """The line, kept up to date, and how far reality strays from it."""

    def __init__(self, seeds: Iterable[tuple[int, float]] = ()) -> None:
        """Start from the passes of warm-up: (padded tokens, seconds) each; without any, a pass is taken to be free."""
        self._classes: dict[int, deque[Sample]] = {}
        self._ratios: deque[float] = deque(maxlen=REMEMBERED_RATIOS)
        self._passes = 0
        self._unfitted = 0
        self._line = Line(0.0, 0.0)
        self._margin = 1.0
        for tokens, seconds in seeds:
            self._add(tokens, seconds, -SEED_AGE_PASSES)
        self._fit()

    @property
    def line(self) -> Line:
        """The present fit."""
        return self._line

    @property
    def margin(self) -> float:
        """Nine of ten passes took at most this many times their prediction; from 1 to MOST_MARGIN."""
        return self._margin

    def predict_s(self, tokens: float) -> float:
        """Seconds that a pass of so many padded tokens will most likely take."""
        return self._line.at(tokens)

    def cautious_s(self, tokens: float) -> float:
        """Seconds that nine of ten such passes will not exceed."""
        return self._line.at(tokens) * self._margin

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from one pass.

        Args:
            tokens: padded, at least 1.
            seconds: that it took, more than 0.
        """
        predicted_s = self._line.at(tokens)
        if predicted_s > 0:
            self._ratios.append(seconds / predicted_s)
        self._passes += 1
        self._add(tokens, seconds, self._passes)
        self._unfitted += 1
        if self._unfitted >= PASSES_PER_FIT or self._passes < EARLY_PASSES:
            self._fit()

    def _add(self, tokens: int, seconds: float, number: int) -> None:
        kept = self._classes.setdefault(tokens.bit_length(), deque(maxlen=SAMPLES_PER_CLASS))
        kept.append(Sample(tokens, seconds, number))

    def _fit(self) -> None:
        self._unfitted = 0
        samples = [sample for kept in self._classes.values() for sample in kept]
        if samples:
            self._line = fitted(samples, self._passes)
        if self._ratios:
            ranked = sorted(self._ratios)
            self._margin = min(MOST_MARGIN, max(1.0, ranked[ceil(MARGIN_QUANTILE * len(ranked)) - 1]))


def fitted(samples: list[Sample], passes: int) -> Line:
    """The line through samples.

    Args:
        samples: at least one.
        passes: how many there have been, which tells the age of each.
    """
    ages = [max(LEAST_WEIGHT, 0.5 ** ((passes - sample.number) / HALF_LIFE_PASSES)) for sample in samples]
    line = _weighted(samples, ages)
    for _ in range(ITERATIONS):
        errors = [abs(line.at(sample.tokens) / sample.seconds - 1) for sample in samples]
        limit = HUBER * max(LEAST_SCALE, MAD_TO_SIGMA * median(errors))
        weights = [age * min(1.0, limit / error) if error else age for age, error in zip(ages, errors, strict=True)]
        line = _weighted(samples, weights)
    return line


def _weighted(samples: list[Sample], weights: list[float]) -> Line:
    """Weighted least squares of the relative error, with both coefficients at or above zero.

    The relative error of a sample is fixed/t + token*(x/t) - 1: linear in both, so the normal equations are two.
    """
    uu = uv = vv = su = sv = 0.0
    for sample, weight in zip(samples, weights, strict=True):
        u = 1 / sample.seconds
        v = sample.tokens / sample.seconds
        uu += weight * u * u
        uv += weight * u * v
        vv += weight * v * v
        su += weight * u
        sv += weight * v
    determinant = uu * vv - uv * uv
    # All of one size say nothing of the slope: half of the time is taken to be fixed.
    if determinant <= 1e-9 * uu * vv:
        return Line(su / uu / 2, sv / vv / 2)
    fixed_s, token_s = (su * vv - sv * uv) / determinant, (sv * uu - su * uv) / determinant
    if token_s < 0:
        return Line(su / uu, 0.0)
    if fixed_s < 0:
        return Line(0.0, sv / vv)
    return Line(fixed_s, token_s)
