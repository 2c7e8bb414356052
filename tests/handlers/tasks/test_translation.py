import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from handlers.errors import InvalidConfig, OutOfMemory
from handlers.pipeline.micro_batches import Overhead
from handlers.protocol.requests import Payload
from handlers.tasks.translation import TranslationHandler
from tests import tiny_seq2seq
from tests.handlers.open_inference import columns, inquiry
from tests.handlers.serving import context, serve, started
from tests.handlers.tasks.translating import ORIGINAL, SETTINGS, TEXTS, Oracle, calls, encoded, staged, translations
from tests.tiny_seq2seq import PAGE, SENTENCES

Starter = Callable[..., TranslationHandler]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Starter:
    def start(family: str, **settings: Any) -> TranslationHandler:
        make: dict[str, Callable[[Path], Path]] = {
            "marian": tiny_seq2seq.marian,
            "marian-multilingual": lambda folder: tiny_seq2seq.marian(folder, ("deu", "fra")),
            "m2m100": tiny_seq2seq.m2m100,
            "nllb": tiny_seq2seq.nllb,
            "seamless": tiny_seq2seq.seamless,
            "seamless-v2": lambda folder: tiny_seq2seq.seamless(folder, is_v2=True),
            "t5": tiny_seq2seq.t5,
            "bart": tiny_seq2seq.bart,
            "mbart": lambda folder: tiny_seq2seq.bart(folder, "MBart"),
            "pegasus": lambda folder: tiny_seq2seq.bart(folder, "Pegasus"),
        }
        checkpoint = make[family](tmp_path_factory.mktemp(family))
        settings = {**SETTINGS, **settings}
        handler = started(
            TranslationHandler(), staged(family, checkpoint, tmp_path_factory.mktemp("s"), settings), settings
        )
        assert isinstance(handler, TranslationHandler)
        return handler

    return start


@pytest.fixture(scope="module")
def marian(start: Starter) -> TranslationHandler:
    return start("marian")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_translation_batch_in_any_order_equals_one_generate_per_text(marian: TranslationHandler, seed: int) -> None:
    oracle = Oracle(marian)
    texts = random.Random(seed).sample(TEXTS, len(TEXTS))
    expected = [oracle(text) for text in texts]
    assert len(set(expected)) > len(texts) // 2
    assert translations(marian, list(texts)) == expected


@pytest.mark.parametrize("family", ["marian", "m2m100", "nllb", "t5", "bart", "mbart", "pegasus"])
def test_translation_of_every_family_of_ctranslate2_equals_generate_on_the_original(
    start: Starter, family: str
) -> None:
    handler = start(family)
    assert handler.engine.description == "ctranslate2 cpu fp32"
    oracle = Oracle(handler)
    languages, plan = LANGUAGES.get(family, [({}, {})])[0]
    arguments = dict(plan)
    if target := arguments.pop("target", None):
        arguments["forced_bos_token_id"] = oracle.tokenizer.convert_tokens_to_ids(target)
    expected = [oracle(text, **arguments) for text in TEXTS]
    assert translations(handler, [{"text": text, **languages} for text in TEXTS]) == expected
    assert len(set(expected)) > len(TEXTS) // 3


