"""Tokenization answers with the tokenizer's own ids, padded and cut as each item's options say."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from deploy.models import model
from handlers.archive_files import CHECKPOINT
from handlers.tasks.tokenization import TokenizationHandler
from tests.handlers.open_inference import columns, inquiry
from tests.handlers.serving import Bad, assert_own_answers, serve, started

ENTRY = model("tokenizer")
TEXTS = ["A short one.", "슈퍼 엔저 장기화에 일본 여행 수요가 늘고 있다.", "x", "What a goal! " * 9, "👩‍👩‍👧 goes 🏖️"]
LONG = "The central bank kept its interest rate. " * 60


@pytest.fixture(scope="module")
def staged(staged_example: Callable[[str], Path]) -> Path:
    return staged_example(ENTRY.name)


@pytest.fixture(scope="module")
def oracle(staged: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(staged / CHECKPOINT)


def tokenizer(staged: Path, **settings: Any) -> TokenizationHandler:
    ready = started(TokenizationHandler(), staged, settings)
    assert isinstance(ready, TokenizationHandler)
    return ready


@pytest.fixture(scope="module")
def handler(staged: Path) -> TokenizationHandler:
    return tokenizer(staged)


def listed(encodings: Any) -> dict[str, Any]:
    return {name: np.asarray(encodings[name]).tolist() for name in ("input_ids", "attention_mask")}


def test_texts_get_the_tokenizers_own_ids_and_tensors_are_padded_to_their_longest(
    handler: TokenizationHandler, oracle: Any
) -> None:
    rows = [*(text.encode() for text in TEXTS), json.dumps({"instances": TEXTS}).encode()]
    *each, instances, alone, together = serve(handler, [*rows, inquiry(text=TEXTS[:1]), inquiry(text=TEXTS)])
    assert [answer.body for answer in each] == [listed(oracle(text)) for text in TEXTS]
    assert instances.body["predictions"] == [answer.body for answer in each]
    for answer, texts in ((alone, TEXTS[:1]), (together, TEXTS)):
        assert columns(answer) == listed(oracle(texts, padding=True))
        assert [output["datatype"] for output in answer.body["outputs"]] == ["INT64", "INT64"]


BAD: list[Bad] = [
    (b"qzqz \xff", 400, "InvalidText", "UTF-8"),
    (LONG, 413, "TextTooLong", r"text: 482 tokens; max_length is 256\."),
    (b'{"text": "qzqz", "max_length": 257}', 400, "InvalidOption", "max_length: 257; at most 256"),
    (b'{"text": "qzqz", "padding": true}', 400, "InvalidOption", "padding"),
]


def test_bad_items_fail_alone_and_have_rows_of_nothing(handler: TokenizationHandler, oracle: Any) -> None:
    assert_own_answers(handler, [(text, listed(oracle(text))) for text in TEXTS], BAD)
    (mixed,) = serve(handler, [inquiry(text=["x", " "])])
    assert columns(mixed)["input_ids"] == [[101, 1060, 102], [-1, -1, -1]]
    assert json.loads(columns(mixed)["error"][1])["type"] == "EmptyInput"
