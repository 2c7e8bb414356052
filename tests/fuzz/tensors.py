"""Requests of the Open Inference Protocol: tensors as JSON, or as bytes behind it, and lies about either."""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.fuzz.documents import Object, Raw, document
from tests.fuzz.values import CANARY, NUMBERS, Draw

FORMATS = {
    "BOOL": "?",
    "UINT8": "B",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "UINT32": "I",
    "INT64": "q",
    "UINT64": "Q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
DATATYPES = (*FORMATS, "BYTES", "BF16", "bytes", "INT128", "", CANARY)
SHAPES: tuple[Any, ...] = (
    *([], [0], [1], [2], [1, 1], [1, 0], [0, 1], [2, 1], [8], [9], [1, 8], [64], [65], [300], [-1], [1.0], [True]),
    *([2**31 - 1], [2**31], [2**63], [0, 2**31 - 1], [0, 2**31 - 1, 2**31 - 1, 2**31 - 1], [2**31 - 1] * 16, [1] * 16),
    *([1] * 17, [1] * 65, [0] * 16, [1, 2**31 - 1, 0], ["1"], [None], [[1]], [CANARY], None, "1", {}, 1),
)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor, before anything is done to it; elements are bytes, text, numbers or booleans, row by row."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    elements: Sequence[Any]


def inquiry(draw: Draw, tensors: Sequence[Tensor], parameters: dict[str, Any]) -> Any:
    """The document of a request whose tensors are JSON."""
    inputs = [{**_head(tensor), "data": [_plain(each) for each in tensor.elements]} for tensor in tensors]
    return document({"inputs": inputs, **_around(draw, parameters)})


def binary(draw: Draw, tensors: Sequence[Tensor], parameters: dict[str, Any]) -> tuple[Any, list[bytes]]:
    """The document of a request whose tensors are binary, and their bytes."""
    blobs = [blob(tensor) for tensor in tensors]
    inputs = [
        {**_head(tensor), "parameters": {"binary_data_size": len(blob)}}
        for tensor, blob in zip(tensors, blobs, strict=True)
    ]
    return document({"inputs": inputs, **_around(draw, parameters)}), blobs


def _head(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def _around(draw: Draw, parameters: dict[str, Any]) -> dict[str, Any]:
    around: dict[str, Any] = {"id": draw.one("1", CANARY, "x" * 1000, "\ud800")} if draw.often(0.3) else {}
    if draw.often(0.3):
        parameters = {**parameters, "binary_data_output": draw.often(0.5)}
    if parameters:
        around["parameters"] = parameters
    if draw.often(0.2):
        names = ("label", "score", "embedding", "answer", "translation_text", "result", "error", CANARY)
        around["outputs"] = [
            {
                "name": draw.choice(names),
                **({"parameters": {"binary_data": draw.often(0.5)}} if draw.often(0.3) else {}),
            }
        ]
    return around


def _plain(element: Any) -> Any:
    return element.decode("latin-1") if isinstance(element, bytes) else element


def blob(tensor: Tensor) -> bytes:
    """The bytes of a binary tensor."""
    if tensor.datatype == "BYTES":
        encoded = [
            each if isinstance(each, bytes) else str(each).encode("utf-8", "replace") for each in tensor.elements
        ]
        return b"".join(struct.pack("<I", len(each)) + each for each in encoded)
    return struct.pack(f"<{len(tensor.elements)}{FORMATS[tensor.datatype]}", *tensor.elements)


def lie(draw: Draw, tree: Any) -> str:
    """Change what a document says of a tensor, in place; return what was done."""
    inputs = next((value for name, value in tree if name == "inputs"), None) if isinstance(tree, Object) else None
    if not isinstance(inputs, list) or not inputs or not isinstance(inputs[0], Object):
        return "no lie"
    tensor = draw.choice([each for each in inputs if isinstance(each, Object)])
    wanted = draw.one("shape", "datatype", "data", "parameters")
    odd: Any
    if wanted == "shape":
        odd = document(draw.choice(SHAPES))
    elif wanted == "datatype":
        odd = draw.choice(DATATYPES)
    elif wanted == "parameters":
        odd = Object([("binary_data_size", Raw(draw.choice(NUMBERS)))])
    else:
        odd = draw.one([], [[]], [[[1], [2]], [3]], [None], [Raw(draw.choice(NUMBERS))], [CANARY] * 9, [["a"], "b"])
        odd = draw.one(odd, Raw("[" * 70 + "1" + "]" * 70), Raw("[" * 20 + "1" + "]" * 20), "text", True)
    for index, (name, _) in enumerate(tensor):
        if name == wanted:
            tensor[index] = (name, odd)
            if wanted == "shape" and draw.often(0.3):
                tensor.append(("data", []))
            break
    else:
        tensor.append((wanted, odd))
    return f"lies about {wanted}"


def lying_blobs(draw: Draw, blobs: list[bytes]) -> list[bytes]:
    """Change the bytes of binary tensors."""
    joined = bytearray(b"".join(blobs))
    change = draw.one("cut", "more", "length", "random")
    if change == "cut":
        del joined[draw.randint(0, len(joined)) :]
    elif change == "more":
        joined += draw.randbytes(draw.one(1, 3, 4, 5))
    elif change == "length" and len(joined) >= 4:
        struct.pack_into("<I", joined, 0, draw.one(0, 1, len(joined) - 4, len(joined) - 3, 2**31, 2**32 - 1))
    else:
        joined[:] = draw.randbytes(len(joined))
    return [bytes(joined)]


def header(draw: Draw, length: int) -> str:
    """The length of the document as the header says it, nearly always right."""
    if draw.often(0.95):
        return str(length)
    return draw.one(str(length - 1), str(length + 1), "0", "-1", "", "1e3", "9" * 30, json.dumps(CANARY), "٣")
