"""Builds a user's model of tensors, after the proof that it batches.

.onnx, .xml -> graph                        -> model.xml, model.bin, signature.json
.onnx       -> itself, for ONNX Runtime     -> onnx/, signature.json
.pt2, .pt   -> program, and its graph       -> the graph's files, and model.pt2 or model.pt
infer.py    -> itself, and its folder's files -> function/

A graph is compared with the runtime that owns the file, ONNX Runtime or PyTorch; that runtime runs the file if they
differ.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import openvino

from deploy.archives.sources import Source, WeightsUnavailable
from deploy.archives.tensors.files import find_companions, find_model_file
from deploy.archives.tensors.functions import stage_function
from deploy.archives.tensors.graphs import (
    RANDOM,
    STATEFUL,
    Graph,
    Unreadable,
    apply_signature,
    compile_graph,
    computes_fp64,
    find_large_inputs,
    list_outputs,
    read_graph,
    read_partially,
    read_shape,
    sign,
)
from deploy.archives.tensors.mixing import check_mixing, has_positions
from deploy.archives.tensors.onnx import BRANCHES, ZIPMAP, explain_quantized, find_operation, has_random, read_onnx
from deploy.archives.tensors.programs import (
    check_state,
    complete_outputs,
    convert,
    convert_partially,
    count_writes,
    make_engine,
    read_program,
)
from deploy.archives.tensors.proof import OTHER_AXIS, Mixed, NotRun, Run, compare_runtimes, prove, prove_positions
from deploy.archives.tensors.risks import check_division, find_unchecked, make_checked, make_checks, reject_negatives
from deploy.models import Engine, ModelEntry
from handlers.archive_files import FIDELITY, GRAPH
from handlers.config import parse
from handlers.engines.onnx import FILE as ONNX
from handlers.errors import InvalidConfig, Unfaithful, reason
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import SIGNATURE, DeclaredSignature

FACTS = {
    "settings": "tensor_models.config:TensorsConfig",
    # A model's file is checked against these.
    "export_settings": ("inputs", "outputs", "constants", "max_batch_items", "warm_up"),
    "mode": "classic",
    "compares": False,
}

# The engines of each kind of file; others run on OpenVINO.
ENGINES = {
    ".onnx": ("auto", "openvino", "onnxruntime"),
    **dict.fromkeys((".pt2", ".pt"), ("auto", "openvino", "torch")),
}
UNOWNED = "; build it from the ONNX file or the PyTorch program, or limit the values inside the graph (Clamp)"
WRONG_ENGINE = {
    "torch": "engine: torch runs .pt2 and .pt; OpenVINO runs this",
    "onnxruntime": "engine: onnxruntime runs .onnx",
}


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:
    config = parse(TensorsConfig, model.config().get("handler"))
    if origin.kind not in ("file", "folder"):
        raise WeightsUnavailable(f"{model.name}: no {origin.kind} weights for {model.handler}; use --weights PATH")
    place = model.name
    try:
        file = find_model_file(Path(origin.location))
        place += f": {file.path.name}"
        kind = "function" if file.is_function else file.path.suffix
        if engine not in ENGINES.get(kind, ("auto", "openvino")) and not file.is_function:
            raise InvalidConfig(WRONG_ENGINE[engine])
        if file.is_function:
            stage_function(model, file, config, folder)
        elif kind in (".pt2", ".pt"):
            _stage_program(model, file.path, config, engine, folder)
        elif kind == ".onnx":
            with explain_quantized(file.path):
                _stage_onnx(model, file.path, config, engine, folder)
        else:
            _stage_graph(*read_graph(file.path), config, folder)
    except Unfaithful as error:
        raise Unfaithful(f"{file.path.name}: {error}", error.instead) from error
    except InvalidConfig as error:
        raise InvalidConfig(f"{place}: {error}") from error


def _stage_graph(
    graph: Graph,
    said: DeclaredSignature,
    config: TensorsConfig,
    folder: Path,
    owner: str | None = None,
    *,
    program: Run | None = None,
) -> DeclaredSignature:
    """Write a graph and its signature, after runs as in a worker; return the completed description."""
    signature = sign(said, config)
    model = apply_signature(graph, signature, list_outputs(said))
    # For TorchScript only the graph has the outputs' shapes.
    ports = zip(said.outputs or (), model.outputs, strict=True)
    said = DeclaredSignature(
        said.inputs, tuple(replace(tensor, shape=tensor.shape or read_shape(port)) for tensor, port in ports)
    )
    operations = {node.get_type_name() for node in model.get_ops()}
    if found := operations & STATEFUL:
        raise Mixed(
            f"it keeps state of earlier requests ({min(found)}); export it with its state as inputs and outputs"
        )
    if owner is not None and computes_fp64(model):
        raise InvalidConfig(f"OpenVINO computes FP64 in FP32, and {owner} in FP64")
    signature = sign(said, config)
    if program is not None:
        reject_negatives(program, model, signature, config)
    facts = {"has_owner": owner is not None, "is_program": program is not None}
    if unchecked := find_unchecked(model, signature, **facts, is_finite=not config.allow_non_finite):
        check_mixing(model.clone, signature, config)  # no other engine may batch it either
        raise Unreadable(unchecked + ("" if owner else UNOWNED))
    openvino.save_model(model, folder / GRAPH, compress_to_fp16=False)
    engine = compile_graph(folder / GRAPH)
    prove(make_checked(engine.run, engine.model), signature, config, is_random=bool(operations & RANDOM))
    check_mixing(model.clone, signature, config)
    (folder / SIGNATURE).write_text(said.to_json())
    return said


def _prove_own(
    run: Run,
    said: DeclaredSignature,
    config: TensorsConfig,
    read: Callable[[], openvino.Model],
    *,
    is_random: bool,
    has_branches: bool,
) -> None:
    """Prove that the runtime of a file batches; what runs need not show, what OpenVINO reads of its graph does."""
    signature = sign(said, config)
    prove(run, signature, config, is_random=is_random)
    model, is_batched = None, config.max_batch_items > 1
    try:
        model = read()
    except (InvalidConfig, RuntimeError) as error:
        if has_branches and is_batched:
            raise Mixed(
                f"OpenVINO cannot read its graph, in which one row may decide for others: {reason(error)}; "
                f"max_batch_items: 1 serves rows one by one{OTHER_AXIS}"
            ) from error
    if model is not None:
        check_division(model, signature)
        check_mixing(read, signature, config)
    if is_batched and not is_random and (model is None or has_positions(read, signature, config)):
        prove_positions(run, signature, config)


def _compare(run: Run, owner: str, said: DeclaredSignature, config: TensorsConfig, folder: Path) -> None:
    engine = compile_graph(folder / GRAPH)
    is_random = any(node.get_type_name() in RANDOM for node in engine.model.get_ops())
    try:
        signature, large = sign(said, config), find_large_inputs(engine.model)
        worst, count = compare_runtimes(
            engine.run,
            run,
            signature,
            config,
            owner=owner,
            large=large,
            is_random=is_random,
            find_rejection=make_checks(engine.model),
        )
    except NotRun as error:
        raise InvalidConfig(f"OpenVINO cannot be compared with {owner}: {error}") from error
    words = f"OpenVINO in fp32 is within {worst:.1e} of {owner}, {count} rows one by one and together"
    _write_fidelity(folder, "openvino", words, largest_error=worst)


def _write_fidelity(folder: Path, engine: Engine, words: str, **more: float) -> None:
    (folder / FIDELITY).write_text(json.dumps({"said": words, "engine": engine, **more}))


def _stage_or_name(
    make: Callable[[], None],
    run: Run,
    said: DeclaredSignature,
    config: TensorsConfig,
    instead: Engine,
    *,
    is_random: bool = False,
) -> None:
    """Stage OpenVINO's graph of a file; if that fails, name the runtime that owns the file if it runs the model."""
    try:
        make()
    except Mixed:
        raise
    except InvalidConfig as error:
        try:
            prove(run, sign(said, config), config, is_random=is_random)
        except InvalidConfig as own:
            raise own if isinstance(error, Unreadable) else error from None
        raise Unfaithful(str(error), instead) from error


