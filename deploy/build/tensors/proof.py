"""The proof that a model batches: rows together give what each gives alone. And that OpenVINO computes what it means.

    signature + warm_up sizes -> random rows -> run alone, run together   -> equal, or InvalidConfig in words
                              -> rows of zeros, wide and large numbers too -> run by both engines -> the largest error

A model that was exported with a batch inside, or that mixes its rows, must not get as far as other people's requests.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.errors import InvalidConfig, WrongOutput, reason
from handlers.protocol.tensors import DTYPES, make_objects
from handlers.tensor_models.checks import check_outputs
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.rows import make_sample_rows
from handlers.tensor_models.signature import Signature, Tensor

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
# The same of OpenVINO and the runtime that owns the file, which computes in the file's own datatypes.
FAITHFUL = 1e-3
# How wide the numbers of a row are spread beside those from 0 to 1: negative ones and saturated ones are among them.
SPREAD = 8.0
# Whole numbers that float32 does not have, and that 32 bits have.
LARGE = (2**24, 2**24 + 2**20), (-(2**24) - 2**20, -(2**24)), (2**31 - 2**20, 2**31)


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
    count = min(ROWS, config.max_batch_items)
    for given in zip(*(rows(signature, config, seed) for seed in range(count)), strict=True):
        sizes = ", ".join(f"{name} {list(array.shape)}" for name, array in given[0].items())
        try:
            alone = [_asked(run, row, signature) for row in given]
        except Exception as error:
            raise NotRun(
                f"it does not run on one row, {sizes}: {_cause(error)}; export it with a free batch dimension, or name "
                "sizes that it takes under warm_up"
            ) from error
        for outputs in alone:
            _check(outputs, signature, 1)
        batch = _joined(given, signature.inputs)
        try:
            together, again = _asked(run, batch, signature), _asked(run, batch, signature)
        except Exception as error:
            raise InvalidConfig(
                f"it runs on one row, {sizes}, and not on {count} together: {_cause(error)}; its batch dimension is "
                "fixed inside it; max_batch_items: 1 serves rows one by one"
            ) from error
        _check(together, signature, count)
        _compare(alone, together, again, signature)


def agree(
    run: Run, other: Run, signature: Signature, config: TensorsConfig, *, owner: str, sizing: Collection[str]
) -> tuple[float, int]:
    """Check that OpenVINO computes what the runtime does that owns the file: rows alone, and all of them together.

    Args:
        run, other: OpenVINO's graph, which has passed `prove`, and the file in its own runtime, PyTorch say.
        signature, config: see `prove`.
        owner: the name of the other runtime.
        sizing: inputs that are given no large numbers, since they decide how much there is to compute.

    Returns:
        The largest error, as a share of the largest number beside it, and how many rows were compared.

    Raises:
        NotRun: the other runtime does not run on one row.
        InvalidConfig: an output differs by more than another order of the same sums explains.
    """
    datatypes = {each.datatype for each in (*signature.inputs.values(), *(signature.outputs or {}).values())}
    tolerance = max([FAITHFUL, *(TOLERANCES.get(str(datatype), 0) for datatype in datatypes)])
    worst, count = 0.0, 0

    def compare(row: Arrays, expected: Arrays, words: str) -> None:
        nonlocal worst
        try:
            got = _asked(run, row, signature)
        except Exception as error:
            raise InvalidConfig(f"OpenVINO fails on {words}, which {owner} computes: {_cause(error)}") from error
        for name in got:
            change = 0.0 if name in random else _change(got[name], expected[name])
            if change > tolerance:
                share = "" if change == math.inf else f" by {change:.2g} of the largest number"
                raise InvalidConfig(f"outputs.{name}: OpenVINO computes other values than {owner}{share}, on {words}")
            worst = max(worst, change)

    for first in rows(signature, config):
        answers = [_answered(other, first, signature) for _ in range(2)]
        random = {name for name, array in answers[0].items() if _change(array, answers[1][name]) > tolerance}
        taken = [(first, answers[0])]
        compare(*taken[0], "a random row")
        for words, row in _others(first, signature, sizing):
            try:
                expected = _asked(other, row, signature)
            except Exception:  # noqa: S112 # It is no input of the model: an index outside of its table, say.
                continue
            is_finite = all(np.isfinite(array).all() for array in expected.values() if array.dtype.kind == "f")
            if is_finite or "whole" not in words:
                compare(row, expected, words)
                taken.append((row, expected))
        count += len(taken)
        del taken[config.max_batch_items :]
        compare(
            _joined([row for row, _ in taken], signature.inputs),
            _joined([expected for _, expected in taken], signature.outputs or {}),
            f"{len(taken)} rows together",
        )
    return worst, count


def _answered(run: Run, row: Arrays, signature: Signature) -> Arrays:
    try:
        return _asked(run, row, signature)
    except Exception as error:
        raise NotRun(_cause(error)) from error


def _others(
    row: Mapping[str, NDArray[Any]], signature: Signature, sizing: Collection[str]
) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    """Make rows of the same sizes that a model may take, each with what it is like."""
    noise = np.random.default_rng(1)
    numbers = {name: array for name, array in row.items() if array.dtype.kind in "fiu" and name not in signature.masks}
    yield "a row of zeros", {**row, **{name: np.zeros_like(array) for name, array in numbers.items()}}
    wide = {name: _wide(array, noise) for name, array in numbers.items()}
    yield "a row of negative and large numbers", {**row, **wide}
    for name, array in numbers.items():
        if array.dtype.kind in "iu" and array.itemsize >= 4 and name not in sizing:
            for least, most in LARGE:
                if least > 0 or array.dtype.kind == "i":
                    large = noise.integers(least, most, array.shape) | 1
                    yield f"whole numbers from {least} on in {name}", {**row, name: large.astype(array.dtype)}


def _wide(array: NDArray[Any], noise: np.random.Generator) -> NDArray[Any]:
    if array.dtype.kind == "f":
        return (noise.standard_normal(array.shape) * SPREAD).astype(array.dtype)
    if array.itemsize > 1:
        return array
    return noise.integers(*(np.iinfo(array.dtype).min, np.iinfo(array.dtype).max), array.shape, array.dtype, True)


def rows(signature: Signature, config: TensorsConfig, seed: int = 0) -> list[dict[str, NDArray[Any]]]:
    """Make a row of each of the first sizes of `warm_up`; none where it is not known what a row is.

    Raises:
        InvalidConfig: `warm_up` is wrong.
    """
    return [_like(sample, signature, seed) for sample in make_sample_rows(signature, config)[:MOST_SIZES]]


def _compare(alone: list[Arrays], together: Arrays, again: Arrays, signature: Signature) -> None:
    for name, array in together.items():
        tensor = (signature.outputs or {}).get(name)
        expected = _joined([{name: outputs[name]} for outputs in alone], signature.outputs or {})[name]
        tolerance = TOLERANCES.get((tensor and tensor.datatype) or "", TOLERANCE)
        # What differs from itself has noise of its own, and can be compared with nothing.
        if _is_equal(array, again[name], tolerance) and not _is_equal(array, expected, tolerance):
            raise InvalidConfig(
                f"outputs.{name}: {len(alone)} rows together give other values than each alone, so it cannot be "
                "batched; max_batch_items: 1 serves rows one by one"
            )


def _check(outputs: Any, signature: Signature, rows: int) -> None:
    try:
        check_outputs(outputs, signature.outputs, rows, {})
    except WrongOutput as error:
        way_out = (
            " max_batch_items: 1 serves rows one by one"
            if rows > 1
            else " An output must have one row for each row of the inputs: leave a step such as NMS out of the file"
        )
        raise InvalidConfig(f"run on {rows} row{'s' * (rows > 1)}: {error}{way_out}") from error


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
        return make_objects([b"%d" % digit for digit in digits.ravel()]).reshape(array.shape)
    return (noise.random(array.shape) if array.dtype.kind == "f" else digits).astype(array.dtype)


def _asked(run: Run, arrays: Arrays, signature: Signature) -> Arrays:
    """Run copies, since a function may write into what it is given, with the inputs that all rows share."""
    return run({name: array.copy() for name, array in {**arrays, **signature.constants}.items()})


def _joined(given: Sequence[Arrays], tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    dimensions = {name: tensors[name].batch_dim if name in tensors else 0 for name in given[0]}
    try:
        return {name: np.concatenate([row[name] for row in given], at) for name, at in dimensions.items()}
    except ValueError:
        raise InvalidConfig(
            f"the sizes of {', '.join(dimensions)} depend on a row's numbers, so rows cannot share a run; "
            "max_batch_items: 1 serves them one by one"
        ) from None


def _cause(error: Exception) -> str:
    """Take the reason from the library's own error, where an engine has made another of it."""
    return reason(error.__cause__ or error)


def _is_equal(a: NDArray[Any], b: NDArray[Any], tolerance: float) -> bool:
    return _change(a, b) <= tolerance


def _change(a: NDArray[Any], b: NDArray[Any]) -> float:
    """How far numbers are from others, as a share of the largest of these; infinity where that is not a question."""
    if a.shape != b.shape or a.dtype.kind != "f" or b.dtype.kind != "f":
        return 0.0 if np.array_equal(a, b) else math.inf
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return math.inf
    a, b = a[finite].astype(np.float64), b[finite].astype(np.float64)
    most, scale = float(np.abs(a - b).max(initial=0.0)), float(np.abs(b).max(initial=0.0))
    return most / scale if scale else math.inf if most else 0.0
