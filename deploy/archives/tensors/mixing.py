"""Rows that decide for other rows, or whose number does: random numbers need not show them, OpenVINO's graph does.

a graph, the sizes of a row -> the graph of a prime number of rows, in which a dimension with rows is a multiple of it
                            -> find_mixing -> the operation that joins rows, in words; check_mixing raises it
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import numpy as np
import openvino
from openvino.passes import ConstantFolding, Manager

from deploy.archives.differences import Array
from deploy.archives.tensors.flow import MOST_READ, Step, Value, has_rows, walk
from deploy.archives.tensors.proof import OTHER_AXIS, Mixed
from deploy.archives.tensors.risks import find_indexed, reads_positions
from deploy.archives.tensors.samples import make_rows
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import Signature

# Numbers of rows of which no size of a model may be a multiple; more rows than most micro-batches have.
PRIMES = (257, 263, 269, 271, 277, 281, 283, 293)
Constants = Mapping[str, Array]
Axes = Callable[[openvino.Node], Iterable[int]]


def _attribute(name: str) -> Axes:
    return lambda node: np.ravel(node.get_attributes().get(name, ()))


def _constant(port: int) -> Axes:
    return lambda node: _read(node, port)


def _read(node: openvino.Node, port: int) -> Sequence[int]:
    """Read a constant input; nothing of any other."""
    source = node.input_value(port).get_node() if port < node.get_input_size() else None
    if source is None or source.get_type_name() != "Constant":
        return []
    return [int(each) for each in np.ravel(source.get_data())]


def _all_but(first: int) -> Axes:
    return lambda node: range(first, len(node.input_value(0).get_partial_shape()))


def _kernel(node: openvino.Node) -> Iterable[int]:
    """Name the dimensions of a window of more than one position, and of channels that a convolution adds."""
    sizes = node.get_attributes().get("kernel")
    if sizes is None:
        sizes = [size.get_length() if size.is_static else 0 for size in _dimensions(node.input_value(1))]
    rank = len(node.input_value(0).get_partial_shape())
    channels = (1,) if node.get_type_name() in ("Convolution", "ConvolutionBackpropData") else ()
    return [*channels, *(axis for axis, size in zip(range(2, rank), sizes[2 - rank :], strict=False) if size != 1)]


def _backwards(node: openvino.Node) -> Iterable[int]:
    is_strided = node.get_type_name() == "StridedSlice"
    steps = _read(node, 3)
    axes = range(len(steps)) if is_strided or node.get_input_size() < 5 else _read(node, 4)
    return [axis for axis, step in zip(axes, steps, strict=False) if step < 0]


def _contracted(node: openvino.Node) -> Iterable[int]:
    return [-2 if node.get_attributes()["transpose_a"] else -1]


# The dimensions of its first input along which an operation joins numbers.
ALONG: Mapping[str, Axes] = {
    **dict.fromkeys(("Softmax", "SoftMax", "LogSoftmax", "TopK"), _attribute("axis")),
    **dict.fromkeys(("CumSum", "MVN", "NormalizeL2", "LRN", "Reverse"), _constant(1)),
    **dict.fromkeys(("LSTMSequence", "GRUSequence", "RNNSequence"), lambda _: (1,)),
    **dict.fromkeys(("Convolution", "ConvolutionBackpropData", "GroupConvolution", "MaxPool", "AvgPool"), _kernel),
    **dict.fromkeys(("Slice", "StridedSlice"), _backwards),
    "ReverseSequence": _attribute("seq_axis"),
    "Roll": _constant(2),
    "MatMul": _contracted,
    "ScaledDotProductAttention": lambda _: (-2,),
    "GroupNormalization": _all_but(1),
    "Unique": _all_but(0),
}


# Operations that read or write at positions of a table.
INDEXED = ("Gather", "GatherND", "GatherElements", "ScatterUpdate", "ScatterElementsUpdate", "ScatterNDUpdate")


def check_mixing(make: Callable[[], openvino.Model], signature: Signature, config: TensorsConfig) -> None:
    """Raise Mixed for a fault that random rows need not show: a number of all rows that decides for each of them."""
    if config.max_batch_items > 1:
        sizes = {name: array.shape for name, array in make_rows(signature, config)[0].items()}
        if mixing := find_mixing(make, signature, sizes):
            raise Mixed(f"{mixing}, so it cannot be batched; max_batch_items: 1 serves rows one by one{OTHER_AXIS}")


def has_positions(make: Callable[[], openvino.Model], signature: Signature, config: TensorsConfig) -> bool:
    """Whether numbers of a request are positions in a table of all rows."""
    sizes = {name: array.shape for name, array in make_rows(signature, config)[0].items()}
    return any(_is_among_rows(step, rows) for model, rows in [_walk_rows(make, signature, sizes)] for step in model)


def find_mixing(
    make: Callable[[], openvino.Model], signature: Signature, sizes: Mapping[str, Sequence[int]]
) -> str | None:
    """Describe a number of all rows, which decides for each of them; `sizes` has a row's shape of each input."""
    steps, rows = _walk_rows(make, signature, sizes)
    alone = _read_constants(_walk(_set_rows(make(), signature, sizes, 1), signature))
    together = _read_constants(steps)
    for step in steps:
        if not step.is_of_rows and (found := _carry(step, rows) or _mix(step, rows) or _count(step, alone, together)):
            return found
    return None


def _walk_rows(
    make: Callable[[], openvino.Model], signature: Signature, sizes: Mapping[str, Sequence[int]]
) -> tuple[list[Step], int]:
    """Return the steps of a graph of a prime number of rows, and this number."""
    model = make()
    known = {size.get_length() for port in _list_outputs(model) for size in _dimensions(port) if size.is_static} - {0}
    rows = next((each for each in PRIMES if all(size % each for size in known)), PRIMES[-1])
    return _walk(_set_rows(model, signature, sizes, rows), signature, rows), rows


