"""Tiny models in every format that `task: tensors` takes, and their staged folders."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import openvino
import torch
import yaml
from onnx import TensorProto, helper, numpy_helper

from deploy.archives.sources import source
from deploy.archives.tasks.tensors import stage
from deploy.models import Engine, ModelEntry
from handlers.config import parse
from handlers.engines import Engine as RunningEngine
from handlers.pipeline.values import Archive
from handlers.tasks.tensors import load_model
from handlers.tensor_models.config import TensorsConfig

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) / 10 - 0.5
# Of onnx.save_model: weights in another file.
OUTSIDE: dict[str, Any] = {"save_as_external_data": True, "all_tensors_to_one_file": True}
# The properties that TorchScript does not declare.
SCRIPT_INPUTS = {"x": {"datatype": "FP32", "shape": [-1, 4]}, "scale": {"datatype": "FP32", "shape": [-1, 1]}}


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.from_numpy(WEIGHTS))

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scaled": x @ self.weights * scale, "total": x.sum(1)}


class Pair(Scaled):
    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return x @ self.weights * scale, x.sum(1)


class Negative(Scaled):
    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scaled": -(x @ self.weights) * scale, "total": x.sum(1)}


# -- files as exporters write them ----------------------------------------------------------------------------------


def write_onnx(path: Path, graph: str, **saving: Any) -> Path:
    """Write a graph, of the newest version of the format that the package onnx knows."""
    opsets = '"": 17, "ai.onnx.ml": 3, "com.microsoft": 1'
    model = onnx.parser.parse_model(f"<ir_version: {onnx.IR_VERSION}, opset_import: [{opsets}]>\ng {graph}")
    for tensor in model.graph.initializer:
        # Only bytes can be saved in another file.
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save_model(model, str(path), **saving)
    return path


def scaled_onnx(path: Path, batch: Any = "rows", **saving: Any) -> Path:
    weights = f"<float[4, 3] weights = {{{', '.join(map(str, WEIGHTS.ravel()))}}}, int64[1] axes = {{1}}>"
    taken, given = f"float[{batch}, 4] x, float[{batch}, 1] scale", f"float[{batch}, 3] scaled, float[{batch}] total"
    nodes = "product = MatMul (x, weights) scaled = Mul (product, scale) total = ReduceSum <keepdims = 0> (x, axes)"
    return write_onnx(path, f"({taken}) => ({given}) {weights} {{ {nodes} }}", **saving)


def one_node(
    path: Path, operation: str, kind: int = TensorProto.FLOAT, shape: Any = ("rows", 3), out: Any = None, **more: Any
) -> Path:
    """A model of one operation, from x to y; `unread` names its other outputs."""
    constants = more.pop("constants", {})
    node = helper.make_node(operation, ["x", *constants], ["y", *more.pop("unread", ())], **more)
    sizes = {"x": shape, "y": shape if out is None else out}
    taken, given = (helper.make_tensor_value_info(name, kind, [*each]) for name, each in sizes.items())
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "graph", [taken], [given], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(model, str(path))
    return path


def exported(path: Path, module: torch.nn.Module, *examples: torch.Tensor, dynamic: Any = None) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module.eval(), examples, dynamic_shapes=dynamic), path)
    return path


def scaled_pt2(path: Path, module: torch.nn.Module | None = None, **dim: Any) -> Path:
    rows = torch.export.Dim("rows", **dim) if dim else torch.export.Dim.DYNAMIC
    dynamic = {"x": {0: rows}, "scale": {0: rows}}
    return exported(path, module or Scaled(), torch.rand(2, 4), torch.rand(2, 1), dynamic=dynamic)


def script(path: Path, module: torch.nn.Module) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(module.eval()).save(str(path))  # type: ignore[no-untyped-call]
    return path


def ir(path: Path) -> Path:
    graph = openvino.Core().read_model(scaled_onnx(path.with_suffix(".onnx")))
    openvino.save_model(graph, path, compress_to_fp16=False)
    path.with_suffix(".onnx").unlink()
    return path


def infer_py(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "infer.py").write_text(f"import numpy as np\n\n{text}\n")
    return folder / "infer.py"


# -- built and served ------------------------------------------------------------------------------------------------


def staged(path: Path, settings: dict[str, Any] | None = None, engine: Engine = "auto") -> Path:
    place = path.parent / "own"
    place.mkdir(exist_ok=True)
    if settings is not None:
        (place / "model-config.yaml").write_text(yaml.safe_dump({"handler": settings}))
    entry = ModelEntry("own", "tensors", "1", place, {"path": path.name})
    folder = path.parent / f"staged-{engine}"
    folder.mkdir()
    stage(entry, source(entry, None), engine, folder)
    return folder


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def engine_of(
    folder: Path, settings: dict[str, Any] | None = None, *, uses_torch: bool = False
) -> tuple[RunningEngine, Any]:
    """The engine that a worker makes of a staged folder."""
    config = parse(TensorsConfig, settings)
    return load_model(Archive(folder), replace(config, engine="torch") if uses_torch else config)


def said(folder: Path) -> dict[str, list[tuple[str, str, list[int] | None]]]:
    document = json.loads((folder / "signature.json").read_text())
    return {
        kind: [(each["name"], each["datatype"], each["shape"]) for each in tensors]
        for kind, tensors in document.items()
    }


def assert_scales(engine: RunningEngine, rows: int) -> None:
    random = np.random.default_rng(rows)
    x, scale = random.random((rows, 4), np.float32), random.random((rows, 1), np.float32)
    outputs = engine.run({"x": x.copy(), "scale": scale.copy()})
    np.testing.assert_allclose(outputs["scaled"], x @ WEIGHTS * scale, 1e-5, 1e-6)
    np.testing.assert_allclose(outputs["total"], x.sum(1), 1e-5, 1e-6)


class Bessel(torch.nn.Module):
    """An operation that PyTorch has and OpenVINO lacks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.special.bessel_j0(x)
        return y


def of_rows(path: Path, module: torch.nn.Module) -> Path:
    """Export a module of one input, of any number of rows of three."""
    return exported(path, module, torch.rand(2, 3), dynamic={"x": {0: torch.export.Dim.DYNAMIC}})


def garbage(path: Path) -> Path:
    path.write_bytes(b"garbage")
    return path
