"""ONNX files that OpenVINO cannot run exactly: built, loaded and asked, beside the reference implementation of ONNX."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto as Types
from onnx.reference import ReferenceEvaluator
from sklearn.feature_extraction.text import CountVectorizer

from deploy.archives.fingerprint import read_build
from deploy.archives.tensors.proof import compare_runtimes
from handlers.engines.onnx import OnnxEngine
from handlers.errors import InvalidConfig
from handlers.tasks.tensors import TensorsHandler
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import DeclaredSignature, Tensor, merge_signature
from tests.deploy.archives.conftest import ArchiveSh
from tests.handlers.tensor_models.models import ask, columns, inference, instances, loaded, plainly
from tests.tables import table
from tests.tensor_files import OUTSIDE, exported, one_node, scaled_onnx, write_onnx

pytestmark = pytest.mark.builds

F32 = np.float32
NOISE = np.random.default_rng(0)
X = np.random.default_rng(0).normal(size=(5, 4))
COEFFICIENTS = [round(0.1 * n - 0.5, 1) for n in range(12)]
LINEAR = (
    f"ai.onnx.ml.LinearClassifier <coefficients = {COEFFICIENTS}, intercepts = [0.0, 0.5, -0.2], multi_class = 1,"
    ' post_transform = "SOFTMAX", %s> (X)'
)
UNREAD = "OpenVINO cannot read it: "
IN_FP32 = "OpenVINO computes FP64 in FP32, and ONNX Runtime in FP64"
# Seconds since 1970, of which FP32 has steps of 128.
SECONDS = np.array([[1.7e9 + 60], [1.7e9 + 90], [1.7e9 + 3600]])
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "names": (
        "(float[n, 4] X) => (string[n] label, float[n, 3] probabilities) { label, probabilities = %s }"
        % (LINEAR % 'classlabels_strings = ["a", "b", "ç"]'),
        {"X": X.astype(F32)},
        UNREAD,
    ),
    "columns": (
        """(string[n, 1] city, float[n, 1] age) => (float[n, 1] variable) {
            number = ai.onnx.ml.LabelEncoder
                <keys_strings = ["x", "é"], values_floats = [1.0, 2.0], default_float = -1.0> (city)
            both = Concat <axis = 1> (number, age)
            variable = ai.onnx.ml.LinearRegressor <coefficients = [0.1, 0.2], intercepts = [1.0], targets = 1> (both)
        }""",
        {"city": np.array([["x"], ["y"], ["é"]], object), "age": np.array([[1], [2], [3]], F32)},
        UNREAD,
    ),
    "mod": (
        "(int64[rows] user) => (int64[rows] bucket) <int64 k = {1000}> { bucket = Mod (user, k) }",
        {"user": np.array([5, 123456789, 2**40 + 3, -(2**24) - 1])},
        "outputs.bucket: OpenVINO computes other values than ONNX Runtime, on whole numbers from 16777216 on in user",
    ),
    "times": (
        """(double[n, 1] x) => (double[n, 1] y) <double[1] mean = {1.7e9}, double[1] hour = {3600}> {
            late = Sub (x, mean) y = Div (late, hour) }""",
        {"x": SECONDS},
        IN_FP32,
    ),
    "whole times": (
        """(int64[n, 1] x) => (float[n, 1] y) <double[1] mean = {1.7e9}> {
            wide = Cast <to = 11> (x) late = Sub (wide, mean) narrow = Cast <to = 1> (late) y = Relu (narrow) }""",
        {"x": SECONDS.astype(np.int64)},
        IN_FP32,
    ),
    # OpenVINO's whole numbers end at 2**31.
    "floats made whole": (
        "(float[n, 1] x) => (int64[n, 1] y) { y = Cast <to = 7> (x) }",
        {"x": np.array([[3e9], [5e9], [-3.0]], F32)},
        "OpenVINO computes whole numbers in 32 bits, and those of Convert may have more",
    ),
    # Of the logarithm of a negative number, OpenVINO's Relu makes 0.
    "nan": (
        "(float[n, 4] X) => (float[n, 4] y) { log = Log (X) y = Relu (log) }",
        {"X": np.abs(X).astype(F32)},
        "outputs.y: OpenVINO computes other values than ONNX Runtime, on a row of negative and large numbers",
    ),
}
ZIPPED = "label, probabilities = %s maps = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1, 2]> (probabilities)"
ZIPPED %= LINEAR % "classlabels_ints = [0, 1, 2]"


def built(archive_sh: ArchiveSh, config: Any = None, *arguments: str, weights: str = "m.onnx") -> TensorsHandler:
    archive_sh.write_list("m", "tensors", weights, config)
    archive_sh("m", *arguments)
    return loaded(archive_sh.store / "m", archive_sh.config("m")["handler"])


@pytest.mark.parametrize("case", CASES)
def test_file_that_openvino_does_not_run_exactly_answers_as_the_reference(case: str, archive_sh: ArchiveSh) -> None:
    graph, rows, why = CASES[case]
    path = write_onnx(archive_sh.folder / "m.onnx", graph)
    handler, lines = built(archive_sh), archive_sh.out
    assert lines[0].startswith(f"m: ONNX Runtime runs it: m.onnx: {why}")
    assert lines[2].endswith(": ONNX Runtime runs the file as it is")
    build = read_build(archive_sh.store / "m")
    assert build is not None and build.fidelity["engine"] == "onnxruntime"
    platform = handler.archive.metadata.platform
    assert (handler.engine.description, platform) == ("onnxruntime cpu", "torchserve_onnxruntime")
    wanted = ReferenceEvaluator(str(path)).run(None, rows)
    got = columns(ask(handler, *inference(rows)))
    for array, expected in zip(got.values(), wanted, strict=True):
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(array, expected, 1e-5, 1e-6)
        else:
            texts = [each.decode() if isinstance(each, bytes) else each for each in np.asarray(array).ravel().tolist()]
            assert texts == expected.ravel().tolist()


def test_row_that_onnx_runtime_rejects_fails_alone(archive_sh: ArchiveSh) -> None:
    table = ", ".join(map(str, range(20)))
    graph = "(int64[rows] at, string[rows] text) => (float[rows, 2] y, string[rows] same) <float[10, 2] table = {%s}>"
    write_onnx(archive_sh.folder / "m.onnx", graph % table + "{ y = Gather (table, at) same = Identity (text) }")
    handler = built(archive_sh)
    sent = ({"at": at, "text": "é"} for at in (9, 77, -10, -11, 0))
    got = plainly(handler, *map(instances, sent))
    statuses = [answer.body["predictions"][0].get("error", {}).get("code", 200) for answer in got]
    assert statuses == [200, 422, 200, 422, 200]
    assert got[0].body["predictions"][0] == {"y": [18, 19], "same": "é"}
    broken = inference({"at": np.array([1, 2]), "text": np.array([b"a", b"\xff"], object)}, True)
    assert b"A text is not valid UTF-8" in ask(handler, *broken).body


def test_texts_are_counted_without_the_files_locale_unless_its_lower_case_differs(archive_sh: ArchiveSh) -> None:
    """As skl2onnx writes a vectorizer; sklearn counts the words, too."""
    for language in ("xx", "tr"):
        graph = f"""(string[rows] text) => (float[rows, 3] y) <int64[1] last = {{1}}> {{
            lower = StringNormalizer <case_change_action = "LOWER", locale = "{language}_XX.UTF-8"> (text)
            rows = Unsqueeze (lower, last)
            y = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 1, max_skip_count = 0,
                ngram_counts = [0], ngram_indexes = [0, 1, 2], pool_strings = ["ölaf", "привет", "fox"]> (rows) }}"""
        write_onnx(archive_sh.folder / "m.onnx", graph)
        if language == "tr":
            assert "Failed to construct locale with name:tr_XX.UTF-8" in archive_sh.rejected("m")
            return
        sent = ["FOX", "ÖLAF", "ПРИВЕТ", "fox", "İ"]
        got = columns(ask(built(archive_sh), *inference({"text": np.array(sent, object)})))
        counted = CountVectorizer(vocabulary=["ölaf", "привет", "fox"]).transform(sent).toarray()
        np.testing.assert_array_equal(got["y"], counted)


class Tempered(torch.nn.Module):
    def forward(self, x: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
        return (x / temperature).softmax(1)


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime", "torch"])
def test_scalar_input_has_the_value_of_the_configuration(engine: str, archive_sh: ArchiveSh) -> None:
    config: dict[str, Any] = {"engine": engine, "constants": {"temperature": 2}}
    folder = archive_sh.folder
    if engine == "torch":
        dynamic = {"x": {0: torch.export.Dim.DYNAMIC}, "temperature": None}
        exported(folder / "m.pt2", Tempered(), torch.rand(2, 4), torch.tensor(1.0), dynamic=dynamic)
    else:
        nodes = "d = Div (x, temperature) output = Softmax (d)"
        write_onnx(folder / "m.onnx", f"(float[n, 4] x, float temperature) => (float[n, 4] output) {{ {nodes} }}")
    handler = built(archive_sh, config, weights="m.pt2" if engine == "torch" else "m.onnx")
    assert handler.engine.description.startswith(engine)
    got = ask(handler, *inference({"x": X.astype(F32)}))
    wanted = Tempered()(torch.from_numpy(X.astype(F32)), torch.tensor(2.0))
    np.testing.assert_allclose(columns(got)["output"], wanted, 1e-5, 1e-6)


@table(
    ({}, "inputs.s: a scalar has no rows; set its value in model-config.yaml: handler: {const"),
    ({"s": "two"}, "constants.s: INT8 [] is expected, as a value or as lists of them"),
    ({"s": 300}, "constants.s: contains a value that INT8 cannot represent"),
    ({"s": [1, 2]}, "constants.s: INT8 [] is expected, not the shape [2]"),
    ({"s": 1, "x": 2}, "constants: every input is constant"),
    ({"s": 1, "z": 2}, "constants: z: this model has s, x"),
)
def test_scalar_input_needs_a_value_that_it_can_have(constants: Any, words: str, archive_sh: ArchiveSh) -> None:
    write_onnx(archive_sh.folder / "m.onnx", "(int8[n, 4] x, int8 s) => (int8[n, 4] y) { y = Add (x, s) }")
    archive_sh.write_list("m", "tensors", "m.onnx", {"constants": constants})
    assert archive_sh.rejected("m").startswith(f"m: m.onnx: {words}")


def test_weight_that_the_file_lists_among_its_inputs_may_be_set(archive_sh: ArchiveSh) -> None:
    write_onnx(archive_sh.folder / "m.onnx", "(float[n, 2] x, float s = {2}) => (float[n, 2] y) { y = Mul (x, s) }")
    for config, wanted in ((None, [[2, 4]]), ({"constants": {"s": 5}}, [[5, 10]])):
        assert ask(built(archive_sh, config), instances([1, 2])).body == {"predictions": wanted}


def test_onnx_runtime_runs_a_file_that_asks_for_it_with_its_external_data(archive_sh: ArchiveSh) -> None:
    scaled_onnx(archive_sh.folder / "m.onnx", location="m.onnx.data", **OUTSIDE, size_threshold=64)
    rows, with_openvino = {"x": X.astype(F32), "scale": X[:, :1].astype(F32)}, built(archive_sh)
    assert with_openvino.engine.description == "openvino cpu fp32"
    first = columns(ask(with_openvino, *inference(rows)))
    for config, arguments in (({"engine": "onnxruntime"}, ()), (None, ("--engine", "onnxruntime"))):
        handler = built(archive_sh, config or {}, *arguments)
        assert handler.engine.description == "onnxruntime cpu"
        for name, array in columns(ask(handler, *inference(rows))).items():
            np.testing.assert_allclose(array, first[name], 1e-5, 1e-6)
    archive_sh.write_list("m", "text_classification", "m.onnx", {})
    words = "m: --engine onnxruntime runs ONNX files; they need task: tensors"
    assert archive_sh.rejected("m", "--engine", "onnxruntime") == words


def test_maps_are_left_out_of_answers_and_rejections_name_the_way_out(archive_sh: ArchiveSh) -> None:
    maps = "seq(map(int64, float)) maps"
    write_onnx(archive_sh.folder / "m.onnx", f"(float[n, 4] X) => (int64[n] label, {maps}) {{ {ZIPPED} }}")
    assert built(archive_sh).archive.metadata.outputs[0].name == "label"
    said = "m: answers lack maps, which is a sequence or map; convert the model with zipmap=False"
    assert said in archive_sh.out[0]
    write_onnx(archive_sh.folder / "m.onnx", f"(float[n, 4] X) => ({maps}) {{ {ZIPPED} }}")
    rejection, way = archive_sh.rejected("m"), "; convert the model with zipmap=False"
    assert rejection.startswith("m: m.onnx: OpenVINO cannot read it: ") and way in rejection
    path = archive_sh.folder / "m.onnx"
    nodes = "label, probabilities = " + LINEAR % "classlabels_ints = [0, 1, 2]"
    write_onnx(path, f"(float[1, 4] X) => (int64[1] label, float[1, 3] probabilities) {{ {nodes} }}")
    archive_sh.write_list("m", "tensors", "m.onnx")
    assert "; max_batch_items: 1 serves rows one by one; if rows" in archive_sh.rejected("m")
    handler = built(archive_sh, {"max_batch_items": 1})
    assert ask(handler, instances([0, 0, 0, 0])).body["predictions"][0]["label"] == 1
    write_onnx(path, CASES["mod"][0])
    assert archive_sh.rejected("m", "--engine", "openvino").endswith("; --engine onnxruntime may run it, without int8")
    write_onnx(path, "(float[n, 4] X) => (float[] y) { y = com.microsoft.Foo (X) }")
    rejection = archive_sh.rejected("m")
    assert "OpenVINO cannot read it: " in rejection
    assert "ONNX Runtime cannot read it: Fatal error: com.microsoft:Foo(-1) is not a registered function" in rejection
    own = archive_sh.folder / "own"
    own.mkdir()
    scaled_onnx(own / "m.onnx", location="w.bin", **OUTSIDE, size_threshold=0)
    (own / "m.onnx").write_bytes((own / "m.onnx").read_bytes().replace(b"w.bin", b"../wb"))
    (archive_sh.folder / "wb").write_bytes((own / "w.bin").read_bytes())
    archive_sh.write_list("m", "tensors", "own/m.onnx", {})
    assert "its external data must be in its folder" in archive_sh.rejected("m", "--engine", "onnxruntime")


def test_engine_takes_and_returns_bf16_as_fp32_and_needs_its_file_and_precision(tmp_path: Path) -> None:
    path = one_node(tmp_path / "m.onnx", "Identity", Types.BFLOAT16)
    x = np.array([[1, -2.5, 3.140625], [0.1, 1e30, 0]], F32)
    wanted = torch.from_numpy(x).bfloat16().float().numpy()
    np.testing.assert_array_equal(OnnxEngine(path).run({"x": x})["y"], wanted)
    with pytest.raises(InvalidConfig, match=r"^engine: onnxruntime needs onnx/model"):
        OnnxEngine(tmp_path / "none.onnx")
    with pytest.raises(InvalidConfig, match=r"^precision: ONNX Runtime computes in the file"):
        OnnxEngine(tmp_path / "m.onnx", precision="bf16")


@table(
    ((lambda x: x * np.nan, lambda x: x), "other values than ONNX Runtime, on a random row"),
    ((lambda x: x, lambda x: x + NOISE.random(x.shape)), "outputs.y: is random, so OpenVINO cannot be compared"),
)
def test_answers_that_cannot_be_compared_are_no_proof(runs: Sequence[Callable[[Any], Any]], words: str) -> None:
    """No graph is known of which only OpenVINO makes NaN: functions stand in."""
    declared = DeclaredSignature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
    signature = merge_signature(declared, TensorsConfig())
    own, other = (lambda arrays, run=run: {"y": run(arrays["x"])} for run in runs)
    with pytest.raises(InvalidConfig, match=words):
        compare_runtimes(own, other, signature, TensorsConfig(), owner="ONNX Runtime", large=(), is_random=True)
