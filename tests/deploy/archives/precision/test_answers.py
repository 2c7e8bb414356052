"""How answers are compared: numbers that can be checked by hand, tiny models of each task, and the examples' inputs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino
import pytest

from deploy.archives.precision import inputs
from deploy.archives.precision.request import PrecisionRequest
from deploy.archives.tasks import BUILT_IN, load_task, task_class
from deploy.models import model
from handlers.archive_files import GRAPH
from handlers.config import parse
from handlers.engines.openvino import OpenVinoEngine
from handlers.errors import InvalidConfig
from handlers.pipeline.task import decode, inputs_of
from handlers.pipeline.values import Archive
from handlers.precision import comparisons as comps
from handlers.precision.answers import NUMBERS, answer_items, exact_settings, kind_of, make_proof
from handlers.text.windows import Window
from handlers.vision.config import IMAGENET_MEAN, IMAGENET_STD, ImageClassificationConfig
from handlers.vision.preprocessing import Preprocessing
from tests import tiny_models
from tests.photographs import crops
from tests.tables import table


def broken(folder: Path) -> Path:
    """The archive's graph with noise upon its matrices: still numbers, and other answers."""
    graph, generator = openvino.Core().read_model(folder / GRAPH), np.random.default_rng(0)
    for operation in graph.get_ops():
        if operation.get_type_name() == "Constant" and len(operation.shape) == 2 and operation.data.dtype == np.float32:
            noise = generator.normal(0, operation.data.std() + 1e-3, operation.data.shape).astype(np.float32)
            replaced = openvino.opset13.constant(operation.data + 2 * noise)
            for port in operation.output(0).get_target_inputs():
                port.replace_source_output(replaced.output(0))
    path = folder.parent / "broken.xml"
    openvino.save_model(graph, path, compress_to_fp16=False)
    return path


def test_labels_must_agree_at_99_percent_and_tokens_are_compared_without_special_ones() -> None:
    labelled = {"image_classification", "text_classification", "token_classification", "question_answering"}
    kinds = {name: task_class(name).answer_kind for name, task in BUILT_IN.items() if task.samples is not None}
    assert {name for name, kind in kinds.items() if kind.least == 0.99} == labelled
    assert {kind.least for kind in kinds.values()} == {0.98, 0.99}
    windows = [Window([2, 7, 8, 3], [0] * 4, 0, 1, 2), Window([2, 8, 3], [0] * 3, 1, 1, 1)]
    logits = np.arange(3 * 4 * 2, dtype=np.float32).reshape(3, 4, 2)
    items = [SimpleNamespace(windows=windows), SimpleNamespace(windows=windows[1:])]
    found = kinds["token_classification"].read(None, {"logits": logits}, items)
    assert [rows.shape for rows in found] == [(3, 2), (1, 2)]


@pytest.mark.builds
@table(("text_classification", "labels"), ("question_answering", "labels"), ("reranking", "ranks"))
def test_answers_of_the_same_graph_agree_and_of_a_broken_one_do_not(handler: str, measure: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"labels": ("relevance",)} if handler == "reranking" else {}
    folder = tiny_models.staged(tmp_path, "bert", handler, **more)
    kind = task_class(handler).answer_kind
    task = load_task(handler, folder, exact_settings(kind, parse(BUILT_IN[handler].settings_class(), {})))
    assert kind_of(task) is kind
    payloads = inputs.make_sample_payloads(model(handler.replace("_", "-")), inputs_of(task).fields)
    items = task.prepare([decode(task, each) for each in payloads])
    assert 20 <= len(items) <= 40
    exact = answer_items(task, items, task.engine)
    same = make_proof(kind, exact, answer_items(task, items, OpenVinoEngine(folder / GRAPH, precision="fp32")))
    # Of random weights, whole tasks may have near ties alone.
    assert same.measure == measure and same.agreement == pytest.approx(float(same.samples > 0))
    assert (same.largest_change or 0) < 1e-4
    other = make_proof(kind, exact, answer_items(task, items, OpenVinoEngine(broken(folder), precision="fp32")))
    assert (other.largest_change or 0) > 0.01 and (measure == "labels" or not other.is_enough)


