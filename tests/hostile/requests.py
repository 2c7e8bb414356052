"""Strategies for requests: valid ones of a task, and what is left of them after a lie or a cut.

items and options -> body, form, JSON, Open Inference JSON, binary or gRPC -> bytes changed -> Request
"""

import base64
import gzip
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from handlers.protocol.open_inference_pb2 import ModelInferRequest
from handlers.protocol.wire import PROTOBUF

# The text of payloads; no message, no log and no other client's answer may contain it.
CANARY = "kanarienvogel"


@dataclass(frozen=True, slots=True)
class Part:
    """A field of a form, or the body: its name, its content type ("" for none) and its bytes."""

    name: str
    content_type: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Request:
    """A request as TorchServe hands it over."""

    parts: tuple[Part, ...]
    headers: Mapping[str, str] = field(default_factory=dict)


def body(value: bytes, content_type: str = "", **headers: str) -> Request:
    return Request((Part("body", content_type, value),), headers)


def request_of(document: Mapping[str, Any]) -> Request:
    """Read a file of found/: its values are [piece, times] pairs, so that long runs stay short."""

    def joined(pieces: Sequence[Any]) -> bytes:
        raw = (p["text"].encode() if "text" in p else base64.b64decode(p["base64"]) for p, _ in pieces)
        return b"".join(piece * times for piece, (_, times) in zip(raw, pieces, strict=True))

    parts = (Part(part["name"], part.get("content_type", ""), joined(part["value"])) for part in document["parts"])
    return Request(tuple(parts), document.get("headers", {}))


# JSON's numbers as text: values beyond float64, int64 or Python's limit of digits, and texts that are not numbers.
NUMBERS = (
    *("0", "-1", "1", "3", "2147483648", "9223372036854775808", "-0.0", "0.5", "1e-323", "1e309", "-1e999"),
    *("NaN", "Infinity", "1" + "0" * 400, "9" * 4301, "01", "+1", ".5", "0x10", "1_000", "1e", "١"),
)
STRANGE = (
    *("", " ", "\0", "a\0b", "\ufeff", "\u202e", "\x1b[31m", "\ud800", "a\udc80b", "\U0010ffff", "\u0300" * 200),
    *("🏳️‍🌈", "ﷺ" * 50, "İ", "ﬁ", "𝔘", "한글", "עברית", "[MASK]", "[SEP]", "</s>", ">>fr<<", "__label__en", "▁", "##a"),
    *("%s", "{0}", "${jndi:x}", "\\", '"', "null", "../../etc/passwd", "A" * 513, "a " * 300, "\n" * 100, CANARY * 64),
)
NAMES = (
    *("self", "cls", "__class__", "__init__", "config", "options", "payload", "data", "instances", "inputs", "id"),
    *("top_k", "Top_K", "threshold", "truncation", "binary_data_output", "binary_data_size", "priority", "timeout"),
    *("parameters", "outputs", "b64", "text", "question", "", " ", "a.b", "\0", "\ud800", "return", CANARY * 200),
)
SHAPES: tuple[Any, ...] = (
    *([], [0], [1], [2], [1, 1], [1, 0], [2, 1], [8], [9], [-1], [1.0], [True], [2**31], [2**63], ["1"], [None]),
    *([0, 2**31 - 1, 2**31 - 1, 2**31 - 1], [2**31 - 1] * 16, [1] * 65, [[1]], None, "1", {}, 1),
)
DATATYPES = ("BYTES", "BOOL", "UINT8", "INT64", "FP16", "FP32", "BF16", "bytes", "INT128", "", CANARY)
CONTENT_TYPES = (
    *("", "application/json", "application/json; charset=utf-8", "application/json;charset=latin-1", "text/plain"),
    *("application/octet-stream", "image/jpeg", "APPLICATION/JSON", "text/", ";", f"x/{CANARY}"),
)
HEADERS = {
    "X-Priority": ("1", "3", "0", "-1", "1.0", "first", "9" * 5000, CANARY),
    "X-Timeout-Ms": ("60000", "1e999", "nan", "-1", "soon", "9" * 400, CANARY),
    "Content-Encoding": ("identity", "gzip", "br", CANARY),
    "Inference-Header-Content-Length": ("0", "-1", "5", "1e3", "9" * 30, "٣", CANARY),
    "Accept": ("*/*", "application/x-npy", "image/png;q=0.1", CANARY),
    "ts_stream_next": ("true",),
    "X-Long": ("x" * 4000,),
}


class Raw(str):
    """A piece of JSON that is written as it stands."""


def written(value: Any) -> bytes:
    """Write JSON as some client's library might: raw pieces as they stand, lone surrogates as bytes."""
    if isinstance(value, Raw):
        return value.encode()
    if isinstance(value, dict):
        return b"{" + b",".join(written(str(name)) + b":" + written(each) for name, each in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(written, value)) + b"]"
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


