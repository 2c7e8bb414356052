"""Embeddings, classification and tokens: a text in any company is answered as transformers answers it alone."""

import re
import unicodedata
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from handlers.tasks.sentence_embedding import SentenceEmbeddingHandler
from handlers.tasks.text_classification import TextClassificationHandler
from handlers.tasks.token_classification import TokenClassificationHandler
from handlers.text.handler import TextHandler
from handlers.warm_up import measure_change
from tests.handlers.serving import CANARY, Bad, assert_own_answers, serve, started
from tests.oracle import assert_order
from tests.tiny_models import LIMIT, TEXTS

Archives = Callable[..., Path]
Handler = TextHandler[Any, Any]

HANDLERS: dict[str, type[Handler]] = {
    "sentence_embedding": SentenceEmbeddingHandler,
    "text_classification": TextClassificationHandler,
    "token_classification": TokenClassificationHandler,
}
# Model -> its task and kind, and what its files say that decides an answer.
MODELS: dict[str, dict[str, Any]] = {
    "mean": {"task": "sentence_embedding", "kind": "bert"},
    "first, normalized": {
        "task": "sentence_embedding",
        "kind": "distilbert",
        "files": {
            "modules.json": [
                {"type": "sentence_transformers.models.Transformer", "path": ""},
                {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
                {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"},
            ],
            "1_Pooling/config.json": {"pooling_mode_cls_token": True},
        },
    },
    "softmax": {"task": "text_classification", "kind": "bert", "labels": ("NEGATIVE", "NEUTRAL", "POSITIVE")},
    "sigmoid": {
        "task": "text_classification",
        "kind": "roberta",
        "labels": tuple("abcdef"),
        "problem_type": "multi_label_classification",
    },
    "one label": {"task": "text_classification", "kind": "bert", "labels": ("relevance",)},
    "regression": {
        "task": "text_classification",
        "kind": "distilbert",
        "labels": ("stars",),
        "problem_type": "regression",
    },
    # The one has tokens that say whether they continue a word, the other leaves it to be guessed, with a warning.
    "words": {"task": "token_classification", "kind": "bert"},
    "bytes": {"task": "token_classification", "kind": "roberta"},
}
LONG = "the river rose " * LIMIT

pytestmark = pytest.mark.filterwarnings("ignore:Tokenizer does not support real words:UserWarning")


def start(tiny_archive: Archives, name: str, engine: str = "torch", **settings: Any) -> Handler:
    settings = {"precision": "fp32", "threads": 1, "engine": engine, **settings}
    ready = started(HANDLERS[MODELS[name]["task"]](), tiny_archive(**MODELS[name], engine=engine), settings)
    assert isinstance(ready, TextHandler)
    return ready


@cache
def pipeline(task: str, checkpoint: str) -> Any:
    return transformers.pipeline(task, model=checkpoint, dtype="float32", device="cpu")


def expected(handler: Handler, name: str, text: str, **options: Any) -> Any:
    """The oracle: transformers in fp32 on this text alone."""
    checkpoint, task = str(handler.checkpoint_dir), MODELS[name]["task"]
    if task != "sentence_embedding":
        return pipeline(task.replace("_", "-"), checkpoint)(text, **options)
    states = np.array(pipeline("feature-extraction", checkpoint)(text)[0])
    return (states.mean(0) if name == "mean" else states[0] / np.linalg.norm(states[0])).tolist()


def close(value: Any, tolerance: float = 1e-4) -> Any:
    """The same but for the last digits of its scores: another engine or padding adds up in another order."""
    if isinstance(value, float | np.floating):
        return pytest.approx(float(value), abs=tolerance)
    if isinstance(value, list):
        return [close(each, tolerance) for each in value]
    return {key: close(each, tolerance) for key, each in value.items()} if isinstance(value, dict) else value


def of_text(text: Any, **options: Any) -> dict[str, Any]:
    return {"body": {"text": text, **options}}


BAD: list[Bad] = [
    ("qzqz " + "x" * 50_001, 413, "TextTooLong", "max_characters is 50000. Send truncation: true to cut it."),
    (of_text("qzqz", truncate_prompt_tokens=193), 400, "InvalidOption", "truncate_prompt_tokens: 193; at most 192"),
    (
        of_text("qzqz", truncate_prompt_tokens=2),
        400,
        "InvalidOption",
        "truncation: 2 tokens have no room for text",
    ),
    (of_text(""), 400, "EmptyInput", "text: empty"),
    (b"qzqz\xff", 400, "InvalidText", "not valid UTF-8 at byte 4"),
    ("a\0qzqz", 400, "InvalidText", "null character at position 1"),
    (of_text("\ud800 qzqz"), 400, "InvalidText", "lone surrogate at position 0"),
    (of_text("qzqz", size="qzqz"), 400, "InvalidOption", r"size: Unexpected.*Known options: "),
    (of_text(["qzqz"]), 400, "InvalidBody", "text: must be a string"),
    ({"body": {"query": "qzqz"}}, 400, "InvalidBody", '"text"'),
]
BAD_OPTIONS: dict[str, list[Bad]] = {
    "softmax": [
        (f"qzqz {LONG}", 413, "TextTooLong", r"text: \d+ tokens; max_length is 192\. Send truncation: true"),
        (" \n\t\u3000", 400, "EmptyInput", "text: empty"),
        (of_text("qzqz", top_k=0), 400, "InvalidOption", "top_k.*greater than or equal to 1"),
        (of_text("qzqz", top_k="qzqz"), 400, "InvalidOption", "top_k.*integer"),
    ],
    "words": [(of_text("qzqz", aggregation="qzqz"), 400, "InvalidOption", "'none', 'simple', 'first', 'average' or")],
}


ALL: dict[str, Any] = {"top_k": None}


@pytest.mark.parametrize(
    ("name", "settings", "options"),
    [
        pytest.param("mean", {"engine": "openvino"}, {}, marks=pytest.mark.builds),
        ("mean", {}, {}),
        ("mean", {"padding": "max_length", "max_batch_items": 3}, {}),
        pytest.param(
            "mean", {"engine": "openvino", "precision": "bf16"}, {}, marks=[pytest.mark.bf16, pytest.mark.builds]
        ),
        ("first, normalized", {}, {}),
        *((name, ALL, ALL) for name in ("softmax", "sigmoid", "one label", "regression")),
        pytest.param("softmax", {**ALL, "engine": "openvino"}, ALL, marks=pytest.mark.builds),
        ("one label", {"function_to_apply": "none"}, {"function_to_apply": "none", "top_k": 1}),
        pytest.param("words", {"engine": "openvino"}, {"aggregation_strategy": "simple"}, marks=pytest.mark.builds),
        ("words", {"ignore_labels": ["O", "PER"], "aggregation": "none"}, {"ignore_labels": ["O", "PER"]}),
    ],
)
def test_texts_in_any_company_are_answered_as_transformers_answers_each_and_errors_are_their_own(
    tiny_archive: Archives,
    name: str,
    settings: dict[str, Any],
    options: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler = start(tiny_archive, name, **settings)
    # bf16 rounds each factor by 2**-9; a state is about one.
    tolerance = 5e-2 if "precision" in settings else 1e-4
    good: list[tuple[Any, Any]] = [(text, expected(handler, name, text, **options)) for text in TEXTS]
    if options is ALL:
        for _, wanted in good:
            assert_order([each["score"] for each in wanted], tolerance)
        # Options are an item's own.
        good.append((of_text(TEXTS[0], top_k=1), expected(handler, name, TEXTS[0], top_k=1)))
    good.append(("qzqz the mayor", expected(handler, name, "qzqz the mayor", **options)))
    bad = BAD + BAD_OPTIONS.get(name, [])
    assert_own_answers(handler, good, bad, lambda found, wanted: found == close(wanted, tolerance))
    assert CANARY not in caplog.text


@pytest.mark.parametrize("name", ["words", "bytes"])
def test_every_aggregation_of_a_mixed_batch_equals_the_pipeline_text_by_text(tiny_archive: Archives, name: str) -> None:
    handler = start(tiny_archive, name)
    pairs = [(text, way) for way in ("none", "simple", "first", "average", "max") for text in TEXTS]
    labels = set()
    rows = [{"body": {"text": text, "aggregation": way}} for text, way in pairs]
    for (text, way), answer in zip(pairs, serve(handler, rows), strict=True):
        assert answer.body == close(expected(handler, name, text, aggregation_strategy=way))
        labels |= {entity.get("entity_group") for entity in answer.body}
    assert {"PER", "LOC", "MISC"} <= labels


# Options of a request, and transformers' own for the oracle.
CUTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"truncation": True}, {"max_length": LIMIT}),
    ({"truncate_prompt_tokens": 9}, {"max_length": 9}),
    ({"truncation": True, "truncate_prompt_tokens": -1, "truncation_side": "left"}, {"max_length": LIMIT}),
]


