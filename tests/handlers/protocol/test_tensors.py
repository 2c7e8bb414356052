"""Tensors of the Open Inference Protocol, JSON and binary, against tritonclient."""

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as triton
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from handlers.errors import MalformedTensor
from handlers.protocol import tensors
from handlers.protocol.tensors import DTYPES, from_binary, from_json, read_dtype, read_shape, to_bfloat16
from tests.handlers.protocol.test_open_inference import tensor
from tests.tables import table

SHAPES = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
NUMBERS = st.sampled_from([dtype for name, dtype in DTYPES.items() if name not in ("BYTES", "BF16")])


@st.composite
def arrays(draw: st.DrawFn, *, is_json: bool = False) -> NDArray[Any]:
    """Draw an array of any datatype, with `is_json` of values that JSON can represent."""
    shape = draw(SHAPES)
    if draw(st.booleans()):
        elements: Any = st.text(st.characters(exclude_categories=["Cs"])).map(str.encode) if is_json else st.binary()
        return draw(npst.arrays(np.dtype(object), shape, elements=elements))
    dtype = draw(NUMBERS)
    if is_json:  # from_dtype ignores the two flags for integers
        return draw(npst.arrays(dtype, shape, elements=npst.from_dtype(dtype, allow_nan=False, allow_infinity=False)))
    return draw(npst.arrays(dtype, shape))


def sent(array: NDArray[Any], *, is_binary: bool) -> tuple[dict[str, Any], bytes]:
    """Return the tensor in the JSON document of tritonclient's request, and the bytes behind the document."""
    body, length = triton.InferenceServerClient.generate_request_body([tensor("x", array, binary_data=is_binary)])
    (written,) = json.loads(body[:length])["inputs"]
    return written, b"" if length is None else body[length:]


@given(arrays())
def test_binary_tensor_is_what_tritonclient_sends_and_is_read_as_it_was(array: NDArray[Any]) -> None:
    asked, data = sent(array, is_binary=True)
    assert tensors.to_binary(array) == data
    read = from_binary(read_dtype(asked["datatype"]), read_shape(asked["shape"]), memoryview(data))
    np.testing.assert_array_equal(read, array, strict=True)


@given(arrays(is_json=True))
def test_json_tensor_of_tritonclient_is_read_flat_or_nested_and_written_alike(array: NDArray[Any]) -> None:
    asked, _ = sent(array, is_binary=False)
    read = from_json(read_dtype(asked["datatype"]), read_shape(asked["shape"]), asked["data"])
    assert list(tensors.to_json(read)) == asked["data"]
    decoded = np.vectorize(bytes.decode, otypes=[object])(array) if array.dtype == object else array
    np.testing.assert_array_equal(read, decoded, strict=True)
    if array.ndim:
        nested = from_json(DTYPES[tensors.datatype_of(array)], array.shape, decoded.tolist())
        np.testing.assert_array_equal(nested, decoded, strict=True)


def test_every_bf16_is_what_tritonclient_sends_and_fp32_is_rounded_to_the_nearest() -> None:
    every = np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    asked, data = sent(every, is_binary=True)
    assert asked["datatype"] == "BF16"
    read = tensors.from_bfloat16(from_binary(read_dtype("BF16"), (2**16,), memoryview(data)))
    np.testing.assert_array_equal(read, every.astype(np.float32), strict=True)
    assert tensors.datatype_of(to_bfloat16(read)) == "BF16"
    np.testing.assert_array_equal(tensors.to_json(to_bfloat16(read)), read)
    # Bits on both sides of every tie.
    between = np.concatenate([(np.arange(2**16, dtype=np.uint32) << 16) + low for low in (0x7FFF, 0x8000, 0x8001)])
    numbers = between.view(np.float32)
    written = np.frombuffer(tensors.to_binary(to_bfloat16(numbers)), ml_dtypes.bfloat16).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(written, numbers.astype(ml_dtypes.bfloat16).astype(np.float32))


HUGE = [2**62, 2**62]


@table(
    *(("FP8", [1], b"\0"), ("BF16", [1], [1.0]), ("UINT8", None, b"\0"), ("UINT8", [-1], b"")),
    *(("UINT8", [1] * 17, b"\0"), ("UINT8", HUGE, [1])),
    # Sizes that numpy cannot multiply, beside a 0.
    *(("UINT8", [0, 2**31 - 1, 2**31 - 1, 2**31 - 1], b""), ("FP32", [2], b"\0" * 7), ("BYTES", [1], b"\0\0\0")),
    *(("BYTES", [1], b"\xff\xff\xff\xffa"), ("BYTES", [1], b"\1\0\0\0a\1\0\0\0b"), ("UINT8", [2], [1, 256])),
    *(("UINT8", [2], [1, True]), ("UINT8", [2, 1], [[1, 2]]), ("FP32", [1], [1e39]), ("FP64", [1], [10**400])),
    # numpy's default dtype would need 4 TB.
    ("INT64", [10**6 + 1], [*[0] * 10**6, "a" * 10**6]),
)
def test_tensor_whose_parts_disagree_is_malformed(datatype: Any, shape: Any, data: Any) -> None:
    with pytest.raises(MalformedTensor, match=r"\.$"):
        if isinstance(data, bytes):
            from_binary(read_dtype(datatype), read_shape(shape), memoryview(data))
        else:
            from_json(read_dtype(datatype), read_shape(shape), data)
