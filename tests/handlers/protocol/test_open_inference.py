"""Open Inference requests as tritonclient sends them; tests/e2e/test_conformance.py has the rest of the protocol."""

import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import np_to_triton_dtype

from handlers.errors import ItemError, WrongOutput
from handlers.protocol.fields import Fields
from handlers.protocol.open_inference import Inference
from handlers.protocol.output_tensors import LABELS, Model, OutputTensors, documents, rankings, vectors
from handlers.protocol.requests import Payload, Request
from handlers.protocol.responses import Reply
from handlers.protocol.rows import Shape
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


def read(reply: Reply) -> triton.InferResult:
    length = reply.headers.get("Inference-Header-Content-Length")
    assert reply.content_type == ("application/json" if length is None else "application/octet-stream")
    return triton.InferenceServerClient.parse_response_body(reply.body, header_length=length and int(length))


def failed(request: Request) -> ItemError:
    (error,) = request.payloads
    assert isinstance(error, ItemError)
    reply = request.form.pack([error])
    assert (reply.status, json.loads(reply.body)) == (error.code, {"error": error.message})
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
def test_the_one_output_under_two_names_or_one_that_cannot_be_written_is_refused(names: list[str]) -> None:
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