@pytest.mark.parametrize("name", ["mean", "softmax", "bytes"])
def test_long_text_is_cut_as_its_client_asks(tiny_archive: Archives, name: str) -> None:
    handler = start(tiny_archive, name)
    checkpoint, task = str(handler.checkpoint_dir), MODELS[name]["task"].replace("_", "-")
    # One more than its limit of characters: a client that allows cutting gets an answer, too.
    long = f"Anna Berg {LONG} mayor. " + "x" * (50_001 - len(LONG) - 18)
    rows = [of_text(long, **asked) for asked, _ in CUTS]
    for (asked, cut), answer in zip(CUTS, serve(handler, rows), strict=True):
        if name == "bytes" and "truncation_side" in asked:
            assert (answer.status, answer.body["type"]) == (413, "TextTooLong")  # places count from the start
            continue
        oracle = pipeline("feature-extraction" if name == "mean" else task, checkpoint)
        oracle.tokenizer.truncation_side = asked.get("truncation_side", "right")
        text = long[:50_000] if oracle.tokenizer.truncation_side == "right" else long[-50_000:]
        if name == "bytes":
            ids = oracle.tokenizer(text, truncation=True, return_offsets_mapping=True, **cut)
            wanted = oracle(text[: ids["offset_mapping"][-2][1]], aggregation_strategy="simple")
        elif name == "mean":
            wanted = np.array(oracle(text, tokenize_kwargs={"truncation": True, **cut})[0]).mean(0).tolist()
        else:
            wanted = oracle(text, truncation=True, **cut)
        oracle.tokenizer.truncation_side = "right"
        assert (answer.status, answer.body) == (200, close(wanted))


