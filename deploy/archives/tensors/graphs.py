"""OpenVINO's graphs: read from files, with the signature's names and shapes.

.onnx, .xml       -> read_graph      -> graph, DeclaredSignature
graph + Signature -> apply_signature -> a graph with named ports, a free batch dimension, and no port in BF16
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import openvino
import openvino.opset8
from openvino.frontend import FrontEndManager

from deploy.archives.tensors.proof import OTHER_AXIS
from handlers.engines.openvino import OpenVinoEngine
from handlers.engines.program import ONLY_OUTPUT, OUTPUT
from handlers.errors import InvalidConfig, reason
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import DeclaredSignature, Shape, Signature, Tensor, merge_signature

DATATYPES = {
    "boolean": "BOOL",
    **{f"{kind}{bits}": f"{name}{bits}" for kind, name in (("u", "UINT"), ("i", "INT")) for bits in (8, 16, 32, 64)},
    **{"f16": "FP16", "bf16": "BF16", "f32": "FP32", "f64": "FP64"},
}
TYPES = {datatype: getattr(openvino.Type, name) for name, datatype in DATATYPES.items()}
# Operations that read a size, a number of runs or a position from another input than their first.
SIZED = frozenset(
    {"Range", "Broadcast", "Reshape", "Tile", "Pad", "OneHot", "Interpolate", "Slice", "StridedSlice", "Loop", "TopK"}
)
# OpenVINO's reader of each kind of file; without a name it tries all of them.
READERS = {".onnx": "onnx", ".xml": "ir"}


# Operations with random results, and those that keep state between runs.
RANDOM = frozenset({"RandomUniform", "Multinomial"})
STATEFUL = frozenset({"ReadValue", "Assign"})
# Types of whole numbers that OpenVINO computes in 32 bits with a sign.
WIDE = (openvino.Type.i64, openvino.Type.u64, openvino.Type.u32)


class Unreadable(InvalidConfig):
    """OpenVINO cannot make a graph of a file, or must not run it."""


@dataclass(frozen=True, slots=True)
class Graph:
    model: openvino.Model
    # The graph's name of each input by the request's; the graph may lack inputs that nothing reads.
    ports: Mapping[str, str]


def read_graph(path: Path) -> tuple[Graph, DeclaredSignature]:
    """Read an ONNX file, or an .xml with its .bin beside it, and its description."""
    try:
        reader = FrontEndManager().load_by_framework(READERS[path.suffix])
        model = reader.convert(reader.load(str(path)))
    except Exception as error:
        raise Unreadable(f"OpenVINO cannot read it: {reason(error)}") from error
    if not model.inputs or not model.outputs:
        raise Unreadable(f"it has {len(model.inputs)} inputs and {len(model.outputs)} outputs")
    inputs = [_describe(port, port.node.friendly_name) for port in model.inputs]
    names = name_outputs(len(model.outputs))
    # The reader of ONNX calls a result `y/sink_port_0`.
    outputs = [
        _describe(port, port.node.friendly_name.removesuffix("/sink_port_0"), name)
        for port, name in zip(model.outputs, names, strict=True)
    ]
    ports = {tensor.name: port.any_name for tensor, port in zip(inputs, model.inputs, strict=True)}
    return Graph(model, ports), DeclaredSignature(tuple(inputs), tuple(outputs))


def read_partially(path: Path) -> openvino.Model:
    """Read an ONNX file to look at it; operations that OpenVINO lacks have outputs of any shape."""
    try:
        reader = FrontEndManager().load_by_framework(READERS[path.suffix])
        model = reader.convert_partially(reader.load(str(path)))
    except Exception as error:
        raise Unreadable(f"OpenVINO cannot read it: {reason(error)}") from error
    for port in model.inputs:
        port.get_tensor().set_names({port.node.friendly_name})
    return model


def _describe(port: openvino.Output, own: str, otherwise: str = "") -> Tensor:
    """Describe an input or output; of a tensor's names, its own is the one in the file."""
    names = port.get_names()
    if not names:
        port.get_tensor().set_names({otherwise or own})
    name = own if own in names else min(names, default=otherwise or own)
    kind = port.element_type.get_type_name()
    if kind not in DATATYPES:
        raise Unreadable(
            f"{name}: it has {kind}s, which OpenVINO does not run; an infer.py may accept BYTES and run the file"
        )
    return Tensor(name, DATATYPES[kind], read_shape(port))


def read_shape(port: openvino.Output) -> Shape | None:
    """Read the shape of an input or output; None if its rank is free."""
    shape = port.partial_shape
    return None if shape.rank.is_dynamic else tuple(size.get_length() if size.is_static else -1 for size in shape)


def name_outputs(count: int) -> list[str]:
    """Name the outputs of a model without names, as PyTorch's engine does."""
    return [ONLY_OUTPUT] if count == 1 else [OUTPUT.format(index) for index in range(count)]


