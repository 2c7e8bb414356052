"""How the values of requests flow through OpenVINO's graph, and between which numbers they lie.

a graph, the values of its inputs -> walk -> each node of it and of the graphs inside it, with its inputs' values
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import openvino

MOST_READ = 2**16  # the largest constant whose numbers are looked at
ENDLESS = math.inf
# Operations whose outputs are numbers of their first input.
_MOVING = """Reshape Squeeze Unsqueeze Transpose Broadcast Tile Slice StridedSlice Split VariadicSplit Gather GatherND
GatherElements ReverseSequence Reverse Roll MaxPool ReduceMax ReduceMin Result TopK Identity"""
MOVING = frozenset(_MOVING.split())
# Of several: the ports of these.
JOINING = {"Select": (1, 2), "OneHot": (2, 3), "Pad": (0, 3)} | dict.fromkeys(
    ("ScatterUpdate", "ScatterElementsUpdate", "ScatterNDUpdate"), (0, 2)
)
# Those of numbers whose result is a number, and of them those whose arguments must also be finite.
SUMS = frozenset({"Add", "Subtract", "Multiply", "SoftMax", "Softmax"})
_CALM = "Concat Clamp Maximum Minimum Negative Abs Relu ReLU Convert Floor Ceiling Round Sigmoid HardSigmoid Tanh"
CALM = frozenset({*_CALM.split(), *MOVING, *JOINING})
RAGGED = frozenset({"NonZero", "Unique", "NonMaxSuppression"})  # the sizes of their outputs depend on values


@dataclass(frozen=True, slots=True)
class Value:
    """The known facts of a tensor: its range, and whether its numbers, or only its sizes, depend on a request's."""

    least: float = -ENDLESS
    most: float = ENDLESS
    is_sent: bool = False
    is_ragged: bool = False
    is_number: bool = True  # never NaN, which has no place between two numbers

    def is_within(self, least: float, most: float) -> bool:
        return least <= self.least and self.most <= most


UNKNOWN = Value(is_sent=True, is_ragged=True, is_number=False)


class Step(NamedTuple):
    node: openvino.Node
    inputs: Sequence[Value]
    outputs: Sequence[Value]
    is_of_rows: bool  # inside a loop over rows, of which each run has one


def join(values: Sequence[Value]) -> Value:
    return Value(
        min(each.least for each in values),
        max(each.most for each in values),
        any(each.is_sent for each in values),
        any(each.is_ragged for each in values),
        all(each.is_number for each in values),
    )


def walk(model: openvino.Model, given: Sequence[Value], rows: int = 0, *, is_of_rows: bool = False) -> Iterator[Step]:
    """Follow the values of a graph's parameters through its nodes, in order; `rows` divides only their sizes."""
    known = dict(zip((each.get_name() for each in model.get_parameters()), given, strict=True))
    outputs: dict[str, Sequence[Value]] = {}
    for node in model.get_ordered_ops():
        name = node.get_name()
        if node.get_type_name() == "Parameter":
            outputs[name] = [known[name]]
            continue
        sources = [port.get_source_output() for port in node.inputs()]
        inputs = [outputs[each.get_node().get_name()][each.get_index()] for each in sources]
        if node.get_type_name() in ("If", "Loop", "TensorIterator"):
            made = yield from _walk_inside(node, inputs, rows, is_of_rows=is_of_rows)
        else:
            made = _compute(node, inputs)
        outputs[name] = made
        yield Step(node, inputs, made, is_of_rows)


