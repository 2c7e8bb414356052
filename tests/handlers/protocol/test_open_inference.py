import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from hypothesis import given
from hypothesis import strategies as st

from handlers.errors import ItemError
from handlers.protocol.fields import Fields
from handlers.protocol.open_inference import Inference, Model
from handlers.protocol.output_tensors import LABELS, Ranked, Renamed, Vectors
from handlers.protocol.requests import Payload, Request, Shape, unpack
from tests.handlers.protocol.test_output_tensors import read
from tests.handlers.protocol.test_tensors import JSON
from tests.handlers.serving import DoublingHandler, serve, started

TEXT = Shape(
    Fields(frozenset({"text"}), max_instances=3, options=frozenset({"top_k", "tgt_lang", "threshold"})),
    max_body_bytes=1000,
    model=Model("classifier", "1.0", Ranked(LABELS)),
)
QUESTIONS = Fields(frozenset({"question", "context"}), 3, frozenset({"top_k"}))
QUESTION = Shape(QUESTIONS, 1000)
IMAGE = Shape(Fields(frozenset({"b64"}), 3, frozenset({"top_k"}), item_dimensions=3), 1000)

KOREAN = np.array(["기준금리를 동결했다.".encode(), "비가 온다.".encode()], object)


def tensor(name: str, array: Any, *, is_binary: bool = True) -> triton.InferInput:
    array = np.asarray(array)
    datatype = {"O": "BYTES", "u": "UINT8", "i": "INT64", "f": "FP32", "b": "BOOL"}[array.dtype.kind]
    return triton.InferInput(name, list(array.shape), datatype).set_data_from_numpy(array, binary_data=is_binary)


def sent(shape: Shape, *tensors: triton.InferInput, **more: Any) -> Request:
    """What a row makes of the very bytes that tritonclient sends, header in TorchServe's lower case."""
    body, length = triton.InferenceServerClient.generate_request_body(list(tensors), **more)
    headers = {} if length is None else {"inference-header-content-length": str(length)}
    return unpack({"body": bytearray(body)}, headers, shape)


def document(shape: Shape, **fields: Any) -> Request:
    return unpack({"body": json.dumps(fields).encode()}, {}, shape)


def failed(request: Request) -> ItemError:
    """The error of a row that is wrong as a whole, which its answer says in Triton's way."""
    (error,) = request.payloads
    assert isinstance(error, ItemError)
    reply = request.form.pack([error])
    assert (reply.status, json.loads(reply.body)) == (error.code, {"error": error.message})
    return error


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("shape", [(2,), (2, 1)])
@pytest.mark.parametrize("name", ["text", "INPUT0"])
def test_texts_in_one_tensor_become_items_with_options_of_their_own(
    name: str, shape: tuple[int, ...], is_binary: bool
) -> None:
    request = sent(
        TEXT,
        tensor(name, KOREAN.reshape(shape), is_binary=is_binary),
        tensor("top_k", np.array([[1], [2]]), is_binary=is_binary),
        tensor("threshold", np.array([0.5, 0.25], np.float32), is_binary=is_binary),
        parameters={"tgt_lang": "de", "top_k": 9},
        request_id="7",
    )
    texts: list[Any] = list(KOREAN) if is_binary else [{"text": text.decode()} for text in KOREAN]
    assert list(request.payloads) == [
        Payload(texts[0], {"tgt_lang": "de", "top_k": 1, "threshold": 0.5}),
        Payload(texts[1], {"tgt_lang": "de", "top_k": 2, "threshold": 0.25}),
    ]


def test_bytes_options_become_text_and_what_is_none_fails_alone() -> None:
    languages = np.array([b"de", b"\xff"], object)
    first, second = sent(TEXT, tensor("text", KOREAN), tensor("tgt_lang", languages)).payloads
    assert first == Payload(KOREAN[0], {"tgt_lang": "de"})
    assert isinstance(second, ItemError)
    assert (second.code, second.type) == (400, "InvalidText")


def test_protocol_parameters_are_no_options() -> None:
    request = sent(TEXT, tensor("text", KOREAN[:1]), sequence_id=5, sequence_start=True, priority=1, timeout=9)
    assert request.payloads == (Payload(KOREAN[0], {}),)