def apply_signature(graph: Graph, signature: Signature, outputs: Sequence[str]) -> openvino.Model:
    """Return a graph with the signature's names and shapes, and numpy's datatypes."""
    parameters = {name: port.node for port in graph.model.inputs for name in port.get_names()}
    found = [parameters.get(graph.ports[name]) for name in signature.arguments]
    for node, tensor in zip(found, signature.arguments.values(), strict=True):
        if node is not None:
            node.set_partial_shape(openvino.PartialShape([*(tensor.shape or ())]))
    try:
        graph.model.validate_nodes_and_infer_types()
    except RuntimeError as error:
        raise InvalidConfig(
            f"its batch dimension is fixed inside it: {reason(error)}; export it with a free one{OTHER_AXIS}"
        ) from error
    # The graph may lack an input that nothing reads; requests still have it.
    nodes = [node or _make_parameter(tensor) for node, tensor in zip(found, signature.arguments.values(), strict=True)]
    nodes = [_remove_bf16(node) for node in nodes]
    seen: set[tuple[str, int]] = set()
    results = []
    for port in graph.model.outputs:
        source = port.node.input_value(0)
        kind, key = source.get_element_type(), (source.get_node().friendly_name, source.get_index())
        # A name belongs to one tensor: an output that is an input, or another output, needs a separate tensor.
        if kind == openvino.Type.bf16 or key in seen or source.get_node().get_type_name() == "Parameter":
            target = openvino.Type.f32 if kind == openvino.Type.bf16 else kind
            source = openvino.opset8.convert(source, target.get_type_name()).output(0)
        seen.add(key)
        results.append(openvino.opset8.result(source))
    made = openvino.Model(results, nodes)
    for port, name in zip([*made.inputs, *made.outputs], [*signature.arguments, *outputs], strict=True):
        port.get_tensor().set_names({name})
    made.validate_nodes_and_infer_types()
    return made


def compile_graph(path: Path) -> OpenVinoEngine:
    """Compile a graph as a worker does; Unreadable if OpenVINO reads the graph only."""
    try:
        return OpenVinoEngine(path, precision="fp32")
    except RuntimeError as error:
        raise Unreadable(f"OpenVINO cannot compile it: {reason(error)}") from error


def computes_fp64(model: openvino.Model) -> bool:
    """Whether a graph makes numbers in FP64 of its inputs'; OpenVINO does so in FP32, even to copy them."""
    found = (target.get_node() for port in model.inputs for target in _follow(port.node.output(0)))
    return any(output.get_element_type() == openvino.Type.f64 for node in found for output in node.outputs())


def find_large_inputs(model: openvino.Model) -> set[str]:
    """Name the inputs that may have large whole numbers and do not decide a tensor's size or a loop's runs."""
    found = {port.any_name: [*_follow(port.node.output(0))] for port in model.inputs}
    kinds = {port.any_name: port.element_type for port in model.inputs}
    return {
        name
        for name, targets in found.items()
        if (kinds[name].is_integral() or any(map(_makes_whole, targets))) and not any(map(_is_sizing, targets))
    }


def _makes_whole(target: openvino.Input) -> bool:
    node = target.get_node()
    kinds = target.get_element_type(), node.get_output_element_type(0) if node.get_output_size() else None
    return node.get_type_name() == "Convert" and kinds[0].is_real() and kinds[1] in WIDE


def _is_sizing(target: openvino.Input) -> bool:
    kind = target.get_node().get_type_name()
    return kind in SIZED and bool(target.get_index() or kind in ("Range", "Loop"))


def _follow(output: openvino.Output) -> Iterator[openvino.Input]:
    """Yield the inputs of the nodes that depend on an output's numbers."""
    seen, waiting = set(), [output]
    while waiting:
        for target in waiting.pop().get_target_inputs():
            node = target.get_node()
            yield target
            if node.get_type_name() != "ShapeOf" and node.friendly_name not in seen:
                seen.add(node.friendly_name)
                waiting += node.outputs()


def _make_parameter(tensor: Tensor) -> openvino.Node:
    shape = openvino.PartialShape([*(tensor.shape or ())])
    return openvino.opset8.parameter(shape, TYPES[tensor.datatype or "FP32"])


def _remove_bf16(node: openvino.Node) -> openvino.Node:
    if node.get_element_type() != openvino.Type.bf16:
        return node
    other = openvino.opset8.parameter(node.get_partial_shape(), openvino.Type.f32)
    rounded = openvino.opset8.convert(other, "bf16").output(0)
    for target in node.output(0).get_target_inputs():
        target.replace_source_output(rounded)
    return other


def list_outputs(said: DeclaredSignature) -> list[str]:
    return [tensor.name for tensor in said.outputs or ()]


def sign(said: DeclaredSignature, config: TensorsConfig) -> Signature:
    """Combine the model's description with the configuration; InvalidConfig if an input then has no shape."""
    signature = merge_signature(said, config)
    for name, tensor in signature.inputs.items():
        if tensor.shape is None:
            raise InvalidConfig(
                f"inputs.{name}: the file has no shape; model-config.yaml needs it under handler: inputs: "
                f"{{{name}: {{shape: [-1, ...]}}}}, or constants: {{{name}: VALUE}} for a scalar"
            )
    return signature