def _walk_inside(
    node: openvino.Node, inputs: list[Value], rows: int, *, is_of_rows: bool
) -> Generator[Step, None, list[Value]]:
    """Follow values into the graphs of an If or of a loop, whose carried values grow until they hold for each run."""
    joined: list[list[Value]] = [[] for _ in node.outputs()]
    steps: list[Step] = []
    for body, arguments, results in _read_bodies(node):
        is_looped = node.get_type_name() != "If"
        slices = [each for each in arguments if getattr(each, "axis", None) is not None]
        inner = is_of_rows or any(has_rows(node.input_value(each.input_index), each.axis, rows) for each in slices)
        count = len(body.get_parameters())
        # A parameter that no input gives is the number of the run.
        given = [Value(0, ENDLESS)] * count
        for each in arguments:
            given[each.body_parameter_index] = inputs[each.input_index]
        for number in range(10 * count + 1 if is_looped else 1):
            steps = [*walk(body, given, rows, is_of_rows=inner)]
            made = {step.node.get_name(): step.outputs[0] for step in steps if step.node.get_output_size()}
            ends = [made[each.get_name()] for each in body.get_results()]
            carried = [each for each in arguments if hasattr(each, "body_value_index")]
            before = list(given)
            for each in carried:
                at = each.body_parameter_index
                # Each can widen once at each end, and become sent and ragged once.
                is_late = number >= 9 * count
                given[at] = UNKNOWN if is_late else _widen(given[at], ends[each.body_value_index])
            if given == before:
                break
        if node.get_type_name() == "Loop" and (end := node.get_special_body_ports()[1]) >= 0:
            inputs[1] = join([inputs[1], ends[end]])  # whether it goes on
        yield from steps
        for each in results:
            joined[each.output_index].append(ends[each.body_value_index])
    # The outputs depend on the condition of an If and on the number of runs of a Loop, too.
    first = inputs[: node.get_type_name() != "TensorIterator"]
    decides = Value(ENDLESS, -ENDLESS, any(each.is_sent for each in first), any(each.is_ragged for each in inputs))
    return [join([*values, decides]) if values else join(inputs) for values in joined]


def _widen(before: Value, after: Value) -> Value:
    both = join([before, after])
    return Value(
        before.least if both.least == before.least else -ENDLESS,
        before.most if both.most == before.most else ENDLESS,
        both.is_sent,
        both.is_ragged,
        both.is_number,
    )


def _read_bodies(node: openvino.Node) -> Iterator[tuple[openvino.Model, Sequence[Any], Sequence[Any]]]:
    if node.get_type_name() == "If":
        for index in (0, 1):
            yield node.get_function(index), node.get_input_descriptions(index), node.get_output_descriptions(index)
    else:
        body = node.get_function() if hasattr(node, "get_function") else node.get_body()
        yield body, node.get_input_descriptions(), node.get_output_descriptions()


def has_rows(output: openvino.Output, axis: int, rows: int) -> bool:
    """Whether a dimension of a node's output has rows."""
    shape = output.get_partial_shape()
    if not rows or shape.rank.is_dynamic or not -len(shape) <= axis < len(shape):
        return False
    return bool(shape[axis].is_static and not shape[axis].get_length() % rows)


def _compute(node: openvino.Node, inputs: Sequence[Value]) -> list[Value]:
    kind = node.get_type_name()
    if kind == "Constant":
        return [_read_constant(node)]
    is_sent = any(each.is_sent for each in inputs)
    is_ragged = any(each.is_ragged for each in inputs) or (kind in RAGGED and is_sent)
    if kind == "ShapeOf":
        return [Value(0, ENDLESS, inputs[0].is_ragged, inputs[0].is_ragged)]
    made = []
    for index, output in enumerate(node.outputs()):
        least, most = find_type_range(output.get_element_type())
        found = find_range(node, index, inputs)
        if found is not None and least <= found[0] and found[1] <= most:
            least, most = found
        is_number = not output.get_element_type().is_real() or _makes_numbers(kind, inputs)
        made.append(Value(least, most, is_sent, is_ragged, is_number))
    return made


def _makes_numbers(kind: str, inputs: Sequence[Value]) -> bool:
    """Whether floats of an operation are never NaN: infinity less itself, or times 0, is."""
    is_finite = kind in SUMS and all(math.isfinite(each.least) and math.isfinite(each.most) for each in inputs)
    return all(each.is_number for each in inputs) and (is_finite or kind in CALM)


def _read_constant(node: openvino.Node) -> Value:
    whole = find_type_range(node.get_element_type())
    if int(np.prod(node.get_output_shape(0))) > MOST_READ:
        return Value(*whole)
    data = np.asarray(node.get_data())
    if data.dtype.kind not in "biuf" or not data.size or not np.isfinite(data).all():
        return Value(*whole, is_number=not node.get_element_type().is_real())
    return Value(data.min().item(), data.max().item())


