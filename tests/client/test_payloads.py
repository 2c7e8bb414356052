import base64
import json
from typing import Any

import numpy as np
import pytest

from tests.tables import table
from torchserve_client import InvalidPayload, protocol
from torchserve_client.payloads import encode

JSON, TEXT, OCTETS = "application/json", "text/plain; charset=utf-8", "application/octet-stream"
B64 = base64.b64encode(b"\xff\xd8").decode()


@table(
    (b"\xff\xd8", b"\xff\xd8", OCTETS),
    (memoryview(b"\xff\xd8"), b"\xff\xd8", OCTETS),
    ("한국", "한국".encode(), TEXT),
    ({"question": "q"}, b'{"question":"q"}', JSON),
    ({"b64": b"\xff\xd8"}, b'{"b64":"%s"}' % B64.encode(), JSON),
    (["a", {"text": "b"}], b'{"instances":["a",{"text":"b"}]}', JSON),
    (("a",), b'{"instances":["a"]}', JSON),
    ([b"\xff\xd8"], b'{"instances":[{"b64":"%s"}]}' % B64.encode(), JSON),
)
def test_payload_without_options_is_sent_as_it_is(payload: Any, content: bytes, content_type: str) -> None:
    made = encode(payload, {})
    assert (made.content, made.headers) == (content, {"Content-Type": content_type})


@table(
    ("한국", {"text": "한국", "top_k": 3}),
    ({"text": "a"}, {"text": "a", "top_k": 3}),
    ({"text": "a", "top_k": 1}, {"text": "a", "top_k": 1}),
    (["a"], {"instances": ["a"], "top_k": 3}),
)
def test_options_stand_beside_the_input_and_the_payloads_own_win(payload: Any, parsed: Any) -> None:
    assert json.loads(encode(payload, {"top_k": 3}).content) == parsed


def test_bytes_with_options_are_a_form_and_stay_bytes() -> None:
    made = encode(b"\xff\xd8", {"top_k": 3, "tgt_lang": "ko"})
    assert made.headers["Content-Type"].startswith("multipart/form-data; boundary=")
    boundary = made.headers["Content-Type"].partition("boundary=")[2].encode()
    parts = [part.partition(b"\r\n\r\n") for part in made.content.split(b"--" + boundary)[1:-1]]
    values = {head.partition(b'name="')[2].partition(b'"')[0]: value for head, _, value in parts}
    assert values == {b"top_k": b"3\r\n", b"tgt_lang": b'"ko"\r\n', b"data": b"\xff\xd8\r\n"}


def test_arrays_are_tensors_and_options_their_parameters() -> None:
    array = np.array([["a"]], object)
    for payload, name in (({"text": array}, "text"), (array, "input")):
        made = encode(payload, {"top_k": 3})
        length = int(made.headers["Inference-Header-Content-Length"])
        assert (made.content, length) == protocol.encode({name: array}, {"top_k": 3})


@table(
    (3, "not int"),
    ({"a": np.zeros(1), "b": 1}, "must contain only arrays"),
    (np.zeros(1, np.complex64), "arrays of complex64 cannot be sent"),
    ({"a": {1, 2}}, "cannot be written as JSON"),
)
def test_payload_of_no_known_kind_is_refused_before_anything_is_sent(payload: Any, words: str) -> None:
    with pytest.raises(InvalidPayload, match=words):
        encode(payload, {})
