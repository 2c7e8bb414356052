"""Inference by Triton's gRPC service, as Envoy's bridge forwards it: a message as a body.

    body -> decompress -> ModelInferRequest -> read -> InferRequest, as of JSON (handlers.protocol.open_inference)
    GrpcInference, an Inference + one result per item -> pack -> Response with a ModelInferResponse

Clients compress only the message: the first bytes of a body show that it is gzip or zlib. Tensors are binary in
`raw_input_contents`, one for each input, or typed in `contents`. Answers are always raw, like Triton's. This module
imports protobuf, so it is imported with the first message, or when a gateway asks for the model's metadata.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from handlers.aliases import Array, DType
from handlers.errors import InvalidBody, ItemError, MalformedMessage, MalformedTensor
from handlers.protocol import open_inference, tensors
from handlers.protocol.codings import decompress
from handlers.protocol.open_inference import Inference, InferRequest
from handlers.protocol.open_inference_pb2 import ModelInferRequest, ModelInferResponse
from handlers.protocol.output_tensors import Model
from handlers.protocol.responses import GrpcErrors, Response
from handlers.protocol.wire import MESSAGE_FIELDS, PROTOBUF

OutputTensor = ModelInferResponse.InferOutputTensor

_NESTED = (5, 6)  # the numbers of the fields of ModelInferRequest that have fields: inputs and outputs
# The fields of each that do not count: name, datatype, contents, and a dimension each if the shape is not packed.
_FREE_FIELDS = 3 + tensors.MAX_DIMENSIONS
_RAW_OUTPUT = bytes([6 << 3 | 2])  # the tag of raw_output_contents: field 6, of bytes

# Datatype -> the field of `contents` with its elements. FP16 and BF16 are raw only, as in Triton.
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


@dataclass(frozen=True, slots=True)
class GrpcInference(Inference):
    """The answer by gRPC. Every output is binary, whatever the request states."""

    def _failed(self, error: ItemError) -> Response:
        return GrpcErrors().pack([error])

    def _write(self, arrays: Mapping[str, tuple[Array, bool]]) -> Response:
        message = ModelInferResponse(
            model_name=self.model.name,
            model_version=self.model.version or "",
            id=self.id or "",
            outputs=[
                OutputTensor(name=name, datatype=tensors.datatype_of(array), shape=array.shape)
                for name, (array, _) in arrays.items()
            ],
        )
        # The last fields are written here: protobuf copies 600 KB twice in 2 ms, and this takes 0.1 ms.
        parts = [message.SerializeToString()]
        for array, _ in arrays.values():
            raw = tensors.to_binary(array)
            parts += [_RAW_OUTPUT, _to_varint(len(raw)), raw]
        return Response(200, b"".join(parts), PROTOBUF)


def read(message: ModelInferRequest, model: Model) -> InferRequest:
    inputs, raw = message.inputs, message.raw_input_contents
    if not inputs:
        raise InvalidBody('"inputs" must have at least one tensor.')
    if raw and len(raw) != len(inputs):
        raise MalformedTensor(f"raw_input_contents has {len(raw)} tensors; there are {len(inputs)} inputs.")

    def data(index: int, tensor: Mapping[str, Any], dtype: DType, shape: tuple[int, ...]) -> Array:
        if not raw:
            return _from_contents(tensor["datatype"], dtype, shape, inputs[index].contents)
        if inputs[index].HasField("contents"):
            raise MalformedTensor("contents and raw_input_contents must not be used together.")
        return tensors.from_binary(dtype, shape, memoryview(raw[index]))

    document = {
        "id": message.id or None,
        "parameters": _parameters(message),
        "inputs": [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                # A shape may be as long as a body; one dimension too many is enough to be rejected.
                "shape": list(tensor.shape[: tensors.MAX_DIMENSIONS + 1]),
                "parameters": _parameters(tensor),
            }
            for tensor in inputs
        ],
        "outputs": [{"name": output.name, "parameters": _parameters(output)} for output in message.outputs] or None,
    }
    return open_inference.read(document, data, GrpcInference, model)


def parse(body: bytes | bytearray, max_bytes: int) -> ModelInferRequest:
    """Parse a message, of at most `max_bytes` once it is decompressed and with at most MESSAGE_FIELDS fields."""
    body = decompress(body, max_bytes)
    _check_count(body)
    try:
        return ModelInferRequest.FromString(body)  # type: ignore[arg-type]  # a bytearray, too
    except DecodeError:
        raise MalformedMessage("The body is not a valid ModelInferRequest.") from None


def _check_count(body: bytes | bytearray) -> None:
    """Reject too many fields before protobuf parses them: a million take two seconds of the worker's only thread."""
    if len(body) <= 2 * MESSAGE_FIELDS:  # an empty one has two bytes, and a hundred once it is read
        return
    count = 0
    try:
        for number, start, end in _fields(body, 0, len(body)):
            inner = islice(_fields(body, start, end), _FREE_FIELDS, MESSAGE_FIELDS + _FREE_FIELDS)
            count += 1 + (sum(1 for _ in inner) if number in _NESTED else 0)
            if count > MESSAGE_FIELDS:
                raise InvalidBody(f"The message has more than {MESSAGE_FIELDS} tensors, outputs and parameters.")
    except IndexError:
        raise MalformedMessage("The body is not a valid ModelInferRequest.") from None


def _fields(body: bytes | bytearray, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield each field's number, and the start and end of its value; raise IndexError if the message is cut off."""
    while start < end:
        tag, start = _varint(body, start)
        kind = tag & 7
        if kind == 2:
            length, start = _varint(body, start)
            value_end = start + length
        elif kind == 0:
            _, value_end = _varint(body, start)
        elif kind in (1, 5):
            value_end = start + (8 if kind == 1 else 4)
        else:
            raise MalformedMessage("The body is not a valid ModelInferRequest.")
        yield tag >> 3, start, value_end
        start = value_end


def _varint(body: bytes | bytearray, start: int) -> tuple[int, int]:
    """Read protobuf's integer, seven bits a byte, lowest first; return it and its end."""
    value, shift = body[start] & 0x7F, 7
    while body[start] & 0x80 and shift < 70:
        start += 1
        value |= (body[start] & 0x7F) << shift
        shift += 7
    return value, start + 1


def _to_varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _parameters(part: Any) -> dict[str, object]:
    """Return the parameters of a message; None for one without a value."""
    chosen = {name: parameter.WhichOneof("parameter_choice") for name, parameter in part.parameters.items()}
    return {name: kind and getattr(part.parameters[name], kind) for name, kind in chosen.items()}


def _from_contents(datatype: str, dtype: DType, shape: tuple[int, ...], contents: object) -> Array:
    """Read a typed tensor; elements of BYTES are bytes, as in raw tensors."""
    name = _CONTENTS.get(datatype)
    if name is None:
        raise MalformedTensor(f"{datatype} must be in raw_input_contents.")
    elements = getattr(contents, name)
    if len(elements) != (size := math.prod(shape)):
        raise MalformedTensor(f"contents.{name} has {len(elements)} elements; the shape has {size}.")
    if dtype.kind == "O":
        return tensors.make_objects(elements).reshape(shape)
    array = np.fromiter(elements, np.int64 if dtype.kind in "iu" and dtype.itemsize < 8 else dtype, size)
    if array.dtype != dtype and size:
        bounds = np.iinfo(dtype)
        if array.min() < bounds.min or array.max() > bounds.max:
            raise MalformedTensor(f"contents.{name} contains a number that {datatype} cannot represent.")
    return array.astype(dtype, copy=False).reshape(shape)
