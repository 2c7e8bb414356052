"""Open Inference requests and tensors as tritonclient has them; tests/e2e/test_conformance.py has the rest of it."""

import json
import time
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as triton
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype

from handlers.errors import ItemError, MalformedTensor, WrongOutput
from handlers.protocol import tensors
from handlers.protocol.fields import Fields
from handlers.protocol.open_inference import Inference
from handlers.protocol.output_tensors import LABELS, Model, OutputTensors, documents, rankings, vectors
from handlers.protocol.requests import Payload, Request
from handlers.protocol.responses import Response
from handlers.protocol.rows import Shape
from handlers.protocol.tensors import DTYPES, from_binary, from_json, read_dtype, read_shape, to_bfloat16
from tests.handlers.protocol.test_requests import unpack
from tests.tables import table

FIELDS = Fields(frozenset({"text"}), max_request_items=3, options=frozenset({"top_k", "tgt_lang", "threshold"}))
TEXT = Shape(FIELDS, max_body_bytes=1000, model=Model("classifier", "1.0", rankings(LABELS)))
IMAGE = Shape(Fields(frozenset({"b64"}), 3, frozenset({"top_k"}), item_dimensions=3), 1000)
KOREAN = np.array(["기준금리를 동결했다.".encode(), "비가 온다.".encode()], object)


def tensor(name: str, array: Any, client: Any = triton, **how: bool) -> Any:
    """A tensor of a client, HTTP's or gRPC's; `binary_data=False` is HTTP's JSON."""
    array = np.asarray(array)
    made = client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return made.set_data_from_numpy(array, **how)


def sent(shape: Shape, *tensors: triton.InferInput, **more: Any) -> Request:
    """Unpack the very bytes that tritonclient sends, its header in TorchServe's lower case."""
    body, length = triton.InferenceServerClient.generate_request_body(list(tensors), **more)
    headers = {} if length is None else {"inference-header-content-length": str(length)}
    return unpack({"body": bytearray(body)}, headers, shape)


def read(response: Response) -> triton.InferResult:
    length = response.headers.get("Inference-Header-Content-Length")
    assert response.content_type == ("application/json" if length is None else "application/octet-stream")
    return triton.InferenceServerClient.parse_response_body(response.body, header_length=length and int(length))


def failed(request: Request) -> ItemError:
    (error,) = request.payloads
    assert isinstance(error, ItemError)
    response = request.form.pack([error])
    assert (response.status, json.loads(response.body)) == (error.code, {"error": error.message})
    return error


@pytest.mark.parametrize(("is_binary", "name", "shape"), [(True, "text", (2,)), (False, "INPUT0", (2, 1))])
def test_texts_in_one_tensor_become_items_with_options_of_their_own(name: str, shape: Any, is_binary: bool) -> None:
    arrays = {name: KOREAN.reshape(shape), "top_k": [[1], [2]], "threshold": np.array([0.5, 0.25], np.float32)}
    tensors = [tensor(name, array, binary_data=is_binary) for name, array in arrays.items()]
    # The protocol's own parameters are not options.
    own = {"request_id": "7", "sequence_id": 5, "sequence_start": True, "priority": 1, "timeout": 9}
    request = sent(TEXT, *tensors, parameters={"tgt_lang": "de", "top_k": 9}, **own)
    texts: list[Any] = list(KOREAN) if is_binary else [{"text": text.decode()} for text in KOREAN]
    options = [{"tgt_lang": "de", "top_k": top_k, "threshold": least} for top_k, least in ((1, 0.5), (2, 0.25))]
    assert (list(request.payloads), request.terms) == ([*map(Payload, texts, options)], {"priority": 1, "timeout": 9})


def test_bytes_options_become_text_and_one_that_is_not_utf8_fails_its_item_only() -> None:
    languages = np.array([b"de", b"\xff"], object)
    first, second = sent(TEXT, tensor("text", KOREAN), tensor("tgt_lang", languages)).payloads
    assert first == Payload(KOREAN[0], {"tgt_lang": "de"})
    assert isinstance(second, ItemError) and (second.code, second.type) == (400, "InvalidText")
    # Files are bytes in binary, and base64 in JSON.
    files = np.array([b"\xff\xd8", b"\x89PNG"], object)
    assert sent(IMAGE, tensor("image", files)).payloads == (Payload(b"\xff\xd8"), Payload(b"\x89PNG"))
    inputs = [{"name": "image", "datatype": "BYTES", "shape": [1], "data": ["/9g="]}]
    assert unpack({"body": {"inputs": inputs}}, {}, IMAGE).payloads == (Payload({"b64": "/9g="}),)


