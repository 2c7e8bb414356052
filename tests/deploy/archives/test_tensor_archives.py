"""Archives of `task: tensors`: every format, what may be wrong with each, and the proof that a model batches."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
import torch
from onnx import TensorProto, helper

from handlers.errors import InvalidConfig
from tests.deploy.archives.conftest import ArchiveSh, write_onnx
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
    infer_py,
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


# -- from the list to the archive --------------------------------------------------------------------------------------


@pytest.mark.builds
def test_archive_of_a_file_beside_the_list_needs_nothing_else(archive_sh: ArchiveSh) -> None:
    scaled_onnx(archive_sh.folder / "m.onnx")
    folder = archive_sh.write_list("scaled", "tensors", "m.onnx")
    for words in (": built, version 3, ", ": up to date"):
        assert words in archive_sh("scaled")[0]
    # A configuration that comes later counts.
    (folder / "model-config.yaml").write_text("handler: {inputs: {scale: {shape: [-1, 2]}}}\n")
    assert archive_sh.refused("scaled") == "scaled: m.onnx: inputs.scale: the model has [-1, 1], not [-1, 2]"


@pytest.mark.builds
def test_archive_of_onnx_with_external_data_is_made_of_that_too(archive_sh: ArchiveSh) -> None:
    outside: dict[str, Any] = {"save_as_external_data": True, "all_tensors_to_one_file": True, "size_threshold": 0}
    scaled_onnx(archive_sh.folder / "m.onnx", location="of-x.bin", **outside)
    archive_sh.write_list("scaled", "tensors", "m.onnx")
    archive_sh("scaled")
    assert_scales(engine_of(archive_sh.store / "scaled")[0], 3)
    assert ": up to date" in archive_sh("scaled")[0]
    data = archive_sh.folder / "of-x.bin"
    data.write_bytes(b"\0" * 48 + data.read_bytes()[48:])
    assert ": built" in archive_sh("scaled")[0]
    ones = {"x": np.ones((1, 4), np.float32), "scale": np.ones((1, 1), np.float32)}
    assert engine_of(archive_sh.store / "scaled")[0].run(ones)["scaled"].tolist() == [[0, 0, 0]]
    data.unlink()
    assert archive_sh.refused("scaled") == "scaled: m.onnx needs of-x.bin, which is missing beside it"


@pytest.mark.builds
def test_weights_of_the_command_line_replace_those_of_the_list_and_must_be_one_model(archive_sh: ArchiveSh) -> None:
    folder = archive_sh.write_list("double", "tensors", "infer.py")
    infer_py(folder, "def infer(*, x, y=None):\n    return {'y': x * 2}")
    archive_sh("double")
    assert (archive_sh.store / "double" / "function" / "infer.py").is_file()
    archive_sh("double", "--weights", str(scaled_onnx(archive_sh.folder / "m.onnx")))
    assert (archive_sh.store / "double" / "model.xml").is_file()
    scaled_onnx(folder / "n.onnx")
    garbage(folder / "m.pt2")
    (folder / "infer.py").unlink()
    kinds = "(.onnx, .xml, .pt2, .pt or infer.py)"
    for choice, words in (
        ("random", "no random weights for tensors; use --weights PATH"),
        ("no.onnx", "no file no.onnx; use --weights PATH"),
        (str(archive_sh.store), f"store/ must contain one model {kinds}; it has none"),
        (str(folder), f"double/ must contain one model {kinds}; it has m.pt2, n.onnx"),
    ):
        assert archive_sh.refused("double", "--weights", choice) == f"double: {words}"


# -- formats, names, datatypes -----------------------------------------------------------------------------------------

FORMATS: dict[str, tuple[Callable[[Path], Path], dict[str, Any] | None, set[str]]] = {
    "m.onnx": (scaled_onnx, None, set()),
    "m.xml": (ir, None, set()),
    "m.pt2": (scaled_pt2, None, {"model.pt2"}),
    "m.pt": (lambda path: script(path, Scaled()), {"inputs": SCRIPT_INPUTS}, {"model.pt"}),
}


@pytest.mark.builds
@pytest.mark.parametrize("name", FORMATS)
def test_each_format_serves_what_the_model_computes_on_each_engine_that_runs_it(name: str, tmp_path: Path) -> None:
    write, settings, programs = FORMATS[name]
    path = write(tmp_path / name)
    folder = staged(path, settings)
    compared = set() if name == "m.xml" else {"fidelity.json"}
    assert files(folder) == {"model.xml", "model.bin", "signature.json"} | programs | compared
    assert said(folder)["outputs"] == [("scaled", "FP32", [-1, 3]), ("total", "FP32", [-1])]
    for uses_torch in (False, bool(programs)):
        engine, signature = engine_of(folder, settings, uses_torch=uses_torch)
        assert engine.description.startswith("torch" if uses_torch else "openvino")
        assert {name: each.shape for name, each in signature.inputs.items()} == {"x": (-1, 4), "scale": (-1, 1)}
        for rows in (1, 5):
            assert_scales(engine, rows)
    if programs:
        assert files(staged(path, settings, "torch")) == {"signature.json", *programs}
    else:
        with pytest.raises(InvalidConfig, match=rf"^own: {name}: engine: torch runs .pt2 and .pt; OpenVINO runs this"):
            staged(path, settings, "torch")


@pytest.mark.parametrize("kind", ["BOOL", "UINT8", "INT64", "FLOAT16"])
def test_every_datatype_comes_back_as_it_went_in(kind: str, tmp_path: Path) -> None:
    element = getattr(TensorProto, kind)
    folder = staged(one_node(tmp_path / "m.onnx", "Identity", element))
    x = np.array([[0, 1, 1], [1, 0, 1]]).astype(helper.tensor_dtype_to_np_dtype(element))
    y = engine_of(folder)[0].run({"x": x})["y"]
    assert (y.dtype, y.tolist()) == (x.dtype, x.tolist())


# -- the proof that rows together are each alone -----------------------------------------------------------------------


@pytest.mark.builds
def test_program_that_openvino_computes_otherwise_runs_on_pytorch(
    archive_sh: ArchiveSh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such program is known: the graph of another one stands in."""
    other = scaled_pt2(archive_sh.folder / "other.pt2", Negative())
    convert = openvino.convert_model
    monkeypatch.setattr(openvino, "convert_model", lambda _: convert(torch.export.load(other)))
    scaled_pt2(archive_sh.folder / "m.pt2")
    archive_sh.write_list("scaled", "tensors", "m.pt2")
    words = "m.pt2: outputs.scaled: OpenVINO computes other values than PyTorch by 2 of the largest number"
    assert archive_sh("scaled")[0] == f"scaled: PyTorch runs it: {words}, on a random row"
    assert_scales(engine_of(archive_sh.store / "scaled", {"engine": "torch"}, uses_torch=True)[0], 3)
    refusal = archive_sh.refused("scaled", "--engine", "openvino")
    assert refusal.startswith(f"scaled: {words}, on a random row; --engine torch")
    monkeypatch.undo()
    pt2_of_bessel(archive_sh.folder / "m.pt2")
    assert archive_sh("scaled")[0].startswith("scaled: PyTorch runs it: m.pt2: OpenVINO cannot convert it: OpConv")


