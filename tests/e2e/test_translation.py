"""One archive that tells languages, translates and takes documents, with a tiny model in the place of the example's."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from deploy.archive import Recipe
from deploy.models import ROOT, model
from deploy.server import Server
from tests import tiny_seq2seq
from tests.e2e.conftest import curl, send_together, url

ANY = "translate-any"


@pytest.fixture
def translate_any(model_store: Path, tmp_path: Path, serve: Callable[..., str]) -> str:
    (tmp_path / "m2m100").mkdir()
    (tmp_path / ANY).mkdir()
    checkpoint = tiny_seq2seq.m2m100(tmp_path / "m2m100")
    entry = replace(model(ANY), folder=tmp_path / ANY)
    config = model(ANY).config()
    # Random weights end no sentence.
    entry.config_path.write_text(yaml.safe_dump({**config, "handler": {**config["handler"], "max_new_tokens": 8}}))
    archive = Recipe(entry, str(checkpoint), export_path=model_store).build()
    return serve(archive=archive.path.name, name=ANY, batch_size=32, max_batch_delay_ms=100)


def test_example_tells_languages_and_keeps_the_lines_of_a_document(server: Server, translate_any: str) -> None:
    address = url(server, translate_any)
    document = ROOT / "examples" / ANY / "texts.json"
    answer = json.loads(
        curl("-H", "Content-Type: application/json", "-X", "POST", "--data-binary", f"@{document}", address)
    )
    french, korean, german, named = answer["predictions"]
    assert [each["src_lang"] for each in (french, korean, german)] == ["fr", "ko", "de"]
    assert named.keys() == {"translation_text"}
    title, blank, sentences, other, item = german["translation_text"].split("\n")
    assert (title[:2], blank, other, item[:2]) == ("# ", "", "", "- ")
    # Those who wait together go through the model together, each with its own language.
    texts = ["Il fait beau aujourd'hui.", "Das Wetter ist heute schön.", "La vetero estas tre bela hodiaŭ, ĉu ne?"]
    answers = send_together(server, translate_any, [text.encode() for text in texts * 4])
    assert [answer.status for answer in answers] == [200, 200, 400] * 4
    assert [answer.body.get("src_lang") for answer in answers] == ["fr", "de", None] * 4
    assert answers[2].body["type"] == "UnknownLanguage"
    assert sentences
