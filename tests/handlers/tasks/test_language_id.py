import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fasttext
import pytest

from deploy.language_id import stage
from deploy.models import model
from deploy.sources import Source, WeightsUnavailable
from handlers.errors import InvalidConfig
from handlers.tasks.language_id import LanguageIdHandler
from tests.handlers.open_inference import columns, inquiry
from tests.handlers.serving import serve, started

ENTRY = model("language-id")
# What lid.176 says of a sentence in each.
SENTENCES = {
    "en": "The weather is nice today and we are going to the beach.",
    "fr": "Il fait beau aujourd'hui et nous allons à la plage.",
    "de": "Das Wetter ist heute schön und wir gehen an den Strand.",
    "ko": "오늘은 날씨가 좋아서 해변에 갑니다.",
    "ja": "今日は天気がいいので海に行きます。",
    "ar": "الطقس جميل اليوم ونحن ذاهبون إلى الشاطئ.",
    "he": "מזג האוויר נעים היום ואנחנו הולכים לים.",
    "ru": "Сегодня хорошая погода, и мы идём на пляж.",
}


@pytest.fixture(scope="module")
def staged(staged_example: Callable[[str], Path]) -> Path:
    return staged_example(ENTRY.name)


@pytest.fixture(scope="module")
def handler(staged: Path) -> LanguageIdHandler:
    ready = started(LanguageIdHandler(), staged, {"max_instances": 100})
    assert isinstance(ready, LanguageIdHandler)
    return ready


def ask(handler: LanguageIdHandler, text: str, **options: Any) -> Any:
    (answer,) = serve(handler, [json.dumps({"text": text, **options}).encode()])
    assert answer.status == 200, answer
    return answer.body


def test_language_id_batch_names_each_language_with_fasttexts_own_score(
    handler: LanguageIdHandler, staged: Path
) -> None:
    oracle = fasttext.load_model(str(staged / "model.ftz"))
    answers = serve(handler, [text.encode() for text in SENTENCES.values()])
    for (language, text), answer in zip(SENTENCES.items(), answers, strict=True):
        ((label, score),) = (tuple(prediction.values()) for prediction in answer.body)
        assert label == language
        assert score == pytest.approx(min(1.0, oracle.predict(text)[1][0]), abs=1e-6)


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ({}, ["fr"]),
        ({"label_prefix": True}, ["__label__fr"]),
        ({"top_k": 500, "threshold": 0.9}, ["fr"]),
        ({"threshold": 1}, []),
    ],
)
def test_language_id_options_shape_the_answer(
    handler: LanguageIdHandler, options: dict[str, Any], labels: list[str]
) -> None:
    assert [p["label"] for p in ask(handler, "Il fait très beau, n'est-ce pas ?", **options)] == labels


def test_language_id_top_k_is_each_items_own(handler: LanguageIdHandler) -> None:
    instances = [{"text": SENTENCES["en"], "top_k": 3}, SENTENCES["de"], {"text": SENTENCES["fr"], "top_k": 2}]
    (answer,) = serve(handler, [json.dumps({"instances": instances}).encode()])
    assert [len(prediction) for prediction in answer.body["predictions"]] == [3, 1, 2]


def test_language_id_tensors_answer_labels_and_scores_padded_to_the_longest(handler: LanguageIdHandler) -> None:
    one, two = SENTENCES["ko"], SENTENCES["fr"]
    (answer,) = serve(handler, [inquiry(text=[one, two], top_k=[1, 3], threshold=[0.0, 0.0])])
    columned = columns(answer)
    expected = ask(handler, two, top_k=3)
    assert columned["label"] == [["ko", "", ""], [prediction["label"] for prediction in expected]]
    assert columned["score"][0][1:] == [None, None]
    assert columned["score"][1] == pytest.approx([prediction["score"] for prediction in expected], abs=1e-6)


def test_language_id_line_breaks_are_white_space(handler: LanguageIdHandler) -> None:
    text = SENTENCES["fr"]
    assert ask(handler, text.replace(" ", "\n")) == ask(handler, text)


def test_language_id_bad_items_fail_alone(handler: LanguageIdHandler) -> None:
    rows = [SENTENCES["ko"].encode(), b"\xff\xfe", b"  ", b"a\0b", b'{"text": "a", "k": 1}', SENTENCES["ru"].encode()]
    answers = serve(handler, rows)
    assert [answer.status for answer in answers] == [200, 400, 400, 400, 400, 200]
    assert [answer.body["type"] for answer in answers[1:5]] == [
        "InvalidText",
        "EmptyInput",
        "InvalidText",
        "UnknownOption",
    ]
    assert [answers[i].body[0]["label"] for i in (0, 5)] == ["ko", "ru"]
    assert "Known options: top_k, threshold, label_prefix." in answers[4].body["message"]


def test_language_id_more_labels_than_any_model_has_is_the_clients_mistake_alone(handler: LanguageIdHandler) -> None:
    rows = [{"text": SENTENCES["fr"], "top_k": top_k} for top_k in (1, 3_000_000_000, 10_000)]
    good, many, most = serve(handler, [json.dumps(row).encode() for row in rows])
    assert (good.status, many.status, most.status) == (200, 400, 200)
    assert many.body["type"] == "UnknownOption"
    assert most.body[0] == good.body[0]


@pytest.mark.parametrize(
    ("body", "type_"),
    [
        (json.dumps({"instances": ["x"] * 10_000}).encode(), "TooManyInstances"),
        (b"x" * 1_000_000, "TextTooLong"),
        (b"x" * 1_100_000, "BodyTooLarge"),
    ],
)
def test_language_id_too_much_is_413(handler: LanguageIdHandler, body: bytes, type_: str) -> None:
    (answer,) = serve(handler, [body])
    assert (answer.status, answer.body["type"]) == (413, type_)


def test_stage_anything_but_a_fasttext_model_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "lid.bin"
    fake.write_bytes(b"not a model")
    with pytest.raises(InvalidConfig, match=r"model\.bin: model\.bin has wrong file format"):
        stage(ENTRY, Source("file", str(fake), ""), "auto", tmp_path)
    with pytest.raises(WeightsUnavailable, match="no fastText model"):
        stage(ENTRY, Source("file", str(tmp_path / "model.pt"), ""), "auto", tmp_path)


def test_load_archive_without_a_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"lacks model\.ftz and model\.bin"):
        started(LanguageIdHandler(), tmp_path, {})
