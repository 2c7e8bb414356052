"""Requests of Triton's gRPC service as the gateway's bridge hands them on, lies about them, and what their answers say.

tensors -> ModelInferRequest -> fields that lie -> bytes, compressed maybe
Received, if it is such an answer -> readable -> the same as JSON, which is checked as any other
"""

import gzip
import json
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from handlers.protocol.grpc_messages import CLASSES
from handlers.protocol.grpc_status import PROTOBUF
from tests.fuzz.tensors import DATATYPES, SHAPES, Tensor, blob
from tests.fuzz.values import CANARY, Draw

CONTENTS = ("bool_contents", "int_contents", "uint64_contents", "fp32_contents", "bytes_contents")


def message(draw: Draw, tensors: Sequence[Tensor], parameters: dict[str, Any]) -> tuple[bytes, tuple[str, ...]]:
    """Write a request, half of them with a lie; return it, and how it came about."""
    request = CLASSES["ModelInferRequest"](model_name="M", id=draw.one("", "1", CANARY, "x" * 1000))
    for name, value in parameters.items():
        _set(request.parameters[_text(name)], value)
    is_typed = draw.often(0.3) and all(tensor.datatype == "BYTES" for tensor in tensors)
    for tensor in tensors:
        written = request.inputs.add(name=_text(tensor.name), datatype=tensor.datatype, shape=tensor.shape)
        if is_typed:
            written.contents.bytes_contents.extend(map(_bytes, tensor.elements))
        else:
            request.raw_input_contents.append(blob(tensor))
    if draw.often(0.2):
        request.outputs.add(name=draw.one("label", "embedding", "result", "error", CANARY))
    how = _lie(draw, request) if draw.often(0.4) else "no lie"
    body: bytes = request.SerializeToString()
    if draw.often(0.2):
        # A time in it would make another request of every run.
        body = gzip.compress(body, mtime=0) if draw.often(0.5) else zlib.compress(body)
        return body, ("grpc", how, "compressed")
    return body, ("grpc", how)


def _lie(draw: Draw, request: Any) -> str:
    """Change what a request says, in place; return what was done."""
    tensor = draw.choice(list(request.inputs))
    change = draw.one("shape", "datatype", "contents", "raw", "parameters", "shared memory", "same name", "many")
    if change == "shape":
        odd = draw.choice(SHAPES)
        sizes = odd if isinstance(odd, list) else []
        tensor.shape[:] = [size for size in sizes if type(size) is int and size < 2**63]
    elif change == "datatype":
        tensor.datatype = draw.choice(DATATYPES)
    elif change == "contents":
        name, is_filled = draw.choice(CONTENTS), draw.often(0.1)
        # Numbers take no bytes: those are left empty.
        getattr(tensor.contents, name).extend([CANARY.encode()] if is_filled and name == "bytes_contents" else [])
    elif change == "raw":
        request.raw_input_contents.append(draw.randbytes(draw.one(0, 1, 4, 9)))
    elif change == "parameters":
        request.parameters[draw.one("priority", "timeout", "binary_data_output", CANARY)].SetInParent()
    elif change == "shared memory":
        tensor.parameters["shared_memory_region"].string_param = CANARY
    elif change == "same name":
        request.inputs.add(name=tensor.name, datatype="BYTES", shape=[1])
    else:
        for _ in range(draw.one(900, 1100)):
            request.inputs.add()
    return f"lies about {change}"


def _set(parameter: Any, value: Any) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int) and -(2**63) <= value < 2**63:
        parameter.int64_param = value
    elif isinstance(value, int | float) and abs(value) < 2**63:
        parameter.double_param = value
    else:
        parameter.string_param = _text(value if isinstance(value, str) else repr(value)[:100])


def _text(value: str) -> str:
    return value.encode("utf-8", "replace").decode()


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


def as_json(content_type: str, status: int, headers: Any, body: bytes) -> bytes:
    """Write a gRPC answer as HTTP's clients would have had it; any other is as it was.

    Raises:
        ValueError: it is not what such an answer is.
    """
    if content_type != PROTOBUF:
        return body
    if status != 200:
        sent = {name.lower(): value for name, value in headers.items()}
        if body or not 1 <= int(sent.get("x-grpc-status", 0)) <= 16:
            raise ValueError("an error that gRPC's clients cannot read")
        return json.dumps({"error": unquote(sent["x-grpc-message"])}).encode()
    response = CLASSES["ModelInferResponse"].FromString(body)
    if len(response.outputs) != len(response.raw_output_contents):
        raise ValueError("outputs without contents")
    outputs = [
        {
            "name": output.name,
            "datatype": output.datatype,
            "shape": list(output.shape),
            "data": list(elements(output.datatype, data)),
        }
        for output, data in zip(response.outputs, response.raw_output_contents, strict=True)
    ]
    return json.dumps({"model_name": response.model_name, "outputs": outputs}).encode()


def elements(datatype: str, data: bytes) -> Iterator[Any]:
    """Read a binary tensor of an answer, as JSON would have it."""
    if datatype != "BYTES":
        kind = {"FP32": "f", "INT64": "q"}[datatype]
        # JSON has no word for NaN, which pads; it writes null.
        yield from (None if math.isnan(number) else number for (number,) in struct.iter_unpack(f"<{kind}", data))
        return
    start = 0
    while start < len(data):
        (length,) = struct.unpack_from("<I", data, start)
        yield data[start + 4 : start + 4 + length].decode()
        start += 4 + length
