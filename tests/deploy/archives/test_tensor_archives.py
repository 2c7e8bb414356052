"""Archives of `task: tensors`: files and functions, what may be wrong with each, and the proof that a model batches."""

import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
import torch
from onnx import TensorProto, helper

from deploy.archives.tensors.onnx import read_onnx
from handlers.errors import InvalidConfig
from handlers.tensor_models.config import TensorsConfig
from tests import tensor_files as kit
from tests.deploy.archives.conftest import ArchiveSh
from tests.tables import table

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
FORMATS: dict[str, tuple[Callable[[Path], Path], dict[str, Any] | None, set[str]]] = {
    "m.onnx": (kit.scaled_onnx, None, set()),
    "m.xml": (kit.ir, None, set()),
    "m.pt2": (kit.scaled_pt2, None, {"model.pt2"}),
    "m.pt": (lambda path: kit.script(path, kit.Scaled()), {"inputs": kit.SCRIPT_INPUTS}, {"model.pt"}),
}
ROWS = "float[rows, 3]"
no_rows = partial(kit.one_node, operation="ReduceSum", shape=["rows", 3], out=[], keepdims=0)
two_rows = partial(kit.one_node, operation="Reshape", shape=[2, 3], out=[2, 3], constants={"sizes": np.array([2, 3])})
mixed = partial(kit.one_node, operation="Softmax", axis=0)
eight_rows = partial(kit.scaled_pt2, min=1, max=8)
# Divides by the largest number of all rows, if it is more than 1.
over_largest = partial(
    kit.write_onnx,
    graph="(float[rows, 3] x) => (float[rows, 3] y) <float one = {1}>"
    "{ largest = ReduceMax <keepdims = 0> (x) most = Max (largest, one) y = Div (x, most) }",
)
# Has rows along the second dimension of its states, as Silero VAD has.
states_second = partial(
    kit.write_onnx,
    graph=f"({ROWS} x, float[2, rows, 3] state) => ({ROWS} y) <int64[2] sizes = {{1, 1}}, int64[1] first = {{0}}>"
    "{ h, c = Split <axis = 0> (state, sizes) flat = Squeeze (h, first) y = Add (x, flat) }",
)
# Decides for all rows by their mean.
NEG, ABS = (f"{kind} () => ({ROWS} y) {{ y = {kind} (x) }}" for kind in ("Neg", "Abs"))
swayed = partial(
    kit.write_onnx,
    graph=f"({ROWS} x) => ({ROWS} out) <float zero = {{0}}> {{ mean = ReduceMean <keepdims = 0> (x)"
    f" is_large = Greater (mean, zero) out = If (is_large) <then_branch = {NEG}, else_branch = {ABS}> }}",
)
# A normalisation in training: ONNX Runtime keeps its averages between runs.
ONES: Any = {"constants": {name: np.ones(3, np.float32) for name in ("scale", "bias", "mean", "variance")}}
trained = partial(kit.one_node, operation="BatchNormalization", **ONES, unread=["mean_", "variance_"], training_mode=1)
WITH_Y = {"inputs": {**kit.SCRIPT_INPUTS, "y": {}}}
OF_X = {"inputs": {"x": {"datatype": "FP32", "shape": [-1, 4]}}}
IN_DOUBLE = {"inputs": {"x": {"datatype": "FP64"}}}
DECLARED = {"inputs": {"x": {"datatype": "FP32", "shape": [-1, 2]}}, "outputs": {"y": {"datatype": "FP32"}}}


