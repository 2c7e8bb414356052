import json
import random
import re
import shutil
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers

from handlers.archive_files import CHECKPOINT
from handlers.errors import InvalidConfig
from handlers.tasks.token_classification import TokenClassificationHandler
from tests.handlers.engines.test_engines import HAS_BF16
from tests.handlers.open_inference import columns, inquiry
from tests.handlers.serving import serve, started
from tests.tiny_models import LIMIT, TEXTS, staged

# The one has tokens that say whether they continue a word, the other leaves it to be guessed, with a warning.
KINDS = ("bert", "roberta")
AGGREGATIONS = ("none", "simple", "first", "average", "max")
LONG = "the river rose " * LIMIT

pytestmark = pytest.mark.filterwarnings("ignore:Tokenizer does not support real words:UserWarning")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: staged(tmp_path_factory.mktemp(kind), kind, "token_classification") for kind in KINDS}


def tagger(archive: Path, **settings: Any) -> TokenClassificationHandler:
    ready = started(TokenClassificationHandler(), archive, {"precision": "fp32", "threads": 1, **settings})
    assert isinstance(ready, TokenClassificationHandler)
    return ready


@pytest.fixture(scope="module")
def handler(archives: dict[str, Path]) -> TokenClassificationHandler:
    return tagger(archives["bert"])


@cache
def pipeline(archive: Path) -> Any:
    return transformers.pipeline("token-classification", model=str(archive / CHECKPOINT), dtype="float32", device="cpu")


