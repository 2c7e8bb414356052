"""Translation answers as transformers' greedy search, each text with its own languages, options, limits and errors."""

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from handlers.pipeline.micro_batches import Overhead
from handlers.protocol.requests import Payload
from handlers.tasks.translation import TranslationHandler
from handlers.text.translators import Original
from tests.handlers.batching.frontend import Frontend
from tests.handlers.batching.gated import SCHEDULING
from tests.handlers.serving import CANARY, Bad, assert_own_answers, serve
from tests.handlers.tasks.translating import CHECKPOINTS, TEXTS, Oracle, Translators, calls, encoded, translations

pytestmark = pytest.mark.builds


@pytest.fixture(scope="module")
def marian(start: Translators) -> TranslationHandler:
    return start("marian")


@pytest.fixture(scope="module")
def m2m100(start: Translators) -> TranslationHandler:
    return start("m2m100")


BEAMS: dict[str, Any] = {"num_beams": 3, "length_penalty": 2.0}
PENALTY: dict[str, Any] = {"repetition_penalty": 1.5}


def between(source: str | None, first: str, second: str, third: str | None) -> list[dict[str, Any]]:
    """Requests that differ in languages alone, or in options."""
    codes = [(source, first), (source, second), (third, first), (source, first)]
    named = [{"tgt_lang": target, **({"src_lang": code} if code else {})} for code, target in codes]
    return [{**languages, **options} for languages, options in zip(named, ({}, {}, PENALTY, BEAMS), strict=True)]


# The options of each family's requests.
REQUESTS: dict[str, list[dict[str, Any]]] = {
    "marian": [{}, PENALTY, BEAMS],
    "marian-multilingual": between(None, "fra", "deu", None),
    # CTranslate2 does not count the token that the decoder starts with, M2M100's own end, as said before.
    "m2m100": [{**each, "repetition_penalty": 1.0} for each in between("en", "fr", "de", "zu")],
    "nllb": between("eng_Latn", "fra_Latn", "zho_Hans", "zul_Latn"),
    "seamless": between("eng", "fra", "deu", "deu"),
    "seamless-v2": between("eng", "fra", "deu", "deu"),
    "t5": [{}, PENALTY, {"no_repeat_ngram_size": 3}],
    **{family: [{}] for family in ("bart", "mbart", "pegasus")},
}
# The token that makes a language the answer's.
TARGETS = {"m2m100": "__{}__", "nllb": "{}"}


def original(oracle: Oracle, family: str, text: str, tgt_lang: str | None = None, **arguments: Any) -> str:
    if family in TARGETS:
        token = TARGETS[family].format(tgt_lang)
        arguments["forced_bos_token_id"] = oracle.tokenizer.convert_tokens_to_ids(token)
    elif family == "marian-multilingual":
        text = f">>{tgt_lang}<< {text}"
    elif tgt_lang is not None:
        return oracle(text, tgt_lang=tgt_lang, **arguments)
    # CTranslate2 forbids a token before it makes probabilities of scores.
    return oracle(text, renormalize_logits=True, **arguments)