def _stage_onnx(model: ModelEntry, path: Path, config: TensorsConfig, engine: Engine, folder: Path) -> None:
    """Write OpenVINO's graph of an ONNX file, or with `onnxruntime` the file itself."""
    if engine == "onnxruntime":
        _stage_file(model, path, config, folder)
        return

    def make() -> None:
        known = _stage_graph(*read_graph(path), config, folder, "ONNX Runtime")
        _compare(own.run, "ONNX Runtime", known, config, folder)

    try:
        own, said = read_onnx(path, config)
    except InvalidConfig as error:
        try:
            _stage_graph(*read_graph(path), config, folder)
        except Unreadable as other:
            raise InvalidConfig(f"{other}; {error}") from error
        if engine == "auto":
            raise InvalidConfig(f"{error}; OpenVINO reads it, uncompared: --engine openvino serves that") from error
        _write_fidelity(folder, "openvino", f"OpenVINO was not compared with ONNX Runtime: {error}")
    else:
        _stage_or_name(make, own.run, said, config, "onnxruntime", is_random=has_random(path))


def _stage_file(model: ModelEntry, path: Path, config: TensorsConfig, folder: Path) -> None:
    for file in (path, *find_companions(path)):
        if not file.resolve().is_relative_to(path.parent.resolve()):
            raise InvalidConfig(f"its external data must be in its folder; {file} is not")
        place = folder / ONNX if file == path else (folder / ONNX).parent / file.relative_to(path.parent)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    own, said = read_onnx(folder / ONNX, config)

    has_branches = find_operation(path, BRANCHES) is not None
    read = partial(read_partially, path)
    _prove_own(own.run, said, config, read, is_random=has_random(path), has_branches=has_branches)
    (folder / SIGNATURE).write_text(said.to_json())
    _write_fidelity(folder, "onnxruntime", "ONNX Runtime runs the file as it is")
    if left_out := [each.name for each in own.session.get_outputs() if each.name not in list_outputs(said)]:
        print(f"{model.name}: answers lack {', '.join(left_out)}, which is a sequence or map; {ZIPMAP}")