def test_inputs_of_a_task_with_two_are_taken_by_name_and_one_may_be_shared() -> None:
    question, context = np.array([b"Who?"], object), np.array([[b"Ada."]], object)
    both = sent(QUESTION, tensor("context", context), tensor("question", question))
    assert both.payloads == (Payload({"question": b"Who?", "context": b"Ada."}),)
    one = sent(QUESTION, tensor("context", context), parameters={"question": "Who?"})
    assert one.payloads == (Payload({"context": b"Ada."}, {"question": "Who?"}),)
    assert "context, question" in failed(sent(QUESTION, tensor("INPUT0", context))).message


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize(("dimensions", "items"), [((2, 4, 5, 3), 2), ((4, 5, 3), 1)])
def test_pixels_become_one_array_an_image(dimensions: tuple[int, ...], items: int, is_binary: bool) -> None:
    pixels = np.arange(np.prod(dimensions), dtype=np.uint8).reshape(dimensions)
    payloads = sent(IMAGE, tensor("image", pixels, is_binary=is_binary)).payloads
    for payload, expected in zip(payloads, pixels.reshape(items, 4, 5, 3), strict=True):
        assert isinstance(payload, Payload)
        np.testing.assert_array_equal(payload.value, expected, strict=True)


def test_image_files_are_bytes_in_binary_and_base64_in_json() -> None:
    files = np.array([b"\xff\xd8", b"\x89PNG"], object)
    assert sent(IMAGE, tensor("image", files)).payloads == (Payload(b"\xff\xd8"), Payload(b"\x89PNG"))
    inputs = [{"name": "image", "datatype": "BYTES", "shape": [1], "data": ["/9g="]}]
    assert document(IMAGE, inputs=inputs).payloads == (Payload({"b64": "/9g="}),)


GOOD = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}


@pytest.mark.parametrize(
    ("fields", "code", "type_"),
    [
        ({"inputs": []}, 400, "UnknownShape"),
        ({"inputs": [7]}, 400, "UnknownShape"),
        ({"inputs": [{**GOOD, "name": 7}]}, 400, "UnknownShape"),
        ({"inputs": [{**GOOD, "parameters": 7}]}, 400, "UnknownShape"),
        ({"inputs": [{**GOOD, "parameters": {"shared_memory_region": "r"}}]}, 400, "UnknownShape"),
        ({"inputs": [{**GOOD, "parameters": {"binary_data_size": 1}}]}, 400, "MalformedTensor"),
        ({"inputs": [{**GOOD, "parameters": {"binary_data_size": -1}}]}, 400, "MalformedTensor"),
        ({"inputs": [{**GOOD, "data": None}]}, 400, "MalformedTensor"),
        ({"inputs": [{**GOOD, "shape": [2**62, 2**62]}]}, 400, "MalformedTensor"),
        ({"inputs": [GOOD, GOOD]}, 400, "MalformedTensor"),
        ({"inputs": [GOOD, {**GOOD, "name": "top_k", "shape": [2], "data": ["a", "b"]}]}, 400, "UnknownShape"),
        ({"inputs": [{**GOOD, "name": "a"}, {**GOOD, "name": "b"}]}, 400, "UnknownShape"),
        ({"inputs": [{**GOOD, "name": "top_k"}]}, 400, "UnknownShape"),
        ({"inputs": [{**GOOD, "shape": [1, 2], "data": ["a", "b"]}]}, 400, "UnknownShape"),
        ({"inputs": [{**GOOD, "shape": [0], "data": []}]}, 400, "EmptyInput"),
        ({"inputs": [{**GOOD, "shape": [4], "data": list("abcd")}]}, 413, "TooManyInstances"),
        ({"inputs": [GOOD], "id": 7}, 400, "UnknownShape"),
        ({"inputs": [GOOD], "parameters": []}, 400, "UnknownShape"),
        ({"inputs": [GOOD], "parameters": {"binary_data_output": 1}}, 400, "UnknownShape"),
        ({"inputs": [GOOD], "outputs": {}}, 400, "UnknownShape"),
        ({"inputs": [GOOD], "outputs": ["label"]}, 400, "UnknownShape"),
        ({"inputs": [GOOD], "outputs": [{"name": "logits"}]}, 400, "UnknownShape"),
        ({"inputs": [GOOD], "outputs": [{"name": "label", "parameters": {"classification": 3}}]}, 400, "UnknownShape"),
        ({"inputs": [GOOD], "outputs": [{"name": "label", "parameters": {"binary_data": "1"}}]}, 400, "UnknownShape"),
    ],
)
def test_request_wrong_as_a_whole_is_one_error_in_tritons_form(fields: Any, code: int, type_: str) -> None:
    error = failed(document(TEXT, **fields))
    assert (error.code, error.type) == (code, type_)
    assert error.message.endswith(".")


