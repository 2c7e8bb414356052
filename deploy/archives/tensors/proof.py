"""The proof that a model batches (a row's outputs do not depend on other rows), and that OpenVINO computes it exactly.

signature + warm_up sizes -> random rows -> run one by one and together  -> equal, or InvalidConfig in words
                          -> also zeros, wide and large numbers      -> run by both engines -> the largest error
"""

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import torch

from deploy.archives.differences import Array, relative_error
from deploy.archives.tensors.samples import DIGITS, make_others, make_positions, make_rows, make_swaying
from handlers.engines import Arrays
from handlers.errors import InvalidConfig, WrongOutput, reason
from handlers.tensor_models.checks import check_outputs
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import Signature, Tensor

Run = Callable[[Arrays], Arrays]

ROWS = 3  # rows that run together; an odd number, at which few models are fixed
# The largest error of a row among others, as a share of the largest number: other shapes change the order of sums.
TOLERANCE = 1e-4
TOLERANCES = {"FP16": 4e-3, "BF16": 4e-2}  # the same by datatype, for those of few bits
# The largest error of OpenVINO against the runtime that owns the file, which computes in the file's own datatypes.
FAITHFUL = 1e-3
# The way out for a model such as Silero VAD, whose state is (2, rows, 128).
OTHER_AXIS = "; if rows are along another dimension, set it, as in batch_dim: 1, for each such input and output"


class NotRun(InvalidConfig):
    """The model rejected a row of random numbers, so its batching is unknown."""


class Mixed(InvalidConfig):
    """A row's outputs depend on other rows, or on earlier ones: no engine may run the model in batches."""


def prove(run: Run, signature: Signature, config: TensorsConfig, *, is_random: bool = False) -> None:
    """Run random rows one by one and together, as a worker does; NotRun if one row fails, Mixed if numbers differ."""
    count = min(ROWS, config.max_batch_items)
    for at in range(len(make_rows(signature, config))):
        given, alone = run_alone(run, signature, config, count, at)
        sizes = _describe_sizes(given[0])
        for outputs in alone:
            _check_outputs(outputs, signature, 1)
        batch = _join(given, signature.inputs)
        try:
            together, again = _run_copies(run, batch, signature), _run_copies(run, batch, signature)
        except Exception as error:
            raise InvalidConfig(
                f"it runs on one row, {sizes}, and not on {count} together: {_find_cause(error)}; its batch dimension "
                f"is fixed inside it; max_batch_items: 1 serves rows one by one{OTHER_AXIS}"
            ) from error
        _check_outputs(together, signature, count)
        changed = _find_changed(run, batch, signature, (together, again), is_random=is_random)
        _compare_rows(alone, {name: together[name] for name in together.keys() - changed}, signature)
        if count > 1:
            _compare_swayed(run, given, alone, signature, changed)


def run_alone(
    run: Run, signature: Signature, config: TensorsConfig, count: int, at: int
) -> tuple[Sequence[dict[str, Array]], Sequence[Arrays]]:
    """Run rows of one of the sizes one by one, of the first kind of whole numbers that the model accepts."""
    first: Exception | None = None
    for digits in DIGITS:
        given = [make_rows(signature, config, seed, digits)[at] for seed in range(count)]
        try:
            return given, [_run_copies(run, row, signature) for row in given]
        except Exception as error:
            first = first or error
    raise NotRun(
        f"it does not run on one row, {_describe_sizes(given[0])}: {_find_cause(first or ValueError())}; export it "
        f"with a free batch dimension, or name sizes that it accepts under warm_up{OTHER_AXIS}"
    ) from first


def _describe_sizes(row: Arrays) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in row.items())


