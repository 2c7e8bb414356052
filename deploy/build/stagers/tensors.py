"""Stages what an archive of a model of one's own holds, after it has been shown to batch.

.onnx, .xml -> graph                    -> model.xml, model.bin, signature.json
.onnx       -> itself, for ONNX Runtime -> onnx/, signature.json
.pt2, .pt   -> program, and graph of it -> the graph's files, and model.pt2 or model.pt
infer.py    -> itself, and what lies in its folder -> function/

A graph is compared with the runtime that owns the file: ONNX Runtime or PyTorch, which runs the file where they differ.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino
import torch

from deploy.build.sources import Source, WeightsUnavailable
from deploy.build.tensors.files import companions, model_file
from deploy.build.tensors.functions import stage_function
from deploy.build.tensors.graphs import Graph, Unreadable, read_graph, shape_of, shaped, sizing_inputs
from deploy.build.tensors.onnx import ZIPMAP, read_onnx
from deploy.build.tensors.programs import Program, converted, read_program
from deploy.build.tensors.proof import NotRun, Run, agree, prove, rows
from deploy.models import Engine, ModelEntry
from handlers.archive_files import FIDELITY, GRAPH
from handlers.config import parse
from handlers.engines.onnx import FILE as ONNX
from handlers.engines.openvino import OpenVinoEngine
from handlers.engines.program import ProgramEngine
from handlers.errors import InvalidConfig, Unfaithful, reason
from handlers.protocol.tensors import datatype_of
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import SIGNATURE, DeclaredSignature, Signature, Tensor, merge_signature

CPU = torch.device("cpu")
# What runs each kind of file, beside OpenVINO, and what a list is told that asks for another.
ENGINES = {
    ".onnx": ("auto", "openvino", "onnxruntime"),
    **dict.fromkeys((".pt2", ".pt"), ("auto", "openvino", "torch")),
}
WRONG_ENGINE = {
    "torch": "engine: torch runs .pt2 and .pt; OpenVINO runs this",
    "onnxruntime": "engine: onnxruntime runs .onnx",
}


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:
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
        kind = "function" if file.is_function else file.path.suffix
        if engine not in ENGINES.get(kind, ("auto", "openvino")) and not file.is_function:
            raise InvalidConfig(WRONG_ENGINE[engine])
        if file.is_function:
            stage_function(model, file, config, folder)
        elif kind in (".pt2", ".pt"):
            _stage_program(model, file.path, config, engine, folder)
        elif kind == ".onnx":
            _stage_onnx(model, file.path, config, engine, folder)
        else:
            _stage_graph(*read_graph(file.path), config, folder)
    except Unfaithful as error:
        raise Unfaithful(f"{file.path.name}: {error}", error.instead) from error
    except InvalidConfig as error:
        raise InvalidConfig(f"{place}: {error}") from error


def _stage_graph(graph: Graph, said: DeclaredSignature, config: TensorsConfig, folder: Path) -> DeclaredSignature:
    """Write a graph and its signature, after it was run as a worker will; returns what is known of it now."""
    signature = _signed(said, config)
    model = shaped(graph, signature, _outputs(said))
    # Of TorchScript, only the graph knows the outputs' shapes.
    ports = zip(said.outputs or (), model.outputs, strict=True)
    said = DeclaredSignature(
        said.inputs, tuple(replace(tensor, shape=tensor.shape or shape_of(port)) for tensor, port in ports)
    )
    openvino.save_model(model, folder / GRAPH, compress_to_fp16=False)
    prove(OpenVinoEngine(folder / GRAPH, precision="fp32").run, _signed(said, config), config)
    (folder / SIGNATURE).write_text(said.to_json())
    return said


def _agree(run: Run, owner: str, said: DeclaredSignature, config: TensorsConfig, folder: Path) -> None:
    """Hold a graph against the runtime that owns the file, and note how near it is."""
    engine = OpenVinoEngine(folder / GRAPH, precision="fp32")
    try:
        signature, sizing = _signed(said, config), sizing_inputs(engine.model)
        worst, count = agree(engine.run, run, signature, config, owner=owner, sizing=sizing)
    except NotRun as error:
        _note(folder, "openvino", f"OpenVINO was not compared with {owner}, which does not run one row: {error}")
        return
    words = f"OpenVINO in fp32 is within {worst:.1e} of {owner}, {count} rows alone and together"
    _note(folder, "openvino", words, largest_error=worst)


def _note(folder: Path, engine: Engine, words: str, **more: float) -> None:
    (folder / FIDELITY).write_text(json.dumps({"said": words, "engine": engine, **more}))


def _stage_or_name(
    make: Callable[[], None], run: Run, said: DeclaredSignature, config: TensorsConfig, instead: Engine
) -> None:
    """Stage OpenVINO's graph of a file; where that fails, name the runtime that owns the file, if it runs the model.

    Raises:
        Unfaithful: OpenVINO cannot run it, or computes something else.
        InvalidConfig: neither runs it.
    """
    try:
        make()
    except InvalidConfig as error:
        try:
            prove(run, _signed(said, config), config)
        except InvalidConfig as own:
            raise own if isinstance(error, Unreadable) else error from None
        raise Unfaithful(str(error), instead) from error


def _stage_onnx(model: ModelEntry, path: Path, config: TensorsConfig, engine: Engine, folder: Path) -> None:
    """Write OpenVINO's graph of an ONNX file, or with `onnxruntime` the file itself."""
    if engine == "onnxruntime":
        _stage_file(model, path, config, folder)
        return

    def make() -> None:
        known = _stage_graph(*read_graph(path), config, folder)
        _agree(own.run, "ONNX Runtime", known, config, folder)

    try:
        own, said = read_onnx(path, config)
    except InvalidConfig as error:
        try:
            _stage_graph(*read_graph(path), config, folder)
        except Unreadable as other:
            raise InvalidConfig(f"{other}; {error}") from error
        _note(folder, "openvino", f"OpenVINO was not compared with ONNX Runtime: {error}")
    else:
        _stage_or_name(make, own.run, said, config, "onnxruntime")