def test_near_ties_and_what_is_no_number_are_no_agreement_and_regressions_are_compared_by_deviation() -> None:
    ours = [np.array([row]) for row in ([0.8, 0.2], [0.9, 0.1], [0.55, 0.45], [0.7, 0.3])]
    theirs = [np.array([row]) for row in ([0.7, 0.3], [0.4, 0.6], [0.45, 0.55], [np.nan, np.nan])]
    found = comps.compare_rows(ours, theirs)
    assert found[:3] == pytest.approx((1 / 3, 1.0, 3))
    assert found.detail == "1 near ties left out, mean change of the first label's 0.4250"
    # Against known labels, ties are answers like others: fp32 has three of four right, and int8 two.
    by_label = make_proof(task_class("image_classification").answer_kind, ours, theirs, truths=[0, 0, 1, 0])
    assert by_label.agreement == pytest.approx(2 / 3, abs=1e-5)
    assert (by_label.measure, by_label.samples, by_label.is_enough) == ("accuracy", 4, False)
    assert kind_of(SimpleNamespace(function="none", labels=["stars"])) is NUMBERS
    exact = [np.array([number], np.float32) for number in np.random.default_rng(0).normal(size=30)]
    changed = [each.copy() for each in exact]
    changed[3] += np.float32(0.03) * np.array(exact).std()
    for others, agreement, holds in ((exact, 1.0, True), (changed, 0.97, False)):
        proof = make_proof(NUMBERS, exact, others)
        assert (proof.measure, proof.samples, proof.holds) == ("values", 30, holds)
        assert proof.agreement == pytest.approx(agreement, abs=1e-3)
    lost = make_proof(NUMBERS, exact, [exact[0] * np.nan, *exact[1:]])
    assert (lost.agreement, lost.broken, lost.is_enough) == (0.0, 1, False)


def test_boxes_are_compared_by_the_average_precision_of_coco() -> None:
    corners = np.array([[0, 0, 100, 100], [200, 0, 300, 100], [0, 200, 50, 250]], float)
    sure = comps.Boxes(np.array(["cat", "cat", "dog"], object), np.array([0.9, 0.8, 0.3]), corners)
    assert comps.compare_boxes([sure], [sure]) == (1.0, 0.0, 2, "1 classes")
    # An overlap of 80 % counts up to 0.8, at seven of ten; a second box for the same cat costs nothing.
    near = comps.Boxes(np.array(["cat"] * 3, object), np.array([0.9, 0.8, 0.4]), corners[[0, 1, 0]] * [1, 1, 1, 0.8])
    assert comps.compare_boxes([sure], [near])[:3] == pytest.approx((0.7, 0.0, 2))
    # A better box where nothing is: at no recall are more than two of three right.
    wrong = comps.Boxes(sure.labels[[0, 0, 0]], np.array([0.99, 0.8, 0.7]), corners[[2, 0, 1]])
    assert comps.compare_boxes([sure], [wrong]).agreement == pytest.approx(2 / 3)
    assert comps.compare_boxes([sure], [comps.Boxes(*(each[:0] for each in sure))]) == (0.0, 1.0, 2, "1 classes")


