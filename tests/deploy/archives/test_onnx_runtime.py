"""ONNX files that OpenVINO cannot run exactly: built, loaded and asked, beside the reference implementation of ONNX."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import yaml
from numpy.typing import NDArray
from onnx import TensorProto as Types
from onnx import helper, numpy_helper
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
from tests.tensor_files import exported, one_node, scaled_onnx

pytestmark = pytest.mark.builds

F32, F64 = np.float32, np.float64
FEATURES = {"X": (Types.FLOAT, [None, 4])}
CLASSES = {"label": (Types.INT64, [None]), "probabilities": (Types.FLOAT, [None, 3])}
LINEAR = {"coefficients": [0.1 * n - 0.5 for n in range(12)], "intercepts": [0.0, 0.5, -0.2]}
NODES, FEATURE = [0, 1, 2, 3, 4], [0, 0, 1, 0, 0]
TREE = {
    **{
        "nodes_treeids": [0] * 5,
        "nodes_nodeids": NODES,
        "nodes_featureids": FEATURE,
        "nodes_values": [0.5, 0, 0.3, 0, 0],
    },
    **{"nodes_modes": ["BRANCH_LEQ", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 3, 0, 0]},
    **{"nodes_falsenodeids": [2, 0, 4, 0, 0], "class_treeids": [0] * 3, "class_nodeids": [1, 3, 4]},
    **{"class_ids": [0, 1, 2], "class_weights": [1.0] * 3, "classlabels_int64s": [0, 1, 2], "post_transform": "NONE"},
}


def ml(operation: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operation, inputs, outputs, domain="ai.onnx.ml", **attributes)


def linear(**labels: Any) -> onnx.NodeProto:
    more = {"post_transform": "SOFTMAX", "multi_class": 1}
    return ml("LinearClassifier", ["X"], ["label", "probabilities"], **LINEAR, **more, **labels)


def write(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Any]],
    outputs: Mapping[str, Any],
    constants: dict[str, NDArray[Any]] | None = None,
    **saving: Any,
) -> Path:
    """Write a file, of the newest version of the format that the package onnx knows."""
    taken = [helper.make_tensor_value_info(name, *each) for name, each in inputs.items()]
    given = [
        helper.make_tensor_value_info(name, *each) if isinstance(each, tuple) else helper.make_value_info(name, each)
        for name, each in outputs.items()
    ]
    arrays = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    opsets = [helper.make_opsetid(domain, n) for domain, n in (("", 17), ("ai.onnx.ml", 3), ("com.microsoft", 1))]
    model = helper.make_model(helper.make_graph(nodes, "graph", taken, given, arrays), opset_imports=opsets)
    onnx.save_model(model, str(path), **saving)
    return path


def built(archive_sh: ArchiveSh, config: Any = None, *arguments: str, weights: str = "m.onnx") -> list[str]:
    archive_sh.write_list("m", "tensors", weights, config)
    return archive_sh("m", *arguments)


def worker(archive_sh: ArchiveSh) -> TensorsHandler:
    """A worker of the archive, with the settings that it was given."""
    folder = archive_sh.store / "m"
    return loaded(folder, yaml.safe_load((folder / "model-config.yaml").read_text())["handler"])


# -- what ONNX Runtime runs ------------------------------------------------------------------------------------------

NOISE = np.random.default_rng(0)
X = np.random.default_rng(0).normal(size=(5, 4))
CITIES = {"city": np.array([["x"], ["y"], ["é"]], object), "age": np.array([[1], [2], [3]], F32)}
COLUMNS = [
    ml("LabelEncoder", ["city"], ["number"], keys_strings=["x", "é"], values_floats=[1.0, 2.0], default_float=-1.0),
    helper.make_node("Concat", ["number", "age"], ["both"], axis=1),
    ml("LinearRegressor", ["both"], ["variable"], coefficients=[0.1, 0.2], intercepts=[1.0], targets=1),
]
OF_COLUMNS = {"city": (Types.STRING, [None, 1]), "age": (Types.FLOAT, [None, 1])}
SCALER = ml("Scaler", ["X"], ["scaled"], offset=[0.1, 0.2, 0.3, 0.4], scale=[1.0, 2.0, 1.0, 0.5])
FOREST = ml("TreeEnsembleClassifier", ["scaled"], ["label", "probabilities"], **TREE)
WHOLE = (Types.INT64, ["rows"])
USERS = np.array([5, 123456789, 2**40 + 3, -(2**24) - 1])
LOG = [helper.make_node("Log", ["X"], ["log"]), helper.make_node("Relu", ["log"], ["y"])]
UNREAD = "OpenVINO cannot read it: "
# Seconds since 1970, of which FP32 has steps of 128.
TIMES = [helper.make_node("Sub", ["x", "mean"], ["late"]), helper.make_node("Div", ["late", "hour"], ["y"])]
LATE = [
    helper.make_node("Sub", ["wide", "mean"], ["late"]),
    helper.make_node("Cast", ["late"], ["narrow"], to=Types.FLOAT),
    helper.make_node("Relu", ["narrow"], ["y"]),
]
SECONDS = np.array([[1.7e9 + 60], [1.7e9 + 90], [1.7e9 + 3600]])

CASES: dict[str, tuple[list[onnx.NodeProto], Any, Any, Any, dict[str, Any], str]] = {
    "classes": ([linear(classlabels_ints=[7, 8, 9])], FEATURES, CLASSES, {}, {"X": X.astype(F32)}, UNREAD),
    "names": (
        [linear(classlabels_strings=["a", "b", "ç"])],
        FEATURES,
        {**CLASSES, "label": (Types.STRING, [None])},
        {},
        {"X": X.astype(F32)},
        UNREAD,
    ),
    "tree": ([SCALER, FOREST], FEATURES, CLASSES, {}, {"X": X.astype(F32)}, UNREAD),
    "columns": (COLUMNS, OF_COLUMNS, {"variable": (Types.FLOAT, [None, 1])}, {}, CITIES, UNREAD),
    "mod": (
        [helper.make_node("Mod", ["user", "k"], ["bucket"])],
        {"user": WHOLE},
        {"bucket": WHOLE},
        {"k": np.array(1000)},
        {"user": USERS},
        "outputs.bucket: OpenVINO computes other values than ONNX Runtime, on whole numbers from 16777216 on in user",
    ),
    "times": (
        TIMES,
        {"x": (Types.DOUBLE, [None, 1])},
        {"y": (Types.DOUBLE, [None, 1])},
        {"mean": np.array([1.7e9]), "hour": np.array([3600.0])},
        {"x": SECONDS},
        "OpenVINO computes FP64 in FP32, and ONNX Runtime in FP64",
    ),
    "whole times": (
        [helper.make_node("Cast", ["x"], ["wide"], to=Types.DOUBLE), *LATE],
        {"x": (Types.INT64, [None, 1])},
        {"y": (Types.FLOAT, [None, 1])},
        {"mean": np.array([1.7e9])},
        {"x": SECONDS.astype(np.int64)},
        "OpenVINO computes FP64 in FP32, and ONNX Runtime in FP64",
    ),
    # OpenVINO's whole numbers end at 2**31.
    "floats made whole": (
        [helper.make_node("Cast", ["x"], ["y"], to=Types.INT64)],
        {"x": (Types.FLOAT, [None, 1])},
        {"y": (Types.INT64, [None, 1])},
        {},
        {"x": np.array([[3e9], [5e9], [-3.0]], F32)},
        "outputs.y: OpenVINO computes other values than ONNX Runtime, on whole numbers from 4293918720 on in x",
    ),
    # Of the logarithm of a negative number, OpenVINO's Relu makes 0.
    "nan": (
        LOG,
        FEATURES,
        {"y": (Types.FLOAT, [None, 4])},
        {},
        {"X": np.abs(X).astype(F32)},
        "outputs.y: OpenVINO computes other values than ONNX Runtime, on a row of negative and large numbers",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_onnx_file_that_openvino_does_not_run_exactly_answers_as_the_reference(
    case: str, archive_sh: ArchiveSh
) -> None:
    nodes, inputs, outputs, constants, rows, why = CASES[case]
    path = write(archive_sh.folder / "m.onnx", nodes, inputs, outputs, constants)
    lines = built(archive_sh)
    assert lines[0].startswith(f"m: ONNX Runtime runs it: m.onnx: {why}")
    assert lines[2].endswith(": ONNX Runtime runs the file as it is")
    build = read_build(archive_sh.store / "m")
    assert build is not None
    assert build.fidelity["engine"] == "onnxruntime"
    handler = worker(archive_sh)
    assert (handler.engine.description, handler.metadata.platform) == ("onnxruntime cpu", "torchserve_onnxruntime")
    wanted = ReferenceEvaluator(str(path)).run(None, rows)
    got = columns(ask(handler, *inference(rows)))
    for array, expected in zip(got.values(), wanted, strict=True):
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(array, expected, 1e-5, 1e-6)
        else:
            texts = [each.decode() if isinstance(each, bytes) else each for each in np.asarray(array).ravel().tolist()]
            assert texts == expected.ravel().tolist()


def test_row_that_onnx_runtime_refuses_fails_alone(archive_sh: ArchiveSh) -> None:
    table = {"table": np.arange(20, dtype=F32).reshape(10, 2)}
    inputs = {"at": WHOLE, "text": (Types.STRING, ["rows"])}
    nodes = [helper.make_node("Gather", ["table", "at"], ["y"]), helper.make_node("Identity", ["text"], ["same"])]
    outputs = {"y": (Types.FLOAT, ["rows", 2]), "same": (Types.STRING, ["rows"])}
    write(archive_sh.folder / "m.onnx", nodes, inputs, outputs, table)
    built(archive_sh)
    handler = worker(archive_sh)
    sent = ({"at": at, "text": "é"} for at in (9, 77, -10, -11, 0))
    got = plainly(handler, *map(instances, sent))
    statuses = [answer.body["predictions"][0].get("error", {}).get("code", 200) for answer in got]
    assert statuses == [200, 422, 200, 422, 200]
    assert got[0].body["predictions"][0] == {"y": [18, 19], "same": "é"}
    broken = inference({"at": np.array([1, 2]), "text": np.array([b"a", b"\xff"], object)}, True)
    answer = ask(handler, *broken)
    assert b"A text is not valid UTF-8" in answer.body


def test_texts_are_counted_on_machines_without_the_files_locale_unless_its_lower_case_differs(
    archive_sh: ArchiveSh,
) -> None:
    """As skl2onnx writes a vectorizer; sklearn counts the words, too."""
    words = ["ölaf", "привет", "fox"]
    counted: dict[str, Any] = {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": 1,
        "max_skip_count": 0,
        "ngram_counts": [0],
    }
    for language in ("xx", "tr"):
        lower: dict[str, Any] = {"case_change_action": "LOWER", "locale": f"{language}_XX.UTF-8"}
        nodes = [
            helper.make_node("StringNormalizer", ["text"], ["lower"], **lower),
            helper.make_node("Unsqueeze", ["lower", "last"], ["rows"]),
            helper.make_node(
                "TfIdfVectorizer", ["rows"], ["y"], pool_strings=words, ngram_indexes=[0, 1, 2], **counted
            ),
        ]
        texts = {"text": (Types.STRING, ["rows"])}
        write(archive_sh.folder / "m.onnx", nodes, texts, {"y": (Types.FLOAT, ["rows", 3])}, {"last": np.array([1])})
        archive_sh.write_list("m", "tensors", "m.onnx")
        if language == "tr":
            assert "Failed to construct locale with name:tr_XX.UTF-8" in archive_sh.refused("m")
            return
        archive_sh("m")
        sent = ["FOX", "ÖLAF", "ПРИВЕТ", "fox", "İ"]
        got = columns(ask(worker(archive_sh), *inference({"text": np.array(sent, object)})))
        np.testing.assert_array_equal(got["y"], CountVectorizer(vocabulary=words).transform(sent).toarray())


# -- inputs that all rows share --------------------------------------------------------------------------------------


class Tempered(torch.nn.Module):
    """A temperature beside the rows."""

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
        nodes = [helper.make_node("Div", ["x", "temperature"], ["d"]), helper.make_node("Softmax", ["d"], ["output"])]
        inputs = {"x": (Types.FLOAT, ["n", 4]), "temperature": (Types.FLOAT, [])}
        write(folder / "m.onnx", nodes, inputs, {"output": (Types.FLOAT, ["n", 4])})
    built(archive_sh, config, weights="m.pt2" if engine == "torch" else "m.onnx")
    handler = worker(archive_sh)
    assert handler.engine.description.startswith(engine)
    got = ask(handler, *inference({"x": X.astype(F32)}))
    wanted = Tempered()(torch.from_numpy(X.astype(F32)), torch.tensor(2.0))
    np.testing.assert_allclose(columns(got)["output"], wanted, 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        ({}, "inputs.s: a scalar has no rows; set its value in model-config.yaml: handler: {const"),
        ({"s": "two"}, "constants.s: INT8 [] is expected, as a value or as lists of them"),
        ({"s": 300}, "constants.s: contains a value that INT8 cannot represent"),
        ({"s": [1, 2]}, "constants.s: INT8 [] is expected, not the shape [2]"),
        ({"s": 1, "x": 2}, "constants: every input is constant"),
        ({"s": 1, "z": 2}, "constants: z: this model has s, x"),
    ],
)
def test_scalar_input_needs_a_value_that_it_can_have(constants: Any, words: str, archive_sh: ArchiveSh) -> None:
    inputs = {"x": (Types.INT8, ["n", 4]), "s": (Types.INT8, [])}
    nodes = [helper.make_node("Add", ["x", "s"], ["y"])]
    write(archive_sh.folder / "m.onnx", nodes, inputs, {"y": (Types.INT8, ["n", 4])})
    archive_sh.write_list("m", "tensors", "m.onnx", {"constants": constants})
    assert archive_sh.refused("m").startswith(f"m: m.onnx: {words}")


def test_weight_that_the_file_lists_among_its_inputs_may_be_set(archive_sh: ArchiveSh) -> None:
    inputs = {"x": (Types.FLOAT, ["n", 2]), "s": (Types.FLOAT, [])}
    nodes = [helper.make_node("Mul", ["x", "s"], ["y"])]
    write(archive_sh.folder / "m.onnx", nodes, inputs, {"y": (Types.FLOAT, ["n", 2])}, {"s": np.array(2, F32)})
    for config, wanted in ((None, [[2, 4]]), ({"constants": {"s": 5}}, [[5, 10]])):
        built(archive_sh, config)
        assert ask(worker(archive_sh), instances([1, 2])).body == {"predictions": wanted}


# -- what is asked for, and what is refused --------------------------------------------------------------------------


def test_onnx_runtime_runs_a_file_that_asks_for_it_with_its_external_data(archive_sh: ArchiveSh) -> None:
    outside: dict[str, Any] = {"save_as_external_data": True, "all_tensors_to_one_file": True, "size_threshold": 64}
    scaled_onnx(archive_sh.folder / "m.onnx", location="m.onnx.data", **outside)
    rows = {"x": X.astype(F32), "scale": X[:, :1].astype(F32)}
    built(archive_sh)
    with_openvino = worker(archive_sh)
    assert with_openvino.engine.description == "openvino cpu fp32"
    first = columns(ask(with_openvino, *inference(rows)))
    for config, arguments in (({"engine": "onnxruntime"}, ()), (None, ("--engine", "onnxruntime"))):
        built(archive_sh, config or {}, *arguments)
        handler = worker(archive_sh)
        assert handler.engine.description == "onnxruntime cpu"
        for name, array in columns(ask(handler, *inference(rows))).items():
            np.testing.assert_allclose(array, first[name], 1e-5, 1e-6)
    archive_sh.write_list("m", "text_classification", "m.onnx", {})
    assert archive_sh.refused("m", "--engine", "onnxruntime") == (
        "m: --engine onnxruntime runs ONNX files; they need task: tensors"
    )


MAPS = helper.make_sequence_type_proto(
    helper.make_map_type_proto(Types.INT64, helper.make_tensor_type_proto(Types.FLOAT, []))
)
ZIPPED = [linear(classlabels_ints=[0, 1, 2]), ml("ZipMap", ["probabilities"], ["maps"], classlabels_int64s=[0, 1, 2])]
ONE_ROW = {"label": (Types.INT64, [1]), "probabilities": (Types.FLOAT, [1, 3])}


def test_maps_are_left_out_of_answers_by_name_or_refused_with_the_way_out(archive_sh: ArchiveSh) -> None:
    write(archive_sh.folder / "m.onnx", ZIPPED, FEATURES, {"label": CLASSES["label"], "maps": MAPS})
    assert (
        "m: answers lack maps, which is a sequence or map; convert the model with zipmap=False" in built(archive_sh)[0]
    )
    assert worker(archive_sh).metadata.outputs[0].name == "label"
    write(archive_sh.folder / "m.onnx", ZIPPED, FEATURES, {"maps": MAPS})
    refusal = archive_sh.refused("m")
    assert refusal.startswith("m: m.onnx: OpenVINO cannot read it: ")
    assert "; convert the model with zipmap=False" in refusal


def test_refusal_names_the_way_out(archive_sh: ArchiveSh) -> None:
    path = archive_sh.folder / "m.onnx"
    write(path, [linear(classlabels_ints=[0, 1, 2])], {"X": (Types.FLOAT, [1, 4])}, ONE_ROW)
    archive_sh.write_list("m", "tensors", "m.onnx")
    assert "; max_batch_items: 1 serves rows one by one; if rows" in archive_sh.refused("m")
    built(archive_sh, {"max_batch_items": 1})
    assert ask(worker(archive_sh), instances([0, 0, 0, 0])).body["predictions"][0]["label"] == 1
    mod = CASES["mod"]
    write(path, *mod[:4])
    assert archive_sh.refused("m", "--engine", "openvino").endswith("; --engine onnxruntime may run it, without int8")
    write(path, [helper.make_node("Foo", ["X"], ["y"], domain="com.microsoft")], FEATURES, {"y": (Types.FLOAT, None)})
    refusal = archive_sh.refused("m")
    assert "OpenVINO cannot read it: " in refusal
    assert "ONNX Runtime cannot read it: Fatal error: com.microsoft:Foo(-1) is not a registered function" in refusal
    outside: dict[str, Any] = {"save_as_external_data": True, "size_threshold": 0, "location": "w.bin"}
    own = archive_sh.folder / "own"
    own.mkdir()
    scaled_onnx(own / "m.onnx", **outside)
    data = (own / "m.onnx").read_bytes().replace(b"w.bin", b"../wb")
    (own / "m.onnx").write_bytes(data)
    (archive_sh.folder / "wb").write_bytes((own / "w.bin").read_bytes())
    archive_sh.write_list("m", "tensors", "own/m.onnx", {})
    assert "its external data must be in its folder" in archive_sh.refused("m", "--engine", "onnxruntime")


def test_engine_takes_and_returns_bf16_as_fp32(tmp_path: Path) -> None:
    path = one_node(tmp_path / "m.onnx", "Identity", Types.BFLOAT16)
    x = np.array([[1, -2.5, 3.140625], [0.1, 1e30, 0]], F32)
    wanted = torch.from_numpy(x).bfloat16().float().numpy()
    np.testing.assert_array_equal(OnnxEngine(path).run({"x": x})["y"], wanted)


def test_engine_of_an_archive_without_its_file_or_in_another_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"^engine: onnxruntime needs onnx/model"):
        OnnxEngine(tmp_path / "m.onnx")
    with pytest.raises(InvalidConfig, match=r"^precision: ONNX Runtime computes in the file"):
        OnnxEngine(tmp_path / "m.onnx", precision="bf16")


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ((lambda x: x * np.nan, lambda x: x), "other values than ONNX Runtime, on a random row"),
        ((lambda x: x, lambda x: x + NOISE.random(x.shape)), "outputs.y: is random, so OpenVINO cannot be compared"),
    ],
)
def test_answers_that_cannot_be_compared_are_no_proof(runs: Sequence[Callable[[Any], Any]], words: str) -> None:
    """No graph is known of which only OpenVINO makes NaN: functions stand in."""
    signature = merge_signature(
        DeclaredSignature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),)), TensorsConfig()
    )
    own, other = (lambda arrays, run=run: {"y": run(arrays["x"])} for run in runs)
    with pytest.raises(InvalidConfig, match=words):
        compare_runtimes(own, other, signature, TensorsConfig(), owner="ONNX Runtime", large=(), is_random=True)