def _stage_program(model: ModelEntry, path: Path, config: TensorsConfig, engine: Engine, folder: Path) -> None:
    program, said = read_program(path, config)
    if said.outputs is None:
        said = complete_outputs(program, said, config)
    run = make_engine(program, sign(said, config), list_outputs(said)).run
    versions = count_writes(program)

    def make() -> None:
        nonlocal said
        said = _stage_graph(convert(program, sign(said, config)), said, config, folder, "PyTorch", program=run)
        _compare(run, "PyTorch", said, config, folder)

    if engine != "torch":
        _stage_or_name(make, run, said, config, "torch")
        check_state(program, versions)
    if engine == "openvino":
        return

    def read() -> openvino.Model:
        signature = sign(said, config)
        try:
            return apply_signature(convert(program, signature), signature, list_outputs(said))
        except Unreadable:
            return convert_partially(program, signature)

    try:
        _prove_own(run, said, config, read, is_random=False, has_branches=True)
    except InvalidConfig as error:
        if engine == "torch" or isinstance(error, Mixed):
            raise
        # A graph's batch dimension can become free, a program's cannot.
        print(f"{model.name}: {path.name} is left out, so that OpenVINO runs its graph on a GPU's machine too: {error}")
        return
    check_state(program, versions)
    shutil.copyfile(path, folder / f"model{path.suffix}")
    (folder / SIGNATURE).write_text(said.to_json())
