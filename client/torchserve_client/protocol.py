"""Bodies of the Open Inference Protocol v2 with its binary tensor extension. Pure.

The tensors follow a JSON document, whose length is in the header Inference-Header-Content-Length. Numbers are
little-endian, in row-major order; an element of BYTES is its length as uint32 and its bytes. BF16, which numpy lacks,
becomes float32.
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
    **{f"{kind.upper()}{bits}": f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
}
BF16 = "BF16"
_NAMES = {np.dtype(kind): name for name, kind in DATATYPES.items()}

Array = NDArray[Any]


def encode(arrays: Mapping[str, Array], parameters: Mapping[str, object]) -> tuple[bytes, int]:
    """Return the body of a request, and the bytes of its JSON part; InvalidPayload for an unknown datatype."""
    parts = [_to_bytes(array) for array in arrays.values()]
    heads = ({"name": name, "shape": list(array.shape), "datatype": datatype(array)} for name, array in arrays.items())
    sizes = ({"parameters": {"binary_data_size": len(part)}} for part in parts)
    inputs = [{**head, **size} for head, size in zip(heads, sizes, strict=True)]
    request = {"inputs": inputs, "parameters": {"binary_data_output": True, **parameters}}
    try:
        text = json.dumps(request, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, TypeError) as error:
        raise InvalidPayload(f"the parameters cannot be written as JSON: {error}") from None
    return b"".join([text, *parts]), len(text)


def decode(content: bytes, json_length: int) -> dict[str, Array]:
    """Read a response: name -> array of the tensor's shape; elements of BYTES are bytes."""
    arrays = {}
    try:
        for output in json.loads(content[:json_length])["outputs"]:
            size = output["parameters"]["binary_data_size"]
            raw = content[json_length : json_length + size]
            if len(raw) != size:
                raise ValueError(f"{output['name']}: the response contains {len(raw)} of {size} bytes")
            arrays[output["name"]] = _from_bytes(raw, output["datatype"], output["shape"])
            json_length += size
    except (KeyError, TypeError, struct.error) as error:
        raise ValueError(f"not a response of the Open Inference Protocol: {type(error).__name__}: {error}") from error
    return arrays


def datatype(array: Array) -> str:
    """Return the protocol's name of an array's type."""
    if array.dtype.kind in "OSU":
        return "BYTES"
    name = _NAMES.get(array.dtype.newbyteorder("="))  # `_to_bytes` converts the byte order
    if name is None:
        known = ", ".join(DATATYPES.values())
        raise InvalidPayload(f"arrays of {array.dtype} cannot be sent: convert to text or one of {known}")
    return name


def elements(array: Array) -> list[bytes]:
    """Return the elements of a BYTES array in row-major order; text becomes UTF-8."""
    found = []
    for element in array.ravel(order="C").tolist():
        if isinstance(element, str):
            found.append(element.encode())
        elif isinstance(element, bytes | bytearray):
            found.append(bytes(element))
        else:
            raise InvalidPayload(f"an array of objects must contain text or bytes, not {type(element).__name__}")
    return found


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
            raise ValueError("an element of BYTES is incomplete")
        found.append(raw[offset - size : offset])
    # np.array(found, object) would add a dimension for the bytes of a single element.
    array = np.empty(len(found), object)
    array[:] = found
    return array.reshape(shape)
