"""The inputs and results of a task, as it states them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from handlers.errors import InvalidConfig
from handlers.protocol.fields import Fields
from handlers.protocol.metadata import TensorMetadata
from handlers.protocol.output_tensors import Model, OutputTensors, documents
from handlers.protocol.requests import Items
from handlers.protocol.responses import Piped
from handlers.protocol.retrieval import Api


@dataclass(frozen=True)
class Inputs:
    """The inputs of an item."""

    fields: frozenset[str] = frozenset()  # of its JSON object; other fields are options
    media_types: tuple[str, ...] = ()  # of bodies other than JSON, for the metadata
    dimensions: int = 0  # of an item that is a tensor of numbers
    # Tensors by field, unless they are BYTES [B], or FP32 with `dimensions`.
    tensors: Mapping[str, TensorMetadata] = field(default_factory=dict)
    in_threads: bool = True  # whether decoding an item takes longer than passing it to a thread
    are_shared: bool = False  # whether a field may be beside "instances", for all of them
    # Makes items of a request's contents; None for `Fields`, which does it by `fields`.
    items: Callable[[Fields, Model], Items] | None = None


TEXTS = Inputs(frozenset({"text"}), ("text/plain",), in_threads=False)  # checking a text takes microseconds


@dataclass(frozen=True)
class Results:
    """How the results of items are answered."""

    tensors: OutputTensors = field(default_factory=documents)  # of the Open Inference Protocol
    piped: Piped = field(default_factory=Piped)  # the answer to {"inputs": ...}
    batch_dims: Mapping[str, int] = field(default_factory=dict)  # by an output tensor's name: that of rows, if not 0
    view: str = ""  # how the gateway's page shows an answer (results.js); empty for JSON
    api: Api | None = None  # the API whose responses contain them
    also: tuple[Api, ...] = ()  # other ones
    is_mean: bool = False  # whether MaxSim of a model of late interaction is a mean, and not a sum
    ranges: Any = None  # the least and the greatest value of vectors in int8, (2, D)
    # The only accepted value of each field with which clients of `api` would change the answer.
    only: Mapping[str, Any] = field(default_factory=dict)


# Former attributes of a task, with what has replaced them.
FORMER = {
    **dict.fromkeys(("item_dimensions", "input_tensors", "media_types", "decodes_in_threads", "items"), "Inputs"),
    **dict.fromkeys(("output_tensors", "only_values", "piped", "batch_dims", "view", "api", "ranges"), "Results"),
    "samples": "`sample`, which may return a list",
    "tokens": "Cost(sent=...)",
    "graph_lengths": "Overhead(lengths=...)",
    "reads_options": "`decode`, which always gets checked options",
}


def check_attributes(task: object) -> None:
    """Raise InvalidConfig for a task with an attribute of a former release."""
    if former := [f"{name} is replaced by {new}" for name, new in FORMER.items() if hasattr(task, name)]:
        raise InvalidConfig(f"{type(task).__name__}: {'; '.join(former)}; see handlers/pipeline/values.py")
