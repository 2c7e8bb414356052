"""Archives of `handler: tensors`: every format, what may be wrong with each, and the proof that a model batches."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino
import pytest
import torch
import yaml
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from deploy.archive import main
from deploy.models import ROOT, Engine, Model
from deploy.sources import WeightsUnavailable, source
from deploy.tensors import stage
from handlers.config import parse
from handlers.engines import Engine as RunningEngine
from handlers.errors import InvalidConfig
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.models import load_model

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) / 10 - 0.5
# What TorchScript does not say.
SCRIPT_INPUTS = {
    "x": {"datatype": "FP32", "shape": [-1, 4]},
    "scale": {"datatype": "FP32", "shape": [-1, 1]},
}

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Scaled(torch.nn.Module):
    """(x W) * scale, and the sum of x; a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.from_numpy(WEIGHTS))

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scaled": x @ self.weights * scale, "total": x.sum(1)}


class Pair(Scaled):
    """The same as a tuple."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return x @ self.weights * scale, x.sum(1)


class Negative(Scaled):
    """Another model of the same signature."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scaled": -(x @ self.weights) * scale, "total": x.sum(1)}


# -- files as the world writes them ----------------------------------------------------------------------------------


def onnx_file(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, list[Any]]],
    outputs: Mapping[str, tuple[int, list[Any]]],
    constants: Mapping[str, NDArray[Any]] | None = None,
    **saving: Any,
) -> Path:
    """Write an ONNX file; tensors as name -> element type, shape with a text where it is free."""
    taken, given = (
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in tensors.items()]
        for tensors in (inputs, outputs)
    )
    initializers = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "graph", taken, given, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save_model(model, str(path), **saving)
    return path


def scaled_onnx(path: Path, batch: Any = "rows", **saving: Any) -> Path:
    return onnx_file(
        path,
        [
            helper.make_node("MatMul", ["x", "weights"], ["product"]),
            helper.make_node("Mul", ["product", "scale"], ["scaled"]),
            helper.make_node("ReduceSum", ["x", "axes"], ["total"], keepdims=0),
        ],
        {"x": (TensorProto.FLOAT, [batch, 4]), "scale": (TensorProto.FLOAT, [batch, 1])},
        {"scaled": (TensorProto.FLOAT, [batch, 3]), "total": (TensorProto.FLOAT, [batch])},
        {"weights": WEIGHTS, "axes": np.array([1])},
        **saving,
    )


def one_node(
    path: Path, operation: str, kind: int = TensorProto.FLOAT, shape: Any = ("rows", 3), out: Any = None, **more: Any
) -> Path:
    """A model of one operation, from x to y."""
    constants = more.pop("constants", {})
    node = helper.make_node(operation, ["x", *constants], ["y"], **more)
    return onnx_file(
        path, [node], {"x": (kind, [*shape])}, {"y": (kind, [*(shape if out is None else out)])}, constants
    )


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
    """Stage a model beside its file; returns the folder."""
    place = path.parent / "own"
    place.mkdir(exist_ok=True)
    if settings is not None:
        (place / "model-config.yaml").write_text(yaml.safe_dump({"handler": settings}))
    entry = Model("own", "tensors", "1", place, {"path": path.name})
    folder = path.parent / f"staged-{engine}"
    folder.mkdir()
    stage(entry, source(entry, None), engine, folder)
    return folder


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def engine_of(
    folder: Path, settings: dict[str, Any] | None = None, *, uses_torch: bool = False
) -> tuple[RunningEngine, Any]:
    """What a worker makes of a staged folder."""
    return load_model(folder, parse(TensorsConfig, settings), torch.device("cpu"), uses_torch=uses_torch)


def said(folder: Path) -> dict[str, list[tuple[str, str, list[int] | None]]]:
    document = json.loads((folder / "signature.json").read_text())
    return {
        kind: [(each["name"], each["datatype"], each["shape"]) for each in tensors]
        for kind, tensors in document.items()
    }


