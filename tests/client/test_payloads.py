"""Payloads as requests, and the Open Inference Protocol's tensors beside those of tritonclient."""

import base64
import json
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tritonclient.utils import np_to_triton_dtype

from deploy.protocol.rejections import OF_ENVOY, RETRY
from handlers.protocol import tensors, wire
from handlers.protocol.statuses import STATUSES
from tests.tables import table
from torchserve_client import InvalidPayload, Unavailable, client, metadata, protocol
from torchserve_client.errors import make_error
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
    ([[3], 4, 0.5], b'{"instances":[[3],4,0.5]}', JSON),
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
    ({"x": np.array([1, "a"], object)}, "text or bytes, not int"),
    ({"x": np.zeros(1, "M8[s]")}, "cannot be sent"),
)
def test_payload_of_no_known_kind_is_refused_before_anything_is_sent(payload: Any, words: str) -> None:
    with pytest.raises(InvalidPayload, match=words):
        encode(payload, {})


KOREAN = np.array([["한국은행이"], ["기준금리를 동결했다."]], object)
BYTES = np.array([b"\xff\xd8\0", b""], object)


@pytest.mark.parametrize("tensors", [{"text": KOREAN}, {"a": BYTES, "b": np.zeros((0, 3)), "c": np.arange(3)}])
def test_request_is_what_tritonclient_sends(tensors: dict[str, Any]) -> None:
    inputs = []
    for name, array in tensors.items():
        tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array))
    sent = triton.InferenceServerClient.generate_request_body(inputs, parameters={"top_k": 3})
    assert protocol.encode(tensors, {"top_k": 3}) == sent


@given(
    arrays.arrays(
        st.sampled_from(["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?", ">f4", ">i2"]),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    )
)
def test_binary_tensor_of_any_type_is_read_by_tritonclient_as_it_was(array: Any) -> None:
    sent, json_length = protocol.encode({"x": array}, {})
    request = json.loads(sent[:json_length])
    answer = json.dumps({"outputs": request["inputs"]}).encode()
    raw = sent[json_length:]
    result = triton.InferResult.from_response_body(answer + raw, header_length=len(answer))
    native = array.astype(array.dtype.newbyteorder("="))
    np.testing.assert_array_equal(result.as_numpy("x"), native)
    decoded = protocol.decode(answer + raw, len(answer))["x"]
    np.testing.assert_array_equal(decoded, native)
    assert decoded.dtype == native.dtype


def test_names_and_statuses_are_those_of_the_server() -> None:
    """The client is installed alone, so it has its own."""
    names = (client.TIMEOUT_HEADER, metadata.HEADER, metadata.FINGERPRINT, protocol.HEADER)
    own = (wire.TIMEOUT_HEADER, wire.METADATA_HEADER, wire.FINGERPRINT_HEADER, wire.LENGTH_HEADER)
    assert [each.lower() for each in names] == [each.lower() for each in own]
    assert {name: np.dtype(kind) for name, kind in protocol.DATATYPES.items()} == {
        name: dtype for name, dtype in tensors.DTYPES.items() if dtype.kind in "biuf"
    }
    retried = {status for status in STATUSES if isinstance(make_error(status, "", ""), Unavailable)}
    assert retried == {each.status for each in OF_ENVOY if RETRY.items() <= each.headers.items()}
