"""Language identification answers with fastText's own labels and scores."""

import json
from collections.abc import Callable
from pathlib import Path

import fasttext
import pytest

from deploy.archives.sources import Source, WeightsUnavailable
from deploy.archives.stagers.language_id import stage
from deploy.models import model
from handlers.errors import InvalidConfig
from handlers.tasks.language_id import LanguageIdHandler
from tests.handlers.open_inference import columns, inquiry
from tests.handlers.serving import Bad, assert_own_answers, serve, started

ENTRY = model("language-id")
# The labels of lid.176 for a sentence in each language.
SENTENCES = {
    "en": "The weather is nice today and we are going to the beach.",
    "fr": "Il fait beau aujourd'hui et nous allons à la plage.",
    "ko": "오늘은 날씨가 좋아서 해변에 갑니다.",
    "ru": "Сегодня хорошая погода, и мы идём на пляж.",
}


@pytest.fixture(scope="module")
def staged(staged_example: Callable[[str], Path]) -> Path:
    return staged_example(ENTRY.name)


@pytest.fixture(scope="module")
def handler(staged: Path) -> LanguageIdHandler:
    ready = started(LanguageIdHandler(), staged, {"max_request_items": 100})
    assert isinstance(ready, LanguageIdHandler)
    return ready


BAD: list[Bad] = [
    (b"\xff\xfe", 400, "InvalidText", "UTF-8"),
    (b'{"text": "a", "k": 1}', 400, "InvalidOption", r"Known options: top_k, threshold, label_prefix\."),
    # fastText sets memory aside for all that are asked for.
    (b'{"text": "a", "top_k": 3000000000}', 400, "InvalidOption", "top_k"),
    (json.dumps({"instances": ["x"] * 10_000}).encode(), 413, "TooManyInstances", ""),
    (b"x" * 1_100_000, 413, "BodyTooLarge", ""),
]


def test_batch_names_each_language_with_fasttexts_own_score_and_bad_items_fail_alone(
    handler: LanguageIdHandler, staged: Path
) -> None:
    oracle = fasttext.load_model(str(staged / "model.ftz"))
    good = []
    for language, text in SENTENCES.items():
        score = pytest.approx(min(1.0, oracle.predict(text)[1][0]), abs=1e-6)
        # fastText ends a text at a line break.
        good += [(each.encode(), [{"label": language, "score": score}]) for each in (text, text.replace(" ", "\n"))]
    assert_own_answers(handler, good, BAD)
    (every,) = serve(handler, [b'{"text": "a", "top_k": 10000}'])
    assert every.status == 200


def test_top_k_is_each_items_own_and_tensors_are_padded_to_the_longest(handler: LanguageIdHandler) -> None:
    one, two = SENTENCES["ko"], SENTENCES["fr"]
    instances = [{"text": two, "top_k": 3}, one]
    listed, tensors = serve(
        handler,
        [json.dumps({"instances": instances}).encode(), inquiry(text=[one, two], top_k=[1, 3], threshold=[0.0, 0.0])],
    )
    french, korean = listed.body["predictions"]
    assert (len(french), len(korean)) == (3, 1)
    columned = columns(tensors)
    assert columned["label"] == [["ko", "", ""], [prediction["label"] for prediction in french]]
    assert columned["score"][0][1:] == [None, None]
    assert columned["score"][1] == pytest.approx([prediction["score"] for prediction in french], abs=1e-6)


def test_anything_but_a_fasttext_model_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "lid.bin"
    fake.write_bytes(b"not a model")
    with pytest.raises(InvalidConfig, match=r"not a whole fastText model"):
        stage(ENTRY, Source("file", str(fake), ""), "auto", tmp_path)
    with pytest.raises(WeightsUnavailable, match="not a fastText model"):
        stage(ENTRY, Source("file", str(tmp_path / "model.pt"), ""), "auto", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidConfig, match=r"lacks model\.ftz and model\.bin"):
        started(LanguageIdHandler(), tmp_path / "empty", {})
