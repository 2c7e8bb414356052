import json
from collections.abc import Callable

import numpy as np
import pytest

from deploy.models import ROOT
from deploy.server import Server
from tests.e2e.conftest import curl, send, send_together, url

EMBEDDING, LANGUAGE_ID = "sentence-embedding", "language-id"


@pytest.fixture
def embedding(archive: Callable[..., str], serve: Callable[..., str]) -> str:
    return serve(archive=archive(EMBEDDING), name=EMBEDDING, batch_size=32, max_batch_delay_ms=200)


@pytest.fixture
def language_id(archive: Callable[..., str], serve: Callable[..., str]) -> str:
    return serve(archive=archive(LANGUAGE_ID), name=LANGUAGE_ID, batch_size=64, max_batch_delay_ms=1)


def test_curl_korean_headlines_become_vectors(server: Server, embedding: str) -> None:
    address = url(server, embedding)
    document = ROOT / "examples" / EMBEDDING / "news.json"
    answer = json.loads(
        curl("-H", "Content-Type: application/json", "-X", "POST", "--data-binary", f"@{document}", address)
    )
    together = np.array(answer["predictions"])
    assert together.shape == (3, 384)
    for vector, text in zip(together, json.loads(document.read_text())["instances"], strict=True):
        alone = json.loads(curl("-H", "Content-Type: text/plain; charset=utf-8", "--data-binary", text, address))
        assert np.dot(vector, alone) > 0.999


def test_concurrent_texts_share_forward_passes_and_bad_ones_fail_alone(server: Server, embedding: str) -> None:
    bodies = [b"A sentence of some words."] * 24
    bodies[5], bodies[11], bodies[17] = b"canary \xff\xfe", b"  ", b"canary " * 20_000
    answers = send_together(server, embedding, bodies)
    statuses = [answer.status for answer in answers]
    assert [index for index, status in enumerate(statuses) if status != 200] == [5, 11, 17]
    assert [answers[index].body["type"] for index in (5, 11, 17)] == ["InvalidText", "EmptyInput", "TextTooLong"]
    sizes = [int(answer.headers["Server-Timing"].split('"')[1]) for answer in answers if answer.status == 200]
    assert max(sizes) >= 8
    logs = "".join(file.read_text(errors="replace") for file in server.logs.rglob("*") if file.is_file())
    assert "canary" not in logs


def test_curl_languages_are_named_with_and_without_prefix(server: Server, language_id: str) -> None:
    address = url(server, language_id)
    document = ROOT / "examples" / LANGUAGE_ID / "texts.json"
    answer = json.loads(
        curl("-H", "Content-Type: application/json", "-X", "POST", "--data-binary", f"@{document}", address)
    )
    assert [[p["label"] for p in prediction] for prediction in answer["predictions"]] == [
        ["en"],
        ["fr"],
        ["ko"],
        ["de"],
    ]
    body = json.dumps({"text": "Il fait beau.", "label_prefix": True, "top_k": 2}).encode()
    labels = [prediction["label"] for prediction in send(server, language_id, body, "application/json").body]
    assert labels[0] == "__label__fr"
    assert len(labels) == 2
    assert json.loads(curl("-T", str(ROOT / "README.md"), address))[0]["label"] == "en"
