"""The proof that a model batches: rows together give what each gives alone.

    signature + warm_up sizes -> random rows -> run alone, run together -> equal, or InvalidConfig in words

A model that was exported with a batch inside, or that mixes its rows, must not get as far as other people's requests.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.errors import InvalidConfig, WrongOutput, reason
from handlers.protocol.tensors import DTYPES, objects
from handlers.tensor_models.checks import checked_outputs
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.rows import sample_rows
from handlers.tensor_models.signature import Signature

Arrays = Mapping[str, NDArray[Any]]
Run = Callable[[Arrays], Arrays]

# Rows that are run together; an odd number is no size that a model is likely to be fixed at.
ROWS = 3
# Sizes of `warm_up` that are tried; a list of them may be long, and a large model slow.
MOST_SIZES = 2
# How much numbers may differ, as a share of the largest beside them: sums are added up in another order for another
# shape, and what has few bits is rounded to the next one.
TOLERANCES = {"FP16": 4e-3, "BF16": 4e-2}
TOLERANCE = 1e-4
# Of a graph and the program it was made from: OpenVINO computes in 32 bits what is of 16 or 64.
CONVERTED_TOLERANCE = 4e-2


class NotRun(InvalidConfig):
    """The model did not take one row of random numbers: nothing is known of its batching."""


def prove(run: Run, signature: Signature, config: TensorsConfig) -> None:
    """Run random rows alone and together, as a worker would.

    Args:
        run: the model, from named arrays with a batch dimension to named arrays with one.
        signature: what it is held against; where a datatype or a shape may be any, nothing is run.
        config: its `warm_up` says which sizes are likely.

    Raises:
        NotRun: one row alone fails.
        InvalidConfig: rows together fail, or give other shapes or numbers than alone; or `warm_up` is wrong.
    """
    count = min(ROWS, config.max_batch_size)
    for given in zip(*(rows(signature, config, seed) for seed in range(count)), strict=True):
        sizes = ", ".join(f"{name} {list(array.shape)}" for name, array in given[0].items())
        try:
            alone = [run(_copied(row)) for row in given]
        except Exception as error:
            raise NotRun(
                f"it does not run on one row, {sizes}: {reason(error)}; export it with a free batch dimension, or name "
                "sizes that it takes under warm_up"
            ) from error
        for outputs in alone:
            _check(outputs, signature, 1)
        batch = {
            name: np.concatenate([row[name] for row in given], signature.inputs[name].batch_dim) for name in given[0]
        }
        try:
            together, again = run(_copied(batch)), run(_copied(batch))
        except Exception as error:
            raise InvalidConfig(
                f"it runs on one row, {sizes}, and not on {count} together: {reason(error)}; its batch dimension is "
                "fixed inside it; max_batch_size: 1 serves rows one by one"
            ) from error
        _check(together, signature, count)
        _compare(alone, together, again, signature)


def agree(run: Run, other: Run, signature: Signature, config: TensorsConfig) -> None:
    """Check that a graph computes what the program does that it was converted from.

    Args:
        run, other: the graph and the program; see `prove`, which both have passed.
        signature, config: see `prove`.

    Raises:
        InvalidConfig: an output differs by more than another order of the same sums explains.
    """
    for row in rows(signature, config):
        got, expected, again = run(_copied(row)), other(_copied(row)), other(_copied(row))
        for name, array in expected.items():
            is_random = not _is_equal(array, again[name], CONVERTED_TOLERANCE)
            if not is_random and not _is_equal(got[name], array, CONVERTED_TOLERANCE):
                raise InvalidConfig(
                    f"outputs.{name}: OpenVINO computes other values than PyTorch; --engine torch packs it for PyTorch "
                    "alone"
                )


def rows(signature: Signature, config: TensorsConfig, seed: int = 0) -> list[dict[str, NDArray[Any]]]:
    """Make a row of each of the first sizes of `warm_up`; none where it is not known what a row is.

    Raises:
        InvalidConfig: `warm_up` is wrong.
    """
    return [_like(sample, signature, seed) for sample in sample_rows(signature, config)[:MOST_SIZES]]


def _compare(alone: list[Arrays], together: Arrays, again: Arrays, signature: Signature) -> None:
    for name, array in together.items():
        tensor = (signature.outputs or {}).get(name)
        expected = np.concatenate([outputs[name] for outputs in alone], tensor.batch_dim if tensor else 0)
        tolerance = TOLERANCES.get((tensor and tensor.datatype) or "", TOLERANCE)
        # What differs from itself has noise of its own, and can be compared with nothing.
        if _is_equal(array, again[name], tolerance) and not _is_equal(array, expected, tolerance):
            raise InvalidConfig(
                f"outputs.{name}: {len(alone)} rows together give other values than each alone, so it cannot be "
                "batched; max_batch_size: 1 serves rows one by one"
            )


def _check(outputs: Any, signature: Signature, rows: int) -> None:
    try:
        checked_outputs(outputs, signature.outputs, rows, {})
    except WrongOutput as error:
        raise InvalidConfig(f"run on {rows} row{'s' * (rows > 1)}: {error}") from error


def _like(sample: Arrays, signature: Signature, seed: int) -> dict[str, NDArray[Any]]:
    """Make another row of a sample's sizes, with the masks that a worker makes."""
    noise = np.random.default_rng(seed)
    row = {name: _noise(array, noise) for name, array in sample.items()}
    for mask, padded in signature.masks.items():
        if mask not in row:
            tensor, other = signature.inputs[mask], signature.inputs[padded]
            sizes = [row[padded].shape[dimension] for dimension in other.free]
            row[mask] = np.expand_dims(np.ones(sizes, DTYPES[str(tensor.datatype)]), tensor.batch_dim)
    return {name: row[name] for name in signature.inputs}


def _noise(array: NDArray[Any], noise: np.random.Generator) -> NDArray[Any]:
    """Numbers that few models refuse: whole ones are 0 and 1, which every vocabulary has, others between them."""
    digits = noise.integers(0, 2, array.shape)
    if array.dtype.kind == "O":
        return objects([b"%d" % digit for digit in digits.ravel()]).reshape(array.shape)
    return (noise.random(array.shape) if array.dtype.kind == "f" else digits).astype(array.dtype)


def _copied(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Copy what a function may write into."""
    return {name: array.copy() for name, array in arrays.items()}


def _is_equal(a: NDArray[Any], b: NDArray[Any], tolerance: float) -> bool:
    if a.shape != b.shape or a.dtype.kind != "f":
        return np.array_equal(a, b)
    finite = np.abs(b[np.isfinite(b)].astype(np.float64))
    scale = float(finite.max()) if finite.size else 0.0
    return np.allclose(a.astype(np.float64), b.astype(np.float64), 0, tolerance * scale, equal_nan=True)
