"""Bodies to items with options, results to bodies, and headers to terms for the scheduler."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf
from time import process_time
from typing import Any

import grpc
import numpy as np
import pytest

from handlers.errors import BodyTooLarge, InvalidPriority, InvalidTimeout, ItemError, WorkTooLarge, WrongOutput
from handlers.protocol import open_inference, rows
from handlers.protocol.api_forms import Embeddings
from handlers.protocol.bodies import parse_json
from handlers.protocol.fields import Fields
from handlers.protocol.requests import Allowance, Payload, Request, Terms
from handlers.protocol.responses import Form, GrpcErrors, Instances, OneItem
from handlers.protocol.rows import Shape, read_headers
from tests.tables import table

SHAPE = Shape(Fields(frozenset({"b64"}), max_request_items=3), max_body_bytes=100)


def typed(media_type: str, name: str = "body") -> dict[str, Any]:
    return {name: {"content-type": media_type}}


JSON = typed("application/json")
WRONG = ItemError(400, "InvalidBody", 'JSON must be {"b64": ...} or {"instances": [{"b64": ...}, ...]}.')


def unpack(row: dict[str, Any], headers: dict[str, Any], shape: Shape) -> Request:
    return rows.unpack(row, read_headers(headers), shape)


def one(value: Any, **options: Any) -> Request:
    return Request((Payload(value, options),))


PREDICTED = b'{"instances": [{"b64": "YQ=="}, {"url": "u"}, {"b64": "Yg==", "top_k": 1}], "top_k": 2}'
ITEMS = (Payload({"b64": "YQ=="}, {"top_k": 2}), WRONG, Payload({"b64": "Yg=="}, {"top_k": 1}))
# The JSON in a field of a form, or else its text.
FORM = {"data": b"bytes", "top_k": bytearray(b"3"), "lang": b"fr", "odd": b"\xff", "deep": b"[" * 60}


@table(
    ({"body": bytearray(b"bytes")}, typed("image/jpeg"), one(b"bytes")),
    *(({"data": b"bytes"}, {}, one(b"bytes")), ({"photo": b"bytes"}, typed("image/png", "photo"), one(b"bytes"))),
    (FORM, {}, one(b"bytes", top_k=3, lang="fr", odd="\ufffd", deep="[" * 60)),
    ({"body": b'{"b64": "aGk="}'}, typed("Application/JSON; charset=utf-8"), one({"b64": "aGk="})),
    ({"body": b'{"b64": "aGk="}'}, {}, one({"b64": "aGk="})),  # curl -T request.json has no type
    ({"body": b'{"b64": "aGk="}'}, typed("text/plain"), one(b'{"b64": "aGk="}')),
    ({"body": b"{not json"}, {}, one(b"{not json")),
    ({"body": {"b64": "aGk=", "top_k": 2}}, {}, one({"b64": "aGk="}, top_k=2)),  # decoded by TorchServe
    ({"body": PREDICTED}, JSON, Request(ITEMS, Instances())),
    # At the limits of bytes and of options.
    ({"body": b"x" * 100}, typed("image/jpeg"), one(b"x" * 100)),
    ({"data": b"x", **{f"f{n}": b"" for n in range(100)}}, {}, one(b"x", **{f"f{n}": "" for n in range(100)})),
)
def test_accepted_body_is_items_with_their_options(row: dict[str, Any], headers: Any, expected: Request) -> None:
    request = unpack(row, headers, SHAPE)
    assert (request.payloads, request.form) == (expected.payloads, expected.form)


TWO = frozenset({"image", "number"})
NUMBERED = replace(SHAPE, items=Fields(TWO, 3), inputs=TWO)
ASKING = replace(SHAPE, items=Fields(frozenset({"question", "context"}), 3), inputs=frozenset({"question", "context"}))
PARTS = {**typed("image/jpeg", "image"), **typed("", "number")}


@table(
    ({"image": b"\xff", "number": b"3", "top_k": b"2"}, NUMBERED, {"image": b"\xff", "number": 3}, {"top_k": 2}),
    ({"image": b"\xff", "number": b"[3]"}, NUMBERED, {"image": b"\xff", "number": [3]}, {}),
    ({"question": b"Who?", "lang": b"fr"}, ASKING, {"question": "Who?"}, {"lang": "fr"}),
    # The name of the whole input, beside which only one other can be.
    ({"data": b"2024", "question": b"Who?"}, ASKING, b"2024", {"question": "Who?"}),
    ({"question": b"2024", "context": "Grüße".encode()}, ASKING, {"question": "2024", "context": "Grüße"}, {}),
)
def test_form_of_several_inputs_is_one_item(row: dict[str, Any], shape: Shape, value: Any, options: Any) -> None:
    assert unpack(row, PARTS, shape).payloads == (Payload(value, options),)


TEXTS = replace(SHAPE, items=Fields(frozenset({"text"}), 3), inputs=frozenset({"text"}), media_types=("text/plain",))
ASKED = b'{"text": "hi"}'
FORM_TYPE = "application/x-www-form-urlencoded"
# TorchServe drops the charset of a header, but keeps the header.
DROPPED = typed("text/plain") | {"CONTENT-TYPE": "Text/Plain; charset=latin1"}
PART = typed("text/plain", "data") | {"content-type": "multipart/form-data; charset=latin1"}


@table(
    (typed("text/plain"), ASKED, ASKED),
    (typed("TEXT/Plain; charset=UTF-8"), "Grüße".encode(), "Grüße".encode()),
    (typed('text/plain; charset="ISO-8859-1"'), "Grüße".encode("latin-1"), "Grüße"),
    (typed("text/plain; charset=gbk"), "北京".encode("gbk"), "北京"),
    *((typed("application/octet-stream"), body, body) for body in (b'{"a": 1}', b'[{"a": 1}]', b"{text")),
    (typed("application/octet-stream"), b'[{"text": "hi"}, 7]', 400),  # JSON, though not all of it is of the task
    *((DROPPED, "Grüße".encode("latin-1"), "Grüße"), (PART, "Grüße".encode(), "Grüße".encode())),
    *((typed(each), ASKED + b" ", 415) for each in ("image/jpeg", "application/xml", "text/html", "text/x-json")),
    *((typed(f"{each}; boundary=x"), ASKED + b" ", 415) for each in ("multipart/mixed", "Multipart/Form-Data")),
    *((typed(f"text/plain; charset={each}"), ASKED + b" ", 415) for each in ("idna", "iso-8859-99")),
    (typed("text/plain; charset=utf-16"), ASKED + b" ", 400),
    # Two types of one body; the body in a form's field of that name has one.
    (typed("text/plain") | {"content-type": "application/json"}, ASKED, 415),
    *((typed("text/plain") | {"content-type": f"{each}; x=y"}, ASKED, ASKED) for each in ("multipart/a", FORM_TYPE)),
    *(({"content-encoding": each}, b"x", b"x") for each in ("Identity", "", "identity, IDENTITY,")),
    *(({"content-encoding": each}, b"x", 415) for each in ("GZIP", "identity,br")),
)
def test_types_and_codings_leave_a_text_a_text_or_reject_it(headers: Any, body: bytes, expected: Any) -> None:
    (payload,) = unpack({"data" if headers is PART else "body": body}, headers, TEXTS).payloads
    if isinstance(expected, int):
        assert isinstance(payload, ItemError) and payload.code == expected
    else:
        assert payload == Payload(expected)


def test_lists_and_objects_are_counted_before_they_are_parsed() -> None:
    many, began_s = b"[" + b"[]," * 1_900_000 + b"{}]", process_time()
    for body in (many, many.decode(), b'{"a": ' + b"{}," * 1_900_000 + b"1}"):
        with pytest.raises(BodyTooLarge, match="lists and objects"):
            parse_json(body)
    # Those in a text are none.
    text = "[{" * 1_000_000
    assert parse_json(json.dumps({"text": text, "other": '"['})) == {"text": text, "other": '"['}
    assert process_time() - began_s < 1.5


@table(
    *(({"body": b""}, 400, "EmptyInput"), ({}, 400, "EmptyInput"), ({"body": b"x" * 101}, 413, "BodyTooLarge")),
    # Every field of a form counts, and none is parsed before that.
    ({"data": b"x", "top_k": b"[" * 100}, 413, "BodyTooLarge"),
    ({"one": b"x" * 50, "two": b"x" * 51}, 413, "BodyTooLarge"),
    *(({"body": b'{"b64": "\xff"}'}, 400, "MalformedJson"), ({"body": b"[" * 100}, 400, "MalformedJson")),
    ({"body": b'{"url": "http://example.org"}'}, 400, "InvalidBody"),
    *(({"body": b"7"}, 400, "InvalidBody"), ({"body": b'{"instances": {"b64": ""}}'}, 400, "InvalidBody")),
    ({"body": b'{"instances": []}'}, 400, "EmptyInput"),
    ({"body": b'{"instances": [1, 2, 3, 4]}'}, 413, "TooManyInstances"),
    ({"body": {"instances": [{"b64": ""}], **{f"option{n}": n for n in range(101)}}}, 400, "InvalidOption"),
    ({"data": b"x", **{f"f{n}": b"" for n in range(199)}}, 400, "InvalidOption"),
    ({"data": b"", **{f"f{n}": b"" for n in range(200)}}, 413, "BodyTooLarge"),
    ({"a": b"1", "b": b"2"}, 400, "InvalidBody"),
    ({'{"b64": "aGk': b""}, 400, "InvalidBody"),  # curl -d without a content type
)
def test_wrong_body_is_one_error_of_its_own_kind(row: dict[str, Any], code: int, type_: str) -> None:
    (error,) = unpack(row, JSON, SHAPE).payloads
    assert isinstance(error, ItemError) and error.message.endswith((".", ")"))
    assert (error.code, error.type) == (code, type_)


@pytest.mark.parametrize(("path", "form"), [("/v2/models/m/infer", open_inference.Inference), ("/", OneItem)])
@pytest.mark.parametrize("body", [b"", b"{", b'{"inputs": 7}'])
def test_body_that_is_no_request_fails_in_the_form_of_its_first_path(path: str, form: type[Form], body: bytes) -> None:
    request = unpack({"body": body}, {**JSON, "X-Envoy-Original-Path": path}, SHAPE)
    (error,) = request.payloads
    assert isinstance(error, ItemError)
    assert (error.code, type(request.form)) == (400, form)


ERROR = ItemError(422, "CorruptInput", "Broken.")
ERROR_JSON = {"code": 422, "type": "CorruptInput", "message": "Broken."}


@table(
    *((OneItem(), [{"고양이": None}], 200, {"고양이": None}), (OneItem(), [ERROR], 422, ERROR_JSON)),
    (OneItem(), [np.array([0.1, 1.5], np.float32)], 200, [0.1, 1.5]),
    (Instances(), [1, ERROR, 3], 200, {"predictions": [1, {"error": ERROR_JSON}, 3]}),
    (Instances(), [ERROR, ERROR], 422, {"predictions": [{"error": ERROR_JSON}, {"error": ERROR_JSON}]}),
)
def test_results_and_errors_keep_their_places(form: Form, results: list[Any], status: int, body: Any) -> None:
    response = form.pack(results)
    assert (response.status, json.loads(response.body)) == (status, body)
    # JSON lacks some values.
    for value in ([1.0, float("inf")], np.array([np.nan], np.float32), {"a": {1}}):
        with pytest.raises((WrongOutput, TypeError)):
            form.pack([value])


@table(
    *((status, "INVALID_ARGUMENT", "invalid_request_error") for status in (400, 402, 415, 422)),
    *((401, "UNAUTHENTICATED", "authentication_error"), (403, "PERMISSION_DENIED", "permission_error")),
    *((404, "NOT_FOUND", "not_found_error"), (405, "UNIMPLEMENTED", "invalid_request_error")),
    *((status, "RESOURCE_EXHAUSTED", "invalid_request_error") for status in (413, 431)),
    (408, "DEADLINE_EXCEEDED", "invalid_request_error"),
    (429, "RESOURCE_EXHAUSTED", "rate_limit_error"),
    *((500, "INTERNAL", "server_error"), (501, "UNIMPLEMENTED", "server_error"), (502, "UNAVAILABLE", "server_error")),
    *((503, "UNAVAILABLE", "server_error"), (504, "DEADLINE_EXCEEDED", "server_error")),
    *((507, "RESOURCE_EXHAUSTED", "server_error"), (508, "INTERNAL", "server_error")),
)
def test_status_is_one_of_grpc_and_a_type_of_openais_and_only_503_is_to_be_tried_again(
    status: int, code: str, kind: str
) -> None:
    error = ItemError(status, "Any", "Why.")
    assert GrpcErrors().pack([error]).headers["X-Grpc-Status"] == str(grpc.StatusCode[code].value[0])
    response = Embeddings("m").pack([error])
    assert (response.status, json.loads(response.body)["error"]["type"]) == (status, kind)
    assert response.headers == ({} if status < 500 or status == 503 else {"X-Should-Retry": "false"})


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


@table(
    ({"x-priority": "3", "X-TIMEOUT-MS": " 25e1 "}, {}, Terms(3, 0.25)),
    # A form's field of that name: TorchServe adds its part's headers to the request's.
    ({"x-priority": {"content-type": "text/plain"}, "Host": "x"}, {}, Terms(None, inf)),
    ({}, {"priority": 3, "timeout": 2**64 - 1}, Terms(3, (2**64 - 1) / 1e6)),
    ({"x-priority": "000000003"}, {}, Terms(3, inf)),
    # Triton's clients send these for none.
    ({}, {"priority": 0, "timeout": 0}, Terms(None, inf)),
    # A proxy may have set the header.
    ({"X-Priority": "3", "X-Timeout-Ms": "5"}, {"priority": 1, "timeout": 6_000}, Terms(3, 0.005)),
    ({"X-Timeout-Ms": "5"}, {"timeout": 4_000}, Terms(None, 0.004)),
)
def test_terms_are_the_headers_or_stricter_parameters(headers: Any, parameters: dict[str, Any], terms: Terms) -> None:
    assert Terms.of({**read_headers(headers), **parameters}, 3) == terms


@pytest.mark.parametrize("value", ["0", "4", "1.0", "first", "", "²", "１", "0000000003", "9" * 5000])
def test_header_that_is_no_level_or_time_is_invalid_and_not_quoted(value: str) -> None:
    with pytest.raises(InvalidPriority, match=r"^X-Priority must be a whole number from 1 \(first\) to 3\.$"):
        Terms.of({"x-priority": value}, 3)
    # A time is a number as HTTP writes it.
    for time in (f"-{value}", "1_000", "\u0661", "0", "150ms"):
        with pytest.raises(InvalidTimeout, match=r"^X-Timeout-Ms must be a number of milliseconds above 0\.$"):
            Terms.of({"x-timeout-ms": time}, 3)


@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None, [1], 2**64])
def test_parameters_that_are_no_level_or_time_are_invalid(value: Any) -> None:
    with pytest.raises(InvalidPriority, match=r"^priority must be a whole number from 1 \(first\) to 3, or 0 "):
        Terms.of({"priority": value}, 3)
    with pytest.raises(InvalidTimeout, match=r"^timeout must be a whole number of microseconds above 0, or 0 "):
        Terms.of({"timeout": value}, 3)


def test_headers_are_read_in_lower_case_apart_from_the_fields_of_a_form() -> None:
    sent = {"X-Api": "rerank", "Explain": "True", "explain": "False", "accept": {"content-type": "Text/Plain"}}
    headers = read_headers({**sent, "body": {"content-type": ""}})
    # TorchServe's own header wins over a client's in another case.
    assert (headers, headers.types) == ({"x-api": "rerank", "explain": "False"}, {"accept": "Text/Plain", "body": ""})
