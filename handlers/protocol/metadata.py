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
    """The form of the answer to a request for metadata; see `handlers.protocol.responses.Form`.

    Attributes:
        name, version: as registered; the version is None where the archive has none.
        platform: what serves it, and on which engine.
        task: the module of its task.
        mode: `classic` or `adaptive`.
        inputs, outputs: its tensors; the first dimension of each counts rows, or its `batch_dim`.
        max_batch_size: the most rows that one request may carry: `max_instances`, or as many short ones as
            `max_request_tokens` has room for.
        max_instances: the setting.
        options: what a request may set for an item, by name: its "type" and further words of JSON Schema, its
            "default" and maybe a "description".
        accepts: media types of the bodies that are understood.
        proofs: how near its answers in a precision are to those in fp32, by precision; see handlers.proofs.
        precision: the engine's arithmetic; None where that says nothing.
        device: `cpu` or `cuda`: where the worker runs it.
    """

    name: str
    version: str | None
    platform: str
    task: str
    mode: str
    inputs: Sequence[TensorMetadata]
    outputs: Sequence[TensorMetadata]
    max_batch_size: int
    max_instances: int
    options: Mapping[str, Any]
    accepts: Sequence[str]
    proofs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    precision: str | None = None
    device: str = "cpu"

    def pack(self, results: Sequence[Any]) -> Reply:  # noqa: ARG002
        """See `Form`; there are no results."""
        document = asdict(self)
        for tensor in (*document["inputs"], *document["outputs"]):
            if tensor["batch_dim"] == 0:
                del tensor["batch_dim"]
        return Reply(200, encode(document))
