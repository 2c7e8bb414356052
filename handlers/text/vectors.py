"""The option `dimensions`: the first numbers of a vector, of a model that was trained for that (Matryoshka)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from handlers.errors import UnknownOption


@dataclass(frozen=True, slots=True)
class Dimensions:
    """How long the vectors of a model may be.

    Attributes:
        size: of a whole vector.
        sizes: what it may be cut to; see `handlers.text.sentence_files.matryoshka`.
    """

    size: int
    sizes: Sequence[int] = ()

    def check(self, wanted: int | None) -> None:
        """Check what a client wants; None for whole vectors.

        Raises:
            UnknownOption: the model's vectors are not cut to that.
        """
        if wanted is None or wanted == self.size or (wanted < self.size and wanted in self.sizes):
            return
        if wanted > self.size:
            raise UnknownOption(f"dimensions: {wanted}; this model's vectors have {self.size}.")
        if not self.sizes:
            raise UnknownOption(
                f"dimensions: only {self.size}; neither this model nor its archive (is_matryoshka) allows others."
            )
        raise UnknownOption(f"dimensions: must be one of {', '.join(map(str, self.sizes))}.")

    def cut(self, vectors: NDArray[np.float32], wanted: Iterable[int | None]) -> list[NDArray[np.float32]]:
        """Cut each row of `vectors`, (B, D), to what its client wants, and scale it to unit length."""
        rows = zip(vectors, wanted, strict=True)
        return [row if size in (None, self.size) else _unit(row[:size]) for row, size in rows]


def _unit(part: NDArray[np.float32]) -> NDArray[np.float32]:
    return (part / max(float(np.linalg.norm(part)), 1e-12)).astype(np.float32)