@pytest.mark.parametrize(
    ("fields", "type_"),
    [
        ({"id": "\ud800"}, "UnknownShape"),
        ({"parameters": {f"option{n}": n for n in range(101)}}, "UnknownOption"),
    ],
)
def test_request_that_torchserve_parsed_is_refused_where_an_answer_could_not_be_written(
    fields: dict[str, Any], type_: str
) -> None:
    (error,) = unpack({"body": {"inputs": [GOOD], **fields}}, {}, TEXT).payloads
    assert isinstance(error, ItemError)
    assert error.type == type_


@pytest.mark.parametrize(
    ("body", "length", "type_"),
    [
        (b"{}", "3", "MalformedTensor"),
        (b"{}", "-1", "MalformedTensor"),
        (b"{}", "two", "MalformedTensor"),
        (b"{}", "²", "MalformedTensor"),
        (b"{}", "9" * 5000, "MalformedTensor"),
        (b"{}", "1", "MalformedJson"),
        (b"{}", "0", "MalformedJson"),
        (b"{}", "2", "UnknownShape"),
        (b"[]", "2", "UnknownShape"),
        (json.dumps({"inputs": [GOOD]}).encode() + b"x", str(len(json.dumps({"inputs": [GOOD]}))), "MalformedTensor"),
        (b"", "0", "EmptyInput"),
        (b"{}" * 501, "2", "BodyTooLarge"),
    ],
)
def test_header_and_body_that_disagree_are_one_error_in_tritons_form(body: bytes, length: str, type_: str) -> None:
    assert failed(unpack({"body": body}, {"Inference-Header-Content-Length": length}, TEXT)).type == type_


def test_compressed_body_is_refused_by_name() -> None:
    headers = {"content-encoding": "gzip", "inference-header-content-length": "2"}
    error = failed(unpack({"body": gzip.compress(b"{}")}, headers, TEXT))
    assert (error.code, error.type) == (415, "UnsupportedMedia")


@given(st.binary(max_size=80), st.integers(0, 90).map(str) | st.text(max_size=3))
def test_unpack_any_bytes_behind_the_header_never_raises(body: bytes, length: str) -> None:
    assert len(unpack({"body": body}, {"inference-header-content-length": length}, TEXT).payloads) >= 1


PARTS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["text", "top_k", "INPUT0"]) | JSON,
        "datatype": st.sampled_from(["BYTES", "INT64", "FP32"]) | JSON,
        "shape": st.lists(st.integers(0, 4), max_size=3) | JSON,
        "data": st.lists(st.text(max_size=2) | st.integers(), max_size=4) | JSON,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": st.integers(0, 30)}) | JSON,
    },
)


@given(
    st.lists(PARTS, max_size=3),
    st.fixed_dictionaries({}, optional={"id": JSON, "outputs": JSON | st.lists(PARTS, max_size=2), "parameters": JSON}),
    st.binary(max_size=40),
    st.sampled_from([TEXT, QUESTION, IMAGE]),
)
def test_unpack_any_document_never_raises(inputs: Any, more: dict[str, Any], tail: bytes, shape: Shape) -> None:
    head = json.dumps({"inputs": inputs, **more}).encode()
    headers = {"inference-header-content-length": str(len(head))}
    for request in (unpack({"body": head + tail}, headers, shape), unpack({"body": {"inputs": inputs}}, {}, shape)):
        assert 1 <= len(request.payloads) <= 3
        assert isinstance(request.form, Inference)


@given(st.text(min_size=8, alphabet=st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF)))
def test_errors_never_quote_what_a_tensor_holds(secret: str) -> None:
    shape = replace(TEXT, max_body_bytes=2**20)  # no secret is so long that its length alone is the error
    for wrong in ({"shape": [2]}, {"datatype": "INT64"}, {"datatype": secret}, {"shape": secret}):
        assert secret not in failed(document(shape, inputs=[{**GOOD, "data": [secret], **wrong}])).message


