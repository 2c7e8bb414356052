"""Vectors of bytes or bits, as sentence-transformers' quantize_embeddings defines them. Pure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.errors import InvalidConfig

DTYPES = ("float", "int8", "uint8", "binary", "ubinary")


def read_ranges(given: Sequence[Any] | None, size: int) -> NDArray[np.float32] | None:
    """Read the least and the greatest value of int8 and uint8, (2, D): each is one number, or one a dimension."""
    try:
        bounds = None if given is None else [np.broadcast_to(np.float32(bound), size) for bound in given]
    except ValueError:
        raise InvalidConfig(f"int8_ranges: each list must have {size} numbers, one for each dimension") from None
    if bounds is not None and not (bounds[0] < bounds[1]).all():
        raise InvalidConfig("int8_ranges: each least value must be below its greatest")
    return None if bounds is None else np.stack(bounds)


def quantize(vectors: NDArray[np.float32], dtype: str, ranges: Any) -> NDArray[Any]:
    """Convert vectors, (B, D), to one of DTYPES: (B, D), or eight dimensions in a byte of `binary` and `ubinary`."""
    if dtype == "float":
        return vectors
    if dtype in ("binary", "ubinary"):
        packed = np.packbits(vectors > 0, axis=-1)
        return (packed - 128).astype(np.int8) if dtype == "binary" else packed
    least, greatest = ranges[:, : vectors.shape[1]]
    levels: NDArray[np.float32] = np.clip(np.floor((vectors - least) / ((greatest - least) / 255)), 0, 255)
    return levels.astype(np.uint8) if dtype == "uint8" else (levels - 128).astype(np.int8)