def assert_scales(engine: RunningEngine, rows: int, names: tuple[str, str] = ("scaled", "total")) -> None:
    random = np.random.default_rng(rows)
    x, scale = random.random((rows, 4), np.float32), random.random((rows, 1), np.float32)
    outputs = engine.run({"x": x.copy(), "scale": scale.copy()})
    np.testing.assert_allclose(outputs[names[0]], x @ WEIGHTS * scale, 1e-5, 1e-6)
    np.testing.assert_allclose(outputs[names[1]], x.sum(1), 1e-5, 1e-6)


FORMATS: dict[str, tuple[Callable[[Path], Path], dict[str, Any] | None, set[str]]] = {
    "m.onnx": (scaled_onnx, None, set()),
    "m.xml": (ir, None, set()),
    "m.pt2": (scaled_pt2, None, {"model.pt2"}),
    "m.pt": (lambda path: script(path, Scaled()), {"inputs": SCRIPT_INPUTS}, {"model.pt"}),
}


@pytest.mark.parametrize("name", FORMATS)
def test_stage_of_each_format_serves_what_the_model_computes(name: str, tmp_path: Path) -> None:
    write, settings, programs = FORMATS[name]
    folder = staged(write(tmp_path / name), settings)
    assert files(folder) == {"model.xml", "model.bin", "signature.json"} | programs
    assert said(folder)["outputs"] == [("scaled", "FP32", [-1, 3]), ("total", "FP32", [-1])]
    for uses_torch in (False, bool(programs)):
        engine, signature = engine_of(folder, settings, uses_torch=uses_torch)
        assert engine.description.startswith("torch" if uses_torch else "openvino")
        assert [(each.name, each.datatype, each.shape) for each in signature.inputs.values()] == [
            ("x", "FP32", (-1, 4)),
            ("scale", "FP32", (-1, 1)),
        ]
        for rows in (1, 5):
            assert_scales(engine, rows)


@pytest.mark.parametrize("name", FORMATS)
def test_stage_for_one_engine_carries_only_its_model(name: str, tmp_path: Path) -> None:
    write, settings, programs = FORMATS[name]
    path = write(tmp_path / name)
    assert files(staged(path, settings, "openvino")) == {"model.xml", "model.bin", "signature.json"}
    if programs:
        assert files(staged(path, settings, "torch")) == {"signature.json", *programs}
    else:
        with pytest.raises(InvalidConfig, match=rf"^own: {name}: engine: torch runs .pt2 and .pt; OpenVINO runs this"):
            staged(path, settings, "torch")


def test_stage_of_a_tuple_names_outputs_by_place_or_by_the_configuration(tmp_path: Path) -> None:
    folder = staged(scaled_pt2(tmp_path / "m.pt2", Pair()))
    assert [name for name, _, _ in said(folder)["outputs"]] == ["output_0", "output_1"]
    assert_scales(engine_of(folder, uses_torch=True)[0], 3, ("output_0", "output_1"))
    named = {"inputs": SCRIPT_INPUTS, "outputs": {"a": {}, "b": {"datatype": "FP32", "shape": [-1]}}}
    (tmp_path / "script").mkdir()
    folder = staged(script(tmp_path / "script" / "m.pt", Pair()), named)
    assert [name for name, _, _ in said(folder)["outputs"]] == ["a", "b"]
    for uses_torch in (False, True):
        assert_scales(engine_of(folder, named, uses_torch=uses_torch)[0], 3, ("a", "b"))


