"""Rows to try a model of tensors with. Pure.

signature + warm_up sizes -> make_rows   -> random rows
a row                     -> make_others -> rows of equal sizes with zeros, small, wide and large numbers
                          -> make_swaying -> rows that may decide for all
                          -> make_positions -> rows whose whole numbers may be positions beyond their own
"""

from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np

from deploy.archives.differences import Array
from handlers.protocol.tensors import DTYPES, make_objects
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.rows import make_sample_rows
from handlers.tensor_models.signature import Signature

MOST_SIZES = 2  # the most sizes of `warm_up` that run; the list may be long, and the model slow
SPREAD = 8.0  # the deviation of wide numbers, many of which are negative or saturate an activation
# Ranges of integers that fit 32 bits but not float32.
LARGE = (2**24, 2**24 + 2**20), (-(2**24) - 2**20, -(2**24)), (2**31 - 2**20, 2**31)
# Those of UINT32, and of floats that a graph makes whole; requests with more than INT32 of other types are rejected.
LARGEST = (2**32 - 2**20, 2**32)

# Whole numbers, those first that few models reject: each vocabulary has 0 and 1, and nothing divides by 0.
DIGITS = ((0, 2), (1, 3), (3, 10), *((10**n, 10**n + 2) for n in range(1, 7)), (-2, 0))
SMALL = DIGITS[2]
# Those that sway a largest or a smallest number of all rows, as a share of INT32's; one may be a length, of which a
# million need memory. Of larger numbers the graph shows what they decide: `check_mixing`.
SHARES = (2**-24, 2**-11, -(2**-24), -(2**-11))
# Floats that sway a mean, too.
CHANGES: tuple[Callable[[Array], Array], ...] = (
    np.positive,
    lambda x: -abs(x),
    lambda x: abs(x) * 1000,
    lambda x: abs(x) * 1e9,
)

WIDE = "a row of negative and large numbers"


def make_rows(
    signature: Signature, config: TensorsConfig, seed: int = 0, digits: tuple[int, int] = DIGITS[0]
) -> list[dict[str, Array]]:
    """Make a row of each of the first sizes of `warm_up`; none if a row's datatypes or shapes are unknown."""
    return [_make_row(sample, signature, seed, digits) for sample in make_sample_rows(signature, config)[:MOST_SIZES]]


def make_others(
    row: Mapping[str, Array], signature: Signature, large: Collection[str] = ()
) -> Iterator[tuple[str, dict[str, Array]]]:
    """Make rows of equal sizes with other numbers, each with its description."""
    noise = np.random.default_rng(1)
    numbers = {name: array for name, array in row.items() if array.dtype.kind in "fiu" and name not in signature.masks}
    yield "a row of zeros", {**row, **{name: np.zeros_like(array) for name, array in numbers.items()}}
    wide = {name: _make_wide(array, noise) for name, array in numbers.items()}
    yield WIDE, {**row, **wide}
    if whole := {name: array for name, array in numbers.items() if array.dtype.kind in "iu"}:
        small = {name: noise.integers(*SMALL, array.shape).astype(array.dtype) for name, array in whole.items()}
        yield "a row of small whole numbers", {**row, **small}
    for name, array in numbers.items():
        if name in large and array.itemsize >= 4:
            is_wider = array.dtype.kind == "f" or array.dtype == np.uint32
            for least, most in (*LARGE, LARGEST)[: None if is_wider else len(LARGE)]:
                if least > 0 or array.dtype.kind != "u":
                    odd = noise.integers(least, most, array.shape) | 1
                    yield f"whole numbers from {least} on in {name}", {**row, name: odd.astype(array.dtype)}


def make_swaying(row: Mapping[str, Array], signature: Signature) -> Iterator[tuple[str, dict[str, Array]]]:
    """Make rows that may decide for all if anything does, as in `if x.max() > 1`, by their kinds of other numbers."""
    wide = dict(make_others(row, signature))[WIDE]
    with np.errstate(over="ignore"):
        for change in CHANGES:
            changed = {n: change(each).astype(each.dtype) for n, each in wide.items() if each.dtype.kind == "f"}
            yield "f", {**wide, **changed}
    whole = {name: array for name, array in row.items() if array.dtype.kind in "iub"}
    for share in SHARES if whole else ():
        yield "iub", {**row, **{name: _sway(array, share) for name, array in whole.items()}}


def make_positions(row: Mapping[str, Array], signature: Signature) -> Iterator[dict[str, Array]]:
    """Make rows in which one input has a power of two: of a table of any size, one lies in the next row's part."""
    for name, array in row.items():
        if array.dtype.kind in "iu" and name not in signature.masks:
            limits = np.iinfo(array.dtype)
            for position in (-1, *(2**power for power in range(20))):
                if limits.min <= position <= limits.max:
                    yield {**row, name: np.full_like(array, position)}


def _sway(array: Array, share: float) -> Array:
    if array.dtype.kind == "b":
        return np.full_like(array, share > 0)
    limits = np.iinfo(array.dtype)
    return np.full_like(array, int(max(limits.min, min(limits.max, share * 2**31))))


def _make_wide(array: Array, noise: np.random.Generator) -> Array:
    if array.dtype.kind == "f":
        return (noise.standard_normal(array.shape) * SPREAD).astype(array.dtype)
    if array.itemsize > 1:
        return array
    return noise.integers(*(np.iinfo(array.dtype).min, np.iinfo(array.dtype).max), array.shape, array.dtype, True)


def _make_row(
    sample: Mapping[str, Array], signature: Signature, seed: int, digits: tuple[int, int]
) -> dict[str, Array]:
    """Make a random row of a sample's sizes, with the masks that a worker adds."""
    noise = np.random.default_rng(seed)
    row = {name: _make_noise(array, noise, digits) for name, array in sample.items()}
    for mask, padded in signature.masks.items():
        if mask not in row:
            tensor, other = signature.inputs[mask], signature.inputs[padded]
            sizes = [row[padded].shape[dimension] for dimension in other.free]
            row[mask] = np.expand_dims(np.ones(sizes, DTYPES[str(tensor.datatype)]), tensor.batch_dim)
    return {name: row[name] for name in signature.inputs}


def _make_noise(array: Array, noise: np.random.Generator, limits: tuple[int, int]) -> Array:
    """Make numbers that few models reject: floats from 0 to 1, and whole numbers within limits."""
    digits = noise.integers(*limits, array.shape)
    if array.dtype.kind == "O":
        return make_objects([b"%d" % digit for digit in digits.ravel()]).reshape(array.shape)
    return (noise.random(array.shape) if array.dtype.kind == "f" else digits).astype(array.dtype)
