import json
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers

from handlers.archive_files import CHECKPOINT
from handlers.errors import InvalidConfig
from handlers.tasks.text_classification import TextClassificationHandler
from tests.handlers.engines.test_engines import HAS_BF16
from tests.handlers.open_inference import columns, inquiry
from tests.handlers.serving import Answer, serve, started
from tests.tiny_models import LIMIT, TEXTS, staged

# Family, and what its configuration says that decides how logits become scores.
MODELS: dict[str, dict[str, Any]] = {
    "softmax": {"kind": "bert", "labels": ("NEGATIVE", "NEUTRAL", "POSITIVE")},
    "sigmoid": {"kind": "roberta", "labels": tuple("abcdef"), "problem_type": "multi_label_classification"},
    "one-label": {"kind": "bert", "labels": ("relevance",)},
    "regression": {"kind": "distilbert", "labels": ("stars",), "problem_type": "regression"},
}


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: staged(tmp_path_factory.mktemp(name), task="text_classification", **config)
        for name, config in MODELS.items()
    }


def classifier(archive: Path, **settings: Any) -> TextClassificationHandler:
    ready = started(TextClassificationHandler(), archive, {"precision": "fp32", "threads": 1, **settings})
    assert isinstance(ready, TextClassificationHandler)
    return ready


@pytest.fixture(scope="module")
def handler(archives: dict[str, Path]) -> TextClassificationHandler:
    return classifier(archives["softmax"])


@cache
def pipeline(archive: Path) -> Any:
    return transformers.pipeline("text-classification", model=str(archive / CHECKPOINT), dtype="float32", device="cpu")


def oracle(archive: Path, **options: Any) -> list[list[dict[str, Any]]]:
    """What transformers' pipeline says of TEXTS, one at a time."""
    return [pipeline(archive)(text, **options) for text in TEXTS]


def assert_same(answer: Answer, expected: list[dict[str, Any]], tolerance: float = 1e-4) -> None:
    assert answer.status == 200, answer.body
    assert [entry["label"] for entry in answer.body] == [entry["label"] for entry in expected]
    for got, wanted in zip(answer.body, expected, strict=True):
        assert set(got) == {"label", "score"}
        assert got["score"] == pytest.approx(wanted["score"], abs=tolerance)


@pytest.mark.parametrize("engine", ["openvino", "torch"])
@pytest.mark.parametrize("name", list(MODELS))
def test_answers_a_mixed_batch_equals_the_pipeline_text_by_text(
    archives: dict[str, Path], name: str, engine: str
) -> None:
    ready = classifier(archives[name], engine=engine, top_k=None)
    for answer, expected in zip(serve(ready, list(TEXTS)), oracle(archives[name], top_k=None), strict=True):
        assert_same(answer, expected)


@pytest.mark.skipif(not HAS_BF16, reason="the processor has no bf16")
@pytest.mark.parametrize("engine", ["openvino", "torch"])
def test_answers_in_bf16_are_the_pipelines_where_they_are_decided(archives: dict[str, Path], engine: str) -> None:
    ready = classifier(archives["softmax"], engine=engine, precision="bf16")
    decided = 0
    for answer, expected in zip(serve(ready, list(TEXTS)), oracle(archives["softmax"], top_k=None), strict=True):
        if expected[0]["score"] - expected[1]["score"] > 0.2:
            decided += 1
            assert_same(answer, expected[:1], tolerance=0.1)
    assert decided >= 6


def test_answers_do_not_depend_on_the_order_of_a_batch(handler: TextClassificationHandler) -> None:
    alone = [serve(handler, [text])[0] for text in TEXTS]
    order = list(range(len(TEXTS)))
    for seed in range(3):
        random.Random(seed).shuffle(order)
        for position, answer in enumerate(serve(handler, [TEXTS[index] for index in order])):
            assert_same(answer, alone[order[position]].body, tolerance=1e-5)


def test_answers_every_way_to_send_a_text_is_the_same(handler: TextClassificationHandler) -> None:
    text = TEXTS[3]
    rows: list[Any] = [
        text,
        text.encode(),
        bytearray(text.encode()),
        {"data": text.encode()},
        json.dumps({"text": text}).encode(),
        {"body": {"text": text}},
        {"data": text.encode(), "top_k": b"1"},
        {"body": {"instances": [text]}},
    ]
    bodies = [answer.body for answer in serve(handler, rows)]
    assert bodies[-1] == {"predictions": [bodies[0]]}
    assert all(body == bodies[0] for body in bodies[:-1])