def find_type_range(kind: openvino.Type) -> tuple[float, float]:
    """Return the range of a type; 64 bits have none, since OpenVINO computes them in 32."""
    if kind.get_type_name() == "boolean":
        return 0, 1
    if not kind.is_integral_number() or kind.get_size() > 4:
        return -ENDLESS, ENDLESS
    bits = kind.get_bitwidth()
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if kind.is_signed() else (0, 2**bits - 1)


def find_range(node: openvino.Node, index: int, inputs: Sequence[Value]) -> tuple[float, float] | None:
    """Return the range of an output's numbers by the operation; None if it is not known."""
    kind = node.get_type_name()
    if kind in ("TopK", "MaxPool") and index == 1:
        return _find_positions(node) if kind == "TopK" else None
    if kind == "FloorMod":
        return _remainder(inputs[1], is_whole=node.get_output_element_type(index).is_integral_number())
    if kind in MOVING:
        return inputs[0].least, inputs[0].most
    if kind in JOINING or kind == "Concat":
        parts = [inputs[each] for each in JOINING.get(kind, range(len(inputs))) if each < len(inputs)]
        joined = join([*parts, Value(0, 0)] if kind == "Pad" else parts)
        return joined.least, joined.most
    if kind == "Clamp":
        limits = node.get_attributes()
        least, most = (min(max(each, limits["min"]), limits["max"]) for each in (inputs[0].least, inputs[0].most))
        return least, most
    return RULES[kind](*inputs) if kind in RULES else None


def _find_positions(node: openvino.Node) -> tuple[float, float]:
    shape, axis = node.input_value(0).get_partial_shape(), node.get_attributes().get("axis")
    if axis is None or shape.rank.is_dynamic or shape[axis].is_dynamic:
        return 0, ENDLESS
    return 0, shape[axis].get_length() - 1


def _multiply(one: Value, other: Value) -> tuple[float, float]:
    ends = [a * b if a and b else 0 for a in (one.least, one.most) for b in (other.least, other.most)]
    return min(ends), max(ends)


def _convert(value: Value, *_: Value) -> tuple[float, float] | None:
    """Round towards zero, which no whole number notices; NaN becomes any whole number."""
    if not value.is_number:
        return None
    return tuple(each if math.isinf(each) else math.trunc(each) for each in (value.least, value.most))  # type: ignore[return-value]


def _round(value: Value) -> tuple[float, float]:
    least, most = value.least, value.most
    return least if math.isinf(least) else math.floor(least), most if math.isinf(most) else math.ceil(most)


def _remainder(by: Value, *, is_whole: bool) -> tuple[float, float] | None:
    return (0, by.most - is_whole) if by.least > 0 else None


def _divide(value: Value, by: Value) -> tuple[float, float] | None:
    return (min(value.least, 0), max(value.most, 0)) if by.least >= 1 else None


RULES: Mapping[str, Callable[..., tuple[float, float] | None]] = {
    "Add": lambda a, b: (a.least + b.least, a.most + b.most),
    "Subtract": lambda a, b: (a.least - b.most, a.most - b.least),
    "Multiply": _multiply,
    "Maximum": lambda a, b: (max(a.least, b.least), max(a.most, b.most)),
    "Minimum": lambda a, b: (min(a.least, b.least), min(a.most, b.most)),
    "Negative": lambda a: (-a.most, -a.least),
    "Abs": lambda a: (0, max(abs(a.least), abs(a.most))),
    "Relu": lambda a: (max(0, a.least), max(0, a.most)),
    "ReLU": lambda a: (max(0, a.least), max(0, a.most)),
    "Convert": _convert,
    "Divide": _divide,
    "FakeQuantize": lambda *a: (a[3].least, a[4].most),
    **dict.fromkeys(("Floor", "Ceiling", "Round"), _round),
    **dict.fromkeys(("Sigmoid", "HardSigmoid", "SoftMax", "Softmax"), lambda _: (0, 1)),
    "Tanh": lambda _: (-1, 1),
}
