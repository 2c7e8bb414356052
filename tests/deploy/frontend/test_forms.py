"""HTTP requests as TorchServe's frontend hands them over."""

import time

import pytest

from deploy.frontend.forms import MOST_FIELDS, MalformedForm, row_of
from handlers.protocol import rows
from handlers.protocol.rows import read_headers
from tests.tables import table

URL_ENCODED, FORM = "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"
MOST = 10_000
JPEG, PNG = "\r\nContent-Type: image/jpeg", "\r\ncontent-type : image/png"


def part(name: str, value: bytes, more: str = "") -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


TABLE: list[tuple[str, bytes, dict[str, tuple[bytes, str]]]] = [
    ("", b"abc", {"body": (b"abc", "")}),
    ("application/json", b"{}", {"body": (b"{}", "application/json")}),
    (URL_ENCODED, b"%ff=1&a=2", {"\ufffd": (b"1", ""), "a": (b"2", "")}),
    (URL_ENCODED, b"data=a+b%21&top_k=2", {"data": (b"a b!", ""), "top_k": (b"2", "")}),
    # JSON that `curl -d` sends as a form: Netty drops a last field without "=".
    (URL_ENCODED, b'{"text": 1}', {}),
    (FORM, part("data", b"x\r\ny") + b"--b--\r\n", {"data": (b"x\r\ny", "")}),
    (
        FORM,
        part("a", b"j", f'; filename="a"{JPEG}') + part("b", b"3") + b"--b--",
        {"a": (b"j", JPEG[16:]), "b": (b"3", "")},
    ),
    # The next are TorchServe's own answers.
    (FORM, part('a;b:c\\"d', b"x") + b"--b--", {"a b c\\d": (b"x", "")}),
    (FORM, part("a", b"x", '; NAME=c; x=";;=\\";"') + b"--b--", {"c": (b"x", "")}),
    (FORM, part("a\u2028b", b"x", f"; filename*=utf-8''a;b{PNG}") + b"--b--", {"a\u2028b": (b"x", "image/png")}),
    (FORM, part("a", b"x", "; filename*0=a\r\nContent-Type: image/png") + b"--b--", {"a": (b"x", "")}),
    (f"{FORM}; boundary=c", part("a", b"x") + b"--b--", {"a": (b"x", "")}),
    ('multipart/form-data; BOUNDARY="b=c"', part("a", b"x").replace(b"--b", b"--b=c") + b"--b=c--", {"a": (b"x", "")}),
    # Neither is parsed by TorchServe, and the handler refuses both.
    ("multipart/form-data", b"--b", {"body": (b"--b", "multipart/form-data")}),
    ("MULTIPART/FORM-DATA; boundary=b", b"--b", {"body": (b"--b", "MULTIPART/FORM-DATA; boundary=b")}),
]


@table(*TABLE)
def test_row_has_fields_or_a_body(content_type: str, body: bytes, expected: dict[str, tuple[bytes, str]]) -> None:
    row, headers = row_of({"content-type": content_type}, body, MOST)
    types = read_headers(headers).types
    assert {name: (value, types[name]) for name, value in row.items()} == expected


@table(
    *(b"", b"zz", b"--b\r\n", part("a", b"1"), part("a", b"1") * 2 + b"--b--", b"--b\r\n\r\n"),
    *(part(*each) + b"--b--" for each in (("", b"1"), ("a", b"1", "; x=" + "y" * 1024))),
)
def test_form_that_is_none_is_an_error(body: bytes) -> None:
    with pytest.raises(MalformedForm):
        row_of({"content-type": FORM}, body, MOST)


@table(('multipart/form-data; x="' + ";" * 60_000, ""), (FORM, '; x="' + ";" * 900))
def test_parameters_take_a_time_that_grows_with_their_length_only(kind: str, part_head: str) -> None:
    body = b"".join(part(str(number), b"1", part_head) for number in range(MOST_FIELDS)) + b"--b--"
    began_s = time.process_time()
    row, _ = row_of({"content-type": kind}, body, len(body))
    assert len(row) == (1 if kind != FORM else MOST_FIELDS)
    assert time.process_time() - began_s < 0.5


def test_form_of_too_many_fields_is_a_row_and_bodies_beyond_the_limit_or_of_other_paths_are_no_forms() -> None:
    assert MOST_FIELDS == rows.MOST_FIELDS
    many = range(5 * MOST_FIELDS)
    parts = b"".join(part(str(number), b"1") for number in many) + b"--b--"
    for kind, body in ((URL_ENCODED, b"&".join(b"%d=1" % number for number in many)), (FORM, parts)):
        assert len(row_of({"content-type": kind}, body, len(body))[0]) > MOST_FIELDS
    body = part("data", b"x") + b"--b--"
    for limits in ((3,), (MOST, "/v2/models/m/infer")):
        assert row_of({"content-type": FORM}, body, *limits)[0] == {"body": body}
    # Headers that only a proxy may send are the frontend's own.
    sent = {"x-envoy-original-path": "/v2/models/m/infer", "explain": "True", "describe": "True"}
    _, headers = row_of(sent, b"x", MOST)
    assert (headers.get("x-envoy-original-path"), headers["explain"]) == (None, "False")
    _, headers = row_of(sent, b"x", MOST, "/v1/embeddings")
    assert headers["x-envoy-original-path"] == "/v1/embeddings"