def _stage_file(model: ModelEntry, path: Path, config: TensorsConfig, folder: Path) -> None:
    for file in (path, *companions(path)):
        if not file.resolve().is_relative_to(path.parent.resolve()):
            raise InvalidConfig(f"its external data must lie in its folder; {file} does not")
        place = folder / ONNX if file == path else (folder / ONNX).parent / file.relative_to(path.parent)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    own, said = read_onnx(folder / ONNX, config)
    prove(own.run, _signed(said, config), config)
    (folder / SIGNATURE).write_text(said.to_json())
    _note(folder, "onnxruntime", "ONNX Runtime runs the file as it is")
    if left_out := [each.name for each in own.session.get_outputs() if each.name not in _outputs(said)]:
        print(f"{model.name}: answers lack {', '.join(left_out)}, a sequence or map; {ZIPMAP}")


def _stage_program(model: ModelEntry, path: Path, config: TensorsConfig, engine: Engine, folder: Path) -> None:
    program, said = read_program(path, config)
    if said.outputs is None:
        said = _with_outputs(program, said, config)
    run = _engine(program, _signed(said, config), _outputs(said)).run

    def make() -> None:
        nonlocal said
        said = _stage_graph(converted(program, _signed(said, config)), said, config, folder)
        _agree(run, "PyTorch", said, config, folder)

    if engine != "torch":
        _stage_or_name(make, run, said, config, "torch")
    if engine == "openvino":
        return
    try:
        prove(run, _signed(said, config), config)
    except InvalidConfig as error:
        if engine == "torch":
            raise
        # A graph's batch can be freed, which a program's cannot.
        print(f"{model.name}: {path.name} is left out, so that OpenVINO runs its graph on a GPU's machine too: {error}")
        return
    shutil.copyfile(path, folder / f"model{path.suffix}")
    (folder / SIGNATURE).write_text(said.to_json())


def _engine(program: Program, signature: Signature, outputs: Sequence[str]) -> ProgramEngine:
    dtypes = {name: torch.bfloat16 if each.datatype == "BF16" else None for name, each in signature.arguments.items()}
    return ProgramEngine(program.module, CPU, dtypes, outputs)


def _with_outputs(program: Program, said: DeclaredSignature, config: TensorsConfig) -> DeclaredSignature:
    """Run TorchScript once, for the names and datatypes of what it returns; those of BF16 come as FP32."""
    signature = _signed(said, config)
    row = rows(signature, config)[0]
    try:
        found = _engine(program, signature, [*config.outputs]).run({**row, **signature.constants})
    except Exception as error:
        raise InvalidConfig(f"it does not run on one row: {reason(error)}") from error
    if not all(isinstance(array, np.ndarray) for array in found.values()):
        raise InvalidConfig("forward must return a tensor, or a tuple or dictionary of tensors")
    return DeclaredSignature(said.inputs, tuple(Tensor(name, datatype_of(array)) for name, array in found.items()))


def _outputs(said: DeclaredSignature) -> list[str]:
    return [tensor.name for tensor in said.outputs or ()]


def _signed(said: DeclaredSignature, config: TensorsConfig) -> Signature:
    """Put what the model and its configuration say together, and see that every input has a shape.

    Raises:
        InvalidConfig: they disagree, or say no shape of an input.
    """
    signature = merge_signature(said, config)
    for name, tensor in signature.inputs.items():
        if tensor.shape is None:
            raise InvalidConfig(
                f"inputs.{name}: the file says no shape; model-config.yaml must: under handler: inputs: "
                f"{{{name}: {{shape: [-1, ...]}}}}, or constants: {{{name}: VALUE}} for a scalar"
            )
    return signature
