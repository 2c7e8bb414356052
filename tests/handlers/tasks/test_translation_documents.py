"""Languages that are identified, and texts that are translated sentence by sentence, in both modes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy import translation
from deploy.models import model
from deploy.sources import source
from handlers.errors import InvalidConfig
from handlers.tasks.translation import TranslationHandler
from tests import tiny_seq2seq
from tests.handlers.adaptive.frontend import Frontend
from tests.handlers.adaptive.gated import SCHEDULING
from tests.handlers.adaptive.spelling import events
from tests.handlers.open_inference import columns, inquiry
from tests.handlers.serving import Answer, context, serve, started
from tests.handlers.tasks import translating
from tests.handlers.tasks.translating import DETECTOR, calls, encoded, staged, translations

SETTINGS = {**translating.SETTINGS, "tgt_lang": "de", "detector": DETECTOR}
FRENCH, GERMAN = "Bonjour tout le monde, comment allez-vous ?", "Das ist gut, und morgen wird es besser."
ESPERANTO = "La vetero estas tre bela hodiaŭ kaj ni iros kune al la maro."
TEXT = "The sea is rough.  Nobody owns a car!\n\n- Dr. Marta reads.\n---\nWhy?\n"
SENTENCES = ["The sea is rough.", "Nobody owns a car!", "Dr. Marta reads.", "Why?"]

Starter = Callable[..., TranslationHandler]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Starter:
    def start(family: str = "m2m100", **settings: Any) -> TranslationHandler:
        make: Callable[[Path], Path] = getattr(tiny_seq2seq, family)
        checkpoint = make(tmp_path_factory.mktemp(family))
        archive = staged(family, checkpoint, tmp_path_factory.mktemp("s"), settings)
        handler = started(TranslationHandler(), archive, settings)
        assert isinstance(handler, TranslationHandler)
        return handler

    return start


@pytest.fixture(scope="module")
def detecting(start: Starter) -> TranslationHandler:
    return start(**SETTINGS, src_lang="en")


def adaptive(classic: TranslationHandler, **settings: Any) -> TranslationHandler:
    """The same archive in the other mode."""
    handler = TranslationHandler()
    settings = {**SETTINGS, "src_lang": "en", "scheduling": SCHEDULING, **settings}
    handler.worker_context = context(classic.model_dir, settings, batch_size=64)
    handler.worker_context.model_yaml_config["continuousBatching"] = True
    handler.initialize(handler.worker_context)
    return handler


Ask = Callable[[list[Any]], list[Answer]]


@pytest.fixture(scope="module", params=["classic", "adaptive"])
def ask(request: pytest.FixtureRequest, detecting: TranslationHandler) -> Iterator[Ask]:
    """Sends bodies to the same archive in either mode, all at once."""
    if request.param == "classic":
        yield lambda rows: serve(detecting, encoded(rows))
        return
    with Frontend(adaptive(detecting), window=32) as frontend:

        def ask(rows: list[Any]) -> list[Answer]:
            pending = frontend.submit_together([(body, {}) for body in encoded(rows)])
            return [each.result(60) for each in pending]

        yield ask


def body(answer: Answer, status: int = 200) -> Any:
    assert answer.status == status, answer
    return answer.body


def only(ask: Ask, row: Any) -> Any:
    (answer,) = ask([row])
    return body(answer)


# -- languages that are identified ------------------------------------------------------------------------------------


def test_identified_language_is_translated_as_if_it_were_named_and_said(
    ask: Ask, detecting: TranslationHandler
) -> None:
    rows = [{"text": FRENCH}, {"text": GERMAN, "src_lang": "auto"}, {"text": FRENCH, "src_lang": "fr"}]
    french, german, named = map(body, ask(rows))
    assert (french["src_lang"], german["src_lang"]) == ("fr", "de")
    assert 0.8 < french["src_lang_score"] <= 1 and 0.8 < german["src_lang_score"] <= 1
    assert named == {"translation_text": french["translation_text"]}
    assert translations(detecting, [{"text": FRENCH, "src_lang": "en"}]) != [french["translation_text"]]


def test_texts_of_one_language_share_a_micro_batch_however_it_is_known(
    detecting: TranslationHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"text": FRENCH},
        {"text": FRENCH, "src_lang": "auto", "min_score": 0.1},
        {"text": FRENCH, "src_lang": "fr", "split": "none"},
    ]
    sizes = calls(detecting, monkeypatch)
    assert [answer.status for answer in serve(detecting, encoded(rows))] == [200] * 3
    assert sizes == [3]


def test_uncertain_language_is_the_configured_one(ask: Ask) -> None:
    certain, uncertain, never = map(body, ask([{"text": FRENCH}, {"text": "hm"}, {"text": FRENCH, "min_score": 1.0}]))
    assert uncertain["src_lang"] == never["src_lang"] == "en"
    assert uncertain["src_lang_score"] < 0.4 < never["src_lang_score"] == certain["src_lang_score"]


def test_language_that_the_model_lacks_is_the_text_s_own_error(ask: Ask) -> None:
    alone, mixed = ask([{"text": ESPERANTO}, {"instances": [{"text": ESPERANTO}, {"text": FRENCH}]}])
    error = body(alone, 400)
    assert error["type"] == "UnknownLanguage"
    assert error["message"].startswith("src_lang: the text is in eo, with a score of ")
    assert "which this model does not have; known are af, am, ar" in error["message"]
    assert "vetero" not in error["message"]
    failed, good = body(mixed)["predictions"]
    assert (failed["error"], good["src_lang"]) == (error, "fr")


def test_raw_text_is_identified(ask: Ask) -> None:
    assert only(ask, GERMAN)["src_lang"] == "de"


def test_uncertain_language_without_a_configured_one_is_refused(start: Starter) -> None:
    handler = start(**SETTINGS, src_lang="auto", min_score=0.5)
    uncertain, certain = serve(handler, encoded([{"text": "hm"}, {"text": FRENCH}]))
    assert body(uncertain, 400)["type"] == "UnknownLanguage"
    assert body(uncertain, 400)["message"].endswith("min_score is 0.5. Name it.")
    assert body(certain)["src_lang"] == "fr"


@pytest.mark.parametrize(
    ("family", "target", "code"),
    [("nllb", "deu_Latn", "fra_Latn"), ("seamless", "deu", "fra")],
    ids=["nllb", "seamless"],
)
def test_language_is_said_in_the_code_of_the_model(start: Starter, family: str, target: str, code: str) -> None:
    handler = start(family, **{**SETTINGS, "tgt_lang": target})
    (answer,) = serve(handler, encoded([{"text": FRENCH}]))
    assert body(answer)["src_lang"] == code


def test_identified_languages_are_tensors_too(detecting: TranslationHandler) -> None:
    (answer,) = serve(detecting, [inquiry(text=[FRENCH, TEXT, ESPERANTO], split=["none", "sentences", "none"])])
    columned = columns(answer)
    assert columned["src_lang"] == ["fr", "en", ""]
    assert columned["src_lang_score"][:2] == pytest.approx([0.987, 0.91], abs=0.1)
    (expected,) = serve(detecting, encoded([{"text": TEXT, "split": "sentences"}]))
    assert columned["translation_text"][1] == body(expected)["translation_text"]
    assert json.loads(columned["error"][2])["type"] == "UnknownLanguage"
    names = {tensor.name: tensor.datatype for tensor in detecting.metadata.outputs}
    assert names == {"translation_text": "BYTES", "src_lang": "BYTES", "src_lang_score": "FP32"}


def test_without_a_detector_nothing_is_identified(start: Starter) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != "detector"}
    handler = start(**settings, src_lang="en")
    auto, default = serve(handler, encoded([{"text": FRENCH, "src_lang": "auto"}, {"text": FRENCH}]))
    assert body(auto, 400)["message"].startswith("src_lang: auto needs a detector")
    assert body(default).keys() == {"translation_text"}


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("marian", {"detector": DETECTOR}, "detector: this model's source language is fixed"),
        ("m2m100", {"src_lang": "auto"}, "src_lang: auto needs a detector"),
        ("m2m100", {"detector": {"file": "lid.ftz"}}, "detector: the name of a file is needed, or package and file"),
        ("m2m100", {"detector": "lid.ftz"}, "m2m100: detector: no file m2m100/lid.ftz"),
        (
            "m2m100",
            {"detector": {**DETECTOR, "package": "no_such"}},
            "detector: no file resources/lid.176.ftz in a pack",
        ),
        ("m2m100", {"detector": "model-config.yaml"}, "detector: this archive lacks detector.ftz and detector.bin"),
    ],
)
def test_detector_that_cannot_be_had_is_a_wrong_configuration(
    start: Starter, family: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidConfig) as raised:
        start(family, **settings)
    assert message in str(raised.value)


# -- sentence by sentence ---------------------------------------------------------------------------------------------


def test_document_is_its_sentences_translated_and_joined_as_it_was(ask: Ask) -> None:
    document, *alone = map(body, ask([{"text": text, "split": "sentences"} for text in (TEXT, *SENTENCES)]))
    one, two, three, four = (answer["translation_text"] for answer in alone)
    assert document["translation_text"] == f"{one}  {two}\n\n- {three}\n---\n{four}\n"
    assert document["src_lang"] == "en"
    assert len({one, two, three, four}) == 4


def test_documents_among_instances_keep_their_places(ask: Ask, detecting: TranslationHandler) -> None:
    instances = [{"text": FRENCH}, {"text": TEXT}, {"text": ""}, {"text": f"{FRENCH} Merci."}, {"text": ESPERANTO}]
    (answer,) = ask([{"instances": instances, "split": "sentences"}])
    french, document, empty, two, esperanto = body(answer)["predictions"]
    alone = serve(detecting, encoded([{"text": FRENCH}, {"text": TEXT, "split": "sentences"}]))
    assert [french, document] == [body(each) for each in alone]
    assert (empty["error"]["type"], esperanto["error"]["type"]) == ("EmptyInput", "UnknownLanguage")
    assert (two["src_lang"], two["translation_text"].startswith(french["translation_text"] + " ")) == ("fr", True)


def test_sentences_share_micro_batches_with_other_texts(
    detecting: TranslationHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = calls(detecting, monkeypatch)
    rows = [{"text": TEXT, "split": "sentences", "src_lang": "en"}, {"text": "Nobody.", "src_lang": "en"}]
    assert [answer.status for answer in serve(detecting, encoded(rows))] == [200, 200]
    assert sum(sizes) == 5
    assert len(sizes) < 5


def test_language_of_a_document_is_that_of_all_its_sentences(ask: Ask) -> None:
    """Alone, one of them could be of any."""
    answer = only(ask, {"text": f"{FRENCH} Ok. Hotel Taxi.", "split": "sentences"})
    assert answer["src_lang"] == "fr"


LONG = "sea " * 300


def test_sentence_that_is_too_long_is_named(ask: Ask) -> None:
    rows = [{"text": f"The sea. {LONG}. Nobody.", "split": "sentences", "src_lang": "en"}]
    rows += [{"text": LONG, "split": "sentences", "src_lang": "en"}, {"text": LONG, "src_lang": "en"}]
    second, only, whole = (body(answer, 413) for answer in ask(rows))
    assert second["type"] == only["type"] == whole["type"] == "TextTooLong"
    assert second["message"].startswith("Sentence 2 of 3: text: 6")
    assert only["message"].startswith("Sentence 1 of 1: text: 6")
    assert whole["message"].startswith("text: 6")
    assert whole["message"].endswith(" tokens; max_length is 128.")


def test_document_longer_than_the_model_is_translated(ask: Ask) -> None:
    text = " ".join(SENTENCES[:2] * 20)
    whole, split = ask([{"text": text}, {"text": text, "split": "sentences"}])
    assert body(whole, 413)["type"] == "TextTooLong"
    assert body(split)["src_lang"] == "en"


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
    ],
)
def test_mistake_in_a_document_is_the_text_s_and_not_a_sentence_s(
    ask: Ask, options: dict[str, Any], status: int, message: str
) -> None:
    row = {"text": TEXT, "split": "sentences", "src_lang": "en", **options}
    (answer,) = ask([row])
    assert body(answer, status)["message"].startswith(message)


def test_documents_of_a_request_share_its_budgets(ask: Ask) -> None:
    few, many = ({"instances": [{"text": "One. " * count}] * 2, "split": "sentences"} for count in (20, 150))
    costly = {"instances": [{"text": "One. " * 100}], "num_beams": 8, "max_new_tokens": 12, "split": "sentences"}
    rows = [{**row, "src_lang": "en"} for row in (few, many)]
    good, sentences = ask(rows)
    assert all("translation_text" in each for each in body(good)["predictions"])
    errors = body(sentences, 413)["predictions"]
    assert [each["error"]["type"] for each in errors] == ["WorkTooLarge"] * 2
    assert errors[0]["error"]["message"] == "The request has 300 sentences or more; max_sentences is 256."
    assert only(ask, {**costly, "src_lang": "en"})["predictions"]


def test_tokens_of_all_sentences_count_together(start: Starter) -> None:
    handler = start(**SETTINGS, src_lang="en", max_request_tokens=200, split="sentences")
    short, long, whole = serve(
        handler,
        encoded([{"text": text, "src_lang": "en"} for text in ("One. Two.", "One. " * 30)])
        + encoded([{"text": "One. " * 30, "src_lang": "en", "split": "none"}]),
    )
    assert body(short).keys() == body(whole).keys() == {"translation_text"}
    error = body(long, 413)
    assert error["type"] == "WorkTooLarge"
    assert error["message"].startswith("The items of the request come to ")


def test_a_sentence_that_the_model_fails_on_fails_its_text(
    detecting: TranslationHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    collate = detecting.collate

    def failing(items: Any) -> Any:
        if any("Nobody" in item.text for item in items):
            raise RuntimeError
        return collate(items)

    monkeypatch.setattr(detecting, "collate", failing)
    row = {"instances": [{"text": TEXT}, {"text": "Why? Why not?"}], "split": "sentences", "src_lang": "en"}
    (answer,) = serve(detecting, encoded([row]))
    failed, good = body(answer)["predictions"]
    assert failed["error"]["message"].startswith("Sentence 2 of 4: The model failed")
    assert good.keys() == {"translation_text"}


def test_document_of_a_fixed_pair_is_split_without_a_language(start: Starter) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name not in ("detector", "tgt_lang")}
    handler = start("marian", **settings)
    row: dict[str, Any] = {"text": TEXT, "split": "sentences"}
    one, two, three, four = translations(handler, list(SENTENCES))
    assert translations(handler, [row]) == [f"{one}  {two}\n\n- {three}\n---\n{four}\n"]


def test_streamed_text_is_identified_and_not_split(detecting: TranslationHandler) -> None:
    rows = [{"text": FRENCH}, {"text": f"{FRENCH} Merci.", "split": "none"}, {"text": TEXT, "split": "sentences"}]
    with Frontend(adaptive(detecting, split="sentences")) as frontend:
        *streamed, refused = (
            frontend.stream(each)[1].result(60) for each in encoded([{**row, "stream": True} for row in rows])
        )
    for answer, row in zip(streamed, rows[:2], strict=True):
        (expected,) = serve(detecting, encoded([row]))
        *pieces, (_, last) = events(answer.body)
        assert last == body(expected)
        assert last["src_lang"] == "fr"
        assert "".join(data["text"] for _, data in pieces) == last["translation_text"]
    assert body(refused, 400)["message"].startswith("stream: what is translated sentence by sentence comes whole")


def test_prefix_of_a_target_holds_for_all_sentences(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "marian").mkdir()
    checkpoint = tiny_seq2seq.marian(tmp_path / "marian", ("deu", "fra"))
    settings = {name: value for name, value in SETTINGS.items() if name not in ("detector", "tgt_lang")}
    handler = started(TranslationHandler(), staged("m", checkpoint, tmp_path / "s", settings), settings)
    assert isinstance(handler, TranslationHandler)
    wanted = translations(handler, [{"text": text, "tgt_lang": "fra"} for text in SENTENCES[:2]])
    row = {"text": f">>fra<< {SENTENCES[0]} {SENTENCES[1]}", "split": "sentences"}
    assert translations(handler, [row]) == [" ".join(wanted)]


def test_example_is_one_archive_for_languages_and_documents(tmp_path: Path) -> None:
    """examples/translate-any as it stands, with a tiny model."""
    entry = model("translate-any")
    (tmp_path / "m2m100").mkdir()
    (tmp_path / "archive").mkdir()
    checkpoint = tiny_seq2seq.m2m100(tmp_path / "m2m100")
    translation.stage(entry, source(entry, str(checkpoint)), "auto", tmp_path / "archive")
    assert {path.name for path in (tmp_path / "archive").iterdir()} >= {"checkpoint", "detector.ftz"}
    settings = {**entry.config()["handler"], "max_new_tokens": 8}
    handler = started(TranslationHandler(), tmp_path / "archive", settings)
    (answer,) = serve(handler, encoded([json.loads((entry.folder / "texts.json").read_text())]))
    french, korean, german, named = body(answer)["predictions"]
    assert [each["src_lang"] for each in (french, korean, german)] == ["fr", "ko", "de"]
    assert all(each["src_lang_score"] > 0.8 for each in (french, korean, german))
    assert named.keys() == {"translation_text"}
    title, blank, _, other, item = german["translation_text"].split("\n")
    assert (title[:2], blank, other, item[:2]) == ("# ", "", "", "- ")