@pytest.mark.parametrize("name", ["words", "bytes"])
def test_entities_of_long_texts_are_those_of_the_pipeline_with_a_stride(tiny_archive: Archives, name: str) -> None:
    handler = start(tiny_archive, name, doc_stride=40)
    text = " ".join(TEXTS) * 2
    for way in ("simple", "first", "average", "max"):
        (answer,) = serve(handler, [of_text(text, aggregation=way)])
        wanted = pipeline("token-classification", str(handler.checkpoint_dir))(
            text, stride=40, aggregation_strategy=way
        )
        assert answer.body == close(wanted)
    alone, together = (serve(handler, rows)[0] for rows in ([of_text(text)], [of_text(text), *TEXTS, text]))
    assert together.body == close(alone.body, 1e-5)
    (tokens,) = serve(handler, [of_text(text, aggregation="none")])
    assert all(first["end"] <= then["start"] for first, then in pairwise(tokens.body))
    (refused,) = serve(start(tiny_archive, name, max_windows=2), [text])
    assert (refused.status, refused.body["message"][-33:]) == (413, "Send truncation: true to cut it.".rjust(33))


def test_bodies_of_hugging_faces_clients_are_answered_as_pipelines_answer(tiny_archive: Archives) -> None:
    asked = {"parameters": {"aggregation_strategy": "first", "truncate": True}, "options": {"wait_for_model": True}}
    handler = start(tiny_archive, "words")
    one, many = serve(handler, [{"body": {"inputs": TEXTS[0], **asked}}, {"body": {"inputs": [*TEXTS], **asked}}])
    wanted = [expected(handler, "words", text, aggregation_strategy="first") for text in TEXTS]
    assert (one.body, many.body) == (close(wanted[0]), close(wanted))
    bad = [{"inputs": ["x", ""]}, {"inputs": "x", "parameters": {"stride": 1}}, {"inputs": "x", "parameters": [1]}]
    answers = serve(handler, [{"body": body} for body in bad])
    for answer, words in zip(
        answers, ("inputs[1]: text: empty", "Options: stride: ", '"parameters" must be'), strict=True
    ):
        assert answer.status == 400
        assert answer.body.get("error", answer.body.get("message")).startswith(words)


def test_places_are_characters_of_the_text_as_it_was_sent(tiny_archive: Archives) -> None:
    text = "  👩‍👩‍👧 é e\u0301 Anna crossed the bridge."
    (answer,) = serve(start(tiny_archive, "words"), [of_text(text, aggregation="none")])
    words = [entity for entity in answer.body if re.fullmatch(r"(##)?[a-z]+", entity["word"])]
    assert words
    for entity in words:
        letters = unicodedata.normalize("NFD", text[entity["start"] : entity["end"]]).lower()
        assert letters.replace("\u0301", "") == entity["word"].removeprefix("##")


def test_change_of_a_precision_is_measured_beside_fp32(tiny_archive: Archives) -> None:
    # A build cannot compare the precisions of a GPU, so a worker on one logs this change.
    halved, exact = (start(tiny_archive, "mean", precision=each) for each in ("bf16", "fp32"))
    assert 1e-4 < measure_change(halved) < 0.05
    assert measure_change(exact) == 0
