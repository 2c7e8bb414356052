"""How long a micro-batch takes, learned from those that ran. Pure: sizes and seconds in, a prediction out.

    observe(tokens, seconds) -> samples by size, the latest of each -> robust fit -> predict_s(tokens)

The time of a micro-batch is taken as `fixed_s + token_s * tokens`: what every micro-batch costs, and what each padded
token adds (an image is one token). Attention grows faster than that, but lengths are bounded and the fit follows the
traffic.

Fit: least squares of the *relative* error (residual over the observed time), under Huber's weights, both coefficients
kept at or above zero. A micro-batch that was interrupted and took ten times as long has a relative residual of at most
one, so it can hardly pull the line.

Memory: samples are kept by size, in classes that double, a few of each. A long spell of small micro-batches thus does
not make the model forget what large ones take; what is older than others counts for less.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from statistics import median


@dataclass(frozen=True, slots=True)
class Tuning:
    """What the fit is tuned by.

    Attributes:
        samples_per_class: samples that are kept of one size class, of which there are a dozen from 1 to 4096 tokens.
        half_life_batches: a sample counts half for every so many micro-batches that ran since.
        least_weight: a sample never counts for less than this share.
        seed_age_batches: warm-up counts as if so many micro-batches had run since: it had the machine to itself.
        huber: Huber's constant, of 95 % efficiency where errors are Gaussian (Huber, "Robust Estimation of a Location
            Parameter", 1964).
        mad_to_sigma: the standard deviation of Gaussian errors over their median absolute value.
        least_scale: smallest scale of relative errors that the weights are taken by.
        iterations: rounds of reweighting in one fit.
        batches_per_fit: observations that a fit serves before it is made anew.
        early_batches: until so many observations a fit is made for each of them.
        remembered_ratios: latest ratios of real to predicted time that the margin is read from.
        margin_quantile: share of them that the margin covers.
        most_margin: largest margin; what is slower by more was interrupted, and foretells nothing.
    """

    samples_per_class: int = 8
    half_life_batches: int = 64
    least_weight: float = 0.02
    seed_age_batches: int = 128
    huber: float = 1.345
    mad_to_sigma: float = 1.4826
    least_scale: float = 0.01
    iterations: int = 4
    batches_per_fit: int = 4
    early_batches: int = 16
    remembered_ratios: int = 64
    margin_quantile: float = 0.9
    most_margin: float = 2.0


TUNING = Tuning()


@dataclass(frozen=True, slots=True)
class Sample:
    """One micro-batch that ran: its padded tokens, its seconds, and how many had run before it."""

    tokens: int
    seconds: float
    number: int


@dataclass(frozen=True, slots=True)
class Line:
    """seconds = fixed_s + token_s * tokens."""

    fixed_s: float
    token_s: float

    def at(self, tokens: float) -> float:
        """Give the seconds of a micro-batch of that many padded tokens."""
        return self.fixed_s + self.token_s * tokens


class LatencyModel:
    """Keeps the line up to date, and knows how far reality strays from it."""

    def __init__(self, seeds: Iterable[tuple[int, float]] = ()) -> None:
        """Start from what warm-up ran: (padded tokens, seconds) each; without any, they are taken to be free."""
        self._classes: dict[int, deque[Sample]] = {}
        self._ratios: deque[float] = deque(maxlen=TUNING.remembered_ratios)
        self._batches = 0
        self._unfitted = 0
        self._line = Line(0.0, 0.0)
        self._margin = 1.0
        for tokens, seconds in seeds:
            self._add(tokens, seconds, -TUNING.seed_age_batches)
        self._fit()

    @property
    def line(self) -> Line:
        """The line as it is fitted now."""
        return self._line

    @property
    def margin(self) -> float:
        """Nine of ten micro-batches took at most this many times their prediction; from 1 to `most_margin`."""
        return self._margin

    def predict_s(self, tokens: float) -> float:
        """Give the seconds that a micro-batch of so many padded tokens will most likely take."""
        return self._line.at(tokens)

    def cautious_s(self, tokens: float) -> float:
        """Give the seconds that nine of ten such micro-batches will not exceed."""
        return self._line.at(tokens) * self._margin

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from one micro-batch.

        Args:
            tokens: its padded tokens, at least 1.
            seconds: what it took, more than 0.
        """
        predicted_s = self._line.at(tokens)
        if predicted_s > 0:
            self._ratios.append(seconds / predicted_s)
        self._batches += 1
        self._add(tokens, seconds, self._batches)
        self._unfitted += 1
        if self._unfitted >= TUNING.batches_per_fit or self._batches < TUNING.early_batches:
            self._fit()

    def _add(self, tokens: int, seconds: float, number: int) -> None:
        kept = self._classes.setdefault(tokens.bit_length(), deque(maxlen=TUNING.samples_per_class))
        kept.append(Sample(tokens, seconds, number))

    def _fit(self) -> None:
        self._unfitted = 0
        samples = [sample for kept in self._classes.values() for sample in kept]
        if samples:
            self._line = fitted(samples, self._batches)
        if self._ratios:
            ranked = sorted(self._ratios)
            self._margin = min(TUNING.most_margin, max(1.0, ranked[ceil(TUNING.margin_quantile * len(ranked)) - 1]))


def fitted(samples: list[Sample], batches: int) -> Line:
    """Fit the line through samples.

    Args:
        samples: at least one.
        batches: how many micro-batches have run, which tells the age of each sample.
    """
    ages = [
        max(TUNING.least_weight, 0.5 ** ((batches - sample.number) / TUNING.half_life_batches)) for sample in samples
    ]
    line = _weighted(samples, ages)
    for _ in range(TUNING.iterations):
        errors = [abs(line.at(sample.tokens) / sample.seconds - 1) for sample in samples]
        limit = TUNING.huber * max(TUNING.least_scale, TUNING.mad_to_sigma * median(errors))
        weights = [age * min(1.0, limit / error) if error else age for age, error in zip(ages, errors, strict=True)]
        line = _weighted(samples, weights)
    return line


def _weighted(samples: list[Sample], weights: list[float]) -> Line:
    """Fit by weighted least squares of the relative error, with both coefficients at or above zero.

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
