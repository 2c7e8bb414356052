"""Tensors in bodies of the Open Inference Protocol v2, as its binary tensor extension has them. Pure.

The tensors stand behind a JSON document, whose length is in the header Inference-Header-Content-Length. Numbers are
little-endian, in row-major order; an element of BYTES is its length as uint32 and then itself. BF16, which numpy lacks,
is read as float32.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchserve_client.errors import InvalidPayload

HEADER = "Inference-Header-Content-Length"

# The protocol's name of a datatype -> numpy's.
DATATYPES = {
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


def encode(arrays: Mapping[str, Array], parameters: Mapping[str, Any]) -> tuple[bytes, int]:
    """Return the body of a request, and the length of its JSON part in bytes.

    Raises:
        InvalidPayload: the protocol has no such type, or JSON cannot hold the parameters.
    """
    parts = [_to_bytes(array) for array in arrays.values()]
    inputs = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": datatype(array),
            "parameters": {"binary_data_size": len(part)},
        }
        for (name, array), part in zip(arrays.items(), parts, strict=True)
    ]
    request = {"inputs": inputs, "parameters": {"binary_data_output": True, **parameters}}
    try:
        text = json.dumps(request, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, TypeError) as error:
        raise InvalidPayload(f"JSON cannot hold it: {error}") from None
    return b"".join([text, *parts]), len(text)


def decode(content: bytes, json_length: int) -> dict[str, Array]:
    """Read an answer: name -> array of the tensor's shape; elements of BYTES are bytes.

    Raises:
        ValueError: the answer is not of the protocol.
    """
    arrays = {}
    try:
        for output in json.loads(content[:json_length])["outputs"]:
            size = output["parameters"]["binary_data_size"]
            raw = content[json_length : json_length + size]
            if len(raw) != size:
                raise ValueError(f"{output['name']}: {len(raw)} bytes of {size}")
            arrays[output["name"]] = _from_bytes(raw, output["datatype"], output["shape"])
            json_length += size
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
    # np.array(found, object) would take the length of one element for a dimension.
    array = np.empty(len(found), object)
    array[:] = found
    return array.reshape(shape)
