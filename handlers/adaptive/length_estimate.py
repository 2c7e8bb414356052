"""How long a request's items will be, before they are decoded. Pure.

sizes in bytes and lengths in tokens of decoded items -> tokens per byte -> expected tokens of a payload
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from handlers.errors import ItemError
from handlers.protocol.requests import Payload

NEWEST = 0.1


@dataclass(slots=True)
class Lengths:
    """Tokens per byte, as a running mean; until lengths differ, every item counts as the last one did.

    Attributes:
        last: length of the latest item.
        per_byte: tokens per byte of payload; None while all lengths were equal, as those of images are.
    """

    last: int = 1
    per_byte: float | None = None

    def expect(self, payloads: Iterable[Payload | ItemError]) -> float:
        """Tokens of all of them together; each is at least one."""
        sizes = [size_of(payload) for payload in payloads if isinstance(payload, Payload)]
        if self.per_byte is None:
            return float(self.last * len(sizes))
        return sum(max(1.0, self.per_byte * size) for size in sizes)

    def learn(self, sizes: Sequence[int], lengths: Sequence[int]) -> None:
        """Items of such sizes turned out to be so long."""
        total = sum(sizes)
        if not total:
            return
        if self.per_byte is not None:
            self.per_byte += NEWEST * (sum(lengths) / total - self.per_byte)
        elif any(length != self.last for length in lengths) and self.last != 1:
            self.per_byte = sum(lengths) / total
        self.last = lengths[-1]


def size_of(payload: Payload) -> int:
    """Bytes or characters of a payload's input."""
    value = payload.value
    if isinstance(value, Mapping):
        return sum(len(part) for part in value.values() if isinstance(part, str | bytes))
    # A number is what an item of a one-dimensional tensor is.
    return value.nbytes if isinstance(value, np.ndarray | np.generic) else len(value)
