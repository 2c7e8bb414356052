"""Graphs in which values of a request decide a position, a length, a count, or other rows: beside ONNX's reference."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from deploy.archives.tensors.graphs import apply_signature, read_graph, read_partially
from deploy.archives.tensors.mixing import find_mixing
from deploy.archives.tensors.proof import Mixed, compare_runtimes
from deploy.archives.tensors.risks import find_unchecked
from handlers.errors import InvalidConfig, OutOfRange, Unfaithful
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import DeclaredSignature, Signature, Tensor, merge_signature
from tests import tensor_files as kit
from tests.handlers.tensor_models.models import ask, columns, inference, instances, loaded
from tests.tables import table

pytestmark = [pytest.mark.builds, pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")]

F32 = np.float32
X = np.arange(6, dtype=F32)
SQUARE = f"float[3, 3] t = {{{', '.join(map(str, range(9)))}}}"
# A graph, a good row, and values of `i` in a row that ONNX Runtime rejects.
UNCHECKED: dict[str, tuple[str, dict[str, Any], list[Any]]] = {
    "GatherND of a constant": (
        f"(int64[n, 2] i) => (float[n] y) <{SQUARE}> {{ y = GatherND (t, i) }}",
        {"i": np.array([1, -1])},
        [[0, 3], [3, 0], [-4, 0], [2**31 - 1, 0]],
    ),
    "GatherND of a table whose sides differ": (
        "(int64[n, 2] i) => (float[n] y) <float[2, 3] t = {0, 1, 2, 3, 4, 5}, int64 a = {0}, int64 b = {2}>"
        "{ j = Clip (i, a, b) y = GatherND (t, j) }",
        {"i": np.array([1, 2])},
        [[2, 0], [10**6, 0]],
    ),
    "GatherND of the row": (
        "(float[n, 6] x, int64[n, 1] i) => (float[n] y) { y = GatherND <batch_dims = 1> (x, i) }",
        {"x": X, "i": np.array([-6])},
        [[6], [-7], [10**6], [2**62], [2**63 - 1]],
    ),
    "GatherElements": (
        "(float[n, 6] x, int64[n, 2] i) => (float[n, 2] y) { y = GatherElements <axis = 1> (x, i) }",
        {"x": X, "i": np.array([5, -6])},
        [[0, 6], [-7, 0], [2**31 - 1, 0]],
    ),
    "ScatterElements": (
        "(float[n, 6] x, int64[n, 1] i, float[n, 1] u) => (float[n, 6] y) { y = ScatterElements <axis = 1> (x, i, u) }",
        {"x": X, "i": np.array([5]), "u": np.ones(1, F32)},
        [[6], [-7], [2**31 - 1], [-(2**63)]],
    ),
    "computed Gather": (
        f"(int64[n, 1] i) => (float[n, 1, 3] y) <{SQUARE}, int64 c = {{100}}> {{ j = Sub (i, c) y = Gather (t, j) }}",
        {"i": np.array([102])},
        [[103], [96], [0], [10**6]],
    ),
    "Gather of floats made whole": (
        f"(float[n, 1] i) => (float[n, 1, 3] y) <{SQUARE}> {{ j = Cast <to = 7> (i) y = Gather (t, j) }}",
        {"i": np.array([2.9], F32)},
        [[3.0], [-4.0], [1e7]],
    ),
    "ReverseSequence": (
        "(float[n, 6] x, int64[n] i) => (float[n, 6] y) { y = ReverseSequence <batch_axis = 0, time_axis = 1> (x, i) }",
        {"x": X, "i": np.array(3)},
        [7, -1, 10**6],
    ),
    "a number of results": (
        "(float[n, 6] x, int64[n] i) => (float[n, k] y) { k = ReduceMax (i) y, p = TopK <axis = 1> (x, k) }",
        {"x": X, "i": np.array(3)},
        [7, -1, 2**31 - 1],
    ),
}


@pytest.mark.parametrize("name", UNCHECKED)
def test_position_that_values_decide_is_checked_by_onnx_runtime_and_a_wrong_one_fails_alone(
    name: str, tmp_path: Path
) -> None:
    graph, good, bad = UNCHECKED[name]
    path = kit.write_onnx(tmp_path / "m.onnx", graph)
    settings: dict[str, Any] = {"max_batch_items": 1} if name == "a number of results" else {}
    with pytest.raises(Unfaithful, match=r"which OpenVINO does not check|OpenVINO computes whole numbers"):
        kit.staged(path, settings)
    handler = loaded(kit.staged(path, settings, "onnxruntime"), settings)
    rows = [good, *({**good, "i": np.array(each, good["i"].dtype)} for each in bad), good]
    answer = ask(handler, instances(*({name: array.tolist() for name, array in row.items()} for row in rows)))
    (expected,) = ReferenceEvaluator(str(path)).run(["y"], {name: array[None] for name, array in good.items()})
    first, *rejected, last = answer.body["predictions"]
    for prediction in (first, last):
        np.testing.assert_allclose(prediction, np.asarray(expected)[0], 1e-5)
    assert [(each["error"]["code"], each["error"]["type"]) for each in rejected] == [(422, "OutOfRange")] * len(bad)
    if not settings:
        with pytest.raises(InvalidConfig, match=r"does not check|computes whole numbers"):
            kit.staged(path, {}, "openvino")


def signed(path: Path) -> tuple[openvino.Model, Signature]:
    graph, said = read_graph(path)
    signature = merge_signature(said, TensorsConfig())
    return apply_signature(graph, signature, [tensor.name for tensor in said.outputs or ()]), signature


LONG = f"float[300, 1] t = {{{', '.join(['1'] * 300)}}}"


@table(
    f"(int64[n] i) => (float[n, 3] y) <{SQUARE}> {{ y = Gather (t, i) }}",
    f"(uint8[n] i) => (float[n, 1] y) <{LONG}> {{ j = Cast <to = 7> (i) y = Gather (t, j) }}",
    f"(int64[n] i) => (float[n, 3] y) <{SQUARE}, int64 a = {{0}}, int64 b = {{2}}>"
    "{ j = Clip (i, a, b) y = Gather (t, j) }",
    f"(float[n, 3] x) => (float[n, 3] y) <{SQUARE}> {{ j = ArgMax <axis = 1, keepdims = 0> (x) y = Gather (t, j) }}",
    "(float[n, 6] x) => (int64[n, 6] y) { s = Sigmoid (x) r = Round (s) y = Cast <to = 7> (r) }",
    "(float[n, 6] x) => (float[n, 2] y) <int64[1] k = {2}>"
    "{ v, j = TopK <axis = 1> (x, k) y = GatherElements <axis = 1> (x, j) }",
    "(int64[n, 6] x) => (float[n, 6] y) <float one = {1}> { f = Cast <to = 1> (x) y = Sub (one, f) }",
    "(float[n, 3] x) => (float[n, 3] y) { s = Shape (x) f = Expand (x, s) m = ReduceMax <axes = [1]> (f)"
    " y = Sub (f, m) }",
    # Each run of the loop has one row.
    "(float[n, 3] x) => (float[n, 3] y) <float[3] o = {1, 2, 3}> { f, y = Scan <num_scan_inputs = 1, body = b (float[3]"
    " s, float[3] r) => (float[3] t, float[3] q) { t = Identity (s) q = Add (r, s) }> (o, x) }",
    # Quantised, and the number of a row's own columns.
    "(float[n, 6] x) => (float[n, 6] y) <float s = {0.1}, uint8 z = {128}>"
    "{ q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z) }",
    "(float[n, 3] x) => (float[n, 3] y) { s = Shape <start = 1> (x) f = Cast <to = 1> (s) y = Div (x, f) }",
)
def test_graph_whose_positions_are_proved_stays_on_openvino(graph: str, tmp_path: Path) -> None:
    model, signature = signed(kit.write_onnx(tmp_path / "m.onnx", graph))
    sizes = {name: [1, *tensor.shape[1:]] for name, tensor in signature.inputs.items() if tensor.shape}
    assert find_unchecked(model, signature, has_owner=True) is None
    assert find_mixing(model.clone, signature, sizes) is None


@table(
    # 100,000 squared has more than 32 bits; OpenVINO rounds the quotient of bytes, and 200 times 2 is 255.
    (("int64", "Mul"), [100_000, 7], [100_000, 7], "OpenVINO computes whole numbers in 32 bits, and those of Mul"),
    (("int64", "Sub"), [-(2**31), 7], [2**31 - 1, 9], "OpenVINO computes whole numbers in 32 bits, and those of Sub"),
    (("uint8", "Div"), [5, 250], [3, 7], "OpenVINO rounds quotients of bytes"),
    (("float", "Pow"), [-1, 2], [2**24 + 1, 3], "OpenVINO raises to powers in floats"),
    (("uint8", "Mul"), [200, 7], [2, 7], "OpenVINO rounds quotients of bytes and limits larger numbers"),
)
def test_whole_numbers_are_computed_as_the_file_says(
    operation: tuple[str, str], x: list[int], z: list[int], words: str, tmp_path: Path
) -> None:
    kind, name = operation
    other = "int64" if name == "Pow" else kind
    path = kit.write_onnx(tmp_path / "m.onnx", f"({kind}[n] x, {other}[n] z) => ({kind}[n] y) {{ y = {name} (x, z) }}")
    with pytest.raises(Unfaithful, match=f"^own: m.onnx: {words}|^m.onnx: {words}"):
        kit.staged(path)
    handler = loaded(kit.staged(path, engine="onnxruntime"), {})
    given = {"x": np.array(x, {"float": F32}.get(kind, kind)), "z": np.array(z, other)}
    (expected,) = ReferenceEvaluator(str(path)).run(["y"], given)
    np.testing.assert_array_equal(columns(ask(handler, *inference(given)))["y"], expected)


@table(
    *(
        (f"({kind}[n] x, {kind}[n] z) => ({kind}[n] y) {{ y = {name} (x, z) }}", True)
        for kind in ("int32", "int64")
        for name in ("Div", "Mod")
    ),
    ("(int32[n] x) => (int32[n] y) <int32 k = {-1}> { y = Div (x, k) }", True),
    ("(int32[n] x) => (int32[n] y) <int32 k = {7}> { y = Div (x, k) }", False),
    (
        "(int32[n] x, int32[n] z) => (int32[n] y) <int32 k = {1}, int32 m = {9}> { d = Clip (z, k, m) y = Div (x, d) }",
        False,
    ),
    ("(float[n] x, float[n] z) => (float[n] y) { y = Div (x, z) }", False),
)
def test_division_that_would_end_the_worker_is_rejected_on_each_engine(
    graph: str, is_fatal: bool, tmp_path: Path
) -> None:
    path = kit.write_onnx(tmp_path / "m.onnx", graph)
    for engine in ("auto", "openvino", "onnxruntime") if is_fatal else ():
        with pytest.raises((InvalidConfig, Unfaithful), match=r"smallest whole number by -1 .* ends the worker"):
            kit.staged(path, engine=engine)
    if not is_fatal:
        kit.staged(path, engine="onnxruntime")


GATE = "<then_branch = a () => ({0}[n, 6] p) {{ p = Identity (x) }}, else_branch = b () => ({0}[n, 6] q) {{ q = {1} }}>"


def gate(kind: str, condition: str, otherwise: str = "Neg (x)", constants: str = "") -> str:
    branches = GATE.format(kind, otherwise)
    return f"({kind}[n, 6] x) => ({kind}[n, 6] y) {constants} {{ {condition} y = If (c) {branches} }}"


LARGEST = "m = ReduceMax <keepdims = 0> (x) c = Greater (m, k)"


@pytest.mark.parametrize("engine", ["auto", "onnxruntime"])
@table(
    gate("int64", LARGEST, constants="<int64 k = {5}>"),
    gate("int32", LARGEST, constants="<int32 k = {123456}>"),
    gate("float", LARGEST, constants="<float k = {1e30}>"),
    gate("bool", "i = Cast <to = 6> (x) m = ReduceMin <keepdims = 0> (i) c = Cast <to = 9> (m)", "Not (x)"),
    "(int64[n, 6] x) => (int64[n, 6] y) <int64 k = {77}>"
    "{ m = ReduceMax <keepdims = 0> (x) c = Equal (m, k) z = Neg (x) y = Where (c, z, x) }",
)
def test_rows_for_which_another_row_decides_are_not_batched_on_any_engine(
    graph: str, engine: Any, tmp_path: Path
) -> None:
    path = kit.write_onnx(tmp_path / "m.onnx", graph)
    with pytest.raises(InvalidConfig, match="max_batch_items: 1 serves rows one by one"):
        kit.staged(path, engine=engine)


@table(
    # OpenVINO lacks Det, and texts.
    "(float[n, 3, 3] x, int64[n] z) => (float[n] y) <int64 k = {987654}>"
    "{ d = Det (x) m = ReduceMax <keepdims = 0> (z) c = Equal (m, k) w = Neg (d) y = Where (c, w, d) }",
    "(string[n] t, int64[n] x) => (string[n] u, int64[n] y) <int64 k = {345678}>"
    "{ u = Identity (t) m = ReduceMax <keepdims = 0> (x) c = Equal (m, k) z = Neg (x) y = Where (c, z, x) }",
    "(float[n, 3, 3] x) => (float[n] y) <float o = {0}, float k = {1e20}>"
    "{ f, y = Scan <num_scan_inputs = 1, body = b (float s, float[3, 3] r) => (float t, float q)"
    "{ d = Det (r) t = Max (s, d) g = Greater (s, k) h = Cast <to = 1> (g) q = Add (d, h) }> (o, x) }",
    # The fourth number of a row is the first of the next.
    "(float[n, 3] x, int64[n] i) => (float[n] y)"
    "<int64[1] all = {-1}, int64[1] zero = {0}, int64 one = {1}, int64 o = {0}, int64 k = {3}>"
    "{ s = Shape <start = 0, end = 1> (x) b = Squeeze (s, zero) r = Range (o, b, one) first = Mul (r, k)"
    " p = Add (first, i) f = Reshape (x, all) y = Gather (f, p) }",
)
def test_rows_that_meet_where_openvino_cannot_follow_are_not_batched(graph: str, tmp_path: Path) -> None:
    path = kit.write_onnx(tmp_path / "m.onnx", graph)
    with pytest.raises(InvalidConfig, match="max_batch_items: 1 serves rows one by one"):
        kit.staged(path, engine="onnxruntime")


def test_branch_in_a_graph_that_openvino_cannot_read_is_not_batched(tmp_path: Path) -> None:
    graph = (
        "(float[n, 2] x) => (float[n, 2] y, seq(map(int64, float)) maps) <float k = {1e20}>"
        "{ m = ReduceMax <keepdims = 0> (x) c = Greater (m, k) y = If (c) <"
        "then_branch = a () => (float[n, 2] p) { p = Neg (x) }, "
        "else_branch = b () => (float[n, 2] q) { q = Identity (x) }>"
        " maps = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1]> (x) }"
    )
    with pytest.raises(InvalidConfig, match=r"one row may decide for others: .*; max_batch_items: 1 serves rows"):
        kit.staged(kit.write_onnx(tmp_path / "m.onnx", graph), engine="onnxruntime")


CONDITION = "c = Greater (m, k) w = Neg (x) y = Where (c, w, x)"
OF_TWO = "(float[n, 6] x, int64[n, 1] z) => (float[n, 6] y)"


@table(
    (f"{OF_TWO} <int64 k = {{5}}, int64 a = {{0}}> {{ m = CumSum (z, a) {CONDITION} }}", "along the rows"),
    (f"{OF_TWO} <int64 k = {{5}}, int64 o = {{0}}> {{ m = Gather (z, o) {CONDITION} }}", "along the rows"),
    (f"{OF_TWO} <int64 k = {{5}}> {{ t = Transpose (z) d = Sub (t, z) m = ReduceMax <axes = [1]> (d) {CONDITION} }}",
     "pairs of rows are compared"),
    (f"{OF_TWO} <int64 k = {{5}}, int64[1] a = {{-1}}, int64[1] b = {{-99999}}, int64[1] o = {{0}}>"
     f"{{ m = Slice (z, a, b, o, a) {CONDITION} }}", "along the rows"),
    (f"{OF_TWO} <int64 k = {{5}}, int64[1] o = {{0}}, int64[1] b = {{-1}}, int64[1, 1] p = {{0}}>"
     f"{{ s = Slice (z, o, b, o) m = Concat <axis = 0> (p, s) {CONDITION} }}", "all rows together"),
    (f"{OF_TWO} <float k = {{5}}, int64[3] a = {{1, 1, -1}}, int64[2] b = {{-1, 1}}>"
     "{ f = Cast <to = 1> (z) r = Reshape (f, a) p = MaxPool <kernel_shape = [3], pads = [1, 1]> (r)"
     f" m = Reshape (p, b) {CONDITION} }}", "along the rows"),
    (f"{OF_TWO} <int64 k = {{99}}> {{ m = Size (z) {CONDITION} }}", "number of rows decides"),
    (f"{OF_TWO} {{ s = Size (x) f = Cast <to = 1> (s) y = Div (x, f) }}", "number of rows decides"),
    (f"{OF_TWO} <float[6] o = {{0, 0, 0, 0, 0, 0}}, float k = {{5}}>"
     "{ f, y = Scan <num_scan_inputs = 1, body = b (float[6] s, float[6] r) => (float[6] t, float[6] q)"
     "{ g = Greater (r, k) h = Cast <to = 1> (g) t = Max (s, h) q = Add (r, s) }> (o, x) }", "a loop over the rows"),
)  # fmt: skip
def test_rows_that_meet_anywhere_in_a_graph_are_found(graph: str, words: str, tmp_path: Path) -> None:
    path = kit.write_onnx(tmp_path / "m.onnx", graph)
    signature = signed(path)[1]
    found = find_mixing(partial(read_partially, path), signature, {"x": (1, 6), "z": (1, 1)})
    assert found is not None and words in found


class Gate(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.max() > 12_345_678, x * 2, x)


class Unlike(torch.nn.Module):
    """A gate beside an operation that OpenVINO lacks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.where(x.max() > 12_345_678, -1.0, 1.0) * torch.special.bessel_j0(x.float())
        return y


