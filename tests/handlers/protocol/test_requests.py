"""Bodies to items with options, and results to bodies. tests/e2e/test_conformance.py has the media types of JSON."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from handlers.errors import ItemError, WorkTooLarge, WrongOutput
from handlers.protocol import open_inference, rows
from handlers.protocol.fields import Fields
from handlers.protocol.requests import Allowance, Payload, Request
from handlers.protocol.responses import Form, Instances, OneItem
from handlers.protocol.rows import Shape, read_headers

SHAPE = Shape(Fields(frozenset({"b64"}), max_request_items=3), max_body_bytes=100)
JSON = {"body": {"content-type": "application/json"}}


# An error replaces a wrong instance.
WRONG = ItemError(400, "InvalidBody", 'JSON must be {"b64": ...} or {"instances": [{"b64": ...}, ...]}.')


def unpack(row: dict[str, Any], headers: dict[str, Any], shape: Shape) -> Request:
    return rows.unpack(row, read_headers(headers), shape)


def one(value: Any, **options: Any) -> Request:
    return Request((Payload(value, options),))


@pytest.mark.parametrize(
    ("row", "headers", "expected"),
    [
        ({"body": bytearray(b"bytes")}, {"body": {"content-type": "image/jpeg"}}, one(b"bytes")),
        ({"data": b"bytes"}, {}, one(b"bytes")),
        ({"photo": b"bytes"}, {"photo": {"content-type": "image/png"}}, one(b"bytes")),
        # The JSON in a field of a form, or else its text.
        (
            {"data": b"bytes", "top_k": bytearray(b"3"), "lang": b"fr", "odd": b"\xff", "deep": b"[" * 60},
            {},
            one(b"bytes", top_k=3, lang="fr", odd="\ufffd", deep="[" * 60),
        ),
        (
            {"body": b'{"b64": "aGk="}'},
            {"body": {"content-type": "Application/JSON; charset=utf-8"}},
            one({"b64": "aGk="}),
        ),
        ({"body": b'{"b64": "aGk="}'}, {}, one({"b64": "aGk="})),  # curl -T request.json has no type
        ({"body": b'{"b64": "aGk="}'}, {"body": {"content-type": "text/plain"}}, one(b'{"b64": "aGk="}')),
        ({"body": b"{not json"}, {}, one(b"{not json")),
        ({"body": {"b64": "aGk=", "top_k": 2}}, {}, one({"b64": "aGk="}, top_k=2)),  # decoded by TorchServe
        (
            {"body": b'{"instances": [{"b64": "YQ=="}, {"url": "u"}, {"b64": "Yg==", "top_k": 1}], "top_k": 2}'},
            JSON,
            Request(
                (Payload({"b64": "YQ=="}, {"top_k": 2}), WRONG, Payload({"b64": "Yg=="}, {"top_k": 1})), Instances()
            ),
        ),
    ],
)
def test_accepted_body_is_items_with_their_options(
    row: dict[str, Any], headers: dict[str, Any], expected: Request
) -> None:
    request = unpack(row, headers, SHAPE)
    assert (request.payloads, request.form) == (expected.payloads, expected.form)


TEXTS = replace(SHAPE, items=Fields(frozenset({"text"}), 3), inputs=frozenset({"text"}), media_types=("text/plain",))
ASKED = b'{"text": "hi"}'


def typed(media_type: str, name: str = "body") -> dict[str, Any]:
    return {name: {"content-type": media_type}}


@pytest.mark.parametrize(
    ("media_type", "body", "text"),
    [
        ("text/plain", ASKED, ASKED),
        ("TEXT/Plain; charset=UTF-8", "Grüße".encode(), "Grüße".encode()),
        ('text/plain; charset="ISO-8859-1"', "Grüße".encode("latin-1"), "Grüße"),
        ("text/plain; charset=gbk", "北京".encode("gbk"), "北京"),
        ("application/octet-stream", b'{"a": 1}', b'{"a": 1}'),
        ("application/octet-stream", b'[{"a": 1}]', b'[{"a": 1}]'),
        ("application/octet-stream", b"{text", b"{text"),
    ],
)
def test_text_stays_a_text(media_type: str, body: bytes, text: bytes | str) -> None:
    assert unpack({"body": body}, typed(media_type), TEXTS).payloads == (Payload(text),)


def test_charset_is_that_of_the_header_where_torchserve_drops_it() -> None:
    sent = typed("text/plain") | {"CONTENT-TYPE": "Text/Plain; charset=latin1"}
    assert unpack({"body": "Grüße".encode("latin-1")}, sent, TEXTS).payloads == (Payload("Grüße"),)
    part = typed("text/plain", "data") | {"content-type": "multipart/form-data; charset=latin1"}
    assert unpack({"data": "Grüße".encode()}, part, TEXTS).payloads == (Payload("Grüße".encode()),)


@pytest.mark.parametrize(
    ("media_type", "status"),
    [
        ("image/jpeg", 415),
        ("application/xml", 415),
        ("text/html", 415),
        ("text/x-json", 415),
        ("multipart/mixed; boundary=x", 415),
        ("Multipart/Form-Data; boundary=x", 415),
        ("text/plain; charset=idna", 415),
        ("text/plain; charset=iso-8859-99", 415),
        ("text/plain; charset=utf-16", 400),
    ],
)
def test_type_that_is_no_text_is_refused(media_type: str, status: int) -> None:
    (error,) = unpack({"body": ASKED + b" "}, typed(media_type), TEXTS).payloads
    assert isinstance(error, ItemError) and error.code == status


@pytest.mark.parametrize(
    ("row", "code", "type_"),
    [
        ({"body": b""}, 400, "EmptyInput"),
        ({}, 400, "EmptyInput"),
        ({"body": b"x" * 101}, 413, "BodyTooLarge"),
        # Every field of a form counts, and none is parsed before that.
        ({"data": b"x", "top_k": b"[" * 100}, 413, "BodyTooLarge"),
        ({"one": b"x" * 50, "two": b"x" * 51}, 413, "BodyTooLarge"),
        ({"body": b'{"b64": "\xff"}'}, 400, "MalformedJson"),
        ({"body": b"[" * 100}, 400, "MalformedJson"),
        ({"body": b'{"url": "http://example.org"}'}, 400, "InvalidBody"),
        ({"body": b"7"}, 400, "InvalidBody"),
        ({"body": b'{"instances": {"b64": ""}}'}, 400, "InvalidBody"),
        ({"body": b'{"instances": []}'}, 400, "EmptyInput"),
        ({"body": b'{"instances": [1, 2, 3, 4]}'}, 413, "TooManyInstances"),
        ({"body": {"instances": [{"b64": ""}], **{f"option{n}": n for n in range(101)}}}, 400, "InvalidOption"),
        ({"data": b"x", **{f"f{n}": b"" for n in range(101)}}, 400, "InvalidOption"),
        ({"data": b"", **{f"f{n}": b"" for n in range(200)}}, 413, "BodyTooLarge"),
        ({"a": b"1", "b": b"2"}, 400, "InvalidBody"),
        ({'{"b64": "aGk': b""}, 400, "InvalidBody"),  # curl -d without a content type
    ],
)
def test_wrong_body_is_one_error_of_its_own_kind(row: dict[str, Any], code: int, type_: str) -> None:
    (error,) = unpack(row, JSON, SHAPE).payloads
    assert isinstance(error, ItemError)
    assert (error.code, error.type) == (code, type_)
    assert error.message.endswith((".", ")"))


@pytest.mark.parametrize(
    ("codings", "is_taken"),
    [("Identity", True), ("", True), ("identity, IDENTITY,", True), ("GZIP", False), ("identity,br", False)],
)
def test_codings_of_a_body_are_read_without_regard_to_case_and_identity_is_none(codings: str, is_taken: bool) -> None:
    (payload,) = unpack({"body": b"x"}, {"content-encoding": codings}, SHAPE).payloads
    assert isinstance(payload, Payload) if is_taken else getattr(payload, "code", 0) == 415


@pytest.mark.parametrize(("path", "form"), [("/v2/models/m/infer", open_inference.Inference), ("/", OneItem)])
@pytest.mark.parametrize("body", [b"", b"{", b'{"inputs": 7}'])
def test_body_that_is_no_request_fails_in_the_form_of_the_path_that_a_gateway_rewrote(
    path: str, form: type[Form], body: bytes
) -> None:
    request = unpack({"body": body}, {**JSON, "X-Envoy-Original-Path": path}, SHAPE)
    (error,) = request.payloads
    assert isinstance(error, ItemError)
    assert (error.code, type(request.form)) == (400, form)


ERROR = ItemError(422, "CorruptInput", "Broken.")
ERROR_JSON = {"code": 422, "type": "CorruptInput", "message": "Broken."}


@pytest.mark.parametrize(
    ("form", "results", "status", "body"),
    [
        (OneItem(), [{"고양이": None}], 200, {"고양이": None}),
        (OneItem(), [ERROR], 422, ERROR_JSON),
        (OneItem(), [np.array([0.1, 1.5], np.float32)], 200, [0.1, 1.5]),
        (Instances(), [1, ERROR, 3], 200, {"predictions": [1, {"error": ERROR_JSON}, 3]}),
        (Instances(), [ERROR, ERROR], 422, {"predictions": [{"error": ERROR_JSON}, {"error": ERROR_JSON}]}),
    ],
)
def test_results_and_errors_keep_their_places(form: Form, results: list[Any], status: int, body: Any) -> None:
    reply = form.pack(results)
    assert (reply.status, json.loads(reply.body)) == (status, body)


@pytest.mark.parametrize("value", [[1.0, float("inf")], np.array([np.nan], np.float32), {"a": {1}}])
def test_value_that_json_lacks_is_an_error(value: Any) -> None:
    with pytest.raises((WrongOutput, TypeError)):
        OneItem().pack([value])


def test_allowance_that_several_threads_take_from_at_once_is_not_exceeded() -> None:
    for _ in range(50):
        allowance, start = Allowance(), threading.Barrier(4)

        def take(_: int, allowance: Allowance = allowance, start: threading.Barrier = start) -> bool:
            start.wait()
            try:
                allowance.take("pixels", 30, 100)
            except WorkTooLarge:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(take, range(4))) == 3
