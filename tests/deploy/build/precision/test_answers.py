"""How answers are compared: numbers that can be checked by hand, tiny models of each task, and the examples' inputs."""

from pathlib import Path

import numpy as np
import openvino
import pytest

from deploy.build.precision.answers import (
    ask,
    compared_maps,
    compared_ranks,
    exact_settings,
    is_comparable,
    proof,
)
from deploy.build.precision.inputs import decoded, listed, sample_payloads, some, split
from deploy.build.task_loading import loaded, task_class
from deploy.build.tasks import BUILT_IN
from deploy.models import model
from handlers.archive_files import GRAPH
from handlers.config import parse
from handlers.engines.openvino import OpenVinoEngine
from handlers.vision.config import ImageClassificationConfig
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


@pytest.mark.parametrize("handler", ["text_classification", "token_classification", "question_answering"])
def test_answers_of_the_same_graph_agree_and_of_a_broken_one_do_not(handler: str, tmp_path: Path) -> None:
    folder = tiny_models.staged(tmp_path, "bert", handler)
    config = parse(BUILT_IN[handler].settings_class(), {})
    task = loaded(handler, folder, exact_settings(handler, config))
    assert is_comparable(handler, task)
    items = task.prepare([task.decode(each) for each in sample_payloads(model(handler.replace("_", "-")))])
    assert 20 <= len(items) <= 40
    exact = ask(task, items, task.engine)
    same = proof(handler, exact, ask(task, items, OpenVinoEngine(folder / GRAPH, precision="fp32")), 0.99)
    assert (same.measure, same.agreement, same.holds) == ("labels", 1.0, True)
    assert (same.largest_change or 0) < 1e-4
    # Every token of a text is a sample, but for [CLS] and [SEP].
    counts = {"token_classification": sum(len(item.ids) - 2 for item in items)}
    assert same.samples == counts.get(handler, len(items))
    other = proof(handler, exact, ask(task, items, OpenVinoEngine(broken(folder), precision="fp32")), 0.99)
    assert other.agreement < 0.95
    assert not other.holds
    # What the time does not allow is left out, but for the first micro-batch.
    assert len(ask(task, items, task.engine, longest_s=0)) == 16


def test_maps_and_orders_of_pairs_are_compared_by_their_averages(tmp_path: Path) -> None:
    ours, theirs = np.array([[0, 0, 1], [1, 1, 2]]), np.array([[0, 1, 1], [1, 1, 2]])
    # Class 0 shares one of two pixels, class 1 three of four, class 2 its one.
    assert compared_maps([ours, ours], [theirs, theirs]) == pytest.approx(((1 / 2 + 3 / 4 + 1) / 3, 1 / 6, 2))
    assert compared_ranks([1.0, 2.0, 3.0], [10.0, 20.0, 30.0])[0] == pytest.approx(1)
    assert compared_ranks([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])[0] == pytest.approx(-1)
    assert compared_ranks([1.0, 2.0], [1.0, float("nan")]) == (0.0, 1.0, 2)
    folder = tiny_models.staged(tmp_path, "bert", "reranking", labels=("relevance",))
    config = parse(BUILT_IN["reranking"].settings_class(), {})
    task = loaded("reranking", folder, exact_settings("reranking", config))
    items = task.prepare([task.decode(each) for each in sample_payloads(model("reranking"))])
    exact = ask(task, items, task.engine)
    for graph, holds in ((folder / GRAPH, True), (broken(folder), False)):
        found = proof("reranking", exact, ask(task, items, OpenVinoEngine(graph, precision="fp32")), 0.99)
        assert (found.measure, found.samples, found.holds, found.is_refuted) == ("ranks", len(items), holds, not holds)


def test_images_are_twenty_crops_and_of_a_folder_what_is_none_is_left_out(tmp_path: Path) -> None:
    found = sample_payloads(model("mobilenet-v2"))
    assert len({bytes(each.value) for each in found if isinstance(each.value, bytes)}) == 20
    assert sample_payloads(model("mobilenet-v2")) == found
    for number, body in enumerate(crops(2, sides=(64, 65))):
        (tmp_path / f"{number}.jpg").write_bytes(body)
    (tmp_path / "cut.jpg").write_bytes(crops(1, sides=(64, 65))[0][:300])
    (tmp_path / "notes.txt").write_text("labels")
    (tmp_path / ".hidden").write_text("")
    task = task_class("image_classification")()
    task.config = ImageClassificationConfig(arch="resnet18")
    items, refused = decoded(task, listed(tmp_path), is_text=False)
    assert [item.pixels.shape for item in items] == [(224, 224, 3)] * 2
    assert sorted(line.partition(":")[0] for line in refused) == ["cut.jpg", "notes.txt"]


@pytest.mark.parametrize(("count", "held_out"), [(10, 3), (12, 3), (200, 50)])
def test_split_holds_a_quarter_back_and_is_the_same_each_time(count: int, held_out: int) -> None:
    calibration, validation = split(some(range(count)))
    assert (len(calibration), len(validation)) == (count - held_out, held_out)
    assert sorted(calibration + validation) == list(range(count))
    assert split(some(range(count))) == (calibration, validation)
    # Not the first of a folder, which may be of one kind.
    assert sorted(validation) != list(range(held_out))
    assert len(set(some(range(10_000)))) == 400