class Branch(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.max() > 12_345_678):
            return x * 2
        return x


class Cell(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.arange(9.0).reshape(3, 3))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.table[a, b]


WHOLE = {"inputs": {"x": {"datatype": "INT64", "shape": [-1, 6]}}}
ROWS = {0: torch.export.Dim.DYNAMIC}


@table(("auto", Gate(), Branch()), ("torch", Gate(), Branch()), ("torch", Unlike(), Unlike()))
def test_programs_and_graphs_in_which_a_row_decides_for_others_are_not_batched(
    engine: Any, module: torch.nn.Module, other: torch.nn.Module, tmp_path: Path
) -> None:
    pt2 = kit.exported(tmp_path / "m.pt2", module, torch.ones(2, 6, dtype=torch.int64), dynamic={"x": ROWS})
    script = kit.script(tmp_path / "m.pt", other)
    for path, settings in ((pt2, None), (script, WHOLE)):
        (tmp_path / path.name[1:]).mkdir()
        with pytest.raises(InvalidConfig, match="max_batch_items: 1 serves rows one by one"):
            kit.staged(path.rename(tmp_path / path.name[1:] / path.name), settings, engine=engine)


def test_dynamic_quantisation_which_has_one_scale_for_all_rows_is_said_to_be_that(tmp_path: Path) -> None:
    nodes = "q, s, z = DynamicQuantizeLinear (x) y = DequantizeLinear (q, s, z)"
    path = kit.write_onnx(tmp_path / "m.onnx", f"(float[n, 6] x) => (float[n, 6] y) {{ {nodes} }}")
    with pytest.raises(InvalidConfig, match=r"DynamicQuantizeLinear.* quantize it statically .*max_batch_items: 1"):
        kit.staged(path)