# Family -> languages of requests, and what the oracle makes of each.
LANGUAGES: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "m2m100": [
        ({"src_lang": "en", "tgt_lang": "fr"}, {"src_lang": "en", "target": "__fr__"}),
        ({"src_lang": "en", "tgt_lang": "de"}, {"src_lang": "en", "target": "__de__"}),
        ({"src_lang": "zu", "tgt_lang": "de"}, {"src_lang": "zu", "target": "__de__"}),
    ],
    "nllb": [
        ({"src_lang": "eng_Latn", "tgt_lang": "fra_Latn"}, {"src_lang": "eng_Latn", "target": "fra_Latn"}),
        ({"src_lang": "eng_Latn", "tgt_lang": "zho_Hans"}, {"src_lang": "eng_Latn", "target": "zho_Hans"}),
        ({"src_lang": "zul_Latn", "tgt_lang": "fra_Latn"}, {"src_lang": "zul_Latn", "target": "fra_Latn"}),
    ],
    "seamless": [
        ({"src_lang": "eng", "tgt_lang": "fra"}, {"src_lang": "eng", "tgt_lang": "fra"}),
        ({"src_lang": "eng", "tgt_lang": "deu"}, {"src_lang": "eng", "tgt_lang": "deu"}),
        ({"src_lang": "deu", "tgt_lang": "fra"}, {"src_lang": "deu", "tgt_lang": "fra"}),
    ],
    "marian-multilingual": [
        ({"tgt_lang": "fra"}, {"prefix": ">>fra<< "}),
        ({"tgt_lang": "deu"}, {"prefix": ">>deu<< "}),
    ],
    "t5": [({}, {})],
}
LANGUAGES["seamless-v2"] = LANGUAGES["seamless"]


# What CTranslate2 does otherwise than transformers, and what is asked instead: transformers counts the token that the
# decoder starts with, which M2M100's answers end with, as said before; T5's search with beams chose otherwise once.
UNLIKE: dict[str, dict[int, dict[str, Any]]] = {
    "m2m100": {2: {"no_repeat_ngram_size": 3}},
    "t5": {1: {"no_repeat_ngram_size": 3}},
}


