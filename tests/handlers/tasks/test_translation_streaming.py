"""Translations in pieces: joined, they are the translation that a plain request gets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handlers.tasks.translation import TranslationHandler
from tests import tiny_seq2seq
from tests.handlers.adaptive.frontend import Frontend
from tests.handlers.adaptive.spelling import events
from tests.handlers.tasks import translating
from tests.handlers.tasks.translating import encoded

TIMEOUT_S = 60
# Checkpoint, the engine of its archive, and the options that its texts need.
KINDS: dict[str, tuple[Callable[[Path], Path], str, dict[str, Any]]] = {
    "marian on torch": (tiny_seq2seq.marian, "torch", {}),
    "m2m100": (tiny_seq2seq.m2m100, "auto", {"src_lang": "en", "tgt_lang": "fr"}),
}


@pytest.fixture(scope="module", params=KINDS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[TranslationHandler, Any]:
    make, engine, options = KINDS[request.param]
    folder = tmp_path_factory.mktemp("pieces")
    (folder / "checkpoint").mkdir()
    archive = translating.staged("tiny", make(folder / "checkpoint"), folder, translating.SETTINGS, engine)
    handler = translating.adaptive(archive, translating.SETTINGS)
    assert ("torch" in handler.engine.description) == (engine == "torch")
    return handler, options


def test_translation_in_pieces_is_the_translation_that_a_plain_request_gets(
    served: tuple[TranslationHandler, Any],
) -> None:
    handler, options = served
    texts = encoded([{"text": text, **options} for text in translating.TEXTS])
    in_pieces = encoded([{"text": text, "stream": True, **options} for text in translating.TEXTS])
    with Frontend(handler) as frontend:
        streamed = [frontend.stream(body)[1] for body in in_pieces]
        plain = [frontend.stream(body)[1] for body in texts]
        for one, other in zip(streamed, plain, strict=True):
            *pieces, (kind, last) = events(one.result(TIMEOUT_S).body)
            assert (kind, last) == ("message", other.result(TIMEOUT_S).body)
            assert last.keys() == {"translation_text"}
            assert "".join(data["text"] for _, data in pieces) == last["translation_text"]


def test_translation_in_pieces_of_a_search_with_beams_is_refused(served: tuple[TranslationHandler, Any]) -> None:
    handler, options = served
    with_beams = {"text": "A bell.", "num_beams": 2, **options}
    with Frontend(handler) as frontend:
        refused, whole = (
            frontend.stream(body)[1].result(TIMEOUT_S) for body in encoded([{**with_beams, "stream": True}, with_beams])
        )
    assert (refused.status, refused.body["message"].startswith("stream: needs num_beams 1")) == (400, True)
    assert whole.body.keys() == {"translation_text"}