def test_openvinos_own_graph_is_rejected_with_the_way_out(tmp_path: Path) -> None:
    for name, graph, words in (
        ("unchecked", UNCHECKED["GatherND of a constant"][0], "build it from the ONNX file or the PyTorch program"),
        ("gate", gate("int64", LARGEST, constants="<int64 k = {100}>"), "max_batch_items: 1 serves rows one by one"),
    ):
        path = kit.write_onnx(tmp_path / "m.onnx", graph)
        openvino.save_model(openvino.Core().read_model(path), tmp_path / name / "m.xml")
        with pytest.raises(InvalidConfig, match=words):
            kit.staged(tmp_path / name / "m.xml")


def test_index_that_pytorch_rejects_is_422_for_its_row_alone(tmp_path: Path) -> None:
    a, b = torch.tensor([[0, 1, 2], [2, 1, 0]])
    path = kit.exported(tmp_path / "m.pt2", Cell(), a, b, dynamic={"a": ROWS, "b": ROWS})
    with pytest.raises(Unfaithful, match="which OpenVINO does not check") as raised:
        kit.staged(path)
    assert raised.value.instead == "torch"
    handler = loaded(kit.staged(path, engine="torch"), {"engine": "torch"})
    answer = ask(handler, instances(*({"a": a, "b": b} for a, b in ((1, -1), (0, 3), (2**31 - 1, 0), (2, 2)))))
    first, *rejected, last = answer.body["predictions"]
    assert (first, last) == (5, 8)
    assert [(each["error"]["code"], each["error"]["type"]) for each in rejected] == [(422, "OutOfRange")] * 2


