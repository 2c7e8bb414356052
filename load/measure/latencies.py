"""Latencies in a high dynamic range histogram: microseconds, three significant digits, any number of them."""

from collections.abc import Iterable, Iterator
from itertools import count

from hdrh.histogram import HdrHistogram

LOWEST_US, HIGHEST_US, DIGITS = 1, 24 * 3600 * 10**6, 3
# Of the drawn distribution; and the percentile that stands for the smallest value.
TICKS, TINY = 20, 1e-9

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9}
# What a report says of a latency, in its order.
STATISTICS = ("min", "mean", *PERCENTILES, "max")


class Latencies:
    """Percentiles are right to 0.1 %, and of at least one value."""

    def __init__(self, values_s: Iterable[float] = ()) -> None:
        """Take in values; below a microsecond counts as one, above a day as a day."""
        self._histogram = HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
        for value_s in values_s:
            self._histogram.record_value(min(max(round(value_s * 1e6), LOWEST_US), HIGHEST_US))

    @property
    def count(self) -> int:
        """Number of values."""
        return int(self._histogram.get_total_count())

    @property
    def mean_ms(self) -> float:
        """Arithmetic mean."""
        return float(self._histogram.get_mean_value()) / 1e3

    def percentile_ms(self, percent: float) -> float:
        """The value that at least `percent` of the values do not exceed.

        Raises:
            ValueError: there are no values, or percent is not in 0 < percent <= 100.
        """
        if not self.count or not 0 < percent <= 100:
            raise ValueError(f"no percentile {percent:g} of {self.count} values")
        return float(self._histogram.get_value_at_percentile(percent)) / 1e3

    def statistics_ms(self) -> dict[str, float]:
        """Each of STATISTICS; empty without values."""
        if not self.count:
            return {}
        return {
            "min": self._histogram.get_min_value() / 1e3,
            "mean": self.mean_ms,
            **{name: self.percentile_ms(percent) for name, percent in PERCENTILES.items()},
            "max": self._histogram.get_max_value() / 1e3,
        }

    def distribution(self) -> Iterator[tuple[float, float]]:
        """The curve (percentile, ms), denser towards 100: TICKS points to every nine, as far as there are values."""
        beyond = 1.0
        for tick in count():
            yield 100 * (1 - beyond), self.percentile_ms(max(100 * (1 - beyond), TINY))
            beyond = 10 ** -((tick + 1) / TICKS)
            if beyond * self.count < 1:
                return