def oracle(archive: Path, text: str, aggregation: str = "simple", **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pipeline(archive)(text, aggregation_strategy=aggregation, **options)
    return found


# The same for both engines.
plain_oracle = cache(oracle)


def assert_same(body: Any, expected: list[dict[str, Any]], tolerance: float = 1e-4) -> None:
    """The same entities at the same places, scores within the tolerance."""
    assert [{**entity, "score": None} for entity in body] == [{**entity, "score": None} for entity in expected]
    scores = [float(entity["score"]) for entity in expected]
    assert [entity["score"] for entity in body] == pytest.approx(scores, abs=tolerance)


@pytest.mark.parametrize("engine", ["openvino", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_every_aggregation_of_a_mixed_batch_equals_the_pipeline_text_by_text(
    archives: dict[str, Path], kind: str, engine: str
) -> None:
    pairs = [(text, aggregation) for aggregation in AGGREGATIONS for text in TEXTS]
    rows = [{"body": {"text": text, "aggregation": aggregation}} for text, aggregation in pairs]
    labels = set()
    for (text, aggregation), answer in zip(pairs, serve(tagger(archives[kind], engine=engine), rows), strict=True):
        assert answer.status == 200
        assert_same(answer.body, plain_oracle(archives[kind], text, aggregation))
        labels |= {entity.get("entity_group") for entity in answer.body}
    assert {"PER", "LOC", "MISC"} <= labels


@pytest.mark.skipif(not HAS_BF16, reason="the processor has no bf16")
@pytest.mark.parametrize("engine", ["openvino", "torch"])
def test_answers_in_bf16_label_as_the_pipeline_does_where_it_is_sure(archives: dict[str, Path], engine: str) -> None:
    ready = tagger(archives["bert"], engine=engine, precision="bf16", aggregation="none", ignore_labels=[])
    sure = 0
    for text, answer in zip(TEXTS, serve(ready, list(TEXTS)), strict=True):
        for got, wanted in zip(answer.body, oracle(archives["bert"], text, "none", ignore_labels=[]), strict=True):
            if wanted["score"] > 0.7:
                sure += 1
                assert (got["entity"], got["start"], got["end"]) == (wanted["entity"], wanted["start"], wanted["end"])
                assert got["score"] == pytest.approx(float(wanted["score"]), abs=0.1)
    assert sure > 100


def test_answers_places_are_characters_of_the_text_as_it_was_sent(handler: TokenClassificationHandler) -> None:
    text = "  👩‍👩‍👧 é e\u0301 Anna crossed the bridge."
    (answer,) = serve(handler, [{"body": {"text": text, "aggregation": "none"}}])
    assert answer.body
    for entity in answer.body:
        assert 0 <= entity["start"] < entity["end"] <= len(text)
    ascii_words = [entity for entity in answer.body if re.fullmatch(r"(##)?[a-z]+", entity["word"])]
    assert ascii_words
    for entity in ascii_words:
        letters = unicodedata.normalize("NFD", text[entity["start"] : entity["end"]]).lower()
        assert letters.replace("\u0301", "") == entity["word"].removeprefix("##")


def test_answers_ignore_labels_are_the_configurations(archives: dict[str, Path]) -> None:
    ready = tagger(archives["bert"], ignore_labels=["O", "PER", "B-LOC"], aggregation="none")
    for text, answer in zip(TEXTS, serve(ready, list(TEXTS)), strict=True):
        assert_same(answer.body, oracle(archives["bert"], text, "none", ignore_labels=["O", "PER", "B-LOC"]))


def test_answers_options_of_one_text_leave_the_others_and_the_forward_pass_alone(
    handler: TokenClassificationHandler,
) -> None:
    rows = [TEXTS[0], {"body": {"text": TEXTS[0], "aggregation": "none"}}, {"body": {"instances": [TEXTS[0]]}}]
    plain, none, listed = serve(handler, rows)
    assert {key for entity in plain.body for key in entity} == {"entity_group", "score", "word", "start", "end"}
    assert {key for entity in none.body for key in entity} == {"entity", "score", "index", "word", "start", "end"}
    assert listed.body == {"predictions": [plain.body]}
    assert all('batch;desc="3"' in answer.headers["Server-Timing"] for answer in (plain, none, listed))


def test_answers_tensors_hold_each_texts_entities_as_json(handler: TokenClassificationHandler) -> None:
    plain, none, answer = serve(
        handler,
        [
            TEXTS[0],
            {"body": {"text": TEXTS[0], "aggregation": "none"}},
            inquiry(text=[TEXTS[0]] * 2, aggregation=["simple", "none"]),
        ],
    )
    assert [json.loads(result) for result in columns(answer)["result"]] == [plain.body, none.body]


def test_answers_do_not_depend_on_the_order_of_a_batch(handler: TokenClassificationHandler) -> None:
    alone = [serve(handler, [text])[0] for text in TEXTS]
    order = list(range(len(TEXTS)))
    for seed in range(3):
        random.Random(seed).shuffle(order)
        for position, answer in enumerate(serve(handler, [TEXTS[index] for index in order])):
            assert_same(answer.body, alone[order[position]].body, tolerance=1e-5)


@pytest.mark.parametrize(
    ("row", "status", "type_", "words"),
    [
        (LONG, 413, "TextTooLong", r"text: \d+ tokens; max_length is 192\."),
        ("\u3000\n", 400, "EmptyInput", "text: empty"),
        (b"\xff", 400, "InvalidText", "not valid UTF-8 at byte 0"),
        ("a\0", 400, "InvalidText", "null character at position 1"),
        (
            {"body": {"text": "x", "aggregation": "canary"}},
            400,
            "UnknownOption",
            "'none', 'simple', 'first', 'average' or 'max'",
        ),
        ({"body": {"text": "x", "stride": 3}}, 400, "UnknownOption", "stride.*Known options: aggregation"),
    ],
)
def test_answers_bad_text_has_its_own_error_and_changes_nobody_elses(
    handler: TokenClassificationHandler, row: Any, status: int, type_: str, words: str
) -> None:
    good = serve(handler, list(TEXTS[:4]))
    answers = serve(handler, [*TEXTS[:2], row, *TEXTS[2:4]])
    assert (answers[2].status, answers[2].body["type"]) == (status, type_)
    assert re.search(words, answers[2].body["message"])
    for left, right in zip([*answers[:2], *answers[3:]], good, strict=True):
        assert_same(left.body, right.body, tolerance=1e-5)


def test_answers_and_log_hold_nobody_elses_text(
    handler: TokenClassificationHandler, caplog: pytest.LogCaptureFixture
) -> None:
    bad: list[Any] = ["qzqz " + LONG, b"\xff qzqz", "qzqz\0", {"body": {"text": "x", "aggregation": "qzqz"}}]
    rows = [row for pair in zip([f"qzqz {text} qzqz" for text in TEXTS], TEXTS, strict=True) for row in pair]
    answers = serve(handler, rows + bad)
    assert "qzqz" in json.dumps([answer.body for answer in answers[: len(rows) : 2]]).replace("##", "")
    assert "qz" not in json.dumps([answer.body for answer in [*answers[1 : len(rows) : 2], *answers[len(rows) :]]])
    assert "qz" not in caplog.text


def test_answers_truncation_keeps_the_entities_of_what_fits(archives: dict[str, Path]) -> None:
    (answer,) = serve(tagger(archives["bert"], truncation=True), [LONG])
    assert_same(answer.body, oracle(archives["bert"], LONG))


def test_initialize_without_a_fast_tokenizer_is_refused(archives: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(archives["bert"], tmp_path / "slow")
    folder = tmp_path / "slow" / CHECKPOINT
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text("{}")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": "CTRLTokenizer"}))
    (folder / "merges.txt").write_text("#version\n")
    with pytest.raises(InvalidConfig, match=r"tokenizer.json"):
        tagger(tmp_path / "slow")