@pytest.mark.builds
def test_archive_of_onnx_with_external_data_is_made_of_that_too(archive_sh: ArchiveSh) -> None:
    kit.scaled_onnx(archive_sh.folder / "m.onnx", location="of-x.bin", **kit.OUTSIDE, size_threshold=64)
    folder = archive_sh.write_list("scaled", "tensors", "m.onnx")
    assert ": built, version 3, " in archive_sh("scaled")[0]
    kit.assert_scales(kit.engine_of(archive_sh.store / "scaled")[0], 3)
    assert ": up to date" in archive_sh("scaled")[0]
    data = archive_sh.folder / "of-x.bin"
    data.write_bytes(b"\0" * 48 + data.read_bytes()[48:])
    assert ": built" in archive_sh("scaled")[0]
    ones = {"x": np.ones((1, 4), np.float32), "scale": np.ones((1, 1), np.float32)}
    assert kit.engine_of(archive_sh.store / "scaled")[0].run(ones)["scaled"].tolist() == [[0, 0, 0]]
    # A configuration that comes later counts, too.
    (folder / "model-config.yaml").write_text("handler: {inputs: {scale: {shape: [-1, 2]}}}\n")
    assert archive_sh.rejected("scaled") == "scaled: m.onnx: inputs.scale: the model has [-1, 1], not [-1, 2]"
    data.unlink()
    assert archive_sh.rejected("scaled") == "scaled: m.onnx needs of-x.bin, which is missing beside it"


@pytest.mark.builds
def test_weights_of_the_command_line_replace_those_of_the_list_and_must_be_one_model(archive_sh: ArchiveSh) -> None:
    folder = archive_sh.write_list("double", "tensors", "infer.py")
    kit.infer_py(folder, "def infer(*, x, y=None):\n    return {'y': x * 2}")
    archive_sh("double")
    assert (archive_sh.store / "double" / "function" / "infer.py").is_file()
    archive_sh("double", "--weights", str(kit.scaled_onnx(archive_sh.folder / "m.onnx")))
    assert (archive_sh.store / "double" / "model.xml").is_file()
    kit.scaled_onnx(folder / "n.onnx")
    kit.garbage(folder / "m.pt2")
    (folder / "infer.py").unlink()
    kinds = "(.onnx, .xml, .pt2, .pt or infer.py)"
    for choice, words in (
        ("random", "no random weights for tensors; use --weights PATH"),
        ("no.onnx", "no file no.onnx; use --weights PATH"),
        (str(archive_sh.store), f"store/ must contain one model {kinds}; it has none"),
        (str(folder), f"double/ must contain one model {kinds}; it has m.pt2, n.onnx"),
    ):
        assert archive_sh.rejected("double", "--weights", choice) == f"double: {words}"


@pytest.mark.builds
@pytest.mark.parametrize("name", FORMATS)
def test_each_format_serves_what_the_model_computes_on_each_engine_that_runs_it(name: str, tmp_path: Path) -> None:
    write, settings, programs = FORMATS[name]
    path = write(tmp_path / name)
    folder = kit.staged(path, settings)
    compared = set() if name == "m.xml" else {"fidelity.json"}
    assert kit.files(folder) == {"model.xml", "model.bin", "signature.json"} | programs | compared
    assert kit.said(folder)["outputs"] == [("scaled", "FP32", [-1, 3]), ("total", "FP32", [-1])]
    for uses_torch in (False, bool(programs)):
        engine, signature = kit.engine_of(folder, settings, uses_torch=uses_torch)
        assert engine.description.startswith("torch" if uses_torch else "openvino")
        assert {name: each.shape for name, each in signature.inputs.items()} == {"x": (-1, 4), "scale": (-1, 1)}
        for rows in (1, 5):
            kit.assert_scales(engine, rows)
    if programs:
        assert kit.files(kit.staged(path, settings, "torch")) == {"signature.json", *programs}
    else:
        with pytest.raises(InvalidConfig, match=rf"^own: {name}: engine: torch runs .pt2 and .pt; OpenVINO runs this"):
            kit.staged(path, settings, "torch")


