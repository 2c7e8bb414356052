"""Languages that are identified, and texts that are translated sentence by sentence, in both modes."""

from typing import Any

import pytest

from handlers.tasks.translation import TranslationHandler
from tests.handlers.serving import Answer, serve
from tests.handlers.tasks.translating import DETECTOR, Translators, calls, encoded

pytestmark = pytest.mark.builds

SETTINGS: dict[str, Any] = {"tgt_lang": "de", "detector": DETECTOR}
FRENCH = "Bonjour tout le monde, comment allez-vous ?"
ESPERANTO = "La vetero estas tre bela hodiaŭ kaj ni iros kune al la maro."
TEXT = "The sea is rough.  Nobody owns a car!\n\n- Dr. Marta reads.\n---\nWhy?\n"
SENTENCES = ["The sea is rough.", "Nobody owns a car!", "Dr. Marta reads.", "Why?"]
SPLIT = {"split": "sentences", "src_lang": "en"}


@pytest.fixture(scope="module")
def detecting(start: Translators) -> TranslationHandler:
    return start(**SETTINGS, src_lang="en")


def body(answer: Answer, status: int = 200) -> Any:
    assert answer.status == status, answer
    return answer.body


def ask(handler: TranslationHandler, *rows: Any, status: int = 200) -> list[Any]:
    return [body(answer, status) for answer in serve(handler, encoded(list(rows)))]


# -- languages that are identified ------------------------------------------------------------------------------------


def test_language_that_the_model_lacks_is_the_text_s_own_error(detecting: TranslationHandler) -> None:
    (error,) = ask(detecting, {"text": ESPERANTO}, status=400)
    assert error["type"] == "UnknownLanguage"
    assert error["message"].startswith("src_lang: eo, identified with a score of ")
    assert "is not a language of this model; known are af, am, ar" in error["message"]
    assert "vetero" not in error["message"]
    (mixed,) = ask(detecting, {"instances": [{"text": ESPERANTO}, {"text": FRENCH}]})
    failed, good = mixed["predictions"]
    assert (failed["error"], good["src_lang"]) == (error, "fr")


def test_language_is_said_in_the_code_of_the_model_and_refused_where_nothing_says_it(start: Translators) -> None:
    handler = start("nllb", **{**SETTINGS, "tgt_lang": "deu_Latn"}, src_lang="auto", min_score=0.5)
    assert ask(handler, {"text": FRENCH})[0]["src_lang"] == "fra_Latn"
    (uncertain,) = ask(handler, {"text": "hm"}, status=400)
    assert uncertain["type"] == "UnknownLanguage"
    assert uncertain["message"].endswith("min_score is 0.5. Set src_lang.")


def test_without_a_detector_nothing_is_identified(start: Translators) -> None:
    handler = start(tgt_lang="de", src_lang="en")
    (auto,) = ask(handler, {"text": FRENCH, "src_lang": "auto"}, status=400)
    assert auto["message"].startswith("src_lang: auto needs a detector")
    assert ask(handler, {"text": FRENCH})[0].keys() == {"translation_text"}


# -- sentence by sentence ---------------------------------------------------------------------------------------------


def test_document_is_its_sentences_translated_and_joined_as_it_was(
    detecting: TranslationHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    *alone, other = ask(detecting, *({"text": text, **SPLIT} for text in (*SENTENCES, "Nobody.")))
    sizes = calls(detecting, monkeypatch)
    document, again = ask(detecting, {"text": TEXT, **SPLIT}, {"text": "Nobody.", "src_lang": "en"})
    one, two, three, four = (answer["translation_text"] for answer in alone)
    assert document == {"translation_text": f"{one}  {two}\n\n- {three}\n---\n{four}\n"}
    assert len({one, two, three, four}) == 4
    # It shares micro-batches with other texts.
    assert again == other
    assert (sum(sizes), len(sizes) < 5) == (5, True)


LONG = "sea " * 300


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ({"src_lang": "xx"}, 400, "src_lang: not a language of this model; known are af"),
        ({"num_beams": 99}, 400, "num_beams: 99; at most 8."),
        ({"split": "words"}, 400, "Options: split: Input should be 'none' or 'sentences'."),
        ({"min_score": 2}, 400, "Options: min_score: "),
        ({"text": TEXT * 3000}, 413, "text: 201000 characters; max_characters is 50000."),
        ({"text": "\n"}, 400, "text: empty."),
        ({"text": "One. " * 300}, 413, "The request has 300 sentences or more; max_sentences is 256."),
        ({"text": f"The sea. {LONG}. Nobody."}, 413, "Sentence 2 of 3: text: 6"),
        ({"text": LONG}, 413, "Sentence 1 of 1: text: 6"),
        ({"text": LONG, "split": "none"}, 413, "text: 6"),
        ({"text": "One. Two. " * 40, "split": "none"}, 413, "text: "),
        ({"text": "One. Two. " * 40}, 200, ""),
    ],
)
def test_mistake_in_a_document_is_the_text_s_and_where_it_is_a_sentence_s_says_which(
    detecting: TranslationHandler, options: dict[str, Any], status: int, message: str
) -> None:
    (answer,) = ask(detecting, {"text": TEXT, **SPLIT, **options}, status=status)
    assert answer.get("message", "").startswith(message)


def test_documents_of_a_request_share_its_budgets(detecting: TranslationHandler, start: Translators) -> None:
    few, many = ({"instances": [{"text": "One. " * count}] * 2, **SPLIT} for count in (20, 150))
    assert all("translation_text" in each for each in ask(detecting, few)[0]["predictions"])
    errors = [each["error"] for each in ask(detecting, many, status=413)[0]["predictions"]]
    assert [error["type"] for error in errors] == ["WorkTooLarge"] * 2
    assert errors[0]["message"] == "The request has 300 sentences or more; max_sentences is 256."
    # So do tokens.
    handler = start(**SETTINGS, src_lang="en", max_request_tokens=200)
    ask(handler, {"text": "One. Two.", **SPLIT}, {"text": "One. " * 30, "src_lang": "en", "split": "none"})
    (error,) = ask(handler, {"text": "One. " * 30, **SPLIT}, status=413)
    assert error["message"].startswith("The items of the request come to ")