@pytest.mark.parametrize("family", LANGUAGES)
def test_translation_mixed_languages_and_options_give_each_its_own(
    start: Starter, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = start(family)
    handler.overhead = Overhead(items=1000)
    oracle = Oracle(handler)
    options: list[dict[str, Any]] = [{}, {"num_beams": 3, "length_penalty": 2.0}, {"repetition_penalty": 1.5}]
    for index, other in UNLIKE.get(family, {}).items():
        options[index] = other
    rows, expected = [], []
    for index, text in enumerate(TEXTS * 2):
        wanted, plan = LANGUAGES[family][index % len(LANGUAGES[family])]
        rows.append({"text": text, **wanted, **options[index // 3 % 3]})
        arguments = {**plan, **options[index // 3 % 3]}
        if handler.engine.description.startswith("ctranslate2"):
            # It forbids a token before it makes probabilities of scores; for a search with beams that is a difference.
            arguments["renormalize_logits"] = True
        if target := arguments.pop("target", None):
            arguments["forced_bos_token_id"] = oracle.tokenizer.convert_tokens_to_ids(target)
        expected.append(oracle(arguments.pop("prefix", "") + text, **arguments))
    sizes = calls(handler, monkeypatch)
    assert translations(handler, rows) == expected
    groups = {json.dumps({name: value for name, value in row.items() if name != "text"}) for row in rows}
    assert len(sizes) == len(groups)
    assert sum(sizes) == len(rows)
    assert len(set(expected)) > len(rows) // 3


def test_translation_tensors_give_each_text_its_own_language(start: Starter) -> None:
    handler = start("m2m100")
    texts, languages = [TEXTS[0], TEXTS[0], TEXTS[1]], ["fr", "de", "xx"]
    rows = [{"text": text, "src_lang": "en", "tgt_lang": code} for text, code in zip(texts, languages, strict=True)]
    (answer,) = serve(handler, [inquiry(text=texts, src_lang=["en"] * 3, tgt_lang=languages)])
    columned = columns(answer)
    assert columned["translation_text"] == [*translations(handler, list(rows[:2])), ""]
    assert [error and json.loads(error)["type"] for error in columned["error"]] == ["", "", "UnknownOption"]


def test_translation_prepared_by_two_threads_at_once_keeps_each_texts_own_language(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer has one language at a time; a thread that waits after setting it meets the other's."""
    handler = start("m2m100")
    items = [
        handler.decode(Payload("The sea is rough.", {"src_lang": code, "tgt_lang": "fr"})) for code in ("en", "zu")
    ]
    expected = [handler.prepare([item])[0] for item in items]
    assert expected[0].ids != expected[1].ids  # type: ignore[union-attr]
    tokenizer = handler.tokenizer

    class Hesitant:
        """Sets a language and takes its time before using it."""

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(tokenizer, name, value)
            time.sleep(0.005)

        def __call__(self, *arguments: Any, **named: Any) -> Any:
            return tokenizer(*arguments, **named)

    monkeypatch.setattr(handler, "tokenizer", Hesitant())
    with ThreadPoolExecutor(2) as pool:
        prepared = list(pool.map(lambda index: handler.prepare([items[index % 2]])[0], range(20)))
    assert prepared == [expected[index % 2] for index in range(20)]


def test_translation_target_changes_the_answer(start: Starter) -> None:
    handler = start("nllb")
    rows = [{"text": PAGE[:60], "src_lang": "eng_Latn", "tgt_lang": code} for code in ("fra_Latn", "zho_Hans")]
    assert len(set(translations(handler, rows))) == 2


def test_translation_generate_calls_are_groups_times_micro_batches(
    marian: TranslationHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long = ["Nobody.", "A bell."], [SENTENCES[0]]
    sizes = calls(marian, monkeypatch)
    monkeypatch.setattr(marian, "overhead", Overhead(tokens=0, items=0))
    translations(marian, [*short, *long])
    assert sizes == [1, 1, 1]
    sizes.clear()
    monkeypatch.setattr(marian, "overhead", Overhead(items=100))
    translations(marian, [*short, *long])
    assert sizes == [3]
    sizes.clear()
    # The default said aloud makes no group of its own, nor do options of beams without beams.
    translations(marian, [{"text": "A bell.", "num_beams": 1, "length_penalty": 3, "max_new_tokens": 8}, "A bell."])
    assert sizes == [2]


def test_translation_json_text_and_instances_give_the_same(marian: TranslationHandler) -> None:
    text = "The sea is rough."
    rows = [{"text": text}, {"instances": [{"text": text}, text]}]
    bodies = [answer.body for answer in serve(marian, [text.encode(), text, *encoded(rows)])]
    assert bodies == [bodies[0], bodies[0], bodies[0], {"predictions": [bodies[0], bodies[0]]}]


def test_translation_defaults_of_the_configuration_are_overridden_by_the_request(start: Starter) -> None:
    handler = start("m2m100", src_lang="en", tgt_lang="fr", num_beams=2)
    oracle = Oracle(handler)
    french, german = (oracle.tokenizer.get_lang_id(code) for code in ("fr", "de"))
    rows = ["The sea is rough.", {"text": "The sea is rough.", "tgt_lang": "de", "num_beams": 1}]
    assert translations(handler, rows) == [
        oracle("The sea is rough.", src_lang="en", forced_bos_token_id=french, num_beams=2),
        oracle("The sea is rough.", src_lang="en", forced_bos_token_id=german),
    ]


def test_translation_text_that_brings_its_marian_prefix_needs_no_target(start: Starter) -> None:
    handler = start("marian-multilingual")
    assert len(set(translations(handler, [">>fra<< A bell.", {"text": "A bell.", "tgt_lang": "fra"}]))) == 1
    (answer,) = serve(handler, [b"A bell."])
    assert answer.body == {
        "code": 400,
        "type": "UnknownOption",
        "message": "tgt_lang: needed; known are deu, fra.",
    }


KNOWN = (
    "src_lang, tgt_lang, min_score, split, max_new_tokens, num_beams, length_penalty, early_stopping, "
    "no_repeat_ngram_size, repetition_penalty, stream"
)
BAD: list[tuple[Any, int, str, str]] = [
    (b"  ", 400, "EmptyInput", "text: empty."),
    (b"\xff", 400, "InvalidText", "text: not valid UTF-8 at byte 0."),
    ({"text": "a\0b"}, 400, "InvalidText", "text: has a null character at position 1."),
    ({"text": 3}, 400, "UnknownShape", "text: must be a string."),
    ({"text": "canary " * 60}, 413, "TextTooLong", "max_length is 128."),
    ({"text": "a", "tgt_lang": "fr"}, 400, "UnknownOption", "tgt_lang: this model's languages are fixed."),
    ({"text": "a", "src_lang": "en"}, 400, "UnknownOption", "src_lang: this model's languages are fixed."),
    ({"text": "a", "canary": 1}, 400, "UnknownOption", f"Known options: {KNOWN}."),
    ({"text": "a", "do_sample": True}, 400, "UnknownOption", "do_sample: Unexpected keyword argument"),
    ({"text": "a", "num_beams": 0}, 400, "UnknownOption", "num_beams: Input should be greater than or equal to 1"),
    ({"text": "a", "num_beams": 9}, 400, "UnknownOption", "num_beams: 9; at most 8."),
    ({"text": "a", "num_beams": True}, 400, "UnknownOption", "num_beams: Input should be a valid integer"),
    ({"text": "a", "max_new_tokens": 13}, 400, "UnknownOption", "max_new_tokens: 13; at most 12."),
    ({"text": "a", "length_penalty": 11}, 400, "UnknownOption", "length_penalty: "),
    ({"text": "a", "repetition_penalty": 0}, 400, "UnknownOption", "repetition_penalty: "),
    ({"text": "a", "no_repeat_ngram_size": -1}, 400, "UnknownOption", "no_repeat_ngram_size: "),
    ({"text": "a", "stream": True}, 400, "UnknownOption", "stream: this model batches in classic mode"),
    ({"text": "a", "stream": "yes"}, 400, "UnknownOption", "stream: Input should be a valid boolean"),
]


def test_translation_bad_items_fail_alone(marian: TranslationHandler) -> None:
    answers = serve(marian, encoded([row for bad, *_ in BAD for row in (bad, "A bell.")]))
    for (_, code, kind, message), answer in zip(BAD, answers[::2], strict=True):
        assert (answer.status, answer.body.get("type")) == (code, kind), message
        assert message in answer.body["message"]
    assert {(answer.status, answer.body["translation_text"]) for answer in answers[1::2]} == {
        (200, translations(marian, ["A bell."])[0])
    }


def test_translation_unknown_language_is_answered_with_those_there_are(start: Starter) -> None:
    handler = start("seamless")
    rows = [{"text": "A bell.", "src_lang": "eng", "tgt_lang": "xxx"}, {"text": "A bell.", "tgt_lang": "fra"}]
    bodies = [answer.body["message"] for answer in serve(handler, encoded(rows))]
    assert bodies == [
        "tgt_lang: not a language of this model; known are deu, eng, fra.",
        "src_lang: needed; known are deu, eng, fra.",
    ]


def test_translation_long_text_is_cut_where_the_configuration_says_so(start: Starter) -> None:
    handler = start("marian", truncation=True, max_length=16)
    oracle = Oracle(handler)
    inputs = oracle.tokenizer(PAGE, truncation=True, max_length=16, return_tensors="pt")
    (ids,) = oracle.model.generate(**inputs, num_beams=1, max_new_tokens=8, max_length=None)
    assert translations(handler, [PAGE]) == [oracle.tokenizer.decode(ids, skip_special_tokens=True)]


def test_translation_canaries_of_every_other_row_reach_nobody_and_no_log(
    marian: TranslationHandler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*arguments: Any, **more: Any) -> Any:
        raise ValueError("canary: a bug that quotes what it was given")

    rows: list[Any] = []
    for index in range(12):
        canary = f"canary-{index:03}"
        rows += [{"text": canary, "num_beams": canary} if index % 2 else {"text": canary * 50}, {"text": "A bell."}]
    answers = serve(marian, encoded(rows))
    monkeypatch.setattr(marian.engine, "run", fails)
    answers += serve(marian, [b"canary", b"canary too"])
    assert [answer.status for answer in answers[-2:]] == [500, 500]
    assert "canary" not in "".join(json.dumps(answer.body) + str(answer.headers) for answer in answers)
    assert "canary" not in caplog.text


def test_translation_out_of_memory_halves_until_it_fits(
    marian: TranslationHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = marian.engine.run

    def small(inputs: Any, arguments: Any) -> Any:
        if len(inputs["input_ids"]) > 2:
            raise OutOfMemory
        return run(inputs, arguments)

    expected = translations(marian, list(TEXTS))
    monkeypatch.setattr(marian.engine, "run", small)
    assert translations(marian, list(TEXTS)) == expected


def test_translation_that_takes_too_long_is_ended_and_answered_503(
    marian: TranslationHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = translations(marian, TEXTS[:2])
    sizes = calls(marian, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(marian.engine, "_longest_run_s", 0.0)
        answers = serve(marian, encoded(TEXTS[:2]))
    assert {(answer.status, answer.body["type"]) for answer in answers} == {(503, "BatchTimeout")}
    # Neither is tried again alone.
    assert sizes == [2]
    assert translations(marian, TEXTS[:2]) == expected


def test_translation_of_many_texts_is_held_to_what_they_may_generate(start: Starter) -> None:
    handler = start("marian", max_request_tokens=100)
    few, many = (
        serve(handler, [json.dumps({"instances": [{"text": "Nobody.", "max_new_tokens": 12}] * count})])[0]
        for count in (4, 10)
    )
    assert (few.status, many.status) == (200, 413)
    assert {prediction["error"]["type"] for prediction in many.body["predictions"]} == {"WorkTooLarge"}


@pytest.mark.parametrize(
    ("family", "precision", "description"),
    [
        *((family, "auto", "ctranslate2 cpu int8") for family in LANGUAGES if "seamless" not in family),
        *((family, "bf16", "torch cpu bfloat16") for family in LANGUAGES if "seamless" in family),
    ],
)
def test_translation_reduced_precision_answers_much_as_fp32_does(
    start: Starter, family: str, precision: str, description: str
) -> None:
    handler = start(family, precision=precision)
    oracle = Oracle(handler)
    assert handler.engine.description == description
    languages, plan = LANGUAGES[family][0]
    arguments = dict(plan)
    if target := arguments.pop("target", None):
        arguments["forced_bos_token_id"] = oracle.tokenizer.convert_tokens_to_ids(target)
    prefix = arguments.pop("prefix", "")
    expected = [oracle(prefix + text, **arguments) for text in TEXTS]
    got = translations(handler, [{"text": text, **languages} for text in TEXTS])
    # Random weights put tokens closer together than this tells apart; a quarter is far from chance, one in 100**8.
    assert sum(a == b for a, b in zip(got, expected, strict=True)) >= len(TEXTS) // 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "openvino"}, "engine: Input should be 'auto' or 'torch'"),
        ({"tgt_lang": "fr"}, "tgt_lang: fr is not a language of this model; known are none"),
        ({"max_length": 129}, "max_length: 129 is more than the model's own 128"),
        ({"num_beams": 9}, "num_beams 9 is more than num_beams_limit 8"),
        ({"max_new_tokens": 513}, "max_new_tokens 513 is more than max_new_tokens_limit 512"),
    ],
)
def test_initialize_wrong_config_is_refused(marian: TranslationHandler, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        TranslationHandler().initialize(context(marian.model_dir, settings))


def test_stage_for_openvino_is_refused(marian: TranslationHandler, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="refused: translation runs on CTranslate2 or torch"):
        staged("refused", marian.model_dir.parent / ORIGINAL, tmp_path, SETTINGS, "openvino")
