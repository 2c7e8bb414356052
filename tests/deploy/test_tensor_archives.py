"""Archives of `handler: tensors`: every format, what may be wrong with each, and the proof that a model batches."""

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from handlers.errors import InvalidConfig
from tests.tensor_files import (
    SCRIPT_INPUTS,
    Negative,
    Pair,
    Scaled,
    assert_scales,
    engine_of,
    exported,
    files,
    garbage,
    ir,
    one_node,
    pt2_of_bessel,
    said,
    scaled_onnx,
    scaled_pt2,
    script,
    staged,
)

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


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


def pickled(path: Path) -> Path:
    torch.save(Scaled().state_dict(), path)
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


def test_stage_of_what_only_pytorch_runs_is_built_for_it_alone(tmp_path: Path) -> None:
    folder = staged(pt2_of_bessel(tmp_path / "m.pt2"), engine="torch")
    assert files(folder) == {"model.pt2", "signature.json"}
    (y,) = engine_of(folder, uses_torch=True)[0].run({"x": np.zeros((1, 3), np.float32)}).values()
    assert y.tolist() == [[1, 1, 1]]
