"""Stages what an archive of a model of one's own holds, after it has been shown to batch.

.onnx, .xml -> graph                    -> model.xml, model.bin, signature.json
.pt2, .pt   -> program, and graph of it -> the same, and model.pt2 or model.pt
infer.py    -> itself, and what lies in its folder -> function/
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino
import torch

from deploy.build.sources import Source, WeightsUnavailable
from deploy.build.tensors.files import model_file
from deploy.build.tensors.functions import stage_function
from deploy.build.tensors.graphs import Graph, read_graph, shape_of, shaped
from deploy.build.tensors.programs import Program, converted, read_program
from deploy.build.tensors.proof import agree, prove, rows
from deploy.models import Engine, Model
from handlers.archive_files import GRAPH
from handlers.config import parse
from handlers.engines.openvino import OpenVinoEngine
from handlers.engines.program import ProgramEngine
from handlers.errors import InvalidConfig, reason
from handlers.protocol.tensors import datatype_of
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import SIGNATURE, Said, Signature, Tensor, signed

CPU = torch.device("cpu")


def stage(model: Model, origin: Source, engine: Engine, folder: Path) -> None:
    """Write the model, and what it says of itself.

    Raises:
        WeightsUnavailable: no model was given.
        InvalidConfig: the configuration is wrong, the file is no model of its kind, or the model does not batch.
    """
    config = parse(TensorsConfig, model.config().get("handler"))
    if origin.kind not in ("file", "folder"):
        raise WeightsUnavailable(f"{model.name}: no {origin.kind} weights for {model.handler}; give --weights PATH")
    place = model.name
    try:
        file = model_file(Path(origin.location))
        place += f": {file.path.name}"
        if file.is_function:
            stage_function(model, file, config, folder)
        elif file.path.suffix in (".pt2", ".pt"):
            _stage_program(model, file.path, config, engine, folder)
        elif engine == "torch":
            raise InvalidConfig("engine: torch runs .pt2 and .pt; OpenVINO runs this")
        else:
            graph, said = read_graph(file.path)
            _stage_graph(graph, said, config, folder)
    except InvalidConfig as error:
        raise InvalidConfig(f"{place}: {error}") from error


def _stage_graph(graph: Graph, said: Said, config: TensorsConfig, folder: Path) -> Said:
    """Write a graph and its signature, after it was run as a worker will; returns what is known of it now."""
    signature = _signed(said, config)
    model = shaped(graph, signature, _outputs(said))
    # Of TorchScript, only the graph knows the outputs' shapes.
    ports = zip(said.outputs or (), model.outputs, strict=True)
    said = Said(said.inputs, tuple(replace(tensor, shape=tensor.shape or shape_of(port)) for tensor, port in ports))
    openvino.save_model(model, folder / GRAPH, compress_to_fp16=False)
    prove(OpenVinoEngine(folder / GRAPH, precision="fp32").run, _signed(said, config), config)
    (folder / SIGNATURE).write_text(said.to_json())
    return said


def _stage_program(model: Model, path: Path, config: TensorsConfig, engine: Engine, folder: Path) -> None:
    program, said = read_program(path, config)
    if said.outputs is None:
        said = _with_outputs(program, said, config)
    if engine != "torch":
        said = _stage_graph(converted(program, _signed(said, config)), said, config, folder)
    if engine == "openvino":
        return
    signature = _signed(said, config)
    run = _engine(program, signature, _outputs(said)).run
    try:
        prove(run, signature, config)
    except InvalidConfig as error:
        if engine == "torch":
            raise
        # A graph's batch can be freed, which a program's cannot.
        print(f"{model.name}: {path.name} is left out, so that OpenVINO runs its graph on a GPU's machine too: {error}")
        return
    if engine == "auto":
        agree(OpenVinoEngine(folder / GRAPH, precision="fp32").run, run, signature, config)
    shutil.copyfile(path, folder / f"model{path.suffix}")
    (folder / SIGNATURE).write_text(said.to_json())


def _engine(program: Program, signature: Signature, outputs: Sequence[str]) -> ProgramEngine:
    dtypes = {name: torch.bfloat16 if each.datatype == "BF16" else None for name, each in signature.inputs.items()}
    return ProgramEngine(program.module, CPU, dtypes, outputs)


def _with_outputs(program: Program, said: Said, config: TensorsConfig) -> Said:
    """Run TorchScript once, for the names and datatypes of what it returns; those of BF16 come as FP32."""
    signature = _signed(said, config)
    row = rows(signature, config)[0]
    try:
        found = _engine(program, signature, [*config.outputs]).run(row)
    except Exception as error:
        raise InvalidConfig(f"it does not run on one row: {reason(error)}") from error
    if not all(isinstance(array, np.ndarray) for array in found.values()):
        raise InvalidConfig("forward must return a tensor, or a tuple or dictionary of tensors")
    return Said(said.inputs, tuple(Tensor(name, datatype_of(array)) for name, array in found.items()))


def _outputs(said: Said) -> list[str]:
    return [tensor.name for tensor in said.outputs or ()]


def _signed(said: Said, config: TensorsConfig) -> Signature:
    """Put what the model and its configuration say together, and see that every input has a shape.

    Raises:
        InvalidConfig: they disagree, or say no shape of an input.
    """
    signature = signed(said, config)
    for name, tensor in signature.inputs.items():
        if tensor.shape is None:
            raise InvalidConfig(f"inputs.{name}: the file says no shape; model-config.yaml must")
    return signature
