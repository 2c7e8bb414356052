"""A model's metadata: the answer to a request with the header X-Model-Metadata. Pure.

handlers.description -> Metadata -> JSON; the gateway turns it into the Open Inference Protocol's own metadata, with
equal names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from handlers.aliases import Json
from handlers.protocol import wire
from handlers.protocol.responses import Response, encode

METADATA_HEADER = wire.METADATA_HEADER


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    name: str
    datatype: str = "BYTES"  # one of handlers.protocol.tensors.DTYPES
    shape: tuple[int, ...] = (-1,)  # with the dimension of rows; -1 if the request decides a size
    batch_dim: int = 0  # the dimension that counts rows; the answer has it if it is not the first


@dataclass(frozen=True, kw_only=True, slots=True)
class Metadata:
    name: str
    version: str | None  # None if the archive has none
    platform: str
    task: str
    mode: str
    inputs: Sequence[TensorMetadata]
    outputs: Sequence[TensorMetadata]
    item: Json  # JSON Schema of an item without options, and its example
    # The most rows of a request: `max_request_items`, or the number of samples that fit into `max_request_tokens`.
    max_batch_size: int
    max_request_items: int
    options: Json  # by name: "type" and further words of JSON Schema, "default" and "description"
    accepts: Sequence[str]
    api: str | None  # the API of embedding servers that it answers
    apis: Sequence[str]  # all of them
    view: str  # how a page shows an answer; empty for JSON
    # Agreement with fp32 by precision; see handlers.proofs.
    proofs: Mapping[str, Json] = field(default_factory=dict)
    precision: str | None = None
    device: str = "cpu"
    vector_space: str | None = None  # the identity of its vectors
    fingerprint: str | None = None  # of the archive; a rollout compares it with the archive in the model store

    def pack(self, results: Sequence[object]) -> Response:  # noqa: ARG002
        document = asdict(self)
        for tensor in (*document["inputs"], *document["outputs"]):
            if tensor["batch_dim"] == 0:
                del tensor["batch_dim"]
        fingerprint = document.pop("fingerprint")
        return Response(200, encode(document), headers={wire.FINGERPRINT_HEADER: fingerprint} if fingerprint else {})
