import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.errors import ItemError
from handlers.protocol import open_inference
from handlers.protocol.fields import Fields
from handlers.protocol.requests import Payload, Request, Shape, unpack
from handlers.protocol.responses import Form, Instances, OneItem

SHAPE = Shape(Fields(frozenset({"b64"}), max_instances=3), max_body_bytes=100)
JSON = {"body": {"content-type": "application/json"}}


def one(value: Any, **options: Any) -> Request:
    return Request((Payload(value, options),))


@pytest.mark.parametrize(
    ("row", "headers", "expected"),
    [
        ({"body": b"\xff\xd8bytes"}, {}, one(b"\xff\xd8bytes")),
        ({"body": bytearray(b"bytes")}, {"body": {"content-type": "image/jpeg"}}, one(b"bytes")),
        ({"data": b"bytes"}, {}, one(b"bytes")),
        ({"photo": b"bytes"}, {"photo": {"content-type": "image/png"}}, one(b"bytes")),
        ({"data": b"bytes", "top_k": bytearray(b"3")}, {}, one(b"bytes", top_k=3)),
        ({"body": b'{"b64": "aGk="}'}, JSON, one({"b64": "aGk="})),
        (
            {"body": b'{"b64": "aGk="}'},
            {"body": {"content-type": "Application/JSON; charset=utf-8"}},
            one({"b64": "aGk="}),
        ),
        ({"body": b'{"b64": "aGk="}'}, {}, one({"b64": "aGk="})),  # curl -T request.json names no type
        ({"body": b'{"b64": "aGk="}'}, {"body": {"content-type": "text/plain"}}, one(b'{"b64": "aGk="}')),
        ({"body": b"{not json"}, {}, one(b"{not json")),
        ({"body": {"b64": "aGk=", "top_k": 2}}, {}, one({"b64": "aGk="}, top_k=2)),  # decoded by TorchServe
        (
            {"body": b'{"instances": [{"b64": "YQ=="}, {"b64": "Yg==", "top_k": 1}], "top_k": 2}'},
            JSON,
            Request((Payload({"b64": "YQ=="}, {"top_k": 2}), Payload({"b64": "Yg=="}, {"top_k": 1})), Instances()),
        ),
    ],
)
def test_unpack_accepted_shapes_gives_items_and_options(
    row: dict[str, Any], headers: dict[str, Any], expected: Request
) -> None:
    assert unpack(row, headers, SHAPE) == expected


@pytest.mark.parametrize(
    ("path", "form"), [("/v2/models/m/infer", open_inference.Inference), ("/predictions/m", OneItem), ("", OneItem)]
)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"inputs": 7}'])
def test_unpack_of_what_is_no_request_fails_in_the_form_of_the_path_that_a_gateway_rewrote(
    path: str, form: type[Form], body: bytes
) -> None:
    request = unpack({"body": body}, {**JSON, "X-Envoy-Original-Path": path}, SHAPE)
    assert isinstance(request.form, form)
    (error,) = request.payloads
    assert isinstance(error, ItemError)
    assert error.code == 400


@pytest.mark.parametrize(
    ("row", "code", "type_"),
    [
        ({"body": b""}, 400, "EmptyInput"),
        ({}, 400, "EmptyInput"),
        ({"body": b"x" * 101}, 413, "BodyTooLarge"),
        # Every field of a form counts, and none is parsed before that.
        ({"data": b"x" * 50, "top_k": b"1" * 51}, 413, "BodyTooLarge"),
        ({"data": b"x", "top_k": b"[" * 100}, 413, "BodyTooLarge"),
        ({"one": b"x" * 50, "two": b"x" * 51}, 413, "BodyTooLarge"),
        ({"body": b"{"}, 400, "MalformedJson"),
        ({"body": b'{"b64": "\xff"}'}, 400, "MalformedJson"),
        ({"body": b"[" * 100}, 400, "MalformedJson"),
        ({"body": b'{"url": "http://example.org"}'}, 400, "UnknownShape"),
        ({"body": b"[1, 2]"}, 400, "UnknownShape"),
        ({"body": b"7"}, 400, "UnknownShape"),
        ({"body": b"null"}, 400, "UnknownShape"),
        ({"body": b'{"instances": {"b64": ""}}'}, 400, "UnknownShape"),
        ({"body": b'{"instances": []}'}, 400, "EmptyInput"),
        ({"body": b'{"instances": [1, 2, 3, 4]}'}, 413, "TooManyInstances"),
        ({"body": {"instances": [{"b64": ""}], **{f"option{n}": n for n in range(101)}}}, 400, "UnknownOption"),
        ({"a": b"1", "b": b"2"}, 400, "UnknownShape"),
        ({'{"b64": "aGk': b""}, 400, "UnknownShape"),  # curl -d without a content type
    ],
)
def test_unpack_wrong_row_is_one_error_of_its_own_kind(row: dict[str, Any], code: int, type_: str) -> None:
    request = unpack(row, JSON, SHAPE)
    (error,) = request.payloads
    assert isinstance(error, ItemError)
    assert (error.code, error.type) == (code, type_)
    assert error.message.endswith((".", ")"))