def _list_outputs(model: openvino.Model) -> list[openvino.Output]:
    return [output for node in model.get_ops() for output in node.outputs()]


def _dimensions(output: openvino.Output) -> Sequence[openvino.Dimension]:
    shape = output.get_partial_shape()
    return () if shape.rank.is_dynamic else [*shape]


def _set_rows(
    model: openvino.Model, signature: Signature, sizes: Mapping[str, Sequence[int]], count: int
) -> openvino.Model:
    """Give a graph a number of rows, and compute all that depends on nothing else."""
    shapes = {port.any_name: port.get_partial_shape() for port in model.inputs}
    for name, size in sizes.items():
        if name not in shapes:
            continue  # nothing reads it
        at = signature.inputs[name].batch_dim
        shapes[name] = openvino.PartialShape([*size[:at], count, *size[at + 1 :]])
    with suppress(Exception):  # of several kinds; what has a size without rows is found without it, too
        model.reshape(shapes)
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(model)
    return model


def _walk(model: openvino.Model, signature: Signature, rows: int = 0) -> list[Step]:
    return [*walk(model, [Value(is_sent=port.any_name not in signature.constants) for port in model.inputs], rows)]


def _read_constants(steps: Sequence[Step]) -> Constants:
    found = [step.node for step in steps if step.node.get_type_name() == "Constant"]
    return {node.friendly_name: node.get_data() for node in found if node.get_output_tensor(0).size <= MOST_READ}


def _mix(step: Step, rows: int) -> str | None:
    node, kind = step.node, step.node.get_type_name()
    if kind in ("If", "Loop") and any(value.is_sent for value in step.inputs[: 1 if kind == "If" else 2]):
        return f"values of one row decide for all of them ({kind})"
    if kind in ("Result", "ShapeOf") or not any(value.is_sent for value in step.inputs):
        return None
    if step.inputs[0].is_sent and (_is_along(node, rows) or _is_moved(node, rows)):
        return f"{kind} is computed along the rows"
    for value, output in zip(step.outputs, node.outputs(), strict=True):
        shape = output.get_partial_shape()
        if not value.is_sent or value.is_ragged or shape.is_dynamic:
            continue
        size = int(np.prod(shape.to_shape()))
        if size % rows:
            return f"a number of all rows together ({kind}) decides for each of them"
        if size and not size % rows**2:
            return f"pairs of rows are compared ({kind})"
    return None


def _carry(step: Step, rows: int) -> str | None:
    """Describe a loop that ends with numbers of a request, and may run over rows, since their sizes may be unknown."""
    node, kind = step.node, step.node.get_type_name()
    if kind not in ("Loop", "TensorIterator"):
        return None
    sliced = [each for each in node.get_input_descriptions() if getattr(each, "axis", None) is not None]
    ends = [each.output_index for each in node.get_output_descriptions() if getattr(each, "axis", None) is None]
    is_over_rows = any(_may_have_rows(node.input_value(each.input_index), each.axis, rows) for each in sliced)
    is_sent = any(step.outputs[index].is_sent for index in ends)
    return f"a loop over the rows keeps numbers of one for the next ({kind})" if is_over_rows and is_sent else None


def _may_have_rows(output: openvino.Output, axis: int, rows: int) -> bool:
    sizes = _dimensions(output)
    return not sizes or sizes[axis].is_dynamic or has_rows(output, axis, rows)


def _is_along(node: openvino.Node, rows: int) -> bool:
    kind, table = node.get_type_name(), node.input_value(0)
    is_known = kind in ALONG and table.get_partial_shape().rank.is_static
    return is_known and any(has_rows(table, int(axis), rows) for axis in ALONG[kind](node))


def _is_among_rows(step: Step, rows: int) -> bool:
    node = step.node
    if node.get_type_name() not in INDEXED or not (step.inputs[0].is_sent and step.inputs[1].is_sent):
        return False
    table = node.input_value(0)
    return table.get_partial_shape().is_dynamic or any(has_rows(table, axis, rows) for axis in find_indexed(node))


def _is_moved(node: openvino.Node, rows: int) -> bool:
    """Whether rows are read at other places than their own."""
    if node.get_type_name() != "Gather" or node.get_attributes().get("batch_dims"):
        return False
    dimensions, axis = _dimensions(node.input_value(0)), _read(node, 2)
    if not dimensions or not axis or dimensions[axis[0]] != rows:
        return False
    return not np.array_equal(_read(node, 1), np.arange(rows))


def _count(step: Step, alone: Constants, together: Constants) -> str | None:
    """Describe a number that the number of rows decides, or a row's place among them, if it decides their values."""
    node, kind = step.node, step.node.get_type_name()
    for port, source in enumerate(each.get_node() for each in node.input_values()):
        name = source.friendly_name
        if name not in together or (reads_positions(node, port) and kind != "Loop"):
            continue
        is_read = kind in ("Result", "If", "Loop") or any(value.is_sent for value in step.inputs)
        if is_read and _depends_on_count(alone.get(name), together[name]):
            return f"the number of rows decides their values ({kind})"
    return None


def _depends_on_count(one: Array | None, many: Array) -> bool:
    if one is None or one.shape == many.shape:
        return one is not None and not np.array_equal(one, many, equal_nan=one.dtype.kind == "f")
    first = many[tuple(slice(size) for size in one.shape)] if one.ndim == many.ndim else None
    # Whole numbers that differ from row to row may be positions, such as the start of each row.
    return first is None or not np.array_equal(first, one) or (many.dtype.kind == "f" and bool((many != first).any()))
