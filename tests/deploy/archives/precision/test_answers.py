"""How answers are compared: numbers that can be checked by hand, tiny models of each task, and the examples' inputs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino
import pytest

from deploy.archives.precision.answers import KINDS, answer_items, exact_settings, make_proof, name_kind
from deploy.archives.precision.comparisons import (
    Boxes,
    compare_boxes,
    compare_maps,
    compare_ranks,
    compare_rows,
    compare_vectors,
)
from deploy.archives.precision.inputs import (
    DecodedInput,
    decode_inputs,
    draw,
    list_inputs,
    make_sample_payloads,
    match_labels,
    split,
)
from deploy.archives.tasks import BUILT_IN, load_task, task_class
from deploy.models import model
from handlers.archive_files import GRAPH
from handlers.config import parse
from handlers.engines.openvino import OpenVinoEngine
from handlers.errors import InvalidConfig
from handlers.text.windows import Window
from handlers.vision.config import IMAGENET_MEAN, IMAGENET_STD, ImageClassificationConfig
from handlers.vision.preprocessing import Preprocessing
from tests import tiny_models
from tests.photographs import crops


def broken(folder: Path) -> Path:
    """The archive's graph with noise upon its matrices: still numbers, and other answers."""
    graph = openvino.Core().read_model(folder / GRAPH)
    generator = np.random.default_rng(0)
    for operation in graph.get_ops():
        if operation.get_type_name() == "Constant" and len(operation.shape) == 2 and operation.data.dtype == np.float32:
            noise = generator.normal(0, operation.data.std() + 1e-3, operation.data.shape).astype(np.float32)
            replaced = openvino.opset13.constant(operation.data + 2 * noise)
            for port in operation.output(0).get_target_inputs():
                port.replace_source_output(replaced.output(0))
    path = folder.parent / "broken.xml"
    openvino.save_model(graph, path, compress_to_fp16=False)
    return path


def test_labels_must_agree_at_99_percent_and_everything_else_at_98() -> None:
    labelled = {"image_classification", "text_classification", "token_classification", "question_answering"}
    assert {name for name, kind in KINDS.items() if kind.least == 0.99} == labelled
    assert {kind.least for kind in KINDS.values()} == {0.98, 0.99}


def test_tokens_of_a_text_in_windows_are_compared_without_special_ones() -> None:
    windows = [Window([2, 7, 8, 3], [0] * 4, 0, 1, 2), Window([2, 8, 3], [0] * 3, 1, 1, 1)]
    logits = np.arange(3 * 4 * 2, dtype=np.float32).reshape(3, 4, 2)
    items = [SimpleNamespace(windows=windows), SimpleNamespace(windows=windows[1:])]
    found = KINDS["token_classification"].read(None, {"logits": logits}, items)
    assert [rows.shape for rows in found] == [(3, 2), (1, 2)]


@pytest.mark.builds
@pytest.mark.parametrize(
    ("handler", "measure"),
    [("text_classification", "labels"), ("question_answering", "labels"), ("reranking", "ranks")],
)
def test_answers_of_the_same_graph_agree_and_of_a_broken_one_do_not(handler: str, measure: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"labels": ("relevance",)} if handler == "reranking" else {}
    folder = tiny_models.staged(tmp_path, "bert", handler, **more)
    config = parse(BUILT_IN[handler].settings_class(), {})
    task = load_task(handler, folder, exact_settings(handler, config))
    assert name_kind(task) == handler
    payloads = make_sample_payloads(model(handler.replace("_", "-")), task.inputs)
    items = task.prepare([task.decode(each) for each in payloads])
    assert 20 <= len(items) <= 40
    exact = answer_items(task, items, task.engine)
    same = make_proof(handler, exact, answer_items(task, items, OpenVinoEngine(folder / GRAPH, precision="fp32")))
    # Of random weights, whole tasks may have near ties alone.
    assert same.measure == measure and same.agreement == pytest.approx(float(same.samples > 0))
    assert (same.largest_change or 0) < 1e-4
    other = make_proof(handler, exact, answer_items(task, items, OpenVinoEngine(broken(folder), precision="fp32")))
    assert (other.largest_change or 0) > 0.01 and (measure == "labels" or other.is_refuted)
    # Micro-batches that exceed the time are left out, except the first.
    assert len(answer_items(task, items, task.engine, longest_s=0)) == 16


def test_near_ties_and_what_is_no_number_are_no_agreement() -> None:
    ours = [np.array([row]) for row in ([0.8, 0.2], [0.9, 0.1], [0.55, 0.45], [0.7, 0.3])]
    theirs = [np.array([row]) for row in ([0.7, 0.3], [0.4, 0.6], [0.45, 0.55], [np.nan, np.nan])]
    found = compare_rows(ours, theirs)
    assert found[:3] == pytest.approx((1 / 3, 1.0, 3))
    assert found.detail == "1 near ties left out, mean change of the first label's 0.4250"
    # Against known labels, ties are answers like others: fp32 has three of four right, and int8 two.
    by_label = make_proof("image_classification", ours, theirs, truths=[0, 0, 1, 0])
    assert by_label.agreement == pytest.approx(2 / 3, abs=1e-5)
    assert (by_label.measure, by_label.samples) == ("accuracy", 4)
    assert by_label.is_refuted
    assert not make_proof("image_classification", [ours[2]], [theirs[2]]).is_refuted


def test_labels_are_classes_or_their_numbers_and_all_inputs_have_one_or_none() -> None:
    names = ["cat", "7", "dog"]
    assert match_labels([DecodedInput(None, label) for label in ("dog", 0, "7")], names) == [2, 0, 1]
    assert match_labels([DecodedInput(None, label) for label in (None, "holiday")], names) is None
    with pytest.raises(InvalidConfig, match="1 of 2 inputs to validate with have no class"):
        match_labels([DecodedInput(None, "cat"), DecodedInput(None, None)], names)