def _compare_swayed(
    run: Run, given: Sequence[Arrays], alone: Sequence[Arrays], signature: Signature, changed: Collection[str]
) -> None:
    """Compare rows with one of wide, negative or huge numbers, which may decide for all, as in `if x.max() > 1`."""
    for kinds, row in make_swaying(given[0], signature):
        try:
            own = _run_copies(run, row, signature)
            together = _run_copies(run, _join([row, *given[1:]], signature.inputs), signature)
        except Exception:  # noqa: S112 # Not a valid input of the model.
            continue
        # Rounding of huge floats may decide otherwise in whole numbers, such as a class.
        compared = {n: array for n, array in together.items() if n not in changed and array.dtype.kind in f"f{kinds}"}
        for rows, place in (([own], slice(0, 1)), (alone[1:], slice(1, None))):
            parts = {name: array[_at(place, name, signature)] for name, array in compared.items()}
            if rows and all(np.isfinite(array).all() for array in parts.values() if array.dtype.kind == "f"):
                _compare_rows(rows, parts, signature, FAITHFUL)


def prove_positions(run: Run, signature: Signature, config: TensorsConfig) -> None:
    """Run rows of powers of two, alone and before others: a position may not lie beyond a row's own numbers."""
    for at in range(len(make_rows(signature, config))):
        (_, *others), _ = run_alone(run, signature, config, min(ROWS, config.max_batch_items), at)
        for row in make_positions(make_rows(signature, config)[at], signature):
            own, together = (
                _try_run(run, _join(rows, signature.inputs), signature) for rows in ([row], [row, *others])
            )
            first = {name: array[_at(slice(0, 1), name, signature)] for name, array in (together or {}).items()}
            if first and (own is None or _differ(own, first, signature, FAITHFUL)):
                raise Mixed(
                    "a whole number of a row is a position among the numbers of all rows, so a client can read those "
                    f"of others; max_batch_items: 1 serves rows one by one{OTHER_AXIS}"
                )


def _at(rows: slice, name: str, signature: Signature) -> tuple[slice, ...]:
    return (*[slice(None)] * _find_dimension(name, signature.outputs or {}), rows)


def _find_changed(
    run: Run, batch: Arrays, signature: Signature, answers: tuple[Arrays, Arrays], *, is_random: bool
) -> set[str]:
    """Name the outputs that differ between two equal runs, which cannot be compared."""
    changed = _differ(*answers, signature)
    if changed and not is_random:
        seeded = []
        for _ in answers:
            random.seed(0)
            np.random.seed(0)  # A function may use numpy's old generator.
            torch.manual_seed(0)
            seeded.append(_run_copies(run, batch, signature))
        if _differ(seeded[0], seeded[1], signature):
            raise Mixed(
                f"outputs.{min(changed)}: two equal runs have other values, and the model has no random operation: it "
                "keeps state of earlier requests, or it was exported for training; export it without state, in eval()"
            )
    return changed


def _differ(one: Arrays, other: Arrays, signature: Signature, least: float = 0) -> set[str]:
    return {name for name in one if relative_error(one[name], other[name]) > max(least, _tolerance(name, signature))}


def _tolerance(name: str, signature: Signature) -> float:
    tensor = (signature.outputs or {}).get(name)
    return TOLERANCES.get((tensor and tensor.datatype) or "", TOLERANCE)


