"""A malformed request affects no other client: its own error, no crash, no hang, and no quotation anywhere."""

import base64
import io
import json
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from load.expect import matches
from tests.hostile.checks import CANARIES, TOLERANCE, problems
from tests.hostile.requests import CANARY, Kind, Request, body, request_of, strings, values
from tests.hostile.target import Target
from tests.tiny_models import TEXTS

FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")


@cache
def picture(form: str) -> bytes:
    """An image of each format, 40 x 36."""
    with io.BytesIO() as file:
        Image.linear_gradient("L").resize((40, 36)).convert("RGB").save(file, form)
        return file.getvalue()


texts = st.one_of(st.sampled_from(TEXTS), strings, st.integers(1, 2001).map(lambda count: (CANARY * 200)[:count]))
top_k = st.fixed_dictionaries({}, optional={"top_k": st.one_of(st.integers(1, 9), values)})
images = st.builds(
    lambda form, cut: picture(form)[: len(picture(form)) - cut],
    st.sampled_from(FORMATS),
    st.sampled_from([0, 0, 1, 99]),
)
KINDS = {
    "text_classification": Kind(texts.map(lambda text: {"text": text}), top_k, "text"),
    "language_id": Kind(texts.map(lambda text: {"text": text}), top_k, "text"),
    "image_classification": Kind(images.map(lambda image: {"b64": base64.b64encode(image).decode()}), top_k, "image"),
}
NEIGHBOURS = {
    "text_classification": body(b'{"text": "Anna Berg kept the inn."}', "application/json"),
    "language_id": body("부산으로 가는 기차".encode(), "text/plain"),
    "image_classification": body(picture("PNG"), "image/png"),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Target]:
    return cache(lambda task: Target(task, tmp_path_factory.mktemp(task)))


def wrong(target: Target, task: str, request: Request) -> list[str]:
    """Send a request between two valid ones, as bytes and as TorchServe decodes them; return what does not hold."""
    neighbour = NEIGHBOURS[task]
    (alone,) = target.answer([neighbour], decodes=False)
    assert alone.status == 200
    found: list[str] = []
    for decodes in (False, True):
        before, reply, after = target.answer([neighbour, request, neighbour], decodes=decodes)
        found += problems(reply)
        for beside in (before, after):
            if beside.status != 200 or not matches(json.loads(alone.body), json.loads(beside.body), TOLERANCE):
                found.append(f"a neighbour's answer changed ({beside.status})")
    return found


@pytest.mark.parametrize("task", KINDS)
def test_any_request_gets_its_own_answer_and_nobody_else_notices(
    target: Callable[[str], Target], task: str, caplog: pytest.LogCaptureFixture
) -> None:
    @settings(suppress_health_check=list(HealthCheck))
    @given(KINDS[task].requests())
    def holds(request: Request) -> None:
        caplog.clear()
        assert wrong(target(task), task, request) == []
        assert not CANARIES.search(caplog.text)

    caplog.set_level(logging.WARNING)
    holds()


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_was_found_stays_mended(target: Callable[[str], Target], path: Path) -> None:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    worker, request = target(document["task"]), request_of(document)
    assert wrong(worker, document["task"], request) == []
    (reply,) = worker.answer([request], decodes=False)
    assert reply.status == document["expected"]["status"], reply.body[:500]
    assert document["expected"]["type"] in (None, json.loads(reply.body).get("type"))
