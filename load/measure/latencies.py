"""Keeps any number of latencies in a high dynamic range histogram: microseconds, three significant digits."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from hdrh.histogram import HdrHistogram


@dataclass(frozen=True, slots=True)
class Tuning:
    """The histogram's range and precision, and how finely its distribution is drawn."""

    # Smallest and largest latency, in microseconds: nothing over HTTP is quicker, and no run lasts longer than a day.
    lowest_us: int = 1
    highest_us: int = 24 * 3600 * 10**6
    # Significant digits: 0.1 %, which is less than two runs of anything differ by.
    digits: int = 3
    # Points of the drawn distribution for each nine: a curve of them looks smooth.
    points_per_nine: int = 20
    # Percentile that stands for the smallest value; the histogram has none at 0.
    smallest_percent: float = 1e-9


TUNING = Tuning()

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9}
# The statistics that a report gives of a latency, in its order.
STATISTICS = ("min", "mean", *PERCENTILES, "max")


class Latencies:
    """Latencies whose percentiles are right to 0.1 %."""

    def __init__(self, values_s: Iterable[float] = ()) -> None:
        """Take in values.

        Args:
            values_s: seconds; less than a microsecond counts as one, more than a day as a day.
        """
        self._histogram = HdrHistogram(TUNING.lowest_us, TUNING.highest_us, TUNING.digits)
        for value_s in values_s:
            self.add(value_s)

    def add(self, value_s: float) -> None:
        """Take in another value."""
        self._histogram.record_value(min(max(round(value_s * 1e6), TUNING.lowest_us), TUNING.highest_us))

    @property
    def count(self) -> int:
        """Number of values."""
        return int(self._histogram.get_total_count())

    @property
    def mean_ms(self) -> float:
        """Arithmetic mean."""
        return float(self._histogram.get_mean_value()) / 1e3

    def percentile_ms(self, percent: float) -> float:
        """Return the value in ms that at least `percent` of the values do not exceed.

        Raises:
            ValueError: there are no values, or percent is not in 0 < percent <= 100.
        """
        if not self.count or not 0 < percent <= 100:
            raise ValueError(f"no percentile {percent:g} of {self.count} values")
        return float(self._histogram.get_value_at_percentile(percent)) / 1e3

    def statistics_ms(self) -> dict[str, float]:
        """Return each of STATISTICS in ms; empty without values."""
        if not self.count:
            return {}
        return {
            "min": self._histogram.get_min_value() / 1e3,
            "mean": self.mean_ms,
            **{name: self.percentile_ms(percent) for name, percent in PERCENTILES.items()},
            "max": self._histogram.get_max_value() / 1e3,
        }

    def distribution(self) -> Iterator[tuple[float, float]]:
        """Yield the curve (percentile, ms), with as many points for each nine, as far as there are values."""
        beyond = 1.0
        for tick in count():
            yield 100 * (1 - beyond), self.percentile_ms(max(100 * (1 - beyond), TUNING.smallest_percent))
            beyond = 10 ** -((tick + 1) / TUNING.points_per_nine)
            if beyond * self.count < 1:
                return