def compare_runtimes(
    run: Run,
    other: Run,
    signature: Signature,
    config: TensorsConfig,
    *,
    owner: str,
    large: Collection[str],
    is_random: bool,
    find_rejection: Callable[[Arrays], str | None] = lambda _: None,
) -> tuple[float, int]:
    """Return the largest relative error to the file's own runtime, of single rows and all together, and the rows.

    What the owner rejects must not be answered: `find_rejection` names what the worker rejects before it runs a row.
    """
    datatypes = {each.datatype for each in (*signature.inputs.values(), *(signature.outputs or {}).values())}
    tolerance = max([FAITHFUL, *(TOLERANCES.get(str(datatype), 0) for datatype in datatypes)])
    worst, count = 0.0, 0

    def compare(row: Arrays, expected: Arrays, words: str) -> None:
        nonlocal worst
        try:
            got = _run_copies(run, row, signature)
        except Exception as error:
            raise InvalidConfig(f"OpenVINO fails on {words}, which {owner} computes: {_find_cause(error)}") from error
        for name in got:
            change = relative_error(got[name], expected[name])
            if change > tolerance:
                share = "" if change == math.inf else f" by {change:.2g} of the largest number"
                raise InvalidConfig(f"outputs.{name}: OpenVINO computes other values than {owner}{share}, on {words}")
            worst = max(worst, change)

    for at in range(len(make_rows(signature, config))):
        (first,), answers = run_alone(other, signature, config, 1, at)
        answers = [*answers, _run_copies(other, first, signature)]
        if changed := _find_changed(other, first, signature, (answers[0], answers[1]), is_random=is_random):
            raise InvalidConfig(f"outputs.{min(changed)}: is random, so OpenVINO cannot be compared with {owner}")
        compared = [(first, answers[0])]
        compare(*compared[0], "a random row")
        for words, row in make_others(first, signature, large):
            try:
                expected = _run_copies(other, row, signature)
            except Exception:
                # Not a valid input of the model, such as an index outside its table.
                if find_rejection(row) is None and _try_run(run, row, signature) is not None:
                    raise InvalidConfig(f"OpenVINO answers {words}, which {owner} rejects") from None
                continue
            is_finite = all(np.isfinite(array).all() for array in expected.values() if array.dtype.kind == "f")
            if is_finite or "whole" not in words:
                compare(row, expected, words)
                compared.append((row, expected))
        count += len(compared)
        del compared[config.max_batch_items :]
        batch = _join([row for row, _ in compared], signature.inputs)
        alone = [expected for _, expected in compared]
        try:
            compare(batch, _join(alone, signature.outputs or {}), f"{len(compared)} rows together")
        except InvalidConfig:
            # It may be the model's own doing.
            _compare_rows(alone, _run_copies(other, batch, signature), signature, tolerance)
            raise
    return worst, count


def _try_run(run: Run, row: Arrays, signature: Signature) -> Arrays | None:
    try:
        return _run_copies(run, row, signature)
    except Exception:
        return None


def _compare_rows(alone: Sequence[Arrays], together: Arrays, signature: Signature, least: float = 0) -> None:
    for name, array in together.items():
        expected = _join([{name: outputs[name]} for outputs in alone], signature.outputs or {})[name]
        if relative_error(array, expected) > max(least, _tolerance(name, signature)):
            raise Mixed(
                f"outputs.{name}: rows together have other values than each by itself, so it cannot be "
                f"batched; max_batch_items: 1 serves rows one by one{OTHER_AXIS}"
            )


def _check_outputs(outputs: object, signature: Signature, rows: int) -> None:
    try:
        check_outputs(outputs, signature.outputs, rows, {})
    except WrongOutput as error:
        way_out = (
            " max_batch_items: 1 serves rows one by one"
            if rows > 1
            else " An output must have one row for each row of the inputs: export the file without a step such as NMS"
        )
        raise InvalidConfig(f"run on {rows} row{'s' * (rows > 1)}: {error}{way_out}{OTHER_AXIS}") from error


def _run_copies(run: Run, arrays: Arrays, signature: Signature) -> Arrays:
    """Run copies, since a function may write into its inputs, together with the inputs that all rows share."""
    return run({name: array.copy() for name, array in {**arrays, **signature.constants}.items()})


def _join(given: Sequence[Arrays], tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    dimensions = {name: _find_dimension(name, tensors) for name in given[0]}
    try:
        return {name: np.concatenate([row[name] for row in given], at) for name, at in dimensions.items()}
    except ValueError:
        raise InvalidConfig(
            f"the sizes of {', '.join(dimensions)} depend on a row's numbers, so rows cannot share a run; "
            "max_batch_items: 1 serves them one by one"
        ) from None


def _find_dimension(name: str, tensors: Mapping[str, Tensor]) -> int:
    """Return the dimension of a tensor's rows."""
    return tensors[name].batch_dim if name in tensors else 0


def _find_cause(error: Exception) -> str:
    """Return the reason of the library's own error, which an engine may have wrapped."""
    return reason(error.__cause__ or error)
