"""Translation answers as transformers does, each text with its own languages, options, limits and errors."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from handlers.errors import InvalidOption
from handlers.pipeline.micro_batches import Overhead
from handlers.pipeline.task import decode
from handlers.protocol.requests import Payload
from handlers.tasks.translation import TranslationHandler
from handlers.text.translators import Original
from tests.handlers.batching.frontend import Frontend
from tests.handlers.batching.gated import SCHEDULING
from tests.handlers.serving import CANARY, Bad, Log, Patch, assert_own_answers, serve
from tests.handlers.tasks import translating
from tests.handlers.tasks.translating import TEXTS, Oracle, Translators, calls, encoded, translations
from tests.tables import table

pytestmark = pytest.mark.builds
BEAMS: dict[str, Any] = {"num_beams": 3, "length_penalty": 2.0}
PENALTY: dict[str, Any] = {"repetition_penalty": 1.5}


def between(source: str | None, first: str, second: str, third: str | None) -> list[dict[str, Any]]:
    codes = [(source, first), (source, second), (third, first), (source, first)]
    named = [{"tgt_lang": target, **({"src_lang": code} if code else {})} for code, target in codes]
    return [{**languages, **options} for languages, options in zip(named, ({}, {}, PENALTY, BEAMS), strict=True)]


REQUESTS: dict[str, list[dict[str, Any]]] = {
    "marian": [{}, PENALTY, BEAMS],
    "marian-multilingual": between(None, "fra", "deu", None),
    # CTranslate2 does not count the token that the decoder starts with, which is their end.
    "m2m100": [{**each, "repetition_penalty": 1.0} for each in between("en", "fr", "de", "zu")],
    "nllb": [{**each, "repetition_penalty": 1.0} for each in between("eng_Latn", "fra_Latn", "zho_Hans", "zul_Latn")],
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


@pytest.mark.parametrize("family", translating.CHECKPOINTS)
def test_translation_of_a_mixed_batch_equals_generate(start: Translators, family: str, monkeypatch: Patch) -> None:
    handler = start(family)
    # An archive whose search differs from the model's on the builder's texts rejects beams.
    requests = [asked for asked in REQUESTS[family] if not (handler.is_greedy_only and "num_beams" in asked)]
    assert handler.engine.description == ("torch cpu float32" if "seamless" in family else "ctranslate2 cpu fp32")
    monkeypatch.setattr(handler, "inputs", replace(handler.inputs, overhead=Overhead(items=1000)))
    texts = random.Random(3).sample(TEXTS, 2 * len(requests))
    rows = [{"text": text, **asked} for text, asked in zip(texts, requests * 2, strict=True)]
    expected = [original(Oracle(handler), family, **row) for row in rows]
    sizes = calls(handler, monkeypatch)
    assert (translations(handler, rows), sizes) == (expected, [2] * len(requests))
    assert len(set(expected)) > len(rows) // 2


@pytest.mark.parametrize("family", ["m2m100", "nllb", "bart", "marian", "t5"])
def test_options_that_count_an_end_at_the_start_are_rejected(start: Translators, family: str) -> None:
    handler = start(family)
    languages = REQUESTS[family][0] if family in TARGETS else {}
    for option in ({"repetition_penalty": 1.5}, {"repetition_penalty": 0.7}, {"no_repeat_ngram_size": 1}):
        payload = Payload("The sea is rough.", {**languages, **option})
        if family in ("marian", "t5"):
            decode(handler, payload)
            continue
        with pytest.raises(InvalidOption, match=r"begin with its end token, .* --engine torch"):
            decode(handler, payload)
    decode(handler, Payload("The sea is rough.", {**languages, "repetition_penalty": 1.0, "no_repeat_ngram_size": 3}))


def test_two_threads_keep_the_language_of_each_text(start: Translators, monkeypatch: Patch) -> None:
    """The tokenizer has one language at a time; a thread that waits after setting it meets the other's."""
    m2m100 = start("m2m100")
    items = [
        decode(m2m100, Payload("The sea is rough.", {"src_lang": code, "tgt_lang": "fr"})) for code in ("en", "zu")
    ]
    expected = [m2m100.prepare([item])[0] for item in items]
    assert expected[0].ids != expected[1].ids  # type: ignore[union-attr]
    original = Original(m2m100.archive.checkpoint_dir, trust_remote_code=False)
    tokenizer = original._tokenizer

    class Hesitant:
        """Sets a language and takes its time before using it."""

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(tokenizer, name, value)
            time.sleep(0.005)

        __call__ = staticmethod(tokenizer)

    monkeypatch.setattr(original, "_tokenizer", Hesitant())
    monkeypatch.setattr(m2m100, "model", original)
    with ThreadPoolExecutor(2) as pool:
        prepared = list(pool.map(lambda index: m2m100.prepare([items[index % 2]])[0], range(20)))
    assert prepared == [expected[index % 2] for index in range(20)]


