"""One of several shares of the inputs of `predict`, so that as many runs do the work of one.

    inputs -> Shard 3/16 -> the inputs whose name is hashed to 3

An input belongs to exactly one shard, by its name alone: not by the machine, the order, or what other inputs there are.
So the shards are disjoint, together they are everything, and a file that comes later moves no other. Of many inputs,
each shard has nearly as many: of a million in 16, 62,500 give or take 250 (the binomial's standard deviation).
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from torchserve_client.answers import ASIDE
from torchserve_client.inputs import Input

_FORM = re.compile(r"([0-9]{1,7})/([0-9]{1,7})")
# Most shards of one input: as many as an Indexed Job of Kubernetes has with full parallelism.
MOST = 100_000
# Bytes of a name's hash: its remainder by any number of shards up to MOST is even but for 10^-14.
HASH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Shard:
    """A share of the inputs.

    Attributes:
        index: which one, from 0 on.
        count: how many there are.
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        """Refuse a share that is none.

        Raises:
            ValueError: the index is not one of the count's.
        """
        if not 1 <= self.count <= MOST:
            raise ValueError(f"of {self.count} shards there are none: 1 to {MOST}")
        if not 0 <= self.index < self.count:
            raise ValueError(f"of {self.count} shards there is no {self.index}: 0 to {self.count - 1}")

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read "3/16".

        Raises:
            ValueError: it is not of this form, or there is no such shard.
        """
        if not (match := _FORM.fullmatch(text)):
            raise ValueError(f"{text!r} is not INDEX/COUNT, as in 3/16")
        return cls(int(match[1]), int(match[2]))

    def has(self, name: str) -> bool:
        """Return whether an input belongs to this shard.

        Args:
            name: of the input, as `predict` writes it: a file's path in its folder with "/", or a line's number. Two
                spellings of the same characters (Unicode's NFC and NFD, which macOS changes into) are one name.
        """
        written = unicodedata.normalize("NFC", name).encode()
        return int.from_bytes(blake2b(written, digest_size=HASH_BYTES).digest(), "big") % self.count == self.index

    def file(self, folder: Path) -> Path:
        """Return the file of a folder in which the answers of this shard belong."""
        width = len(str(self.count))
        return folder / f"shard-{self.index:0{width}}-of-{self.count}.jsonl"

    def files(self, folder: Path) -> Iterator[Path]:
        """Yield the files of a folder in which answers of any of the shards are."""
        for index in range(self.count):
            path = Shard(index, self.count).file(folder)
            yield path
            yield path.with_name(path.name + ASIDE)


class Sharded:
    """The inputs of one shard, in the order of all."""

    def __init__(self, inputs: Iterable[Input], shard: Shard) -> None:
        """Take them from a source, which is gone through anew with each iteration."""
        self._inputs = inputs
        self._shard = shard
        #: Number of inputs that the last iteration has seen, those of other shards included.
        self.seen = 0

    def __iter__(self) -> Iterator[Input]:
        """Yield the inputs that belong to the shard; the others are not read."""
        self.seen = 0
        for each in self._inputs:
            self.seen += 1
            if self._shard.has(each.name):
                yield each
