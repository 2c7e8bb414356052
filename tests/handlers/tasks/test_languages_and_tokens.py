"""Languages are identified with fastText's own labels and scores, and texts tokenised with the tokenizer's own ids."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import fasttext
import numpy as np
import pytest
import transformers
from huggingface_hub import TextClassificationOutputElement

from deploy.archives.sources import Source, WeightsUnavailable
from deploy.archives.tasks.language_id import stage
from deploy.models import model
from handlers.archive_files import CHECKPOINT
from handlers.errors import InvalidConfig
from handlers.tasks.language_id import LanguageIdHandler
from handlers.tasks.tokenization import TokenizationHandler
from tests import exports
from tests.handlers.serving import Bad, Temp, assert_own_answers, serve, started
from tests.handlers.tensor_models.models import columns, inquiry

SENTENCES = {
    "en": "The weather is nice today and we are going to the beach.",
    "fr": "Il fait beau aujourd'hui et nous allons à la plage.",
    **{"ko": "오늘은 날씨가 좋아서 해변에 갑니다.", "ru": "Сегодня хорошая погода, и мы идём на пляж."},
}


@pytest.fixture(scope="module")
def identifier(tmp_path_factory: Temp) -> LanguageIdHandler:
    exports.staged("language-id", folder := tmp_path_factory.mktemp("archive"))
    return started(LanguageIdHandler(), folder, {"max_request_items": 100})


BAD: list[Bad] = [
    (b"\xff\xfe", 400, "InvalidText", "UTF-8"),
    (b'{"text": "a", "k": 1}', 400, "InvalidOption", r"Known options: top_k, threshold, label_prefix\."),
    # fastText sets memory aside for all that are asked for.
    (b'{"text": "a", "top_k": 3000000000}', 400, "InvalidOption", "top_k"),
    (json.dumps({"instances": ["x"] * 10_000}).encode(), 413, "TooManyInstances", ""),
    (b"x" * 1_100_000, 413, "BodyTooLarge", ""),
]


# Of public bug reports.
ODD_TEXTS = (
    *("שלום עולם، مرحبا بالعالم \u202eabc\u202c", "👩‍👩‍👧‍👦 family 🏳️‍🌈", "\ufeffBonjour tout le monde", "a\x01b\x7fc"),
    *(unicodedata.normalize(form, "Ångström café 한국은행") for form in ("NFC", "NFD")),
    *("Bonjour\ttout\nle\r\nmonde", "Bonjour\u2028tout\u2029le monde\x0b\x0c\x85", "   hello   "),
    "Hello world </s> Das ist ein deutscher Satz und noch einer",
    "__label__de Hello my friend, how are you",
    *("ＡＢＣ　１２３", "a" + "\u0301" * 200, "a" * 1999, "\U0010ffff"),
)
ODD_JSON = {
    **dict.fromkeys((b'{"text": "a\\ud800b"}', b'{"text": "a\\u0000b"}', '{"text": "Déjà"}'.encode("latin-1")), 400),
    **dict.fromkeys(('{"text": "hi"}'.encode("utf-16"), b'{"a":' * 2000 + b"1" + b"}" * 2000, b'{"text":"a"} x'), 400),
    **{b'{"text": "a", "top_k": %s}' % each: 400 for each in (b"NaN", b"1e999", b"9" * 23)},
    **{b'{"text": ["a","b"]}': 400, b'"Bonjour tout le monde"': 200, b'\xef\xbb\xbf{"text": "Bonjour"}': 200},
    b'{"instances": ["Bonjour tout le monde", "", null, {"text": "Hello"}, {"txt": "a"}, 5]}': 200,
}


def test_odd_json_has_its_status_and_a_message(identifier: LanguageIdHandler) -> None:
    answers = serve(identifier, [*ODD_JSON], [{"body": {"content-type": "application/json"}}] * len(ODD_JSON))
    for answer, (document, status) in zip(answers, ODD_JSON.items(), strict=True):
        assert answer.status == status, document
        assert status == 200 or answer.body["message"]


def test_batch_names_each_language_with_fasttexts_own_score_and_bad_items_fail_alone(identifier: Any) -> None:
    oracle = fasttext.load_model(str(identifier.archive.model_dir / "model.ftz"))
    good: list[tuple[Any, Any]] = []
    for language, text in SENTENCES.items():
        score = pytest.approx(min(1.0, oracle.predict(text)[1][0]), abs=1e-6)
        # fastText ends a text at a line break.
        good += [(each.encode(), [{"label": language, "score": score}]) for each in (text, text.replace(" ", "\n"))]
    for text in ODD_TEXTS:
        ((label,), (score,)) = oracle.predict(" ".join(text.split()))
        wanted = [{"label": label.removeprefix("__label__"), "score": pytest.approx(min(1.0, score), abs=1e-6)}]
        good += [(each, wanted) for each in (text.encode(), {"body": {"text": text}})]
    assert_own_answers(identifier, good, BAD)
    (every,) = serve(identifier, [b'{"text": "a", "top_k": 10000}'])
    assert every.status == 200
    # As Hugging Face's client reads the labels of one text.
    (three,) = serve(identifier, [{"body": {"inputs": SENTENCES["fr"], "parameters": {"top_k": 3}}}])
    labels = TextClassificationOutputElement.parse_obj_as_list(three.body)[0]
    assert ([type(each) for each in labels], labels[0].label) == ([TextClassificationOutputElement] * 3, "fr")


def test_anything_but_a_fasttext_model_is_rejected(tmp_path: Path) -> None:
    fake, entry = tmp_path / "lid.bin", model("language-id")
    fake.write_bytes(b"not a model")
    with pytest.raises(InvalidConfig, match=r"not a whole fastText model"):
        stage(entry, Source("file", str(fake), ""), "auto", tmp_path)
    with pytest.raises(WeightsUnavailable, match="not a fastText model"):
        stage(entry, Source("file", str(tmp_path / "model.pt"), ""), "auto", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidConfig, match=r"lacks model\.ftz and model\.bin"):
        started(LanguageIdHandler(), tmp_path / "empty", {})


TEXTS = ["A short one.", "슈퍼 엔저 장기화에 일본 여행 수요가 늘고 있다.", "x", "What a goal! " * 9, "👩‍👩‍👧 goes 🏖️"]
LONG = "The central bank kept its interest rate. " * 60
BAD_TEXTS: list[Bad] = [
    (b"qzqz \xff", 400, "InvalidText", "UTF-8"),
    (LONG, 413, "TextTooLong", r"text: 482 tokens; max_length is 256\."),
    (b'{"text": "qzqz", "max_length": 257}', 400, "InvalidOption", "max_length: 257; at most 256"),
    (b'{"text": "qzqz", "padding": true}', 400, "InvalidOption", "padding"),
]


def listed(encodings: Any) -> dict[str, Any]:
    return {name: np.asarray(encodings[name]).tolist() for name in ("input_ids", "attention_mask")}


def test_texts_get_the_tokenizers_own_ids_padded_to_their_longest(tmp_path: Path) -> None:
    exports.staged("tokenizer", tmp_path)
    handler = started(TokenizationHandler(), tmp_path, {})
    oracle = transformers.AutoTokenizer.from_pretrained(handler.archive.model_dir / CHECKPOINT)
    assert_own_answers(handler, [(text, listed(oracle(text))) for text in TEXTS], BAD_TEXTS)
    rows = [inquiry(text=texts) for texts in (TEXTS[:1], TEXTS, ["x", " "])]
    instances, alone, together, mixed = serve(handler, [json.dumps({"instances": TEXTS}).encode(), *rows])
    assert instances.body["predictions"] == [listed(oracle(text)) for text in TEXTS]
    for answer, texts in ((alone, TEXTS[:1]), (together, TEXTS)):
        assert listed(columns(answer)) == listed(oracle(texts, padding=True))
        assert [output["datatype"] for output in answer.body["outputs"]] == ["INT64", "INT64"]
    assert columns(mixed)["input_ids"].tolist() == [[101, 1060, 102], [-1, -1, -1]]
    assert json.loads(columns(mixed)["error"][1])["type"] == "EmptyInput"
