"""What is compared, by numbers that can be checked by hand; and on tiny models of every task, beside a broken graph."""

from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest

from deploy.loaded import loaded
from deploy.models import model
from deploy.precision import samples
from deploy.precision.answers import (
    Span,
    ask,
    compared_rows,
    compared_spans,
    compared_vectors,
    exact_settings,
    is_comparable,
    proof,
)
from deploy.tasks import BUILT_IN
from handlers.archive_files import GRAPH
from handlers.config import parse
from handlers.engines.openvino import OpenVinoEngine
from tests import tiny_models

NAN = float("nan")


def near(*values: float) -> Any:
    return pytest.approx(values)


def test_rows_agree_where_their_likeliest_class_does() -> None:
    exact = [np.array([[0.6, 0.4]]), np.array([[0.5, 0.3], [0.1, 0.9]])]
    others = [np.array([[0.4, 0.6]]), np.array([[0.5, 0.2], [0.2, 0.8]])]
    assert compared_rows(exact, others) == near(2 / 3, 0.2, 3)
    # The first class would be the likeliest of no numbers.
    assert compared_rows([np.array([[0.6, 0.4]])], [np.array([[NAN, NAN]])]) == (0.0, 1.0, 1)


def test_spans_agree_at_the_same_place() -> None:
    exact = [Span(0, 4, 0.9), Span(3, 5, 0.5), Span(3, 5, 0.5)]
    others = [Span(0, 4, 0.8), Span(3, 6, 0.45), Span(-1, -1, NAN)]
    assert compared_spans(exact, others) == near(1 / 3, 1, 3)
    assert compared_spans(exact[:2], others[:2]) == near(1 / 2, 0.1, 2)


def test_vectors_are_compared_by_their_cosine() -> None:
    exact = [np.array([1.0, 0.0]), np.array([3.0, 4.0])]
    assert compared_vectors(exact, [np.array([2.0, 0.0]), np.array([4.0, 3.0])]) == near(49 / 50, 1 / 25, 2)
    assert compared_vectors(exact, [np.array([NAN, 0.0]), np.array([0.0, 0.0])]) == (0.0, 1.0, 2)


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


MEASURES = {
    "text_classification": "labels",
    "token_classification": "labels",
    "question_answering": "labels",
    "sentence_embedding": "cosine",
}


@pytest.mark.parametrize("handler", MEASURES)
def test_answers_of_the_same_graph_agree_and_of_a_broken_one_do_not(handler: str, tmp_path: Path) -> None:
    folder = tiny_models.staged(tmp_path, "bert", handler)
    config = parse(BUILT_IN[handler].settings_class(), {})
    task = loaded(handler, folder, exact_settings(handler, config))
    assert is_comparable(handler, task)
    items = task.prepare([task.decode(each) for each in samples.payloads(model(handler.replace("_", "-")))])
    exact = ask(task, items, task.engine)
    same = proof(handler, exact, ask(task, items, OpenVinoEngine(folder / GRAPH, precision="fp32")), 0.99)
    assert (same.measure, same.agreement, same.holds) == (MEASURES[handler], 1.0, True)
    assert same.largest_change is not None
    assert same.largest_change < 1e-4
    # Every token of a text is a sample, but for [CLS] and [SEP].
    counts = {"token_classification": sum(len(item.ids) - 2 for item in items)}
    assert same.samples == counts.get(handler, len(items))
    other = proof(handler, exact, ask(task, items, OpenVinoEngine(broken(folder), precision="fp32")), 0.99)
    assert other.agreement < 0.95
    assert not other.holds


@pytest.mark.parametrize(
    ("settings", "labels", "is_taken"),
    [
        ({"function_to_apply": "none"}, ("ONE",), False),
        ({}, ("ONE",), True),
        ({"function_to_apply": "none"}, ("A", "B"), True),
    ],
)
def test_numbers_that_are_no_labels_are_not_compared(
    settings: dict[str, Any], labels: tuple[str, ...], is_taken: bool, tmp_path: Path
) -> None:
    folder = tiny_models.staged(tmp_path, "distilbert", "text_classification", labels=labels)
    config = parse(BUILT_IN["text_classification"].settings_class(), settings)
    assert is_comparable("text_classification", loaded("text_classification", folder, config)) is is_taken


def test_answers_end_with_the_micro_batch_in_which_the_time_does(tmp_path: Path) -> None:
    folder = tiny_models.staged(tmp_path, "distilbert", "sentence_embedding")
    task = loaded("sentence_embedding", folder, parse(BUILT_IN["sentence_embedding"].settings_class(), {}))
    items = task.prepare([task.decode(each) for each in samples.payloads(model("embedding"))]) * 2
    assert len(ask(task, items, task.engine, longest_s=0)) == 16
    assert len(ask(task, items, task.engine)) == len(items) > 16