def test_vectors_maps_and_orders_of_pairs_are_compared_by_their_averages() -> None:
    ours = [np.array(vector, float) for vector in ([1, 0, 0], [0.9, 0.1, 0], [0, 1, 0.2], [0, 0.5, 1])]
    assert comps.compare_vectors(ours, [2 * vector for vector in ours]).agreement == pytest.approx(1)
    assert comps.compare_vectors(ours, [ours[each] for each in (0, 2, 1, 3)]).agreement < 0.6
    assert comps.compare_vectors(ours, [vector * np.nan for vector in ours])[:2] == (0.0, 1.0)
    one, two = np.array([[0, 0, 1], [1, 1, 2]]), np.array([[0, 1, 1], [1, 1, 2]])
    # Class 0 shares one of two pixels, class 1 three of four, class 2 its one.
    assert comps.compare_maps([one, one], [two, two])[:3] == pytest.approx(((1 / 2 + 3 / 4 + 1) / 3, 1 / 6, 2))
    assert comps.compare_ranks([1.0, 2.0, 3.0], [10.0, 20.0, 30.0])[0] == pytest.approx(1)
    assert comps.compare_ranks([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])[0] == pytest.approx(-1)
    assert comps.compare_ranks([1.0, 2.0], [1.0, float("nan")])[:3] == (0.0, 1.0, 2)


def test_images_are_twenty_crops_or_a_folders_and_labels_are_classes_or_their_numbers(tmp_path: Path) -> None:
    found = inputs.make_sample_payloads(model("mobilenet-v2"), frozenset({"b64"}))
    assert len({bytes(each.value) for each in found if isinstance(each.value, bytes)}) == 20
    assert inputs.make_sample_payloads(model("mobilenet-v2"), frozenset({"b64"})) == found
    for number, body in enumerate(crops(2, sides=(64, 65))):
        (tmp_path / f"{number}.jpg").write_bytes(body)
    (tmp_path / "cut.jpg").write_bytes(crops(1, sides=(64, 65))[0][:300])
    (tmp_path / "notes.txt").write_text("labels")
    (tmp_path / ".hidden").write_text("")
    task = task_class("image_classification")()
    task.config, task.archive = ImageClassificationConfig(arch="resnet18"), Archive(tmp_path)
    task.preprocessing = Preprocessing(256, (224, 224), "bilinear", IMAGENET_MEAN, IMAGENET_STD)
    items, rejected = inputs.decode_inputs(task, inputs.list_inputs(tmp_path), is_text=False)
    assert [each.item.pixels.shape for each in items] == [(224, 224, 3)] * 2
    assert sorted(line.partition(":")[0] for line in rejected) == ["cut.jpg", "notes.txt"]
    names = ["cat", "7", "dog"]
    assert inputs.match_labels([inputs.DecodedInput(None, label) for label in ("dog", 0, "7")], names) == [2, 0, 1]
    assert inputs.match_labels([inputs.DecodedInput(None, label) for label in (None, "holiday")], names) is None
    with pytest.raises(InvalidConfig, match="1 of 2 inputs to validate with have no class"):
        inputs.match_labels([inputs.DecodedInput(None, "cat"), inputs.DecodedInput(None, None)], names)


@pytest.mark.parametrize(("count", "held_out"), [(10, 3), (1000, 700)])
def test_split_holds_a_quarter_back_and_is_the_same_each_time(count: int, held_out: int) -> None:
    calibration, validation = inputs.split(inputs.draw(range(count)))
    assert (len(calibration), len(validation)) == (count - held_out, held_out)
    assert sorted(calibration + validation) == list(range(count))
    assert inputs.split(inputs.draw(range(count))) == (calibration, validation)
    # Not the first of a folder, which may be of one kind.
    assert sorted(validation) != list(range(held_out))
    assert len(set(inputs.draw(range(10_000)))) == 1300


def test_inputs_named_by_a_relative_path_are_those_of_the_absolute_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pictures" / "cats").mkdir(parents=True)
    for path in (tmp_path / "texts.txt", tmp_path / "pictures" / "cats" / "1.png"):
        path.write_text("one\n")
    monkeypatch.chdir(tmp_path)
    for name in ("texts.txt", "pictures", "pictures/../pictures"):
        relative, absolute = (
            PrecisionRequest("int8", calibrate=path, validate=path).identity() for path in (Path(name), tmp_path / name)
        )
        assert relative == absolute and relative.count("1.png" if "pictures" in name else "texts.txt") == 2
