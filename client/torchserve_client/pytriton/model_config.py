"""A model's configuration as PyTriton's programs read it. Pure.

Metadata -> TritonModelConfig
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchserve_client.metadata import Metadata, TensorMetadata
from torchserve_client.protocol import BF16, DATATYPES


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output.

    Attributes:
        name: as requests and answers have it.
        shape: of one row, where the model batches; -1 where a size is the request's.
        dtype: numpy's scalar type: np.bytes_ of text, np.float32 of BF16, None where any is taken.
        optional: whether a request may leave it out; it is never known here.
        datatype: the Open Inference Protocol's name, as in "INT32".
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    optional: bool = False
    datatype: str = ""


@dataclass(frozen=True, slots=True)
class TritonModelConfig:
    """What a model takes and gives.

    Attributes:
        model_name: its name.
        model_version: as registered; None where the server did not say which.
        max_batch_size: the most rows that one request may carry; 0 where it takes single samples.
        batching: whether it takes several.
        decoupled: never: each request has one answer.
        inputs, outputs: its tensors, in its order.
    """

    model_name: str
    model_version: str | None = None
    max_batch_size: int = 4
    batching: bool = True
    decoupled: bool = False
    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()


def configured(metadata: Metadata) -> TritonModelConfig:
    """Write what a model says of itself as PyTriton does."""
    is_batching = metadata.max_batch_size > 0
    return TritonModelConfig(
        model_name=metadata.name,
        model_version=metadata.version,
        max_batch_size=metadata.max_batch_size,
        batching=is_batching,
        inputs=[_spec(tensor, is_batching) for tensor in metadata.inputs],
        outputs=[_spec(tensor, is_batching) for tensor in metadata.outputs],
    )


def _spec(tensor: TensorMetadata, is_batching: bool) -> TensorSpec:
    shape = tensor.shape[1:] if is_batching else tensor.shape
    return TensorSpec(tensor.name, shape, _dtype(tensor.datatype), datatype=tensor.datatype)


def _dtype(datatype: str) -> Any:
    if datatype in ("BYTES", BF16):
        return np.bytes_ if datatype == "BYTES" else np.float32
    return np.dtype(DATATYPES[datatype]).type if datatype in DATATYPES else None
