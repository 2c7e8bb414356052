"""The whole numbers that OpenVINO computes exactly; others would get wrong answers without an error.

a graph -> for each input of whole numbers, the operations that it reaches -> (least, most)
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import openvino

from handlers.aliases import Array

FROM_ZERO = ["inputs_from_zero"]  # where a graph of a PyTorch program notes the inputs whose negatives PyTorch rejects

# On a CPU OpenVINO 2026.4 computes these on whole numbers in float32.
INEXACT = {"Divide", "Mod", "FloorMod", "Equal", "NotEqual", "ReduceSum", "ReduceMean", "ReduceProd", "Power"}
MOST_EXACT = 2**24  # float32 represents every whole number up to this one
# Operations that do not change numbers.
UNCHANGED = frozenset(
    {"Convert", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Broadcast", "Tile", "Slice", "StridedSlice", "Split"}
)


def integer_bounds(model: openvino.Model) -> dict[str, tuple[int, int]]:
    """Find the bounds of inputs that index tables of constants, which OpenVINO does not check."""
    found = {port.any_name: _follow(port.node.output(0)) for port in model.inputs if port.element_type.is_integral()}
    bounds = {name: (max(least), min(most)) for name, (least, most) in found.items() if least}
    noted = json.loads(model.get_rt_info(FROM_ZERO).astype(str)) if model.has_rt_info(FROM_ZERO) else []
    return bounds | {name: (0, bounds[name][1]) for name in noted if name in bounds}


def note_from_zero(model: openvino.Model, names: Sequence[str]) -> None:
    """Keep with a graph the inputs that `integer_bounds` lets begin at zero."""
    model.set_rt_info(json.dumps([*names]), FROM_ZERO)


def _follow(source: Any) -> tuple[list[int], list[int]]:
    least, most = [], []
    seen, waiting = set(), [(source, True)]
    while waiting:
        output, is_unchanged = waiting.pop()
        for target in output.get_target_inputs():
            node, kind = target.get_node(), target.get_node().get_type_name()
            if kind in INEXACT:
                least.append(-MOST_EXACT)
                most.append(MOST_EXACT)
            # The smallest number of 32 bits becomes a false boolean there.
            is_boolean = kind == "Convert" and node.get_output_element_type(0) == openvino.Type.boolean
            if is_boolean and output.get_element_type().size >= 4:
                least.append(1 - 2**31)
                most.append(2**31 - 1)
            size = _read_table_size(node) if kind == "Gather" and target.get_index() == 1 and is_unchanged else None
            if size is not None:
                least.append(-size)
                most.append(size - 1)
            key = (node.friendly_name, is_unchanged)
            if kind not in ("ShapeOf", "Gather") and key not in seen:
                seen.add(key)
                goes_on = [each for each in node.outputs() if each.get_element_type().is_integral_number()]
                waiting += [(each, is_unchanged and kind in UNCHANGED) for each in goes_on]
    return least, most


def _read_table_size(gather: Any) -> int | None:
    """Return the number of positions of a Gather's table; None if only a run shows it."""
    table, axis = gather.input_value(0).get_partial_shape(), gather.input_value(2).get_node()
    if axis.get_type_name() != "Constant" or table.rank.is_dynamic:
        return None
    size = table[int(axis.get_data().ravel()[0])]
    return size.get_length() if size.is_static else None


def find_out_of_range(arrays: Mapping[str, Array], bounds: Mapping[str, tuple[int, int]]) -> str | None:
    """Describe an input with a number outside its bounds; None if all are inside."""
    for name, (least, most) in bounds.items():
        array = arrays.get(name)
        if array is not None and array.size and not (least <= int(array.min()) and int(array.max()) <= most):
            return f"{name}: the model computes with whole numbers from {least} to {most} only."
    return None
