"""Faults of OpenVINO's graph that no comparison of numbers finds: unchecked positions, short whole numbers, mixed rows.

a graph, its signature -> find_unchecked -> why OpenVINO must not run it, in words
                       -> find_mixing    -> why its rows must not share a run, in words; check_mixing raises it
                       -> check_division -> InvalidConfig if a row can end the process, whichever engine runs it
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import openvino

from deploy.archives.tensors.flow import MOVING, Step, Value, find_type_range, is_free, join, walk
from deploy.archives.tensors.proof import OTHER_AXIS, Mixed, Run
from deploy.archives.tensors.samples import make_rows
from handlers.engines import Arrays
from handlers.errors import InvalidConfig, OutOfRange
from handlers.tensor_models.bounds import INEXACT, MOST_EXACT, find_out_of_range, integer_bounds
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import Signature

INT32 = (-(2**31), 2**31 - 1)
WIDE = ("i64", "u64", "u32")  # whole numbers that OpenVINO computes in 32 bits with a sign
# Operations that read their whole numbers as numbers; any other may read positions, lengths or counts, without a check.
_NUMERIC = """Add Subtract Multiply Divide Mod FloorMod Power Maximum Minimum SquaredDifference Equal NotEqual Less
LessEqual Greater GreaterEqual BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitwiseLeftShift BitwiseRightShift Select
Concat MatMul Convert ConvertLike SearchSorted Bucketize Einsum Result If TensorIterator"""
NUMERIC = frozenset(_NUMERIC.split())
# The ports of other operations that read numbers, and operations that find positions or sizes in floats, too.
NUMBERS = {"OneHot": (2, 3), "Pad": (3,)} | dict.fromkeys(
    ("ScatterUpdate", "ScatterElementsUpdate", "ScatterNDUpdate"), (2,)
)
_OF_FLOATS = """Range Eye Interpolate ROIAlign ROIAlignRotated ROIPooling PSROIPooling DeformablePSROIPooling
ExperimentalDetectronROIFeatureExtractor"""
OF_FLOATS = frozenset(_OF_FLOATS.split())
FROM_FIRST = frozenset({"Range", "Eye", "Loop"})  # those whose first input is a size or a count
# Operations along one dimension that keep its size.
ALONG = frozenset({"CumSum", "SoftMax", "Softmax", "LogSoftmax", "TopK"})


def find_unchecked(model: openvino.Model, signature: Signature, *, has_owner: bool) -> str | None:
    """Describe a position, length or count that OpenVINO does not check, or whole numbers that it cuts off."""
    check_division(model, signature)
    for step in walk(model, _give(model, signature)):
        node, kind = step.node, step.node.get_type_name()
        for port, value in enumerate(step.inputs):
            if value.is_sent and _reads_positions(node, port) and not _is_inside(node, port, value):
                return f"values of a request decide a position, length or count ({kind}), which OpenVINO does not check"
        if has_owner and any(value.is_sent for value in step.inputs) and _is_cut_off(step):
            words = "as floats" if kind in INEXACT else "in 32 bits"
            return f"OpenVINO computes whole numbers {words}, and those of {kind} may have more"
    return None


def check_division(model: openvino.Model, signature: Signature) -> None:
    """Refuse a division of the smallest whole number by -1, which ends the process on every engine."""
    kinds = [(each.any_name not in signature.constants, each.get_element_type()) for each in model.inputs]
    for step in walk(model, [Value(*find_type_range(kind), is_sent) for is_sent, kind in kinds]):
        kind, port = step.node.get_type_name(), step.node.output(0) if step.node.get_output_size() else None
        if port is None or kind not in ("Divide", "Mod", "FloorMod") or not any(each.is_sent for each in step.inputs):
            continue
        dividend, divisor = step.inputs
        whole = port.get_element_type()
        # Shorter numbers do not trap: a processor divides them in 32 bits.
        is_trapped = whole.is_integral_number() and whole.is_signed() and whole.get_bitwidth() >= 32
        smallest = -(2 ** (whole.get_bitwidth() - 1))
        if is_trapped and dividend.least <= smallest and divisor.least <= -1 <= divisor.most:
            raise InvalidConfig(
                f"a request can divide the smallest whole number by -1 ({kind}), which ends the worker; divide floats, "
                "or clip the divisor to positive numbers in the model"
            )


def _give(model: openvino.Model, signature: Signature) -> list[Value]:
    """Return the inputs' ranges: the worker refuses numbers outside `integer_bounds`, and more than 32 bits."""
    bounds, given = integer_bounds(model), []
    for port in model.inputs:
        name, kind = port.any_name, port.get_element_type()
        limits = INT32 if kind.is_integral_number() and kind.get_size() > 4 else find_type_range(kind)
        least, most = bounds.get(name, limits)
        value = Value(max(least, limits[0]), min(most, limits[1]), name not in signature.constants)
        tensor = signature.inputs.get(name)
        if tensor is not None and tensor.pad is not None:
            value = join([value, Value(tensor.pad.value, tensor.pad.value)])
        given.append(value)
    return given


