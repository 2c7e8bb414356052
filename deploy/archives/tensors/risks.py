"""Faults of OpenVINO's graph that no comparison of numbers finds: unchecked positions, and short whole numbers.

a graph, its signature -> find_unchecked -> why OpenVINO must not run it, in words
                       -> check_division -> InvalidConfig if a row can end the process, whichever engine runs it
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import openvino

from deploy.archives.tensors.flow import MOVING, Step, Value, find_range, find_type_range, join, walk
from deploy.archives.tensors.proof import Run
from deploy.archives.tensors.samples import make_rows
from handlers.engines import Arrays
from handlers.errors import InvalidConfig, OutOfRange
from handlers.tensor_models.bounds import INEXACT, MOST_EXACT, find_out_of_range, integer_bounds, note_from_zero
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
# Operations of which OpenVINO limits whole numbers of so many bits to their range; elsewhere the last bits remain.
LIMITED = frozenset({"Add", "Subtract", "Multiply", "Divide", "Power", "Negative", "Abs", "Convert"})
MOST_LIMITED = 16
FROM_FIRST = frozenset({"Range", "Eye", "Loop"})  # those whose first input is a size or a count


def find_unchecked(
    model: openvino.Model,
    signature: Signature,
    *,
    has_owner: bool,
    is_finite: bool = True,
    is_program: bool = False,
) -> str | None:
    """Describe a position, length or count that OpenVINO does not check, or whole numbers that it cuts off.

    `is_program`: PyTorch rejects some negative positions, which OpenVINO counts from the end.
    """
    check_division(model, signature)
    for step in walk(model, _give(model, signature, is_finite=is_finite)):
        node, kind = step.node, step.node.get_type_name()
        for port, value in enumerate(step.inputs):
            is_inside = _is_inside(node, port, value, counts_back=not is_program)
            if value.is_sent and reads_positions(node, port) and not is_inside:
                return f"values of a request decide a position, length or count ({kind}), which OpenVINO does not check"
        if not has_owner or not any(value.is_sent for value in step.inputs):
            continue
        if kind == "Power" and step.inputs[1].is_sent and not step.inputs[1].is_within(-MOST_EXACT, MOST_EXACT):
            return "OpenVINO raises to powers in floats, in which a large exponent is even (Power)"
        if _is_limited(step):
            return f"OpenVINO rounds quotients of bytes and limits larger numbers to their range, which {kind} may have"
        if _is_cut_off(step):
            words = "as floats" if kind in INEXACT else "in 32 bits"
            return f"OpenVINO computes whole numbers {words}, and those of {kind} may have more"
    return None


def check_division(model: openvino.Model, signature: Signature) -> None:
    """Reject a division of the smallest whole number by -1, which ends the process on every engine."""
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


def _give(model: openvino.Model, signature: Signature, *, is_finite: bool) -> list[Value]:
    """Return the inputs' ranges: the worker rejects numbers outside `integer_bounds`, and more than 32 bits."""
    bounds, given = integer_bounds(model), []
    for port in model.inputs:
        name, kind = port.any_name, port.get_element_type()
        limits = INT32 if kind.is_integral_number() and kind.get_size() > 4 else find_type_range(kind)
        least, most = bounds.get(name, limits)
        is_sent = name not in signature.constants
        value = Value(max(least, limits[0]), min(most, limits[1]), is_sent, is_number=is_finite or kind.is_integral())
        tensor = signature.inputs.get(name)
        if tensor is not None and tensor.pad is not None:
            value = join([value, Value(tensor.pad.value, tensor.pad.value)])
        given.append(value)
    return given


def reads_positions(node: openvino.Node, port: int) -> bool:
    """Whether an input is a position, length or count, and not a number to compute with."""
    kind = node.get_type_name()
    if kind in NUMERIC or port in NUMBERS.get(kind, ()) or (port == 0 and kind not in FROM_FIRST):
        return False
    if kind == "Loop":
        return port < 2
    return kind in OF_FLOATS or bool(node.input_value(port).get_element_type().is_integral_number())


def _is_inside(node: openvino.Node, port: int, value: Value, *, counts_back: bool) -> bool:
    """Whether positions are proved to lie inside the table that they index; if counts_back, also from its end."""
    kind, table = node.get_type_name(), node.input_value(0).get_partial_shape()
    if port != 1 or table.rank.is_dynamic:
        return False
    sizes = [table[axis].get_length() if table[axis].is_static else 0 for axis in find_indexed(node)]
    if not sizes:
        return False
    # A range of exactly a table's size is that of an input whose negatives the owner accepts: `reject_negatives`.
    is_back = kind == "Gather" and (counts_back or (value.least, value.most) == (-min(sizes), min(sizes) - 1))
    return value.is_within(-min(sizes) if is_back else 0, min(sizes) - 1)


def find_indexed(node: openvino.Node) -> Sequence[int]:
    """Name the dimensions of its first input that an operation indexes with numbers of its second; none if unknown."""
    kind = node.get_type_name()
    if kind == "GatherElements":
        return [node.get_attributes()["axis"]]
    if kind in ("Gather", "ScatterUpdate", "ScatterElementsUpdate"):
        at = node.input_value(2 if kind == "Gather" else 3).get_node()
        return [int(at.get_data().ravel()[0])] if at.get_type_name() == "Constant" else []
    if kind in ("GatherND", "ScatterNDUpdate"):
        shape, first = node.input_value(1).get_partial_shape(), node.get_attributes().get("batch_dims", 0)
        is_known = shape.rank.is_static and shape[-1].is_static
        return range(first, first + shape[-1].get_length()) if is_known else ()
    return ()


def _is_limited(step: Step) -> bool:
    """Whether numbers of few bits may be quotients, which OpenVINO rounds, or too large."""
    node, kind = step.node, step.node.get_type_name()
    whole = node.get_output_element_type(0) if kind in LIMITED else None
    if whole is None or not whole.is_integral_number() or whole.get_bitwidth() > MOST_LIMITED:
        return False
    if kind == "Convert" and node.get_input_element_type(0).is_integral():
        return False
    found = find_range(node, 0, [replace(value, is_number=True) for value in step.inputs])
    return kind == "Divide" or found is None or not Value(*found).is_within(*find_type_range(whole))


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


def reject_negatives(run: Run, model: openvino.Model, signature: Signature, config: TensorsConfig) -> None:
    """Let the worker reject the negative positions that a program rejects: those of an Embedding, not of `table[i]`."""
    row, found = make_rows(signature, config)[0], []
    for name, (least, _) in integer_bounds(model).items():
        if least < 0:
            try:
                run({**row, **signature.constants, name: np.full_like(row[name], -1)})
            except Exception:
                found.append(name)
    note_from_zero(model, found)


def make_checks(model: openvino.Model) -> Callable[[Arrays], str | None]:
    """Return the worker's check of a row's whole numbers."""
    return partial(find_out_of_range, bounds=integer_bounds(model))


def make_checked(run: Run, model: openvino.Model) -> Run:
    """Return a run that rejects the rows that the worker rejects, which would read beyond a table."""
    check = make_checks(model)

    def checked(arrays: Arrays) -> Arrays:
        if (problem := check(arrays)) is not None:
            raise OutOfRange(problem)
        return run(arrays)

    return checked