def test_rows_along_the_second_dimension_are_served_if_batch_dim_says_so(tmp_path: Path) -> None:
    settings = {"inputs": {"state": {"batch_dim": 1}}}
    engine, _ = engine_of(staged(states_second(tmp_path / "m.onnx"), settings), settings)
    x, state = np.ones((3, 3), np.float32), np.arange(18, dtype=np.float32).reshape(2, 3, 3)
    np.testing.assert_array_equal(engine.run({"x": x, "state": state})["y"], x + state[0])


def test_torchscript_that_returns_a_dictionary_in_a_tuple_is_refused(tmp_path: Path) -> None:
    class Nested(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            return x, {"same": x}

    with pytest.raises(InvalidConfig, match="forward must return a tensor, or a tuple or dictionary of tensors"):
        staged(script(tmp_path / "m.pt", Nested()), {"inputs": {"x": {"datatype": "FP32", "shape": [-1, 4]}}})


@pytest.mark.builds
def test_program_that_mixes_its_rows_is_refused_for_torch_too(tmp_path: Path) -> None:
    class OverRows(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / x.sum()

    path = exported(tmp_path / "m.pt2", OverRows(), torch.rand(2, 3), dynamic={"x": {0: torch.export.Dim.DYNAMIC}})
    with pytest.raises(InvalidConfig, match=r"^own: m.pt2: outputs.output: rows together have other values"):
        staged(path, engine="torch")


# -- what is refused ---------------------------------------------------------------------------------------------------


def without_bin(path: Path) -> Path:
    os.truncate(ir(path).with_suffix(".bin"), 0)
    return path


pair = partial(script, module=Pair())
no_rows = partial(one_node, operation="ReduceSum", shape=["rows", 3], out=[], keepdims=0)
two_rows = partial(one_node, operation="Reshape", shape=[2, 3], out=[2, 3], constants={"sizes": np.array([2, 3])})
mixed = partial(one_node, operation="Softmax", axis=0)


def over_largest(path: Path) -> Path:
    """Divides by the largest number of all rows, if it is more than 1."""
    nodes = "largest = ReduceMax <keepdims = 0> (x) most = Max (largest, one) y = Div (x, most)"
    return write_onnx(path, f"(float[rows, 3] x) => (float[rows, 3] y) <float one = {{1}}> {{ {nodes} }}")


class Counting(torch.nn.Module):
    """Counts its runs, which no output shows yet."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * 2 + (self.count > 1000)


def counting(path: Path) -> Path:
    return exported(path, Counting(), torch.rand(2, 3), dynamic={"x": {0: torch.export.Dim.DYNAMIC}})


def states_second(path: Path) -> Path:
    """Has rows along the second dimension of its states, as Silero VAD has."""
    nodes = "h, c = Split <axis = 0> (state, sizes) flat = Squeeze (h, first) y = Add (x, flat)"
    constants = "<int64[2] sizes = {1, 1}, int64[1] first = {0}>"
    return write_onnx(
        path, f"(float[rows, 3] x, float[2, rows, 3] state) => (float[rows, 3] y) {constants} {{ {nodes} }}"
    )


def trained(path: Path) -> Path:
    """A normalisation in training: ONNX Runtime keeps its averages between runs."""
    ones = {name: np.ones(3, np.float32) for name in ("scale", "bias", "mean", "variance")}
    return one_node(path, "BatchNormalization", constants=ones, unread=["mean_", "variance_"], training_mode=1)


def swayed(path: Path) -> Path:
    """Decides for all rows by their mean."""
    then, other = (f"{kind} () => (float[rows, 3] y) {{ y = {kind} (x) }}" for kind in ("Neg", "Abs"))
    mean = "mean = ReduceMean <keepdims = 0> (x) is_large = Greater (mean, zero)"
    nodes = f"{mean} out = If (is_large) <then_branch = {then}, else_branch = {other}>"
    return write_onnx(path, f"(float[rows, 3] x) => (float[rows, 3] out) <float zero = {{0}}> {{ {nodes} }}")


eight_rows = partial(scaled_pt2, min=1, max=8)
WITH_Y = {"inputs": {**SCRIPT_INPUTS, "y": {}}}
IN_DOUBLE = {"inputs": {"x": {"datatype": "FP64"}}}


@pytest.mark.builds
@pytest.mark.parametrize(
    ("name", "write", "settings", "words"),
    [
        ("m.onnx", garbage, None, "m.onnx: OpenVINO cannot read it: GeneralFailure: Model can't be parsed"),
        ("m.xml", without_bin, None, "m.xml: OpenVINO cannot read it: RuntimeError: "),
        ("scale.py", garbage, None, "own: scale.py: the function of a model must be in infer.py"),
        ("m.onnx", no_rows, None, "m.onnx: outputs.y: shape [] lacks batch_dim 0"),
        ("m.onnx", two_rows, None, "m.onnx: it does not run on one row, x [1, 3]: RuntimeError: [cpu]res"),
        ("m.onnx", mixed, None, "m.onnx: outputs.y: rows together have other values than each by itself"),
        ("m.onnx", over_largest, None, "m.onnx: outputs.y: rows together have other values than each by itself"),
        ("m.onnx", swayed, None, "m.onnx: outputs.out: rows together have other values than each by itself"),
        ("m.pt2", counting, None, "m.pt2: it writes to its buffers, so it keeps state of earlier requests"),
        ("m.onnx", states_second, None, "along another dimension, set it, as in batch_dim: 1, for each such input"),
        ("m.onnx", trained, None, "m.onnx: outputs.y: rows together have other values than each by itself"),
        ("m.onnx", trained, {"max_batch_items": 1}, "two equal runs have other values, and the model has no random"),
        ("m.pt2", eight_rows, None, "m.pt2: x was exported for at most 8 rows; max_batch_items is 64"),
        ("m.pt", pair, None, "m.pt: inputs.x: TorchScript has no datatype and shape; model-config.yaml needs them"),
        ("m.pt", pair, WITH_Y, "m.pt: inputs: y: this model has scale, x"),
        ("m.onnx", scaled_onnx, IN_DOUBLE, "m.onnx: inputs.x: the model has FP32, not FP64"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    name: str, write: Callable[[Path], Path], settings: dict[str, Any] | None, words: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidConfig) as raised:
        staged(write(tmp_path / name), settings)
    assert str(raised.value).startswith("own: ")
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
