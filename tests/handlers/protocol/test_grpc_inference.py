"""gRPC inference against tritonclient.grpc; tests/e2e/test_conformance.py has the rest of the protocol."""

import gzip
import zlib
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
import tritonclient.grpc as triton
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.grpc._utils import _get_inference_request

from deploy.protocol import messages_pb2
from handlers.errors import ItemError
from handlers.protocol import open_inference_pb2
from handlers.protocol.grpc_inference import parse, read
from handlers.protocol.output_tensors import Model, vectors
from handlers.protocol.requests import Payload, Request
from handlers.protocol.responses import error_headers
from handlers.protocol.wire import MESSAGE_FIELDS, PROTOBUF
from tests.handlers.protocol import test_open_inference
from tests.handlers.protocol.test_open_inference import KOREAN, TEXT
from tests.handlers.protocol.test_requests import unpack
from tests.tables import table

HEADERS = {"body": {"content-type": PROTOBUF}, "content-type": PROTOBUF}


tensor = partial(test_open_inference.tensor, client=triton)


def message(*tensors: triton.InferInput, **more: Any) -> bytes:
    """Return the message that tritonclient sends, without the frame around it."""
    fields: dict[str, Any] = dict.fromkeys(("model_version", "request_id"), "")
    fields |= {"outputs": None, "sequence_id": 0, "sequence_start": False, "sequence_end": False, "priority": 0}
    fields |= {"timeout": None, "parameters": None, **more}
    written: bytes = _get_inference_request(model_name="M", inputs=list(tensors), **fields).SerializeToString()
    return written


def asked(body: bytes, shape: Any = TEXT) -> Request:
    return unpack({"body": bytearray(body)}, HEADERS, shape)


def failed(request: Request) -> ItemError:
    (error,) = request.payloads
    assert isinstance(error, ItemError)
    response = request.form.pack([error])
    assert (response.status, response.content_type, response.body) == (error.code, PROTOBUF, b"")
    said = {name: unquote(value) for name, value in response.headers.items()}
    assert said == {"X-Grpc-Status": str({400: 3, 413: 8, 415: 3}[error.code]), "X-Grpc-Message": error.message}
    return error


def written(datatype: str = "BYTES", shape: tuple[int, ...] = (1,), **contents: Any) -> Any:
    request = service_pb2.ModelInferRequest(model_name="M")
    request.inputs.add(name="text", datatype=datatype, shape=shape, contents=contents or None)
    return request


@table(
    *(("BOOL", "bool_contents", [True, False], np.bool_), ("UINT32", "uint_contents", [0, 2**32 - 1], np.uint32)),
    ("UINT64", "uint64_contents", [0, 2**64 - 1], np.uint64),
    ("INT16", "int_contents", [-(2**15), 2**15 - 1], np.int16),
    ("INT64", "int64_contents", [-(2**63), 2**63 - 1], np.int64),
    ("FP32", "fp32_contents", [0.5, float("inf")], np.float32),
    ("FP64", "fp64_contents", [0.1, -1e300], np.float64),
    ("BYTES", "bytes_contents", [b"\xff\x00", b""], np.object_),
)
def test_typed_contents_are_read_as_their_datatype(datatype: str, field: str, values: list[Any], dtype: Any) -> None:
    message = written(datatype, (2, 1), **{field: values}).SerializeToString()
    infer_request = read(parse(message, 2**20), Model())
    np.testing.assert_array_equal(infer_request.tensors["text"], np.array([[v] for v in values], dtype), strict=True)


def raw(*contents: bytes, **field: Any) -> Any:
    request = written(**field)
    request.raw_input_contents.extend(contents)
    return request


SHARED = written()
SHARED.inputs[0].parameters["shared_memory_region"].string_param = "region"
TEXTS = written(bytes_contents=[b"a"]).SerializeToString()


@table(
    (b"{}", "MalformedMessage", "The body is not a valid ModelInferRequest."),
    (b"\x0a\x01M", "InvalidBody", '"inputs" must have at least one tensor.'),
    (gzip.compress(TEXTS, mtime=0)[:-1], "MalformedMessage", "cut short, or more bytes follow it"),
    (b"\x1f\x8b" + TEXTS, "MalformedMessage", "not valid gzip or zlib"),
    (gzip.compress(bytes(2**18), mtime=0), "BodyTooLarge", "more bytes than max_body_bytes, 1000,"),
    (gzip.compress(gzip.compress(TEXTS, mtime=0), mtime=0), "MalformedMessage", "is compressed twice"),
    (written("BF16", fp32_contents=[1]), "MalformedTensor", "BF16 must be in raw_input_contents."),
    (written(shape=(1,) * 17), "MalformedTensor", '"shape" must be a list of at most 16 whole numbers'),
    (written("UINT8", uint_contents=[256]), "MalformedTensor", "uint_contents contains a number that UINT8"),
    (written("INT8", int_contents=[-129]), "MalformedTensor", "int_contents contains a number that INT8"),
    (written(shape=(2,), bytes_contents=[b"a"]), "MalformedTensor", "has 1 elements; the shape has 2."),
    (raw(b"\1\0\0\0a", b""), "MalformedTensor", "raw_input_contents has 2 tensors; there are 1 inputs."),
    (raw(b"\2\0\0\0a"), "MalformedTensor", "Input 0, text: BYTES: element 0 has 2 bytes"),
    (raw(b"\1\0\0\0a", bytes_contents=[b"a"]), "MalformedTensor", "raw_input_contents must not be used together"),
    (SHARED, "InvalidBody", "Input 0, text: shared memory is not supported."),
)
def test_request_that_is_wrong_fails_whole_with_grpcs_status(body: Any, type_: str, says: str) -> None:
    error = failed(asked(body if isinstance(body, bytes) else body.SerializeToString()))
    assert error.type == type_ and says in error.message


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_compressed_message_is_read_up_to_the_very_limit(compress: Any) -> None:
    body = message(tensor("text", np.array([b"a" * 500], object)))
    at_limit, below = (replace(TEXT, max_body_bytes=len(body) + more) for more in (0, -1))
    assert asked(compress(body), at_limit).payloads == asked(body).payloads
    assert failed(asked(compress(body), below)).type == "BodyTooLarge"