GOOD = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}
WRONG: list[tuple[dict[str, Any], str]] = [
    *(({"inputs": []}, "InvalidBody"), ({"inputs": [7]}, "InvalidBody"), ({"inputs": [GOOD] * 1001}, "InvalidBody")),
    ({"inputs": [{**GOOD, "parameters": 7}]}, "InvalidBody"),
    ({"inputs": [{**GOOD, "parameters": {"shared_memory_region": "r"}}]}, "InvalidBody"),
    ({"inputs": [{**GOOD, "parameters": {"binary_data_size": 1}}]}, "MalformedTensor"),
    ({"inputs": [GOOD, GOOD]}, "MalformedTensor"),
    ({"inputs": [GOOD, {**GOOD, "name": "top_k", "shape": [2], "data": ["a", "b"]}]}, "InvalidBody"),
    ({"inputs": [{**GOOD, "name": "top_k"}]}, "InvalidBody"),
    ({"inputs": [{**GOOD, "shape": [1, 2], "data": ["a", "b"]}]}, "InvalidBody"),
    ({"inputs": [{**GOOD, "shape": [0], "data": []}]}, "EmptyInput"),
    ({"inputs": [{**GOOD, "shape": [4], "data": list("abcd")}]}, "TooManyInstances"),
    ({"inputs": [GOOD], "id": 7}, "InvalidBody"),
    # TorchServe's own parser accepts it, and an answer cannot contain it.
    ({"inputs": [GOOD], "id": "\ud800"}, "InvalidBody"),
    ({"inputs": [GOOD], "parameters": {"binary_data_output": 1}}, "InvalidBody"),
    ({"inputs": [GOOD], "parameters": {f"option{n}": n for n in range(101)}}, "InvalidOption"),
    ({"inputs": [GOOD], "outputs": ["label"]}, "InvalidBody"),
    ({"inputs": [GOOD], "outputs": [{"name": "logits"}]}, "InvalidBody"),
    ({"inputs": [GOOD], "outputs": [{"name": "label", "parameters": {"classification": 3}}]}, "InvalidBody"),
    ({"inputs": [GOOD], "outputs": [{"name": "label", "parameters": {"binary_data": "1"}}]}, "InvalidBody"),
]
WRITTEN = json.dumps({"inputs": [GOOD]}).encode()


@table(
    *((document, {}, type_) for document, type_ in WRONG),
    *((b"{}", {"Inference-Header-Content-Length": each}, "MalformedTensor") for each in ("3", "²", "9" * 5000)),
    (b"{}", {"Inference-Header-Content-Length": "1"}, "MalformedJson"),
    (b"[]", {"inference-header-content-length": "2"}, "InvalidBody"),
    (WRITTEN + b"x", {"inference-header-content-length": str(len(WRITTEN))}, "MalformedTensor"),
    (b"", {"inference-header-content-length": "0"}, "EmptyInput"),
    (b"{}" * 501, {"inference-header-content-length": "2"}, "BodyTooLarge"),
    (b"{}", {"inference-header-content-length": "2", "content-encoding": "gzip"}, "UnsupportedMedia"),
)
def test_request_wrong_as_a_whole_is_one_error_in_tritons_form(body: Any, headers: Any, type_: str) -> None:
    error = failed(unpack({"body": body}, headers, TEXT))
    codes = {"TooManyInstances": 413, "BodyTooLarge": 413, "UnsupportedMedia": 415}
    assert (error.code, error.type) == (codes.get(type_, 400), type_)
    assert error.message.endswith((".", ")"))


EMBEDDING = replace(TEXT, model=Model("embedding", "1", vectors("embedding").rename({"embedding": "output__0"})))


@pytest.mark.parametrize("names", [["output__0", "b"], ["\ud800"]])
def test_the_one_output_under_two_names_or_one_that_cannot_be_written_is_rejected(names: list[str]) -> None:
    body = {"inputs": [GOOD], "outputs": [{"name": name} for name in names]}
    assert failed(unpack({"body": body}, {}, EMBEDDING)).type == "InvalidBody"


def test_many_outputs_of_a_model_that_has_not_run_take_time_by_their_number_and_not_its_square() -> None:
    unknown = replace(TEXT, max_body_bytes=10**6, model=Model("any", "1", OutputTensors([], lambda _: {})))
    body = {"inputs": [GOOD], "outputs": [{"name": str(number)} for number in range(5000)]}
    started_s = time.thread_time()
    assert unpack({"body": body}, {}, unknown).payloads == (Payload({"text": "a"}),)
    assert time.thread_time() - started_s < 3.0  # the square took 14 s


def test_item_that_failed_has_its_error_beside_the_outputs_that_a_client_names() -> None:
    model = Model("model", "2.0", rankings({"answer": object, "score": np.float32}))
    broken, one = ItemError(422, "CorruptInput", "Broken."), {"answer": "가", "score": 0.5}
    result = read(Inference(model, "seven", wanted={"score": True}).pack([[one], broken, [one, one]]))
    assert [output["name"] for output in result.get_response()["outputs"]] == ["score", "error"]
    scores = np.array([[0.5, np.nan], [np.nan, np.nan], [0.5, 0.5]], np.float32)
    np.testing.assert_array_equal(result.as_numpy("score"), scores, strict=True)
    first, error, last = result.as_numpy("error")
    assert (json.loads(error), len(first), len(last)) == (broken.to_json(), 0, 0)