def test_wanted_outputs_come_in_their_order_each_as_it_was_asked_for() -> None:
    request = sent(
        TEXT,
        tensor("text", KOREAN[:1]),
        outputs=[
            triton.InferRequestedOutput("score", binary_data=False),
            triton.InferRequestedOutput("error", binary_data=True),
        ],
    )
    response = read(request.form.pack([[{"label": "a", "score": 0.5}]])).get_response()
    assert response == {
        "model_name": "classifier",
        "model_version": "1.0",
        "outputs": [
            {"name": "score", "datatype": "FP32", "shape": [1, 1], "data": [0.5]},
            {"name": "error", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 4}},
        ],
    }


EMBEDDING = replace(TEXT, model=Model("embedding", "1", Renamed(Vectors("embedding"), {"embedding": "output__0"})))


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("name", ["output__0", "embedding", "출력"])
def test_the_one_output_of_a_task_is_answered_under_the_name_that_was_asked(name: str, is_binary: bool) -> None:
    wanted = [triton.InferRequestedOutput(name, binary_data=is_binary)]
    request = sent(EMBEDDING, tensor("input_text", KOREAN[:1].reshape(1, 1)), outputs=wanted)
    result = read(request.form.pack([np.array([0.5, 2], np.float32)]))
    assert [output["name"] for output in result.get_response()["outputs"]] == [name]
    assert result.as_numpy(name).tolist() == [[0.5, 2.0]]


def test_the_one_output_is_named_by_the_owner_where_nothing_is_asked() -> None:
    request = sent(EMBEDDING, tensor("input_text", KOREAN))
    result = read(request.form.pack([ItemError(500, "InternalError", "No."), np.array([1.5], np.float32)]))
    assert [output["name"] for output in result.get_response()["outputs"]] == ["output__0", "error"]
    assert result.as_numpy("output__0")[1].tolist() == [1.5]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b"], '"outputs" has two names for output__0.'),
        (["output__0", "embedding"], '"outputs" has two names for output__0.'),
        (["\ud800"], "a name of 1 characters: the model has no such output; it has output__0, error."),
    ],
)
def test_the_one_output_under_two_names_or_one_that_cannot_be_written_is_refused(
    names: list[str], message: str
) -> None:
    body = {"inputs": [GOOD], "outputs": [{"name": name} for name in names]}
    assert failed(unpack({"body": body}, {}, EMBEDDING)).message == message


def test_inputs_have_the_names_of_their_tensors_and_options_theirs() -> None:
    shape = replace(QUESTION, items=replace(QUESTIONS, tensors={"QUESTION": "question", "passage": "context"}))
    question, context = np.array([b"Who?"], object), np.array([b"Ada."], object)
    request = sent(shape, tensor("passage", context), tensor("QUESTION", question), tensor("top_k", np.array([2])))
    assert request.payloads == (Payload({"question": b"Who?", "context": b"Ada."}, {"top_k": 2}),)
    assert failed(sent(shape, tensor("question", question))).message.startswith("The inputs must be named QUESTION, p")


def test_malformed_inference_among_good_rows_fails_alone(tmp_path: Path) -> None:
    handler = started(DoublingHandler(), tmp_path, {})
    numbers = {"name": "number", "datatype": "FP64", "shape": [3, 1], "data": [1, 444, 5]}
    rows = [{"inputs": [numbers]}, {"inputs": [{**numbers, "shape": [2]}]}, {"inputs": [{**numbers, "shape": [3]}]}]
    good, malformed, also_good, plain = serve(handler, [*(json.dumps(row).encode() for row in rows), b"7"])
    assert good.status == also_good.status == 200
    assert good.body == also_good.body
    result, error = good.body["outputs"]
    assert result == {"name": "result", "datatype": "BYTES", "shape": [3], "data": ["2.0", "", "10.0"]}
    assert [text and json.loads(text)["code"] for text in error["data"]] == ["", 500, ""]
    assert malformed.status == 400
    assert malformed.body == {"error": 'Input 0, number: "data" has 3 elements; "shape" has 2.'}
    assert (plain.status, plain.body) == (200, 14.0)