class Looked(torch.nn.Module):
    """An embedding at a number of a row, or at the nearest one from `least` to 9."""

    def __init__(self, least: int | None = None) -> None:
        super().__init__()
        self.table, self.least = torch.nn.Embedding(10, 2), least

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.table(x if self.least is None else x.clamp(self.least, 9))
        return y


@table(("openvino", Looked()), ("torch", Looked(-3)))
def test_position_below_zero_that_pytorch_rejects_is_not_counted_from_the_end(
    engine: str, module: torch.nn.Module, tmp_path: Path
) -> None:
    path = kit.exported(tmp_path / "m.pt2", module, torch.tensor([1, 2]), dynamic={"x": ROWS})
    if engine == "torch":
        with pytest.raises(Unfaithful, match="which OpenVINO does not check"):
            kit.staged(path)
    folder = kit.staged(path, engine="torch" if engine == "torch" else "auto")
    answer = ask(loaded(folder, {"engine": engine}), instances(9, -1, -9, 0))
    first, *rejected, last = answer.body["predictions"]
    np.testing.assert_allclose([first, last], module(torch.tensor([9, 0])).detach(), 1e-5)
    assert [(each["error"]["code"], each["error"]["type"]) for each in rejected] == [(422, "OutOfRange")] * 2


def test_smallest_number_is_no_false_boolean(tmp_path: Path) -> None:
    path = kit.write_onnx(tmp_path / "m.onnx", "(int32[n] x) => (bool[n] y) { y = Cast <to = 9> (x) }")
    answer = ask(loaded(kit.staged(path), {}), instances(1, -(2**31), 0))
    first, rejected, last = answer.body["predictions"]
    assert (first, rejected["error"]["type"], last) == (True, "OutOfRange", False)


