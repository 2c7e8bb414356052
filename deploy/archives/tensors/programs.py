"""PyTorch's own files: programs of torch.export and TorchScript, read and converted.

.pt2                       -> read_program -> Program, DeclaredSignature
.pt and model-config.yaml  -> read_program -> Program, DeclaredSignature
Program + Signature        -> convert      -> OpenVINO's Graph
"""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import torch
from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder
from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder
from torch.export.graph_signature import OutputKind

from deploy.archives.tensors.graphs import TYPES, Graph, Unreadable, name_outputs, sign
from deploy.archives.tensors.proof import Mixed, run_alone
from handlers.engines.program import ProgramEngine
from handlers.errors import InvalidConfig, reason
from handlers.protocol.tensors import datatype_of
from handlers.tensor_models.config import InputConfig, TensorsConfig
from handlers.tensor_models.signature import DeclaredSignature, Signature, Tensor

DTYPES = {
    "BOOL": torch.bool,
    **{f"UINT{bits}": getattr(torch, f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{"FP16": torch.float16, "BF16": torch.bfloat16, "FP32": torch.float32, "FP64": torch.float64},
}
DATATYPES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Program:
    module: torch.nn.Module  # PyTorch runs this
    source: torch.export.ExportedProgram | torch.jit.ScriptModule  # OpenVINO converts this
    ports: Mapping[str, str]  # see Graph
    has_shapes: bool  # whether `source` has the inputs' datatypes and shapes


def read_program(path: Path, config: TensorsConfig) -> tuple[Program, DeclaredSignature]:
    """Read a .pt2 or a .pt and its description; TorchScript has only the names of its inputs."""
    with _silence():
        return _read_exported(path, config) if path.suffix == ".pt2" else _read_script(path, config)


@contextmanager
def _silence() -> Iterator[None]:
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _read_exported(path: Path, config: TensorsConfig) -> tuple[Program, DeclaredSignature]:
    try:
        exported = torch.export.load(path)
    except Exception as error:
        raise InvalidConfig(
            f"it is not a whole program of torch.export.save, or it returns a class of a library: {reason(error)}; "
            "for transformers' outputs, export a module whose forward returns a tuple or dictionary of tensors"
        ) from error
    positional, keywords = exported.call_spec.in_spec.children()
    if keywords.num_leaves or positional.num_leaves != positional.num_children:
        raise InvalidConfig("its arguments must be positional, and each a tensor; export such a module")
    returned = exported.call_spec.out_spec
    if not returned.is_leaf() and returned.num_leaves != returned.num_children:
        raise InvalidConfig("forward must return a tensor, or a tuple or dictionary of tensors")
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes}
    inputs = [_describe(str(name), values.get(str(name))) for name in exported.graph_signature.user_inputs]
    kept = [each.arg for each in exported.graph_signature.output_specs if each.kind == OutputKind.USER_OUTPUT]
    names = [*map(str, returned.context)] if returned.type is dict else name_outputs(len(kept))
    outputs = [_describe(name, values.get(getattr(arg, "name", ""))) for name, arg in zip(names, kept, strict=True)]
    for tensor in inputs:
        _check_range(exported, tensor, values[tensor.name], config)
    ports = {tensor.name: tensor.name for tensor in inputs}
    return Program(exported.module(), exported, ports, has_shapes=True), DeclaredSignature(
        tuple(inputs), tuple(outputs)
    )


def _describe(name: str, value: object) -> Tensor:
    if not isinstance(value, torch.Tensor) or value.dtype not in DATATYPES:
        kind = getattr(value, "dtype", type(value).__name__)
        raise InvalidConfig(f"{name}: expected a tensor of {', '.join(DTYPES)}, received {kind}")
    return Tensor(name, DATATYPES[value.dtype], tuple(size if isinstance(size, int) else -1 for size in value.shape))


def _check_range(
    exported: torch.export.ExportedProgram, tensor: Tensor, value: torch.Tensor, config: TensorsConfig
) -> None:
    """Raise InvalidConfig if a program's bound on rows is less than max_batch_items."""
    at = config.inputs.get(tensor.name, InputConfig()).batch_dim
    sizes: Sequence[int | torch.SymInt] = value.shape
    size = sizes[at] if at < len(sizes) else 0
    bound = None if isinstance(size, int) else exported.range_constraints.get(size.node.expr)
    if bound is not None and bound.upper < config.max_batch_items:
        raise InvalidConfig(
            f"{tensor.name} was exported for at most {bound.upper} rows; max_batch_items is {config.max_batch_items}: "
            "set it to that number, or export without a bound"
        )


def _read_script(path: Path, config: TensorsConfig) -> tuple[Program, DeclaredSignature]:
    try:
        script = torch.jit.load(path, map_location="cpu").eval()  # type: ignore[no-untyped-call]
    except Exception as error:
        raise InvalidConfig(
            "it is not a whole file of TorchScript; a pickled model could run any code, a state dict has no program; "
            "save torch.jit.trace(model, example) with torch.jit.save, or export the model to ONNX"
        ) from error
    arguments = [each for each in script.forward.schema.arguments[1:] if not each.has_default_value()]
    if others := [each.name for each in arguments if str(each.type) != "Tensor"]:
        raise InvalidConfig(f"forward must accept only tensors; {', '.join(others)} is not a tensor")
    names = [each.name for each in arguments]
    for name in [name for name in names if name not in config.constants]:
        given = config.inputs.get(name, InputConfig())
        if given.datatype is None or given.shape is None:
            raise InvalidConfig(
                f"inputs.{name}: TorchScript has no datatype and shape; model-config.yaml needs them, under handler: "
                f"inputs: {{{name}: {{datatype: FP32, shape: [-1, ...]}}}}"
            )
        if given.datatype not in DTYPES:
            raise InvalidConfig(
                f"inputs.{name}: TorchScript does not support {given.datatype}; use one of {', '.join(DTYPES)}"
            )
    inner_names = [each.debugName() for each in script.graph.inputs()][1 : len(names) + 1]
    ports = dict(zip(names, inner_names, strict=True))
    return Program(script, script, ports, has_shapes=False), DeclaredSignature(tuple(Tensor(name) for name in names))


def convert(program: Program, signature: Signature) -> Graph:
    """Convert a program to OpenVINO's graph; Unreadable if OpenVINO lacks an operation."""
    arguments: dict[str, Any] = {}
    if not program.has_shapes:
        arguments["input"] = {
            program.ports[name]: (openvino.PartialShape([*(tensor.shape or ())]), TYPES[tensor.datatype or "FP32"])
            for name, tensor in signature.arguments.items()
        }
    try:
        with _silence():
            model = openvino.convert_model(program.source, **arguments)
    except Exception as error:
        raise Unreadable(f"OpenVINO cannot convert it: {reason(error)}") from error
    return Graph(model, program.ports)


def convert_partially(program: Program, signature: Signature) -> openvino.Model:
    """Convert what OpenVINO can of a program, to look at it; operations that it lacks have outputs of any shape."""
    inner = {program.ports[name]: name for name in signature.arguments}
    try:
        with _silence():
            make = TorchFXPythonDecoder.from_exported_program if program.has_shapes else TorchScriptPythonDecoder
            reader = FrontEndManager().load_by_framework("pytorch")
            decoder = make(program.source)  # the reader does not keep it
            model = reader.convert_partially(reader.load(decoder))
            for port in model.inputs:
                tensor = signature.arguments[inner[min(port.get_names())]]
                port.get_tensor().set_names({tensor.name})
                port.node.set_element_type(TYPES[tensor.datatype or "FP32"])
                port.node.set_partial_shape(openvino.PartialShape([*(tensor.shape or ())]))
            model.validate_nodes_and_infer_types()
    except Exception as error:
        raise Unreadable(f"OpenVINO cannot convert it: {reason(error)}") from error
    return model


def count_writes(program: Program) -> list[int]:
    return [each._version for each in program.module.buffers()]


def check_state(program: Program, before: list[int]) -> None:
    if count_writes(program) != before:
        raise Mixed(
            "it writes to its buffers, so it keeps state of earlier requests, or it was exported for training; export "
            "it without state, in eval()"
        )


def make_engine(program: Program, signature: Signature, outputs: Sequence[str]) -> ProgramEngine:
    dtypes = {name: torch.bfloat16 if each.datatype == "BF16" else None for name, each in signature.arguments.items()}
    return ProgramEngine(program.module, torch.device("cpu"), dtypes, outputs)


def complete_outputs(program: Program, said: DeclaredSignature, config: TensorsConfig) -> DeclaredSignature:
    """Run TorchScript once, for the names and datatypes of its outputs; BF16 is returned as FP32."""
    signature = sign(said, config)
    _, (found,) = run_alone(make_engine(program, signature, [*config.outputs]).run, signature, config, 1, 0)
    if not all(isinstance(array, np.ndarray) for array in found.values()):
        raise InvalidConfig("forward must return a tensor, or a tuple or dictionary of tensors")
    return DeclaredSignature(said.inputs, tuple(Tensor(name, datatype_of(array)) for name, array in found.items()))
