import json
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tritonclient.utils import np_to_triton_dtype

from tests.tables import table
from torchserve_client import InvalidPayload
from torchserve_client.protocol import decode, encode

KOREAN = np.array([["한국은행이"], ["기준금리를 동결했다."]], object)
BYTES = np.array([b"\xff\xd8\0", b""], object)


@pytest.mark.parametrize("tensors", [{"text": KOREAN}, {"a": BYTES, "b": np.zeros((0, 3)), "c": np.arange(3)}])
def test_request_is_what_tritonclient_sends(tensors: dict[str, Any]) -> None:
    inputs = []
    for name, array in tensors.items():
        tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array))
    sent = triton.InferenceServerClient.generate_request_body(inputs, parameters={"top_k": 3})
    assert encode(tensors, {"top_k": 3}) == sent


@given(
    arrays.arrays(
        st.sampled_from(["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?", ">f4", ">i2"]),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    )
)
def test_binary_tensor_of_any_type_is_read_by_tritonclient_as_it_was(array: Any) -> None:
    sent, json_length = encode({"x": array}, {})
    request = json.loads(sent[:json_length])
    answer = json.dumps({"outputs": request["inputs"]}).encode()
    raw = sent[json_length:]
    result = triton.InferResult.from_response_body(answer + raw, header_length=len(answer))
    native = array.astype(array.dtype.newbyteorder("="))
    np.testing.assert_array_equal(result.as_numpy("x"), native)
    decoded = decode(answer + raw, len(answer))["x"]
    np.testing.assert_array_equal(decoded, native)
    assert decoded.dtype == native.dtype


@table(
    (np.array([1, "a"], object), "text or bytes, not int"),
    (np.zeros(1, "M8[s]"), "cannot be sent"),
)
def test_array_that_cannot_be_sent_says_so(array: Any, words: str) -> None:
    with pytest.raises(InvalidPayload, match=words):
        encode({"x": array}, {})