@pytest.mark.parametrize("field", [b"\x2a\x00", b"\x32\x00", b"\x3a\x00", b"\x22\x00"])
def test_message_of_many_empty_fields_is_rejected_before_it_is_read(field: bytes) -> None:
    shape = replace(TEXT, max_body_bytes=2**24)
    assert "more than 1000 tensors, outputs and parameters" in failed(asked(field * 2**20, shape)).message
    assert "more than" not in failed(asked(field * MESSAGE_FIELDS, shape)).message
    long_text = np.array([b"a" * 2**20], object)
    assert asked(message(tensor("text", long_text)), shape).payloads == (Payload(long_text[0], {}),)
    for cut in (b"\x3a\xff\xff", b"\x3b", b"\x2a\x00" * 9 + b"\x3a\x80"):
        assert failed(asked(b"\x3a\x81\x40" + bytes(0x2001) + cut, shape)).type == "MalformedMessage"


def test_parameters_within_tensors_and_outputs_count_among_the_fields_of_a_message() -> None:
    """A million parameters took two seconds of the worker's only thread."""
    shape, request = replace(TEXT, max_body_bytes=2**24), written(bytes_contents=[b"a" * 3000])
    request.outputs.add(name="label")
    for part in (request.inputs[0], request.outputs[0]):
        for number in range(MESSAGE_FIELDS - 10):
            part.parameters[f"{number}"].bool_param = True
        assert isinstance(asked(request.SerializeToString(), shape).payloads[0], Payload)
        for number in range(40):
            part.parameters[f"more {number}"].bool_param = True
        assert "more than 1000 tensors, outputs" in failed(asked(request.SerializeToString(), shape)).message
        part.parameters.clear()
    # An unpacked shape, as protobuf allows, as long as the body.
    dimensions = request.SerializeToString() + b"\x2a\x80\x80\x80\x02" + b"\x18\x01" * 2**21
    assert "more than 1000 tensors, outputs" in failed(asked(dimensions, shape)).message


@pytest.mark.parametrize("width", [1, 32, 600_000])
def test_answer_of_any_size_is_the_message_that_protobuf_itself_writes(width: int) -> None:
    shape = replace(TEXT, model=Model("M", "1", vectors("vector")))
    vector = np.arange(width, dtype=np.float32)
    response = asked(message(tensor("text", KOREAN[:1])), shape).form.pack([vector])
    parsed = service_pb2.ModelInferResponse.FromString(response.body)
    assert (response.status, response.content_type, parsed.SerializeToString()) == (200, PROTOBUF, response.body)
    np.testing.assert_array_equal(triton.InferResult(parsed).as_numpy("vector"), vector[np.newaxis], strict=True)


@given(st.text())
def test_error_headers_of_any_message_are_ascii_and_short_and_read_back(text: str) -> None:
    value = error_headers(3, text)["X-Grpc-Message"]
    assert value.isascii() and value.isprintable()
    assert len(error_headers(3, "한" * 10**5)["X-Grpc-Message"]) < 5000
    assert unquote(value) == text[:500].encode(errors="replace").decode()


# Our messages of Triton's service against those of its own client, which were made from its own definitions.
MESSAGES = {**open_inference_pb2.DESCRIPTOR.message_types_by_name, **messages_pb2.DESCRIPTOR.message_types_by_name}
# A client may send any field of these, and read any.
WHOLE = {"ModelInferRequest", "ModelInferResponse", "InferParameter", "InferTensorContents"}


def described(field: FieldDescriptor) -> tuple[Any, ...]:
    """List all that decides how a field is written."""
    oneof, of, enum = field.containing_oneof, field.message_type, field.enum_type
    values = None if enum is None else {value.name: value.number for value in enum.values}
    entry = [described(each) for each in of.fields] if of is not None and of.GetOptions().map_entry else None
    kind = None if of is None or entry else of.name
    return field.number, field.type, field.is_repeated, oneof and oneof.name, kind, entry, values


def check(ours: Descriptor, theirs: Descriptor, is_whole: bool) -> None:
    for field in ours.fields:
        assert described(field) == described(theirs.fields_by_name[field.name])
    if is_whole:
        assert ours.fields_by_name.keys() == theirs.fields_by_name.keys()
    for name, inner in ours.nested_types_by_name.items():
        check(inner, theirs.nested_types_by_name[name], is_whole)


# grpc.health.v1 is gRPC's own; tests/deploy/gateway/test_protocol.py has its bytes.
@pytest.mark.parametrize("name", sorted(MESSAGES.keys() - {"CheckRequest", "CheckResponse"}))
def test_every_field_is_tritons_own(name: str) -> None:
    theirs = getattr(service_pb2, name, None) or getattr(model_config_pb2, name)
    check(MESSAGES[name], theirs.DESCRIPTOR, is_whole=name in WHOLE)
