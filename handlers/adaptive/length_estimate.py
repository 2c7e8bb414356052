"""How long a request's items will be, before they are decoded. Pure.

sizes in bytes and lengths in tokens of decoded items -> tokens per byte -> expected tokens of a payload
"""

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from handlers.errors import ItemError
from handlers.protocol.requests import Payload
from handlers.scheduling.running_mean import RunningMean

# Share of the latest items in the mean: a change of language is followed within some twenty of them.
LATEST_WEIGHT = 0.1
# A number of JSON counts as so many bytes.
NUMBER_BYTES = 8


@dataclass(slots=True)
class LengthEstimate:
    """Tokens per byte, as a running mean; until lengths differ, every item counts as the last one did.

    Attributes:
        last: length of the latest item.
        per_byte: tokens per byte of payload; None while all lengths were equal, as those of images are.
    """

    last: int = 1
    per_byte: RunningMean | None = None

    def expect(self, payloads: Iterable[Payload | ItemError]) -> float:
        """Estimate the tokens of all of them together; each counts for at least one."""
        sizes = [size_of(payload) for payload in payloads if isinstance(payload, Payload)]
        if self.per_byte is None:
            return float(self.last * len(sizes))
        return sum(max(1.0, self.per_byte.value * size) for size in sizes)

    def learn(self, sizes: Sequence[int], lengths: Sequence[int]) -> None:
        """Learn from items of such sizes in bytes that turned out to be so many tokens long."""
        total = sum(sizes)
        if not total:
            return
        if self.per_byte is not None:
            self.per_byte.observe(sum(lengths) / total)
        elif any(length != self.last for length in lengths) and self.last != 1:
            self.per_byte = RunningMean(sum(lengths) / total, LATEST_WEIGHT)
        self.last = lengths[-1]


def size_of(payload: Payload) -> int:
    """Count the bytes or characters of a payload's input."""
    value = payload.value
    return sum(map(_bytes, value.values())) if isinstance(value, Mapping) else _bytes(value)


def _bytes(value: Any) -> int:
    # A number is what an item of a one-dimensional tensor is.
    if isinstance(value, np.ndarray | np.generic):
        return int(value.nbytes)
    if not isinstance(value, list):
        return len(value) if isinstance(value, Sized) else 0
    # Numbers of JSON, nested; the first of each list tells for the others.
    count = 1
    while isinstance(value, list) and value:
        count *= len(value)
        value = value[0]
    return NUMBER_BYTES * count