def test_function_in_which_a_whole_number_decides_for_others_is_rejected(tmp_path: Path) -> None:
    text = "def infer(x):\n    return {'y': x * 2 if x.max() > 300_000 else x}"
    with pytest.raises(InvalidConfig, match=r"^own: infer.py: outputs.y: rows together have"):
        kit.staged(kit.infer_py(tmp_path, text), {"inputs": {"x": {"datatype": "INT64", "shape": [-1]}}})


NUMBERS = (Tensor("x", "INT64", (-1,)),)
SIGNATURE = merge_signature(DeclaredSignature(NUMBERS, (Tensor("y", "INT64", (-1,)),)), TensorsConfig())


def compare(own: Any, other: Any, *large: str) -> None:
    first, second = (lambda arrays, run=run: {"y": run(arrays["x"])} for run in (own, other))
    compare_runtimes(first, second, SIGNATURE, TensorsConfig(), owner="ONNX Runtime", large=large, is_random=False)


def test_what_the_owner_rejects_must_not_be_answered_and_what_it_mixes_is_not_the_engines_error() -> None:
    def reject_zero(x: Any) -> Any:
        if (x == 0).all():
            raise OutOfRange("0")
        return x

    with pytest.raises(InvalidConfig, match="OpenVINO answers a row of zeros, which ONNX Runtime rejects"):
        compare(lambda x: x, reject_zero)
    compare(reject_zero, reject_zero)
    with pytest.raises(Mixed):
        compare(lambda x: x - x.max() * (len(x) > 1), lambda x: x - x.max() * (len(x) > 1))
    # Whole numbers, of which the owner's own answers must be finite, are compared, and so is what is not finite.
    with pytest.raises(
        InvalidConfig, match=r"OpenVINO computes other values than ONNX Runtime.* on whole numbers from"
    ):
        compare(lambda x: np.where(x > 2**30, 0, x), lambda x: x, "x")
    with pytest.raises(InvalidConfig, match=r"OpenVINO computes other values .* on a row of zeros"):
        compare(lambda x: x, lambda x: np.where(x == 0, np.inf, x))


class Quotient(torch.nn.Module):
    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x // z


def test_program_that_rejects_zeros_is_tried_with_other_numbers(tmp_path: Path) -> None:
    bytes_of = {name: {"datatype": "UINT8", "shape": [-1, 6]} for name in ("x", "z")}
    folder = kit.staged(kit.script(tmp_path / "m.pt", Quotient()), {"inputs": bytes_of}, engine="torch")
    assert (folder / "model.pt").is_file()