@pytest.mark.parametrize("kind", ["BOOL", "UINT8", "INT64", "FLOAT16"])
def test_every_datatype_comes_back_as_it_went_in(kind: str, tmp_path: Path) -> None:
    element = getattr(TensorProto, kind)
    folder = kit.staged(kit.one_node(tmp_path / "m.onnx", "Identity", element))
    x = np.array([[0, 1, 1], [1, 0, 1]]).astype(helper.tensor_dtype_to_np_dtype(element))
    y = kit.engine_of(folder)[0].run({"x": x})["y"]
    assert (y.dtype, y.tolist()) == (x.dtype, x.tolist())


def test_sizes_that_a_file_states_are_fixed_and_others_free(tmp_path: Path) -> None:
    (x,) = read_onnx(kit.one_node(tmp_path / "m.onnx", "Identity", shape=["rows", 1, 0, 2]), TensorsConfig())[1].inputs
    assert x.shape == (-1, 1, -1, 2)


@pytest.mark.builds
def test_program_unlike_openvinos_runs_on_pytorch(archive_sh: ArchiveSh, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such program is known: the graph of another one stands in."""
    other = kit.scaled_pt2(archive_sh.folder / "other.pt2", kit.Negative())
    convert = openvino.convert_model
    monkeypatch.setattr(openvino, "convert_model", lambda _: convert(torch.export.load(other)))
    kit.scaled_pt2(archive_sh.folder / "m.pt2")
    archive_sh.write_list("scaled", "tensors", "m.pt2")
    words = "m.pt2: outputs.scaled: OpenVINO computes other values than PyTorch by 2 of the largest number"
    assert archive_sh("scaled")[0] == f"scaled: PyTorch runs it: {words}, on a random row"
    kit.assert_scales(kit.engine_of(archive_sh.store / "scaled", {"engine": "torch"}, uses_torch=True)[0], 3)
    rejection = archive_sh.rejected("scaled", "--engine", "openvino")
    assert rejection.startswith(f"scaled: {words}, on a random row; --engine torch")
    monkeypatch.undo()
    kit.of_rows(archive_sh.folder / "m.pt2", kit.Bessel())
    assert archive_sh("scaled")[0].startswith("scaled: PyTorch runs it: m.pt2: OpenVINO cannot convert it: OpConv")


def test_rows_along_the_second_dimension_are_served_if_batch_dim_says_so(tmp_path: Path) -> None:
    settings = {"inputs": {"state": {"batch_dim": 1}}}
    engine, _ = kit.engine_of(kit.staged(states_second(tmp_path / "m.onnx"), settings), settings)
    x, state = np.ones((3, 3), np.float32), np.arange(18, dtype=np.float32).reshape(2, 3, 3)
    np.testing.assert_array_equal(engine.run({"x": x, "state": state})["y"], x + state[0])


@pytest.mark.builds
def test_program_that_mixes_its_rows_is_rejected_for_torch_too(tmp_path: Path) -> None:
    class OverRows(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / x.sum()

    path = kit.of_rows(tmp_path / "m.pt2", OverRows())
    with pytest.raises(InvalidConfig, match=r"^own: m.pt2: outputs.output: rows together have other values"):
        kit.staged(path, engine="torch")


def without_bin(path: Path) -> Path:
    os.truncate(kit.ir(path).with_suffix(".bin"), 0)
    return path


class Nested(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return x, {"same": x}


class Counting(torch.nn.Module):
    """Counts its runs, which no output shows yet."""

    def __init__(self) -> None:
        super().__init__()
        self.count = torch.nn.Buffer(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * 2 + (self.count > 1000)


counting = partial(kit.of_rows, module=Counting())


pair, nested = (partial(kit.script, module=module) for module in (kit.Pair(), Nested()))


@pytest.mark.builds
@table(
    ("m.onnx", kit.garbage, None, "m.onnx: OpenVINO cannot read it: GeneralFailure: Model can't be parsed"),
    ("m.xml", without_bin, None, "m.xml: OpenVINO cannot read it: RuntimeError: "),
    ("scale.py", kit.garbage, None, "scale.py: the function of a model must be in infer.py"),
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
    ("m.pt", nested, OF_X, "forward must return a tensor, or a tuple or dictionary of tensors"),
    ("m.onnx", kit.scaled_onnx, IN_DOUBLE, "m.onnx: inputs.x: the model has FP32, not FP64"),
)
def test_what_cannot_be_served_is_one_line(
    name: str, write: Callable[[Path], Path], settings: dict[str, Any] | None, words: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidConfig, match=rf"^own: .*{re.escape(words)}.*\Z"):
        kit.staged(write(tmp_path / name), settings)


def test_function_is_packed_with_its_folder_and_nothing_that_running_it_left(tmp_path: Path) -> None:
    """Two of them in one process, as archive.sh --all builds them: each imports its own modules."""
    text = "from factor import FACTOR\n\ndef load(folder, device):\n    (folder / 'cache').write_text(device)\n\n"
    packed = {f"function/{name}" for name in ("infer.py", "factor.py", "deep/table.csv", "model-config.yaml")}
    for name, factor in (("one", 2), ("two", 3)):
        own = tmp_path / name / "own"
        for folder in ("deep", "__pycache__"):
            (own / folder).mkdir(parents=True)
        kit.infer_py(own, text + f"def infer(x):\n    assert FACTOR == {factor}\n    return {{'y': x * FACTOR}}")
        (own / "factor.py").write_text(f"FACTOR = {factor}\n")
        for unread in ("deep/table.csv", ".hidden", "__pycache__/factor.pyc"):
            (own / unread).write_text("1,2\n")
        assert kit.files(kit.staged(own, DECLARED)) == packed
    assert not {"infer", "factor"} & sys.modules.keys()
    assert not [place for place in sys.path if place.startswith(str(tmp_path))]


def test_function_named_by_itself_is_packed_alone_and_without_declared_inputs_not_run(tmp_path: Path) -> None:
    path = kit.infer_py(tmp_path / "code", "def infer(*, a, b):\n    raise ValueError")
    (tmp_path / "code" / "other.py").write_text("")
    assert kit.files(kit.staged(path)) == {"function/infer.py"}
    # Random results do not hinder it.
    text = "import numpy as np\ndef infer(x):\n    return {'y': x + np.random.rand(*x.shape).astype('f4')}"
    assert kit.files(kit.staged(kit.infer_py(tmp_path, text), DECLARED)) == {"function/infer.py"}


@table(
    ("def infer(x):\n    return {'y': x[:1]}", "infer.py: run on 3 rows: y: 1 rows were returned for 3."),
    ("def infer(x):\n    return {'y': x - x.mean()}", "outputs.y: rows together have other values than each"),
    (
        "count = [0]\ndef infer(x):\n    count[0] += 1\n    return {'y': x + x.dtype.type(count[0])}",
        "outputs.y: two equal runs have other values, and the model has no random operation",
    ),
    ("def infer(x):\n    return {'y': x.astype('f8')}", "run on 1 row: y: FP64 was returned; FP32 is expected."),
    ("def infer(x):\n    return {'y': x.reshape(1, 2)}", "it runs on one row, x [1, 2], and not on 3 together: "),
    ("def infer(x:", "infer.py: the import failed: SyntaxError: "),
    ("def infer(): ...", "infer.py: infer has no parameters; name each input as a parameter"),
    ("def infer(**inputs): ...", "infer.py: infer: inputs: each input needs a named parameter, not * or **"),
    ("def load(folder, device):\n    raise OSError('no disk')\ndef infer(x): ...", "load failed: OSError: no disk"),
)
def test_function_that_does_not_batch_or_cannot_be_called_is_one_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=rf"^(?=own: infer\.py: ).*{re.escape(words)}.*\Z"):
        kit.staged(kit.infer_py(tmp_path, text), DECLARED)