numbers = st.sampled_from(NUMBERS).map(Raw)
strings = st.one_of(st.sampled_from(STRANGE), st.text(max_size=40), st.sampled_from(STRANGE).map(CANARY.__add__))
names = st.one_of(st.sampled_from(NAMES), st.text(max_size=12))
deep = st.sampled_from([70, 1100, 100_000]).map(lambda depth: Raw("[" * depth + "1" + "]" * depth))
# Anything that JSON may hold, and some that it may not.
values = st.recursive(
    st.one_of(numbers, strings, st.none(), st.booleans(), deep),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=5,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """The requests of a task's clients."""

    items: st.SearchStrategy[dict[str, Any]]
    options: st.SearchStrategy[dict[str, Any]]
    tensor: str

    def requests(self) -> st.SearchStrategy[Request]:
        made = st.one_of(self._bodies(), self._documents(), self._forms(), self._inference(), self._grpc())
        headers = st.dictionaries(st.sampled_from(sorted(HEADERS)), st.integers(0, 99), max_size=2).map(
            lambda drawn: {name: HEADERS[name][index % len(HEADERS[name])] for name, index in drawn.items()}
        )
        return st.builds(
            lambda request, more: replace(request, headers={**more, **request.headers}),
            st.one_of(made, made.flatmap(changed)),
            st.one_of(st.just({}), headers),
        )

    def _raw(self) -> st.SearchStrategy[bytes]:
        def raw(item: dict[str, Any]) -> bytes:
            return base64.b64decode(item["b64"]) if "b64" in item else str(item["text"]).encode("utf-8", "replace")

        return self.items.map(raw)

    def _odd_options(self) -> st.SearchStrategy[dict[str, Any]]:
        return st.one_of(st.just({}), self.options, st.dictionaries(names, values, max_size=2))

    def _bodies(self) -> st.SearchStrategy[Request]:
        return st.builds(body, self._raw(), st.sampled_from(CONTENT_TYPES))

    def _documents(self) -> st.SearchStrategy[Request]:
        one = st.builds(lambda item, options: {**item, **options}, self.items, self._odd_options())
        many = st.builds(
            lambda items, options: {"instances": items, **options},
            st.lists(st.one_of(self.items, values), max_size=9),
            self._odd_options(),
        )
        document = st.one_of(one, many, values).map(written)
        return st.builds(body, document, st.sampled_from(["application/json", "", "application/json; charset=utf-8"]))

    def _forms(self) -> st.SearchStrategy[Request]:
        def make(first: str, value: bytes, options: dict[str, Any]) -> Request:
            # A field's name travels as UTF-8.
            fields = [(name.encode("utf-8", "replace").decode(), written(each)) for name, each in options.items()]
            return Request((Part(first, "", value), *(Part(name, "", each) for name, each in fields)))

        return st.builds(make, st.sampled_from(["data", "body", "", CANARY * 200]), self._raw(), self._odd_options())

    def _inference(self) -> st.SearchStrategy[Request]:
        def make(raw: list[bytes], lies: Any, parameters: Any, is_binary: bool, off: int) -> Request:
            tensor: dict[str, Any] = {"name": self.tensor, "datatype": "BYTES", "shape": [len(raw), 1]}
            blob = b"".join(struct.pack("<I", len(each)) + each for each in raw)
            if is_binary:
                tensor["parameters"] = {"binary_data_size": len(blob)}
            else:
                tensor["data"] = [each.decode("utf-8", "replace") for each in raw]
            head = written({"inputs": [{**tensor, **lies}], "parameters": parameters, "id": CANARY})
            if not is_binary:
                return body(head, "application/json")
            return body(head + blob, "", **{"Inference-Header-Content-Length": str(len(head) + off)})

        of_tensor = {"shape": st.sampled_from(SHAPES), "datatype": st.sampled_from(DATATYPES), "data": values}
        of_tensor |= {"name": names, "parameters": st.dictionaries(names, values, max_size=1)}
        lies = st.one_of(st.just({}), st.fixed_dictionaries({}, optional=of_tensor))
        raw = st.lists(self._raw(), min_size=1, max_size=3)
        off = st.sampled_from([0, 0, 0, 0, -1, 1, 10**9])
        return st.builds(make, raw, lies, self._odd_options(), st.booleans(), off)

    def _grpc(self) -> st.SearchStrategy[Request]:
        def make(content: bytes, packs: bool) -> Request:
            return body(gzip.compress(content, mtime=0) if packs else content, PROTOBUF)

        return st.builds(make, self.grpc_messages(), st.booleans())

    def grpc_messages(self, model: str = "M") -> st.SearchStrategy[bytes]:
        """Draw messages of ModelInfer, some of them with a lie about their tensor."""

        def make(raw: list[bytes], shape: list[int], datatype: str, name: str, extra: bytes) -> bytes:
            message = ModelInferRequest(model_name=model, id=CANARY)
            message.inputs.add(name=name, datatype=datatype, shape=shape or [len(raw), 1])
            message.raw_input_contents.append(b"".join(struct.pack("<I", len(each)) + each for each in raw) + extra)
            return bytes(message.SerializeToString())

        sizes = [each for each in SHAPES if isinstance(each, list) and all(type(n) is int and n < 2**63 for n in each)]
        return st.builds(
            make,
            st.lists(self._raw(), min_size=1, max_size=3),
            st.one_of(st.just([]), st.sampled_from(sizes)),
            st.one_of(st.just("BYTES"), st.sampled_from(DATATYPES)),
            st.one_of(st.just(self.tensor), st.sampled_from(["top_k", "", CANARY * 200])),
            st.sampled_from([b"", b"", b"\xff", b"\0" * 4]),
        )


def changed(request: Request) -> st.SearchStrategy[Request]:
    part, more = request.parts[0], request.parts[1:]

    def change(place: int, how: str) -> Request:
        at = place % (len(part.value) + 1)
        head, tail = part.value[:at], part.value[at:]
        made = {
            "cut": head,
            "flip": head + bytes([tail[0] ^ 1 << place % 8]) + tail[1:] if tail else head,
            "insert": head + (b"\xff" * 10 if place % 2 else b"\0") + tail,
            "repeat": head + tail[:64] * 500 + tail,
        }[how]
        return replace(request, parts=(replace(part, value=made), *more))

    return st.builds(change, st.integers(0, 10**6), st.sampled_from(["cut", "flip", "insert", "repeat"]))