def _reads_positions(node: Any, port: int) -> bool:
    kind = node.get_type_name()
    if kind in NUMERIC or port in NUMBERS.get(kind, ()) or (port == 0 and kind not in FROM_FIRST):
        return False
    if kind == "Loop":
        return port < 2
    return kind in OF_FLOATS or bool(node.input_value(port).get_element_type().is_integral_number())


def _is_inside(node: Any, port: int, value: Value) -> bool:
    """Whether positions are proved to lie inside the table that they index."""
    kind, table = node.get_type_name(), node.input_value(0).get_partial_shape()
    if port != 1 or table.rank.is_dynamic:
        return False
    axes: Sequence[int] = ()
    if kind == "GatherElements":
        axes = [node.get_attributes()["axis"]]
    elif kind in ("Gather", "ScatterUpdate", "ScatterElementsUpdate"):
        at = node.input_value(2 if kind == "Gather" else 3).get_node()
        axes = [int(at.get_data().ravel()[0])] if at.get_type_name() == "Constant" else []
    elif kind in ("GatherND", "ScatterNDUpdate"):
        axes = _find_indexed(node)
    sizes = [table[axis].get_length() if table[axis].is_static else 0 for axis in axes]
    return bool(sizes) and value.is_within(-min(sizes) if kind == "Gather" else 0, min(sizes) - 1)


def _find_indexed(node: Any) -> Sequence[int]:
    """Name the dimensions that GatherND or ScatterNDUpdate index."""
    shape, first = node.input_value(1).get_partial_shape(), node.get_attributes().get("batch_dims", 0)
    return range(first, first + shape[-1].get_length()) if shape.rank.is_static and shape[-1].is_static else ()


def _is_cut_off(step: Step) -> bool:
    """Whether an operation may have whole numbers beyond those that OpenVINO computes exactly."""
    node, kind = step.node, step.node.get_type_name()
    if kind in ("If", "Loop", "TensorIterator", "ShapeOf", *MOVING):
        return False
    ports = [*zip(step.inputs, node.input_values(), strict=True), *zip(step.outputs, node.outputs(), strict=True)]
    limits = (-MOST_EXACT, MOST_EXACT) if kind in INEXACT else INT32
    return any(
        value.is_sent
        and (port.get_element_type().get_type_name() in WIDE or kind in INEXACT)
        and port.get_element_type().is_integral_number()
        and not value.is_within(*limits)
        for value, port in ports
    )


def find_mixing(model: openvino.Model, signature: Signature, sizes: Mapping[str, Sequence[int]]) -> str | None:
    """Describe a number of all rows, which decides for each of them; `sizes` has a row's shape of each input."""
    model = model.clone()
    shapes = {name: openvino.PartialShape([*shape]) for name, shape in sizes.items()}
    for name, shape in shapes.items():
        shape[signature.inputs[name].batch_dim] = -1
    with suppress(RuntimeError):
        # Only the rows are free then: what has no free dimension has no rows.
        model.reshape({**{port.any_name: port.get_partial_shape() for port in model.inputs}, **shapes})
    for step in walk(model, _give(model, signature)):
        if not step.is_of_rows and (found := _mix(step)):
            return found
    return None


def check_mixing(model: openvino.Model, signature: Signature, config: TensorsConfig) -> None:
    """Raise Mixed for a fault that random rows need not show: a number of all rows that decides for each of them."""
    if config.max_batch_items > 1:
        sizes = {name: array.shape for name, array in make_rows(signature, config)[0].items()}
        if mixing := find_mixing(model, signature, sizes):
            raise Mixed(f"{mixing}, so it cannot be batched; max_batch_items: 1 serves rows one by one{OTHER_AXIS}")


def make_checks(model: openvino.Model) -> Callable[[Arrays], str | None]:
    """Return the worker's check of a row's whole numbers."""
    return partial(find_out_of_range, bounds=integer_bounds(model))


def make_checked(run: Run, model: openvino.Model) -> Run:
    """Return a run that refuses the rows that the worker refuses, which would read beyond a table."""
    check = make_checks(model)

    def checked(arrays: Arrays) -> Arrays:
        if (problem := check(arrays)) is not None:
            raise OutOfRange(problem)
        return run(arrays)

    return checked


def _mix(step: Step) -> str | None:
    node, kind = step.node, step.node.get_type_name()
    if kind in ("If", "Loop") and any(value.is_sent for value in step.inputs[: 1 if kind == "If" else 2]):
        return f"values of one row decide for all of them ({kind})"
    if kind in ALONG and step.inputs[0].is_sent and _is_along_rows(node):
        return f"{kind} is computed along the rows"
    if kind in ("Result", "ShapeOf") or not any(value.is_sent for value in step.inputs):
        return None
    for value, output in zip(step.outputs, node.outputs(), strict=True):
        if value.is_sent and not value.is_ragged and output.get_partial_shape().is_static:
            return f"a number of all rows together ({kind}) decides for each of them"
    return None


def _is_along_rows(node: Any) -> bool:
    axis = node.get_attributes().get("axis")
    if axis is None and node.get_type_name() == "CumSum":
        constant = node.input_value(1).get_node()
        axis = int(constant.get_data().ravel()[0]) if constant.get_type_name() == "Constant" else None
    return axis is not None and is_free(node.input_value(0), axis)
