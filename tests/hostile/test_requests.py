"""A malformed request affects no other client: its own error, no crash, no hang, and no quotation anywhere."""

import base64
import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from handlers.protocol.wire import PROTOBUF
from load.expect import matches
from tests.hostile.requests import CANARY, Kind, Request, body, request_of, strings, values
from tests.hostile.target import Response, Target
from tests.tiny_models import TEXTS

# Statuses that a client can cause: an answer, its own mistake, a limit.
ALLOWED = frozenset({200, 400, 413, 415, 422})
FORBIDDEN_TYPES = ("InternalError", "OutOfMemory")
# Characters: a message is a sentence, of which the longest lists the languages of a model.
LONGEST_MESSAGE = 3000
# Seconds of a batch of three on a tiny model, which takes some hundredths; a machine may stall for a second or two.
LONGEST_S = 10.0
# The most by which padding and the number of rows may change a score in fp32.
TOLERANCE = 2e-3
CANARIES = re.compile(CANARY, re.IGNORECASE)
FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))
FORMATS = st.sampled_from(("JPEG", "PNG", "GIF", "BMP", "WEBP"))


def problems(response: Response) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong with an answer, without the payload."""
    if response.status not in ALLOWED:
        yield f"status {response.status}"
    if response.seconds > LONGEST_S:
        yield f"a batch of {response.seconds:.0f} s"
    content_type = response.headers.get("content-type", "")
    if content_type == PROTOBUF:
        if response.status != 200:
            sent = {name.lower(): value for name, value in response.headers.items()}
            yield from _wrong_message(unquote(sent.get("x-grpc-message", "")))
        return
    length = {name.lower(): value for name, value in response.headers.items()}.get("inference-header-content-length")
    try:
        document = json.loads(response.body[: int(length)] if length else response.body, parse_constant=_no_constant)
    except ValueError:
        yield "an answer that is no JSON"
        return
    errors = list(_errors(document, response.status))
    if response.status != 200 and not errors:
        yield "an error without a code, a type and a message"
    for error in errors:
        if not isinstance(error, dict) or error.keys() not in ({"error"}, {"code", "type", "message"}):
            yield "an error of another form"
            continue
        yield from _wrong_message(error.get("message", error.get("error")))
        if error.get("type") in FORBIDDEN_TYPES:
            yield f"{error['type']} for an item"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _errors(document: Any, status: int) -> Iterator[Any]:
    """Yield the error of a request, of each item of a list, and of each row of tensors."""
    if isinstance(document, list):
        return
    if status != 200 and "predictions" not in document:
        yield document
    for prediction in document.get("predictions", ()):
        if isinstance(prediction, dict) and "error" in prediction:
            yield prediction["error"]
    for output in document.get("outputs", ()):
        if output["name"] == "error":
            yield from (json.loads(error) for error in output.get("data", ()) if error)


def _wrong_message(message: Any) -> Iterator[str]:
    if not isinstance(message, str) or not 0 < len(message) <= LONGEST_MESSAGE:
        yield "no message, or one that is too long"
    elif CANARIES.search(message):
        yield "a message that quotes the payload"


@cache
def picture(form: str) -> bytes:
    """An image of each format, 40 x 36."""
    with io.BytesIO() as file:
        Image.linear_gradient("L").resize((40, 36)).convert("RGB").save(file, form)
        return file.getvalue()


texts = st.one_of(st.sampled_from(TEXTS), strings, st.integers(1, 2001).map(lambda count: (CANARY * 200)[:count]))
top_k = st.fixed_dictionaries({}, optional={"top_k": st.one_of(st.integers(1, 9), values)})
images = st.builds(lambda form, cut: picture(form)[: len(picture(form)) - cut], FORMATS, st.sampled_from([0, 0, 1, 99]))
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
        before, response, after = target.answer([neighbour, request, neighbour], decodes=decodes)
        found += problems(response)
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
    worker, request, expected = target(document["task"]), request_of(document), document["expected"]
    assert wrong(worker, document["task"], request) == []
    (response,) = worker.answer([request], decodes=False)
    assert response.status == expected["status"], response.body[:500]
    assert expected["type"] in (None, json.loads(response.body).get("type"))
