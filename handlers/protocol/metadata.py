"""What a model says of itself, to a request with the header X-Model-Metadata: its tensors, options and limits. Pure.

handlers.description makes it. The names are those of the Open Inference Protocol's own metadata, which a
gateway makes of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from handlers.protocol.responses import Reply, encode

METADATA_HEADER = "x-model-metadata"


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """One input or output of a model.

    Attributes:
        name: as requests and answers have it.
        datatype: one of handlers.protocol.tensors.DTYPES.
        shape: with the dimension of rows; -1 there and where a size is the request's.
        batch_dim: the dimension that counts rows; answered where it is not the first.
    """

    name: str
    datatype: str = "BYTES"
    shape: tuple[int, ...] = (-1,)
    batch_dim: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Metadata:
    """The form of the answer to a request for metadata; see `handlers.protocol.responses.Form`."""

    name: str
    version: str | None  # None if the archive has none
    platform: str
    task: str
    mode: str
    inputs: Sequence[TensorMetadata]
    outputs: Sequence[TensorMetadata]
    # The most rows of a request: `max_request_items`, or as many short ones as `max_request_tokens` has room for.
    max_batch_size: int
    max_request_items: int
    # By name: "type" and further words of JSON Schema, "default" and maybe "description".
    options: Mapping[str, Any]
    accepts: Sequence[str]
    # How near its answers in a precision are to those in fp32, by precision; see handlers.proofs.
    proofs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    precision: str | None = None
    device: str = "cpu"

    def pack(self, results: Sequence[Any]) -> Reply:  # noqa: ARG002
        document = asdict(self)
        for tensor in (*document["inputs"], *document["outputs"]):
            if tensor["batch_dim"] == 0:
                del tensor["batch_dim"]
        return Reply(200, encode(document))