BAD: list[Bad] = [
    (b"\xff qzqz", 400, "InvalidText", "text: not valid UTF-8 at byte 0."),
    ({"body": {"text": "qzqz " * 200}}, 413, "TextTooLong", "max_length is 128."),
    *(
        ({"body": {"text": "qzqz", **options}}, 400, "InvalidOption", message)
        for options, message in (
            ({"tgt_lang": "fr"}, "tgt_lang: this model's languages are fixed."),
            ({"src_lang": "en"}, "src_lang: this model's languages are fixed."),
            ({"other": 1}, "Known options: src_lang, tgt_lang, min_score, split"),
            ({"num_beams": 9}, "num_beams: 9; at most 8."),
            ({"num_beams": "qzqz"}, "num_beams: Input should be a valid integer"),
            ({"max_new_tokens": 13}, "max_new_tokens: 13; at most 12."),
        )
    ),
]


def test_translation_bad_items_fail_alone_and_show_nothing_of_their_text(start: Translators, caplog: Log) -> None:
    marian = start("marian")
    oracle = Oracle(marian)
    assert_own_answers(marian, [(text, {"translation_text": original(oracle, "marian", text)}) for text in TEXTS], BAD)
    assert CANARY not in caplog.text


def test_translation_that_takes_too_long_is_answered_503(start: Translators, monkeypatch: Patch) -> None:
    handler = start("seamless")
    rows = encoded([{"text": text, **REQUESTS["seamless"][0]} for text in TEXTS[:2]])
    sizes = calls(handler, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(handler.engine, "_longest_run_s", 0.0)
        assert {(answer.status, answer.body["type"]) for answer in serve(handler, rows)} == {(503, "BatchTimeout")}
    assert sizes == [2]
    assert {answer.status for answer in serve(handler, rows)} == {200}


def test_translation_of_many_texts_is_held_to_what_they_may_generate(start: Translators) -> None:
    handler, asked = start("marian", max_request_tokens=100), {"text": "Nobody.", "max_new_tokens": 12}
    few, many = serve(handler, encoded([{"instances": [asked] * count} for count in (4, 10)]))
    assert (few.status, many.status) == (200, 413)
    assert {prediction["error"]["type"] for prediction in many.body["predictions"]} == {"WorkTooLarge"}


@pytest.mark.parametrize(("family", "engine"), [("marian", "torch"), ("m2m100", "auto")])
def test_translation_that_ends_early_is_that_of_classic_mode(start: Translators, family: str, engine: str) -> None:
    handler = start(family, engine, scheduling=SCHEDULING)
    assert ("torch" in handler.engine.description) == (engine == "torch")
    options = [REQUESTS[family][0], {**REQUESTS[family][0], **BEAMS}]
    bodies = encoded([{"text": text, **each} for each in options for text in TEXTS])
    with Frontend(handler) as frontend:
        answers = frontend.send_together(*bodies)
        assert [each.body for each in answers] == [each.body for each in serve(start(family), bodies)]


def test_torch_reports_each_text_once_as_it_ends_with_its_translation(start: Translators) -> None:
    handler: Any = start("marian", "torch")
    items = handler.prepare([decode(handler, Payload(text, {"max_new_tokens": 12})) for text in TEXTS])
    reported: list[tuple[int, Any]] = []
    outputs = handler.forward_reporting(handler.collate(items), items, lambda *each: reported.append(each))
    found = [(index, handler.split(output, [items[index]])[0]) for index, output in reported]
    assert sorted(found, key=lambda each: each[0]) == [*enumerate(handler.split(outputs, items))]


# Languages that are identified, and texts that are translated sentence by sentence.
DETECTING: dict[str, Any] = {"tgt_lang": "de", "detector": translating.DETECTOR}
FRENCH = "Bonjour tout le monde, comment allez-vous ?"
ESPERANTO = "La vetero estas tre bela hodiaŭ kaj ni iros kune al la maro."
TEXT = "The sea is rough.  Nobody owns a car!\n\n- Dr. Marta reads.\n---\nWhy?\n"
SENTENCES = ["The sea is rough.", "Nobody owns a car!", "Dr. Marta reads.", "Why?"]
SPLIT = {"split": "sentences", "src_lang": "en"}


@pytest.fixture(scope="module")
def detecting(start: Translators) -> TranslationHandler:
    return start(**DETECTING, src_lang="en")


def ask(handler: TranslationHandler, *rows: Any, status: int = 200) -> list[Any]:
    answers = serve(handler, encoded(list(rows)))
    assert {answer.status for answer in answers} == {status}, answers
    return [answer.body for answer in answers]


def test_language_that_the_model_lacks_is_the_text_s_own_error(detecting: TranslationHandler) -> None:
    (error,) = ask(detecting, {"text": ESPERANTO}, status=400)
    assert error["type"] == "UnknownLanguage"
    assert error["message"].startswith("src_lang: eo, identified with a score of ")
    assert "is not a language of this model; known are af, am, ar" in error["message"] and "vetero" not in str(error)
    (mixed,) = ask(detecting, {"instances": [{"text": ESPERANTO}, {"text": FRENCH}]})
    failed, good = mixed["predictions"]
    assert (failed["error"], good["src_lang"]) == (error, "fr")


def test_language_is_said_in_the_code_of_the_model_and_rejected_where_nothing_says_it(start: Translators) -> None:
    handler = start("nllb", **{**DETECTING, "tgt_lang": "deu_Latn"}, src_lang="auto", min_score=0.5)
    assert ask(handler, {"text": FRENCH})[0]["src_lang"] == "fra_Latn"
    assert handler.sample().options["src_lang"] == min(handler.languages.sources)
    (uncertain,) = ask(handler, {"text": "hm"}, status=400)
    assert uncertain["type"] == "UnknownLanguage"
    assert uncertain["message"].endswith("min_score is 0.5. Set src_lang.")
    # Without a detector nothing is identified.
    handler = start(tgt_lang="de", src_lang="en")
    assert handler.sample().options == {"src_lang": "en", "split": "none", "tgt_lang": "de"}
    (auto,) = ask(handler, {"text": FRENCH, "src_lang": "auto"}, status=400)
    assert auto["message"].startswith("src_lang: auto needs a detector")
    assert ask(handler, {"text": FRENCH})[0].keys() == {"translation_text"}


def test_document_is_its_sentences_translated_and_joined(detecting: TranslationHandler, monkeypatch: Patch) -> None:
    *alone, other = ask(detecting, *({"text": text, **SPLIT} for text in (*SENTENCES, "Nobody.")))
    sizes = calls(detecting, monkeypatch)
    document, again = ask(detecting, {"text": TEXT, **SPLIT}, {"text": "Nobody.", "src_lang": "en"})
    one, two, three, four = (answer["translation_text"] for answer in alone)
    assert document == {"translation_text": f"{one}  {two}\n\n- {three}\n---\n{four}\n"}
    assert (len({one, two, three, four}), again) == (4, other)
    assert (sum(sizes), len(sizes) < 5) == (5, True)


LONG = "sea " * 300


@table(
    ({"src_lang": "xx"}, 400, "src_lang: not a language of this model; known are af"),
    ({"num_beams": 99}, 400, "num_beams: 99; at most 8."),
    ({"split": "words"}, 400, "Options: split: Input should be 'none' or 'sentences'."),
    ({"min_score": 2}, 400, "Options: min_score: "),
    ({"text": TEXT * 3000}, 413, "text: 201000 characters; max_characters is 50000."),
    ({"text": "\n"}, 400, "text: empty."),
    ({"text": "One. " * 300}, 413, "The request has 300 sentences or more; max_sentences is 256."),
    ({"text": f"The sea. {LONG}. Nobody."}, 413, "Sentence 2 of 3: text: 6"),
    *(({"text": LONG}, 413, "Sentence 1 of 1: text: 6"), ({"text": LONG, "split": "none"}, 413, "text: 6")),
    *(({"text": "One. Two. " * 40, "split": "none"}, 413, "text: "), ({"text": "One. Two. " * 40}, 200, "")),
)
def test_mistake_in_a_document_names_its_sentence(options: Any, status: int, message: str, detecting: Any) -> None:
    (answer,) = ask(detecting, {"text": TEXT, **SPLIT, **options}, status=status)
    assert answer.get("message", "").startswith(message)


def test_documents_of_a_request_share_its_budgets(detecting: TranslationHandler, start: Translators) -> None:
    few, many = ({"instances": [{"text": "One. " * count}] * 2, **SPLIT} for count in (20, 150))
    assert all("translation_text" in each for each in ask(detecting, few)[0]["predictions"])
    errors = [each["error"] for each in ask(detecting, many, status=413)[0]["predictions"]]
    assert [error["type"] for error in errors] == ["WorkTooLarge"] * 2
    assert errors[0]["message"] == "The request has 300 sentences or more; max_sentences is 256."
    handler = start(**DETECTING, src_lang="en", max_request_tokens=200)
    ask(handler, {"text": "One. Two.", **SPLIT}, {"text": "One. " * 30, "src_lang": "en", "split": "none"})
    (error,) = ask(handler, {"text": "One. " * 30, **SPLIT}, status=413)
    assert error["message"].startswith("The items of the request come to ")
