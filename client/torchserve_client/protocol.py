"""Tensors in bodies of the Open Inference Protocol v2. Pure.

    arrays by name -> encode -> Message (body, length of its JSON part)
    Message        -> decode -> arrays by name

Requests have the binary tensor extension: the tensors stand behind the JSON part, whose length is in the header
Inference-Header-Content-Length. Answers may have them as JSON too. Numbers are little-endian, in row-major order; an
element of BYTES is its length as uint32 and then itself. BF16, which numpy lacks, is read as float32.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchserve_client.errors import InvalidPayload

HEADER = "Inference-Header-Content-Length"

DATATYPES: dict[str, str] = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
BF16 = "BF16"
_NAMES = {np.dtype(kind): name for name, kind in DATATYPES.items()}

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Message:
    """A body of the protocol.

    Attributes:
        body: the JSON part, and behind it the binary tensors.
        json_length: length of the JSON part in bytes; None where it is the whole body.
    """

    body: bytes
    json_length: int | None = None


def encode(arrays: Mapping[str, Array], parameters: Mapping[str, Any]) -> Message:
    """Write a request.

    Args:
        arrays: input name -> array; text and bytes are arrays of objects (or of str, or of bytes).
        parameters: the model's options.

    Raises:
        InvalidPayload: the protocol has no such type, or JSON cannot hold the parameters.
    """
    inputs: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for name, array in arrays.items():
        parts.append(_to_bytes(array))
        size = {"binary_data_size": len(parts[-1])}
        inputs.append({"name": name, "shape": list(array.shape), "datatype": datatype(array), "parameters": size})
    request = {"inputs": inputs, "parameters": {"binary_data_output": True, **parameters}}
    try:
        text = json.dumps(request, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, TypeError) as error:
        raise InvalidPayload(f"JSON cannot hold it: {error}") from None
    return Message(b"".join([text, *parts]), len(text))


def decode(message: Message) -> dict[str, Array]:
    """Read an answer.

    Returns:
        Name -> array of the tensor's shape; elements of BYTES are objects of type bytes.

    Raises:
        ValueError: the message is not of the protocol.
    """
    length = len(message.body) if message.json_length is None else message.json_length
    try:
        answer = json.loads(message.body[:length])
        arrays = {}
        offset = length
        for output in answer["outputs"]:
            size = output.get("parameters", {}).get("binary_data_size")
            if size is None:
                arrays[output["name"]] = _from_json(output["data"], output["datatype"], output["shape"])
                continue
            raw = message.body[offset : offset + size]
            if len(raw) != size:
                raise ValueError(f"{output['name']}: {len(raw)} bytes of {size}")
            arrays[output["name"]] = _from_bytes(raw, output["datatype"], output["shape"])
            offset += size
    except (KeyError, TypeError, struct.error) as error:
        raise ValueError(f"not an answer of the Open Inference Protocol: {type(error).__name__}: {error}") from error
    return arrays


def datatype(array: Array) -> str:
    """Return the protocol's name of an array's type.

    Raises:
        InvalidPayload: the protocol has no such type.
    """
    if array.dtype.kind in "OSU":
        return "BYTES"
    # The byte order is changed where the array is written.
    name = _NAMES.get(array.dtype.newbyteorder("="))
    if name is None:
        raise InvalidPayload(f"arrays of {array.dtype} cannot be sent; of {', '.join(DATATYPES.values())} or text can")
    return name


def elements(array: Array) -> list[bytes]:
    """List the elements of a BYTES array in row-major order; text becomes UTF-8.

    Raises:
        InvalidPayload: an element is neither text nor bytes.
    """
    made = []
    for element in array.ravel(order="C").tolist():
        if isinstance(element, str):
            made.append(element.encode())
        elif isinstance(element, bytes | bytearray):
            made.append(bytes(element))
        else:
            raise InvalidPayload(f"an array of objects holds text or bytes, not {type(element).__name__}")
    return made


def _to_bytes(array: Array) -> bytes:
    if datatype(array) == "BYTES":
        return b"".join(struct.pack("<I", len(element)) + element for element in elements(array))
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes(order="C")


def _from_bytes(raw: bytes, kind: str, shape: Sequence[int]) -> Array:
    if kind == BF16:
        return (np.frombuffer(raw, np.dtype("<u2")).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if kind != "BYTES":
        return np.frombuffer(raw, np.dtype(DATATYPES[kind]).newbyteorder("<")).reshape(shape)
    found = []
    offset = 0
    while offset < len(raw):
        (size,) = struct.unpack_from("<I", raw, offset)
        offset += 4 + size
        if offset > len(raw):
            raise ValueError("an element of BYTES is cut off")
        found.append(raw[offset - size : offset])
    return _objects(found).reshape(shape)


def _from_json(data: Any, kind: str, shape: Sequence[int]) -> Array:
    if kind == "BYTES":
        return _objects([each.encode() for each in _flat(data)]).reshape(shape)
    return np.array(data, "float32" if kind == BF16 else DATATYPES[kind]).reshape(shape)


def _flat(data: Any) -> list[Any]:
    return [leaf for each in data for leaf in _flat(each)] if isinstance(data, list) else [data]


def _objects(values: Sequence[bytes]) -> Array:
    # np.array(values, object) would take the length of one element for a dimension.
    array = np.empty(len(values), object)
    array[:] = values
    return array
