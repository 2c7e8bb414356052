"""Token classification answers as transformers' pipeline does of each text alone: entities with their places."""

import json
import re
import shutil
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers

from handlers.archive_files import CHECKPOINT
from handlers.errors import InvalidConfig
from handlers.tasks.token_classification import TokenClassificationHandler
from tests.handlers.open_inference import columns, inquiry
from tests.handlers.serving import serve, started
from tests.tiny_models import LIMIT, TEXTS

AGGREGATIONS = ("none", "simple", "first", "average", "max")
LONG = "the river rose " * LIMIT

pytestmark = pytest.mark.filterwarnings("ignore:Tokenizer does not support real words:UserWarning")


@pytest.fixture(scope="module")
def bert(tiny_archive: Callable[..., Path]) -> Path:
    return tiny_archive("bert", "token_classification")


def tagger(archive: Path, **settings: Any) -> TokenClassificationHandler:
    ready = started(TokenClassificationHandler(), archive, {"precision": "fp32", "threads": 1, **settings})
    assert isinstance(ready, TokenClassificationHandler)
    return ready


@pytest.fixture(scope="module")
def handler(bert: Path) -> TokenClassificationHandler:
    return tagger(bert)


@cache
def pipeline(archive: Path) -> Any:
    return transformers.pipeline("token-classification", model=str(archive / CHECKPOINT), dtype="float32", device="cpu")


def oracle(archive: Path, text: str, aggregation: str = "simple", **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pipeline(archive)(text, aggregation_strategy=aggregation, **options)
    return found


def assert_same(body: Any, expected: list[dict[str, Any]]) -> None:
    """The same entities at the same places, scores within what fp32 rounds."""
    assert [{**entity, "score": None} for entity in body] == [{**entity, "score": None} for entity in expected]
    scores = [float(entity["score"]) for entity in expected]
    assert [entity["score"] for entity in body] == pytest.approx(scores, abs=1e-4)


# The one has tokens that say whether they continue a word, the other leaves it to be guessed, with a warning.
@pytest.mark.parametrize(("kind", "engine"), [("bert", "openvino"), ("roberta", "openvino"), ("bert", "torch")])
def test_answers_every_aggregation_of_a_mixed_batch_equals_the_pipeline_text_by_text(
    tiny_archive: Callable[..., Path], kind: str, engine: str
) -> None:
    archive = tiny_archive(kind, "token_classification")
    texts = TEXTS if engine == "openvino" else TEXTS[:4]
    pairs = [(text, aggregation) for aggregation in AGGREGATIONS for text in texts]
    rows = [{"body": {"text": text, "aggregation": aggregation}} for text, aggregation in pairs]
    labels = set()
    for (text, aggregation), answer in zip(pairs, serve(tagger(archive, engine=engine), rows), strict=True):
        assert answer.status == 200
        assert_same(answer.body, oracle(archive, text, aggregation))
        labels |= {entity.get("entity_group") for entity in answer.body}
    assert {"PER", "LOC", "MISC"} <= labels


def test_answers_places_are_characters_of_the_text_as_it_was_sent(handler: TokenClassificationHandler) -> None:
    text = "  👩‍👩‍👧 é e\u0301 Anna crossed the bridge."
    (answer,) = serve(handler, [{"body": {"text": text, "aggregation": "none"}}])
    words = [entity for entity in answer.body if re.fullmatch(r"(##)?[a-z]+", entity["word"])]
    assert words
    for entity in words:
        letters = unicodedata.normalize("NFD", text[entity["start"] : entity["end"]]).lower()
        assert letters.replace("\u0301", "") == entity["word"].removeprefix("##")


def test_answers_ignore_labels_are_the_configurations(bert: Path) -> None:
    ignored = ["O", "PER", "B-LOC"]
    for text, answer in zip(
        TEXTS, serve(tagger(bert, ignore_labels=ignored, aggregation="none"), list(TEXTS)), strict=True
    ):
        assert_same(answer.body, oracle(bert, text, "none", ignore_labels=ignored))


def test_answers_of_one_text_in_every_form_share_a_forward_pass(handler: TokenClassificationHandler) -> None:
    by_token = {"body": {"text": TEXTS[0], "aggregation": "none"}}
    in_tensors = inquiry(text=[TEXTS[0]] * 2, aggregation=["simple", "none"])
    plain, none, listed, columned = serve(
        handler, [TEXTS[0], by_token, {"body": {"instances": [TEXTS[0]]}}, in_tensors]
    )
    assert {key for entity in plain.body for key in entity} == {"entity_group", "score", "word", "start", "end"}
    assert {key for entity in none.body for key in entity} == {"entity", "score", "index", "word", "start", "end"}
    assert listed.body == {"predictions": [plain.body]}
    assert [json.loads(result) for result in columns(columned)["result"]] == [plain.body, none.body]
    assert all('batch;desc="5"' in answer.headers["Server-Timing"] for answer in (plain, none, listed, columned))


def test_answers_truncation_keeps_the_entities_of_what_fits(bert: Path) -> None:
    (answer,) = serve(tagger(bert, truncation=True), [LONG])
    assert_same(answer.body, oracle(bert, LONG))


def test_initialize_without_a_fast_tokenizer_is_refused(bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path / "slow")
    folder = tmp_path / "slow" / CHECKPOINT
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text("{}")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": "CTRLTokenizer"}))
    (folder / "merges.txt").write_text("#version\n")
    with pytest.raises(InvalidConfig, match=r"tokenizer.json"):
        tagger(tmp_path / "slow")