def test_boxes_are_compared_by_the_average_precision_of_coco() -> None:
    corners = np.array([[0, 0, 100, 100], [200, 0, 300, 100], [0, 200, 50, 250]], float)
    sure = Boxes(np.array(["cat", "cat", "dog"], object), np.array([0.9, 0.8, 0.3]), corners)
    assert compare_boxes([sure], [sure]) == (1.0, 0.0, 2, "1 classes")
    # An overlap of 80 % counts up to 0.8, at seven of ten; a second box for the same cat costs nothing.
    near = Boxes(np.array(["cat"] * 3, object), np.array([0.9, 0.8, 0.4]), corners[[0, 1, 0]] * [1, 1, 1, 0.8])
    assert compare_boxes([sure], [near])[:3] == pytest.approx((0.7, 0.0, 2))
    # A better box where nothing is: at no recall are more than two of three right.
    wrong = Boxes(sure.labels[[0, 0, 0]], np.array([0.99, 0.8, 0.7]), corners[[2, 0, 1]])
    assert compare_boxes([sure], [wrong]).agreement == pytest.approx(2 / 3)
    assert compare_boxes([sure], [Boxes(*(each[:0] for each in sure))]) == (0.0, 1.0, 2, "1 classes")


def test_vectors_are_compared_by_their_cosines_and_by_what_is_most_like_what() -> None:
    ours = [np.array(vector, float) for vector in ([1, 0, 0], [0.9, 0.1, 0], [0, 1, 0.2], [0, 0.5, 1])]
    assert compare_vectors(ours, [2 * vector for vector in ours]).agreement == pytest.approx(1)
    theirs = [ours[0], ours[2], ours[1], ours[3]]
    found = compare_vectors(ours, theirs)
    assert found.agreement < 0.6
    assert compare_vectors(ours, [vector * np.nan for vector in ours])[:2] == (0.0, 1.0)


def test_numbers_of_a_regression_are_compared_by_their_deviation() -> None:
    assert name_kind(SimpleNamespace(function="none", labels=["stars"])) == "regression"
    exact = [np.array([number], np.float32) for number in np.random.default_rng(0).normal(size=30)]
    changed = [each.copy() for each in exact]
    changed[3] += np.float32(0.03) * np.array(exact).std()
    for others, agreement, holds in ((exact, 1.0, True), (changed, 0.97, False)):
        found = make_proof("regression", exact, others)
        assert (found.measure, found.samples, found.holds) == ("values", 30, holds)
        assert found.agreement == pytest.approx(agreement, abs=1e-3)
    lost = make_proof("regression", exact, [exact[0] * np.nan, *exact[1:]])
    assert (lost.agreement, lost.broken, lost.is_refuted) == (0.0, 1, True)


def test_maps_and_orders_of_pairs_are_compared_by_their_averages() -> None:
    ours, theirs = np.array([[0, 0, 1], [1, 1, 2]]), np.array([[0, 1, 1], [1, 1, 2]])
    # Class 0 shares one of two pixels, class 1 three of four, class 2 its one.
    assert compare_maps([ours, ours], [theirs, theirs])[:3] == pytest.approx(((1 / 2 + 3 / 4 + 1) / 3, 1 / 6, 2))
    assert compare_ranks([1.0, 2.0, 3.0], [10.0, 20.0, 30.0])[0] == pytest.approx(1)
    assert compare_ranks([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])[0] == pytest.approx(-1)
    assert compare_ranks([1.0, 2.0], [1.0, float("nan")])[:3] == (0.0, 1.0, 2)


def test_images_are_twenty_crops_and_of_a_folder_what_is_none_is_left_out(tmp_path: Path) -> None:
    found = make_sample_payloads(model("mobilenet-v2"), frozenset({"b64"}))
    assert len({bytes(each.value) for each in found if isinstance(each.value, bytes)}) == 20
    assert make_sample_payloads(model("mobilenet-v2"), frozenset({"b64"})) == found
    for number, body in enumerate(crops(2, sides=(64, 65))):
        (tmp_path / f"{number}.jpg").write_bytes(body)
    (tmp_path / "cut.jpg").write_bytes(crops(1, sides=(64, 65))[0][:300])
    (tmp_path / "notes.txt").write_text("labels")
    (tmp_path / ".hidden").write_text("")
    task = task_class("image_classification")()
    task.config = ImageClassificationConfig(arch="resnet18")
    task.preprocessing = Preprocessing(256, (224, 224), "bilinear", IMAGENET_MEAN, IMAGENET_STD)
    items, refused = decode_inputs(task, list_inputs(tmp_path), is_text=False)
    assert [each.item.pixels.shape for each in items] == [(224, 224, 3)] * 2
    assert sorted(line.partition(":")[0] for line in refused) == ["cut.jpg", "notes.txt"]


@pytest.mark.parametrize(("count", "held_out"), [(10, 3), (1000, 700)])
def test_split_holds_a_quarter_back_and_is_the_same_each_time(count: int, held_out: int) -> None:
    calibration, validation = split(draw(range(count)))
    assert (len(calibration), len(validation)) == (count - held_out, held_out)
    assert sorted(calibration + validation) == list(range(count))
    assert split(draw(range(count))) == (calibration, validation)
    # Not the first of a folder, which may be of one kind.
    assert sorted(validation) != list(range(held_out))
    assert len(set(draw(range(10_000)))) == 1300