@pytest.mark.parametrize(
    ("sent", "option"),
    [(b"3", 3), ("3", 3), (b"fr", "fr"), ("fr", "fr"), (b"\xff", "\ufffd"), (b"[" * 100_000, "[" * 100_000)],
)
def test_unpack_form_field_is_the_json_that_it_holds_or_else_its_text(sent: bytes | str, option: Any) -> None:
    (payload,) = unpack({"data": b"x", "top_k": sent}, {}, replace(SHAPE, max_body_bytes=200_000)).payloads
    assert isinstance(payload, Payload)
    assert payload.options == {"top_k": option}


def test_unpack_wrong_instance_fails_in_its_place() -> None:
    request = unpack({"body": b'{"instances": [{"b64": "YQ=="}, {"url": "u"}, {"b64": "Yg=="}]}'}, JSON, SHAPE)
    kinds = [type(payload) for payload in request.payloads]
    assert kinds == [Payload, ItemError, Payload]


@given(st.binary(max_size=60), st.sampled_from(["", "application/json", "text/plain", "image/png"]))
def test_unpack_any_bytes_never_raises(body: bytes, content_type: str) -> None:
    request = unpack({"body": body}, {"body": {"content-type": content_type}}, SHAPE)
    assert len(request.payloads) >= 1


@given(st.text(min_size=8, alphabet=st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF)))
def test_unpack_errors_never_quote_the_payload(secret: str) -> None:
    for body in (secret, json.dumps({"url": secret}), json.dumps({"instances": [secret]})[:-1]):
        for payload in unpack({"body": body.encode()}, JSON, SHAPE).payloads:
            assert isinstance(payload, ItemError)
            assert secret not in payload.message


ERROR = ItemError(422, "CorruptInput", "Broken.")
ERROR_JSON = {"code": 422, "type": "CorruptInput", "message": "Broken."}


@pytest.mark.parametrize(
    ("form", "results", "status", "body"),
    [
        (OneItem(), [{"cat": 0.5}], 200, {"cat": 0.5}),
        (OneItem(), [ERROR], 422, ERROR_JSON),
        (Instances(), [{"cat": 0.5}], 200, {"predictions": [{"cat": 0.5}]}),
        (Instances(), [1, ERROR, 3], 200, {"predictions": [1, {"error": ERROR_JSON}, 3]}),
        (Instances(), [ERROR, ERROR], 422, {"predictions": [{"error": ERROR_JSON}, {"error": ERROR_JSON}]}),
    ],
)
def test_pack_results_and_errors_keep_their_places(form: Form, results: list[Any], status: int, body: Any) -> None:
    reply = form.pack(results)
    assert (reply.status, json.loads(reply.body)) == (status, body)


def test_pack_array_is_written_as_numbers_with_the_digits_it_has() -> None:
    assert OneItem().pack([np.array([0.1, 1.5], np.float32)]).body == b"[0.1,1.5]"


@pytest.mark.parametrize("value", [float("nan"), [1.0, float("inf")], np.array([np.nan], np.float32), {"a": {1}}])
def test_pack_what_json_does_not_have_raises(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        OneItem().pack([value])


def test_pack_null_and_the_word_null_are_answers() -> None:
    assert OneItem().pack([{"null": None}]).body == b'{"null":null}'


def test_pack_text_is_compact_utf8() -> None:
    assert OneItem().pack([{"고양이": 0.5}]).body == '{"고양이":0.5}'.encode()
