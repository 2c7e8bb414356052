"""A mean that follows what it is the mean of. Pure."""

from dataclasses import dataclass


@dataclass(slots=True)
class RunningMean:
    """An exponentially weighted mean.

    Attributes:
        value: the mean so far.
        weight: share that the latest observation has in it, above 0 and at most 1.
    """

    value: float
    weight: float

    def observe(self, latest: float) -> None:
        """Move the mean towards one more observation."""
        self.value += self.weight * (latest - self.value)
