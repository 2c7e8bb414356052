"""What counters grew by between two scrapes, and what histograms say of it. Pure but for the last scrape.

node's counters -> Increments.observe -> growth of each series and the seconds it took
growth of buckets -> quantile -> the value that so many observations stay below
"""

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeVar


class Series(Protocol):
    """A series of Prometheus' format; `deploy.gateway.scrape` reads them."""

    @property
    def name(self) -> str:
        """The sample's name, such as handler_batch_size_bucket."""

    @property
    def labels(self) -> frozenset[tuple[str, str]]:
        """Names and values of its labels."""


S = TypeVar("S", bound=Series)


class Growth(NamedTuple):
    """What one node's series grew by.

    Attributes:
        seconds: between the two scrapes.
        series: by how much, 0 or more.
    """

    seconds: float
    series: Mapping[Series, float]


class Increments:
    """Remembers the last scrape of each node.

    The first scrape of a node is where counting begins. A series that is new since then began at 0, and so did one that
    fell, since its server was started anew. A node that is missing from a scrape is measured over the longer time when
    it is back, and forgotten after `forget_s`.
    """

    def __init__(self, forget_s: float) -> None:
        self._forget_s = forget_s
        # Node -> when it was scraped last, and what its series were.
        self._last: dict[str, tuple[float, Mapping[Series, float]]] = {}

    def observe(self, now_s: float, node: str, values: Mapping[S, float]) -> Growth | None:
        """Take a node's scrape.

        Args:
            now_s: when it was made, by a clock that does not run backwards.
            node: the node's name.
            values: its counters; what is no number is left out.

        Returns:
            The growth since its last scrape; None for its first, and where no time has passed.
        """
        last = self._last.get(node)
        if last is not None and now_s <= last[0]:
            return None
        current: dict[Series, float] = {series: value for series, value in values.items() if math.isfinite(value)}
        self._last[node] = (now_s, current)
        if last is None:
            return None
        before_s, before = last
        grown = {}
        for series, value in current.items():
            past = before.get(series, 0.0)
            grown[series] = max(0.0, value - past if value >= past else value)
        return Growth(now_s - before_s, grown)

    def forget(self, now_s: float) -> None:
        """Drop nodes that have not been scraped for `forget_s`."""
        self._last = {node: last for node, last in self._last.items() if now_s - last[0] <= self._forget_s}


def quantile(share: float, buckets: Mapping[float, float]) -> float | None:
    """Estimate a quantile as Prometheus' histogram_quantile does: linear within a bucket.

    Args:
        share: 0..1, 0.99 for p99.
        buckets: upper end -> observations up to it, cumulative; the last is infinity.

    Returns:
        The value; the highest finite bound where it lies beyond; None without observations.
    """
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    rank = share * buckets[bounds[-1]]
    below, below_count = 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= rank and count > below_count:
            if math.isinf(bound):
                return below
            return below + (bound - below) * (rank - below_count) / (count - below_count)
        below, below_count = bound if math.isfinite(bound) else below, max(count, below_count)
    return below