@pytest.mark.parametrize(("top_k", "count"), [(None, 3), (1, 1), (2, 2), (99, 3)])
def test_answers_top_k_gives_that_many_labels_beside_others_of_one_forward_pass(
    handler: TextClassificationHandler, top_k: int | None, count: int
) -> None:
    plain, asked = serve(handler, [TEXTS[0], {"body": {"text": TEXTS[0], "top_k": top_k}}])
    assert len(plain.body) == 1
    assert len(asked.body) == count
    assert asked.body[0] == plain.body[0]
    assert 'batch;desc="2"' in asked.headers["Server-Timing"]


def test_answers_tensors_are_columns_of_labels_and_scores(handler: TextClassificationHandler) -> None:
    texts = list(TEXTS[:3])
    (answer,) = serve(handler, [inquiry(INPUT0=texts, top_k=[3, 3, 3])])
    columned = columns(answer)
    for text, labels, scores in zip(texts, columned["label"], columned["score"], strict=True):
        (alone,) = serve(handler, [{"body": {"text": text, "top_k": 3}}])
        assert labels == [entry["label"] for entry in alone.body]
        assert scores == pytest.approx([entry["score"] for entry in alone.body], abs=1e-4)


def test_answers_function_to_apply_of_the_configuration_comes_before_the_models_own(archives: dict[str, Path]) -> None:
    ready = classifier(archives["one-label"], function_to_apply="none")
    expected = oracle(archives["one-label"], function_to_apply="none", top_k=1)
    for answer, wanted in zip(serve(ready, list(TEXTS)), expected, strict=True):
        assert_same(answer, wanted)


LONG = "the river rose " * LIMIT


@pytest.mark.parametrize(
    ("row", "status", "type_", "words"),
    [
        (LONG, 413, "TextTooLong", r"text: \d+ tokens; max_length is 192\."),
        ("x" * 50_001, 413, "TextTooLong", "50001 characters; max_characters is 50000"),
        (" \n\t ", 400, "EmptyInput", "text: empty"),
        (b"", 400, "EmptyInput", "empty"),
        (b"caf\xe9 canary", 400, "InvalidText", "not valid UTF-8 at byte 3"),
        ("a\0canary", 400, "InvalidText", "null character at position 1"),
        ({"body": {"text": "\ud800 canary"}}, 400, "InvalidText", "lone surrogate at position 0"),
        ({"body": {"text": "canary", "canary": 1}}, 400, "UnknownOption", "Known options: top_k"),
        ({"body": {"text": "canary", "top_k": 0}}, 400, "UnknownOption", "top_k.*greater than or equal to 1"),
        ({"body": {"text": "canary", "top_k": "canary"}}, 400, "UnknownOption", "top_k.*integer"),
        ({"body": {"text": ["canary"]}}, 400, "UnknownShape", "text: must be a string"),
        ({"body": {"query": "canary"}}, 400, "UnknownShape", '"text"'),
    ],
)
def test_answers_bad_text_has_its_own_error_and_changes_nobody_elses(
    handler: TextClassificationHandler, row: Any, status: int, type_: str, words: str
) -> None:
    good = serve(handler, list(TEXTS[:4]))
    answers = serve(handler, [*TEXTS[:2], row, *TEXTS[2:4]])
    assert (answers[2].status, answers[2].body["type"]) == (status, type_)
    assert re.search(words, answers[2].body["message"])
    for left, right in zip([*answers[:2], *answers[3:]], good, strict=True):
        assert_same(left, right.body, tolerance=1e-5)


def test_answers_and_log_hold_nobodys_text(
    handler: TextClassificationHandler, caplog: pytest.LogCaptureFixture
) -> None:
    bad: list[Any] = [LONG + "canary", b"\xff canary", "canary\0", {"body": {"text": "canary", "top_k": "canary"}}]
    rows = [row for pair in zip(["canary " + text for text in TEXTS], TEXTS, strict=True) for row in pair] + bad
    answers = serve(handler, rows)
    assert "canary" not in json.dumps([answer.body for answer in answers])
    assert "canary" not in caplog.text


def test_answers_truncation_cuts_a_long_text_as_the_pipeline_does(archives: dict[str, Path]) -> None:
    ready = classifier(archives["softmax"], truncation=True, top_k=None)
    for answer, text in zip(serve(ready, [LONG, TEXTS[0]]), [LONG, TEXTS[0]], strict=True):
        assert_same(answer, pipeline(archives["softmax"])(text, top_k=None, truncation=True))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"top_k": 0}, "top_k"),
        ({"function_to_apply": "relu"}, "function_to_apply"),
        ({"max_length": 512}, "512 is more than the model's own 192"),
    ],
)
def test_initialize_wrong_settings_are_refused(archives: dict[str, Path], settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        classifier(archives["softmax"], **settings)