def test_stage_of_an_input_that_is_an_output_keeps_every_name(tmp_path: Path) -> None:
    class Echo(torch.nn.Module):
        def forward(self, x: torch.Tensor, unread: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"first": x, "second": x, "more": x + 1}

    dynamic = {"x": {0: torch.export.Dim.DYNAMIC}, "unread": {0: torch.export.Dim.DYNAMIC}}
    folder = staged(exported(tmp_path / "m.pt2", Echo(), torch.rand(2, 3), torch.rand(2, 5), dynamic=dynamic))
    engine, _ = engine_of(folder)
    assert engine.input_names == ("x", "unread")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    outputs = engine.run({"x": x, "unread": np.zeros((2, 5), np.float32)})
    assert {name: array.tolist() for name, array in outputs.items()} == {
        "first": x.tolist(),
        "second": x.tolist(),
        "more": (x + 1).tolist(),
    }


@pytest.mark.parametrize(
    "kind",
    ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FLOAT16", "FLOAT", "DOUBLE"],
)
def test_stage_of_every_datatype_gives_it_back(kind: str, tmp_path: Path) -> None:
    element = getattr(TensorProto, kind)
    folder = staged(one_node(tmp_path / "m.onnx", "Identity", element))
    dtype = helper.tensor_dtype_to_np_dtype(element)
    x = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    engine, _ = engine_of(folder)
    y = engine.run({"x": x})["y"]
    assert y.dtype == dtype
    assert y.tolist() == x.tolist()


def test_stage_of_bf16_takes_and_gives_float32_and_says_bf16(tmp_path: Path) -> None:
    two = numpy_helper.to_array(helper.make_tensor("two", TensorProto.BFLOAT16, [1], [2.0]))
    folder = staged(one_node(tmp_path / "m.onnx", "Mul", TensorProto.BFLOAT16, constants={"two": two}))
    assert said(folder)["inputs"] == [("x", "BF16", [-1, 3])]
    assert said(folder)["outputs"] == [("y", "BF16", [-1, 3])]
    engine, _ = engine_of(folder)
    y = engine.run({"x": np.array([[0.5, 1.5, -2]], np.float32)})["y"]
    assert y.dtype == np.dtype(np.float32)
    assert y.tolist() == [[1, 3, -4]]


# -- a batch that is fixed -------------------------------------------------------------------------------------------


def test_stage_of_a_graph_exported_for_two_rows_takes_any_number(tmp_path: Path) -> None:
    folder = staged(scaled_onnx(tmp_path / "m.onnx", batch=2))
    engine, signature = engine_of(folder)
    assert signature.inputs["x"].shape == (-1, 4)
    for rows in (1, 2, 7):
        assert_scales(engine, rows)