@pytest.mark.parametrize("family", CHECKPOINTS)
def test_translation_of_a_mixed_batch_equals_generate_text_by_text(
    start: Translators, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = start(family)
    # An archive whose search differs from the model's on the builder's texts refuses beams.
    requests = [asked for asked in REQUESTS[family] if not (handler.is_greedy_only and "num_beams" in asked)]
    assert handler.engine.description == ("torch cpu float32" if "seamless" in family else "ctranslate2 cpu fp32")
    monkeypatch.setattr(handler, "overhead", Overhead(items=1000))
    texts = random.Random(3).sample(TEXTS, 2 * len(requests))
    rows = [{"text": text, **asked} for text, asked in zip(texts, requests * 2, strict=True)]
    expected = [original(Oracle(handler), family, **row) for row in rows]
    sizes = calls(handler, monkeypatch)
    assert translations(handler, rows) == expected
    assert sizes == [2] * len(requests)
    assert len(set(expected)) > len(rows) // 2


def test_translation_prepared_by_two_threads_at_once_keeps_each_texts_own_language(
    m2m100: TranslationHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer has one language at a time; a thread that waits after setting it meets the other's."""
    items = [m2m100.decode(Payload("The sea is rough.", {"src_lang": code, "tgt_lang": "fr"})) for code in ("en", "zu")]
    expected = [m2m100.prepare([item])[0] for item in items]
    assert expected[0].ids != expected[1].ids  # type: ignore[union-attr]
    original = Original(m2m100.checkpoint_dir, trust_remote_code=False)
    tokenizer = original._tokenizer

    class Hesitant:
        """Sets a language and takes its time before using it."""

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(tokenizer, name, value)
            time.sleep(0.005)

        def __call__(self, *arguments: Any, **named: Any) -> Any:
            return tokenizer(*arguments, **named)

    monkeypatch.setattr(original, "_tokenizer", Hesitant())
    monkeypatch.setattr(m2m100, "model", original)
    with ThreadPoolExecutor(2) as pool:
        prepared = list(pool.map(lambda index: m2m100.prepare([items[index % 2]])[0], range(20)))
    assert prepared == [expected[index % 2] for index in range(20)]


BAD: list[Bad] = [
    (b"\xff qzqz", 400, "InvalidText", "text: not valid UTF-8 at byte 0."),
    *(
        (json.dumps({"text": "qzqz", **options}).encode(), code, kind, message)
        for options, code, kind, message in (
            ({"text": "qzqz " * 200}, 413, "TextTooLong", "max_length is 128."),
            ({"tgt_lang": "fr"}, 400, "InvalidOption", "tgt_lang: this model's languages are fixed."),
            ({"src_lang": "en"}, 400, "InvalidOption", "src_lang: this model's languages are fixed."),
            ({"other": 1}, 400, "InvalidOption", "Known options: src_lang, tgt_lang, min_score, split"),
            ({"num_beams": 9}, 400, "InvalidOption", "num_beams: 9; at most 8."),
            ({"num_beams": "qzqz"}, 400, "InvalidOption", "num_beams: Input should be a valid integer"),
            ({"max_new_tokens": 13}, 400, "InvalidOption", "max_new_tokens: 13; at most 12."),
        )
    ),
]


def test_translation_bad_items_fail_alone_and_show_nothing_of_their_text(
    marian: TranslationHandler, caplog: pytest.LogCaptureFixture
) -> None:
    oracle = Oracle(marian)
    assert_own_answers(marian, [(text, {"translation_text": original(oracle, "marian", text)}) for text in TEXTS], BAD)
    assert CANARY not in caplog.text


@pytest.mark.parametrize("family", ["marian", "seamless"])
def test_translation_that_takes_too_long_is_ended_and_answered_503(
    start: Translators, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = start(family)
    rows = encoded([{"text": text, **REQUESTS[family][0]} for text in TEXTS[:2]])
    sizes = calls(handler, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(handler.engine, "_longest_run_s", 0.0)
        assert {(answer.status, answer.body["type"]) for answer in serve(handler, rows)} == {(503, "BatchTimeout")}
    # Neither is tried again alone.
    assert sizes == [2]
    assert {answer.status for answer in serve(handler, rows)} == {200}


def test_translation_of_many_texts_is_held_to_what_they_may_generate(start: Translators) -> None:
    handler = start("marian", max_request_tokens=100)
    few, many = (
        serve(handler, [json.dumps({"instances": [{"text": "Nobody.", "max_new_tokens": 12}] * count})])[0]
        for count in (4, 10)
    )
    assert (few.status, many.status) == (200, 413)
    assert {prediction["error"]["type"] for prediction in many.body["predictions"]} == {"WorkTooLarge"}


@pytest.mark.parametrize(("family", "engine"), [("marian", "torch"), ("m2m100", "auto")])
def test_translation_of_a_text_that_ends_before_its_micro_batch_is_that_of_classic_mode(
    start: Translators, family: str, engine: str
) -> None:
    handler = start(family, engine, scheduling=SCHEDULING)
    assert ("torch" in handler.engine.description) == (engine == "torch")
    options = [REQUESTS[family][0], {**REQUESTS[family][0], **BEAMS}]
    bodies = encoded([{"text": text, **each} for each in options for text in TEXTS])
    with Frontend(handler) as frontend:
        answers = frontend.submit_together([(body, {}) for body in bodies])
        assert [each.result(60).body for each in answers] == [each.body for each in serve(start(family), bodies)]


def test_torch_reports_each_text_once_as_it_ends_with_its_translation(start: Translators) -> None:
    handler: Any = start("marian", "torch")
    items = handler.prepare([handler.decode(Payload(text, {"max_new_tokens": 12})) for text in TEXTS])
    reported: list[tuple[int, Any]] = []
    outputs = handler.forward_reporting(handler.collate(items), items, lambda *each: reported.append(each))
    found = {index: handler.split(output, [items[index]])[0] for index, output in reported}
    assert len(found) == len(reported) == len(items)
    assert [found[index] for index in range(len(items))] == handler.split(outputs, items)