@table(
    (vectors("embedding"), np.array([np.nan], np.float32), "embedding"),
    (rankings(LABELS), [{"label": "a", "score": float("inf")}], "score"),
    (documents(), [{"places": [{"score": float("nan")}]}], "score"),
)
def test_result_that_is_not_finite_is_an_error_that_names_it(outputs: OutputTensors, result: Any, name: str) -> None:
    with pytest.raises(WrongOutput, match=f"^{name}: the model returned NaN or infinity"):
        Inference(Model("model", "2.0", outputs)).pack([result])


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


def tensor_sent(array: NDArray[Any], *, is_binary: bool) -> tuple[dict[str, Any], bytes]:
    """Return the tensor in the JSON document of tritonclient's request, and the bytes behind the document."""
    body, length = triton.InferenceServerClient.generate_request_body([tensor("x", array, binary_data=is_binary)])
    (written,) = json.loads(body[:length])["inputs"]
    return written, b"" if length is None else body[length:]


@given(arrays())
def test_binary_tensor_is_what_tritonclient_sends_and_is_read_as_it_was(array: NDArray[Any]) -> None:
    asked, data = tensor_sent(array, is_binary=True)
    assert tensors.to_binary(array) == data
    read = from_binary(read_dtype(asked["datatype"]), read_shape(asked["shape"]), memoryview(data))
    np.testing.assert_array_equal(read, array, strict=True)


@given(arrays(is_json=True))
def test_json_tensor_of_tritonclient_is_read_flat_or_nested_and_written_alike(array: NDArray[Any]) -> None:
    asked, _ = tensor_sent(array, is_binary=False)
    read = from_json(read_dtype(asked["datatype"]), read_shape(asked["shape"]), asked["data"])
    assert list(tensors.to_json(read)) == asked["data"]
    decoded = np.vectorize(bytes.decode, otypes=[object])(array) if array.dtype == object else array
    np.testing.assert_array_equal(read, decoded, strict=True)
    if array.ndim:
        nested = from_json(DTYPES[tensors.datatype_of(array)], array.shape, decoded.tolist())
        np.testing.assert_array_equal(nested, decoded, strict=True)


def test_every_bf16_is_what_tritonclient_sends_and_fp32_is_rounded_to_the_nearest() -> None:
    every = np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    asked, data = tensor_sent(every, is_binary=True)
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


@table(("INT32", [1, 2.0, -3.0]), ("UINT8", [255.0]), ("INT64", [2.0**53]), ("BOOL", [1.0, 0.0, True]), ("FP32", [1.0]))
def test_whole_numbers_may_be_floats_as_generated_clients_write_them(datatype: str, data: list[Any]) -> None:
    dtype = read_dtype(datatype)
    read = from_json(dtype, (len(data),), data)
    assert (read.dtype, read.tolist()) == (dtype, data)


HUGE = [2**62, 2**62]


@table(
    *(("FP8", [1], b"\0"), ("BF16", [1], [1.0]), ("UINT8", None, b"\0"), ("UINT8", [-1], b"")),
    *(("UINT8", [1] * 17, b"\0"), ("UINT8", HUGE, [1])),
    # Sizes that numpy cannot multiply, beside a 0.
    *(("UINT8", [0, 2**31 - 1, 2**31 - 1, 2**31 - 1], b""), ("FP32", [2], b"\0" * 7), ("BYTES", [1], b"\0\0\0")),
    *(("BYTES", [1], b"\xff\xff\xff\xffa"), ("BYTES", [1], b"\1\0\0\0a\1\0\0\0b"), ("UINT8", [2], [1, 256])),
    *((datatype, [1], [each]) for datatype in ("INT32", "BOOL") for each in (0.5, 2.0**54)),
    *(
        ("UINT8", [2], [1, True]),
        ("UINT8", [1], [256.0]),
        ("UINT8", [2, 1], [[1, 2]]),
        ("FP32", [1], [1e39]),
        ("FP64", [1], [10**400]),
    ),
    # numpy's default dtype would need 4 TB.
    ("INT64", [10**6 + 1], [*[0] * 10**6, "a" * 10**6]),
)
def test_tensor_whose_parts_disagree_is_malformed(datatype: Any, shape: Any, data: Any) -> None:
    with pytest.raises(MalformedTensor, match=r"\.$"):
        if isinstance(data, bytes):
            from_binary(read_dtype(datatype), read_shape(shape), memoryview(data))
        else:
            from_json(read_dtype(datatype), read_shape(shape), data)