def test_stage_of_a_program_exported_for_two_rows_leaves_it_to_openvino(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = exported(tmp_path / "m.pt2", Scaled(), torch.rand(2, 4), torch.rand(2, 1))
    folder = staged(path)
    assert files(folder) == {"model.xml", "model.bin", "signature.json"}
    printed = capsys.readouterr().out
    assert printed.startswith("own: m.pt2 is left out, so that OpenVINO runs its graph"), printed
    for rows in (1, 5):
        assert_scales(engine_of(folder)[0], rows)
    with pytest.raises(InvalidConfig, match=r"^own: m.pt2: it does not run on one row, x \[1, 4\], scale \[1, 1\]: "):
        staged(path, engine="torch")


def test_stage_of_a_program_that_openvino_computes_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such program is known: the graph of another one stands in."""
    other = scaled_pt2(tmp_path / "other.pt2", Negative())
    convert = openvino.convert_model
    monkeypatch.setattr(openvino, "convert_model", lambda _: convert(torch.export.load(other)))
    with pytest.raises(
        InvalidConfig, match=r"^own: m.pt2: outputs.scaled: OpenVINO computes other values than PyTorch"
    ):
        staged(scaled_pt2(tmp_path / "m.pt2"))


# -- what is refused -------------------------------------------------------------------------------------------------


def reshaped(path: Path) -> Path:
    return one_node(path, "Reshape", shape=[2, 3], out=[2, 3], constants={"sizes": np.array([2, 3])})


def summed(path: Path) -> Path:
    return one_node(path, "ReduceSum", shape=["rows", 3], out=[], keepdims=0)


def over_rows(path: Path) -> Path:
    return one_node(path, "Softmax", axis=0)


def pt2_of_dictionary(path: Path) -> Path:
    class Nested(torch.nn.Module):
        def forward(self, both: dict[str, torch.Tensor]) -> torch.Tensor:
            return both["a"] + both["b"]

    example: Any = {"a": torch.rand(2, 3), "b": torch.rand(2, 3)}
    return exported(path, Nested(), example)


def pt2_of_a_keyword(path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Scaled(), (torch.rand(2, 4),), {"scale": torch.rand(2, 1)})
        torch.export.save(program, path)
    return path


class Bessel(torch.nn.Module):
    """An operation that PyTorch has, and OpenVINO has not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.special.bessel_j0(x)
        return y


def pt2_of_bessel(path: Path) -> Path:
    return exported(path, Bessel(), torch.rand(2, 3), dynamic={"x": {0: torch.export.Dim.DYNAMIC}})


def pickled(path: Path) -> Path:
    torch.save(Scaled().state_dict(), path)
    return path


def garbage(path: Path) -> Path:
    path.write_bytes(b"garbage")
    return path


def without_bin(path: Path) -> Path:
    os.truncate(ir(path).with_suffix(".bin"), 0)
    return path


REFUSED: dict[str, tuple[str, Callable[[Path], Path], dict[str, Any] | None, str]] = {
    "broken onnx": ("m.onnx", garbage, None, "m.onnx: OpenVINO cannot read it: GeneralFailure: Model can't be parsed"),
    "broken xml": (
        "m.xml",
        lambda path: garbage(ir(path)),
        None,
        "m.xml: OpenVINO cannot read it: RuntimeError: No doc",
    ),
    "empty bin": ("m.xml", without_bin, None, "m.xml: OpenVINO cannot read it: RuntimeError: "),
    "broken pt2": ("m.pt2", garbage, None, "m.pt2: it is no program that torch.export.save wrote: "),
    "script as pt2": ("m.pt2", lambda path: script(path, Pair()), None, "m.pt2: it is no program that torch.export.sa"),
    "state dict": (
        "m.pt",
        pickled,
        None,
        "m.pt: it is no TorchScript, as torch.jit.save writes it; a pickled model or",
    ),
    "strings": (
        "m.onnx",
        lambda path: one_node(path, "Identity", TensorProto.STRING),
        None,
        "x: it is of strings, which",
    ),
    "unknown operation": (
        "m.onnx",
        lambda path: one_node(path, "StringNormalizer", TensorProto.STRING, ["rows"]),
        None,
        "No conversion rule found for operations: StringNormalizer",
    ),
    "no rows": ("m.onnx", summed, None, "m.onnx: outputs.y: shape [] has no dimension 0 to count rows"),
    "two rows inside": (
        "m.onnx",
        reshaped,
        None,
        "m.onnx: it does not run on one row, x [1, 3]: RuntimeError: [cpu]res",
    ),
    "mixed rows": ("m.onnx", over_rows, None, "m.onnx: outputs.y: 3 rows together give other values than each alone"),
    "script without inputs": (
        "m.pt",
        lambda path: script(path, Pair()),
        None,
        "m.pt: inputs.x: TorchScript says neither datatype nor shape; model-config.yaml must, under handler: inputs:",
    ),
    "script with other inputs": (
        "m.pt",
        lambda path: script(path, Pair()),
        {"inputs": {**SCRIPT_INPUTS, "y": {}}},
        "m.pt: inputs: y: this model has scale, x",
    ),
    "script with fewer outputs": (
        "m.pt",
        lambda path: script(path, Pair()),
        {"inputs": SCRIPT_INPUTS, "outputs": {"a": {}}},
        "m.pt: it does not run on one row: ValueError: ",
    ),
    "few rows": (
        "m.pt2",
        lambda path: scaled_pt2(path, min=1, max=8),
        None,
        "m.pt2: x was exported for at most 8 rows; max_batch_size is 64",
    ),
    "dictionary as argument": (
        "m.pt2",
        pt2_of_dictionary,
        None,
        "m.pt2: its arguments must be positional, and each a tensor",
    ),
    "named argument": ("m.pt2", pt2_of_a_keyword, None, "m.pt2: its arguments must be positional, and each a tensor"),
    "operation that OpenVINO lacks": (
        "m.pt2",
        pt2_of_bessel,
        None,
        "m.pt2: OpenVINO cannot convert it: OpConversionFailure: No conversion rule found for operations: aten.special",
    ),
    "another datatype": (
        "m.onnx",
        scaled_onnx,
        {"inputs": {"x": {"datatype": "FP64"}}},
        "m.onnx: inputs.x: the model has FP32, and not FP64",
    ),
    "another setting": ("m.onnx", scaled_onnx, {"top_k": 1}, "handler: top_k: Unexpected keyword argument"),
    "unknown suffix": (
        "m.h5",
        garbage,
        None,
        "own: m.h5 is no model of tensors: .onnx, .xml, .pt2, .pt or infer.py is",
    ),
    "other Python": ("scale.py", garbage, None, "own: scale.py: the function of a model stands in infer.py"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_stage_of_what_cannot_be_served_says_why_in_one_line(case: str, tmp_path: Path) -> None:
    name, write, settings, words = REFUSED[case]
    path = write(tmp_path / name)
    with pytest.raises(InvalidConfig) as raised:
        staged(path, settings)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith("own: ") or words.startswith("handler: ")


def test_stage_of_rows_that_are_mixed_in_a_program_is_refused_for_torch_too(tmp_path: Path) -> None:
    class OverRows(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / x.sum()

    path = exported(tmp_path / "m.pt2", OverRows(), torch.rand(2, 3), dynamic={"x": {0: torch.export.Dim.DYNAMIC}})
    with pytest.raises(InvalidConfig, match=r"^own: m.pt2: outputs.output: 3 rows together give other values"):
        staged(path, engine="torch")


def test_stage_of_another_batch_dimension_is_proven_along_it(tmp_path: Path) -> None:
    """Softmax over dimension 0 mixes rows where that counts them, and not where dimension 1 does."""
    folder = staged(
        one_node(tmp_path / "m.onnx", "Softmax", shape=[4, "rows"], axis=0),
        {"inputs": {"x": {"batch_dim": 1}}, "outputs": {"y": {"batch_dim": 1}}},
    )
    assert said(folder)["inputs"] == [("x", "FP32", [4, -1])]


def test_stage_runs_the_sizes_of_warm_up(tmp_path: Path) -> None:
    """A product that takes rows of 5 alone."""
    path = one_node(
        tmp_path / "m.onnx", "Mul", shape=["rows", "size"], constants={"c": np.arange(5, dtype=np.float32) + 1}
    )
    with pytest.raises(InvalidConfig, match=r"one row, x \[1, 32\]: .*; export it .* or name sizes .* under warm_up"):
        staged(path)
    shutil.rmtree(tmp_path / "staged-auto")
    assert said(staged(path, {"warm_up": [{"x": [5]}]}))["inputs"] == [("x", "FP32", [-1, -1])]


# -- functions -------------------------------------------------------------------------------------------------------

DECLARED = {"inputs": {"x": {"datatype": "FP32", "shape": [-1, 2]}}}


def test_stage_of_a_function_alone_and_of_its_folder(tmp_path: Path) -> None:
    text = "from double import double\n\ndef load(folder, device):\n    (folder / 'cache').write_text(device)\n\n"
    own = tmp_path / "own"
    infer = infer_py(own, text + "def infer(x):\n    return {'y': double(x)}")
    (own / "double.py").write_text("def double(x):\n    return x * 2\n")
    (own / "deep").mkdir()
    (own / "deep" / "table.csv").write_text("1,2\n")
    (own / ".hidden").write_text("")
    (own / "__pycache__").mkdir()
    (own / "__pycache__" / "double.pyc").write_bytes(b"")
    folder = staged(own, DECLARED)
    assert files(folder) == {
        *("function/infer.py", "function/double.py", "function/deep/table.csv", "function/model-config.yaml")
    }
    infer.write_text("def infer(*, a, b):\n    raise ValueError\n")
    entry = Model("own", "tensors", "1", tmp_path / "nowhere", {"path": "own/infer.py"})
    (tmp_path / "alone").mkdir()
    stage(entry, source(entry, None), "auto", tmp_path / "alone")
    # Nothing is declared, so that nothing was run.
    assert files(tmp_path / "alone") == {"function/infer.py"}


def test_stage_of_two_functions_imports_the_modules_of_each(tmp_path: Path) -> None:
    """In one process, as archive.sh --all does."""
    for name, factor in (("one", 2), ("two", 3)):
        place = tmp_path / name / "own"
        place.parent.mkdir()
        infer_py(place, f"from factor import FACTOR\nassert FACTOR == {factor}\n\ndef infer(x): ...")
        (place / "factor.py").write_text(f"FACTOR = {factor}\n")
        staged(place)
    assert not {"infer", "factor"} & sys.modules.keys()
    assert not [place for place in sys.path if place.startswith(str(tmp_path))]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return {'y': x[:1]}", "infer.py: run on 3 rows: y: 1 rows came back for 3."),
        ("return {'y': x - x.mean()}", "infer.py: outputs.y: 3 rows together give other values than each alone"),
        ("return x", "infer.py: run on 1 row: A ndarray came back; arrays by name are needed."),
        ("return {'y': x.astype('f8')}", "infer.py: run on 1 row: y: FP64 came back; FP32 is expected."),
        ("return {'z': x}", "infer.py: run on 1 row: y: the model gave none."),
        (
            "return {'y': x.reshape(1, 2)}",
            "infer.py: it runs on one row, x [1, 2], and not on 3 together: ValueError: ",
        ),
    ],
)
def test_stage_of_a_function_that_does_not_batch_is_refused(body: str, words: str, tmp_path: Path) -> None:
    settings = {**DECLARED, "outputs": {"y": {"datatype": "FP32"}}}
    with pytest.raises(InvalidConfig) as raised:
        staged(infer_py(tmp_path, f"def infer(x):\n    {body}"), settings)
    assert str(raised.value).startswith(f"own: {words}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "import nobodys_package\ndef infer(x): ...",
            "cannot be imported: ModuleNotFoundError: No module named 'nobod",
        ),
        ("def infer(x:", "infer.py: it cannot be imported: SyntaxError: "),
        ("def inference(x): ...", "infer.py: it defines no infer(**inputs)"),
        ("def infer(**inputs): ...", "infer.py: infer: inputs: each input is a parameter with a name of its own"),
        ("def load(folder, device):\n    raise OSError('no disk')\ndef infer(x): ...", "load failed: OSError: no disk"),
    ],
)
def test_stage_of_a_function_that_cannot_be_called_is_refused(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as raised:
        staged(infer_py(tmp_path, text), DECLARED)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("body", "printed"),
    [
        # What it refuses may be what no client sends.
        ("raise ValueError('x must be above 7')", "own: not shown to batch: it does not run on one row, x [1, 2]: Val"),
        # Noise of its own, as of a model that samples.
        ("return {'y': x + np.random.random(x.shape)}", ""),
        ("x[:] = 0; return {'y': x}", ""),
    ],
)
def test_stage_of_a_function_that_nobody_can_judge_is_built(
    body: str, printed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert files(staged(infer_py(tmp_path, f"def infer(x):\n    {body}"), DECLARED)) == {"function/infer.py"}
    assert capsys.readouterr().out.startswith(printed)


# -- the list, and archive.sh ------------------------------------------------------------------------------------------


def listed(folder: Path, *entries: str) -> list[str]:
    (folder / "models.yaml").write_text("\n".join(entries) + "\n")
    return ["--models", str(folder / "models.yaml"), "--export-path", str(folder / "store")]


def entry(name: str, weights: str, more: str = "") -> str:
    return f'{name}: {{handler: tensors, version: "3", weights: {weights}{more}}}'


def test_archive_of_a_file_beside_the_list_needs_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scaled_onnx(tmp_path / "m.onnx")
    arguments = listed(tmp_path, entry("scaled", "m.onnx"))
    signature = "scaled.mar: x FP32 [-1, 4], scale FP32 [-1, 1] -> scaled FP32 [-1, 3], total FP32 [-1]"
    for words in (": built, version 3, ", ": up to date"):
        assert main(["scaled", *arguments]) == 0
        first, second = capsys.readouterr().out.splitlines()
        assert words in first
        assert second.endswith(signature)
    # A configuration that comes later counts.
    (tmp_path / "scaled").mkdir()
    (tmp_path / "scaled" / "model-config.yaml").write_text("handler: {inputs: {scale: {shape: [-1, 2]}}}\n")
    assert main(["scaled", *arguments]) == 1
    assert capsys.readouterr().err.strip() == (
        "archive.sh: scaled: m.onnx: inputs.scale: the model has [-1, 1], and not [-1, 2]"
    )


def test_stage_of_what_only_pytorch_runs_is_built_for_it_alone(tmp_path: Path) -> None:
    folder = staged(pt2_of_bessel(tmp_path / "m.pt2"), engine="torch")
    assert files(folder) == {"model.pt2", "signature.json"}
    (y,) = engine_of(folder, uses_torch=True)[0].run({"x": np.zeros((1, 3), np.float32)}).values()
    assert y.tolist() == [[1, 1, 1]]


@pytest.mark.parametrize(("more", "words"), [((), "scaled: up to date"), (("--force",), "built, version 3")])
def test_archive_whose_conversion_is_known_imports_no_torch(more: tuple[str, ...], words: str, tmp_path: Path) -> None:
    arguments = [
        *listed(tmp_path, entry("scaled", scaled_onnx(tmp_path / "m.onnx").name)),
        *("--archive-format", "no-archive"),
    ]
    assert main(["scaled", *arguments]) == 0
    script = (
        "import sys; from deploy.archive import main; code = main(sys.argv[1:]); "
        "print(sorted({'torch', 'openvino', 'onnx', 'ts'} & set(sys.modules))); sys.exit(code)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script, "scaled", *arguments, *more],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert words in finished.stdout.splitlines()[0]
    assert finished.stdout.splitlines()[-1] == "[]"


def external(path: Path) -> Path:
    return scaled_onnx(
        path, save_as_external_data=True, all_tensors_to_one_file=True, location="of-x.bin", size_threshold=0
    )


def test_archive_of_onnx_with_external_data_is_made_of_that_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    external(tmp_path / "m.onnx")
    arguments = ["scaled", *listed(tmp_path, entry("scaled", "m.onnx")), "--archive-format", "no-archive"]
    assert main(arguments) == 0
    assert_scales(engine_of(tmp_path / "store" / "scaled")[0], 3)
    assert main(arguments) == 0
    assert "up to date" in capsys.readouterr().out
    data = (tmp_path / "of-x.bin").read_bytes()
    (tmp_path / "of-x.bin").write_bytes(b"\0" * 48 + data[48:])
    assert main(arguments) == 0
    assert ": built" in capsys.readouterr().out
    outputs = engine_of(tmp_path / "store" / "scaled")[0].run(
        {"x": np.ones((1, 4), "f4"), "scale": np.ones((1, 1), "f4")}
    )
    assert outputs["scaled"].tolist() == [[0, 0, 0]]
    (tmp_path / "of-x.bin").unlink()
    assert main(arguments) == 1
    assert capsys.readouterr().err.strip() == "archive.sh: scaled: m.onnx needs of-x.bin, which is not beside it"


def test_archive_takes_weights_of_the_models_folder_and_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["double", *listed(tmp_path, entry("double", "infer.py")), "--archive-format", "no-archive"]
    infer_py(tmp_path / "double", "def infer(*, x, y=None):\n    return {'y': x * 2}")
    assert main(arguments) == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[1]
        .endswith("double: x any datatype of any shape, y any datatype of any shape -> whatever infer gives")
    )
    assert main([*arguments, "--weights", str(scaled_onnx(tmp_path / "m.onnx"))]) == 0
    assert (tmp_path / "store" / "double" / "model.xml").is_file()
    for choice, words in (
        ("random", "double: no random weights for tensors; give --weights PATH"),
        ("no.onnx", "double: no file no.onnx; give --weights PATH"),
        (
            str(tmp_path / "store"),
            "double: store/ must hold one model (.onnx, .xml, .pt2, .pt or infer.py); it has none",
        ),
    ):
        assert main([*arguments, "--weights", choice]) == 1
        assert capsys.readouterr().err.strip() == f"archive.sh: {words}"
    scaled_onnx(tmp_path / "double" / "n.onnx")
    garbage(tmp_path / "double" / "m.pt2")
    (tmp_path / "double" / "infer.py").unlink()
    assert main([*arguments, "--weights", str(tmp_path / "double")]) == 1
    assert "double/ must hold one model" in (error := capsys.readouterr().err)
    assert error.strip().endswith("it has m.pt2, n.onnx")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('m: {handler: tensors, version: "1", weights: m.onnx}', "m: no m.onnx in {0}/ or {0}/m/; give --weights PATH"),
        (
            'm: {handler: tensors, version: "1", weights: [m]}',
            "models.yaml: m: weights must be a text, or a mapping of",
        ),
        ('m: {handler: tensors, version: "1", weights: {path: 7}}', "models.yaml: m: weights must be a text, or a map"),
        ('m: {handler: tensors, version: "1"}', "m: the list names no weights; give --weights PATH"),
        (
            'm: {handler: tensors, version: "1", weights: {hub: a/b}}',
            "m: no hub weights for tensors; give --weights PATH",
        ),
    ],
)
def test_archive_of_weights_that_are_not_there_is_one_line(
    entry: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["m", *listed(tmp_path, entry)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"archive.sh: {words.format(os.path.relpath(tmp_path))}")


def test_archive_of_what_a_program_makes_says_which_and_all_goes_on_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scaled_onnx(tmp_path / "m.onnx")
    arguments = listed(
        tmp_path, entry("trained", "t.onnx", ", made_by: train.py"), entry("scaled", "m.onnx", ", made_by: train.py")
    )
    words = f"trained: there is no t.onnx yet; python {os.path.relpath(tmp_path)}/trained/train.py makes it"
    assert main(["trained", *arguments]) == 1
    assert capsys.readouterr().err.strip() == f"archive.sh: {words}"
    assert main(["--all", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err.strip() == f"archive.sh: left out: {words}"
    assert "scaled.mar: built" in printed.out


def test_source_of_broken_onnx_is_still_the_file(tmp_path: Path) -> None:
    """What is no protobuf has no external data; who converts it says that it is broken."""
    for content in (b"", b"\xff" * 9, b"\x3a\xff\x01", b"\x0f"):
        (tmp_path / "m.onnx").write_bytes(content)
        model = Model("m", "tensors", "1", tmp_path / "m", {"path": "m.onnx"})
        assert source(model, None).kind == "file"
    with pytest.raises(WeightsUnavailable, match=r"m.xml needs m.bin, which is not beside it"):
        source(Model("m", "tensors", "1", tmp_path / "m", {"path": garbage(tmp_path / "m.xml").name}), None)
