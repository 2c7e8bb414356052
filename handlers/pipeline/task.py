"""A task: the hooks that the pipeline, the schedule, the warm-up and the description call, in the order of their calls.

handlers.base.BatchHandler adds the lifecycle; an example stands there.
"""

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch

from handlers.config import HandlerConfig, NoOptions
from handlers.engines import Arrays, Engine, Listener, Outputs
from handlers.errors import ItemError
from handlers.pipeline.micro_batches import OVERHEAD, Overhead
from handlers.protocol import retrieval, rows
from handlers.protocol.fields import Fields
from handlers.protocol.headers import Headers
from handlers.protocol.metadata import Metadata, TensorMetadata
from handlers.protocol.output_tensors import Model, OutputTensors, documents
from handlers.protocol.requests import UNIT_COST, Cost, Items, Payload, Request
from handlers.protocol.rows import Shape

API_HEADER = retrieval.HEADER.lower()

Config = TypeVar("Config", bound=HandlerConfig)
Item = TypeVar("Item")


class Hooks(abc.ABC, Generic[Config, Item]):
    """What a task is and does; a class on `BatchHandler` overrides it."""

    config_class: ClassVar[type[HandlerConfig]]  # its settings
    options_class: ClassVar[Any] = NoOptions  # the options of one item
    inputs: frozenset[str]  # the JSON fields that hold its input; other fields are options
    item_dimensions: ClassVar[int] = 0  # of one item that comes as a tensor of numbers
    # The tensor of an input, by the input's name, where it is not BYTES [B], or FP32 of so many dimensions.
    input_tensors: Mapping[str, TensorMetadata] = {}
    output_tensors: OutputTensors = documents()  # how results become tensors of the Open Inference Protocol
    batch_dims: Mapping[str, int] = {}  # of an output tensor, by name: the dimension of rows, where it is not the first
    media_types: tuple[str, ...] = ()  # of bodies other than JSON, for the metadata
    decodes_in_threads: ClassVar[bool] = True  # whether decoding one item takes longer than handing it to a thread
    api: ClassVar[retrieval.Api | None] = None  # the API that its results are answers of
    staged_files: ClassVar[tuple[str, ...]] = ()  # names or patterns of files beside the model's configuration
    overhead: Overhead = OVERHEAD  # what one more micro-batch costs

    config: Config
    engine: Engine
    model_dir: Path
    longest_run_s: float  # the most seconds of one run of the engine, where it can be ended
    fingerprint: str | None  # hash of everything that the archive was made from, where it is known
    device: torch.device  # where the engine is to run
    shape: Shape  # what requests hold, for `unpack`
    metadata: Metadata

    @abc.abstractmethod
    def load(self) -> Engine:
        """Load what `model_dir` and `checkpoint_dir` hold and `config` asks for.

        Raises:
            InvalidConfig: the archive cannot be served; its owner reads the message.
        """

    @abc.abstractmethod
    def sample(self) -> Payload | None:
        """Return what a client might send, for warm-up; None where that is not known."""

    def samples(self) -> Sequence[Payload]:
        """Return `sample` and further payloads that each run once before the worker is ready: other graphs, sizes."""
        sample = self.sample()
        return () if sample is None else (sample,)

    def items(self, fields: Fields, model: Model) -> Items:  # noqa: ARG002
        """Return what makes items of the contents of a request, once; `fields` does it by `inputs`."""
        return fields

    def unpack(self, row: Mapping[str, Any], headers: Headers) -> Request:
        """Take one row apart, which is a request; few tasks override it."""
        if API_HEADER in headers:
            return retrieval.unpack(row, headers, self.shape)
        return rows.unpack(row, headers, self.shape)

    @abc.abstractmethod
    def decode(self, payload: Payload) -> Item:
        """Check and decode one item. Several threads may call it.

        Raises:
            InvalidInput: this item cannot be served.
        """

    def prepare(self, items: Sequence[Item]) -> Sequence[Item | ItemError]:
        """Do what is cheaper for several items at once: tokenisation. Return one outcome for each."""
        return items

    def cost(self, item: Item) -> Cost:  # noqa: ARG002
        """Return what the item asks of a micro-batch: its length, and the group that it may share one with."""
        return UNIT_COST

    @abc.abstractmethod
    def collate(self, items: Sequence[Item]) -> Arrays:
        """Stack the items of one micro-batch: arrays of shape (B, ...), named as the model's inputs."""

    def forward(self, inputs: Arrays, items: Sequence[Item]) -> Outputs:  # noqa: ARG002
        """Run the model once, again for each half of a micro-batch that failed: arrays of shape (B, ...)."""
        return self.engine.run(inputs)

    def forward_reporting(self, inputs: Arrays, items: Sequence[Item], ended: Listener) -> Outputs:  # noqa: ARG002
        """Run the model once, as `forward`, in adaptive mode; call `ended` for each item that ends before the others.

        `split` gets the outputs of such an item alone.
        """
        return self.forward(inputs, items)

    @abc.abstractmethod
    def split(self, outputs: Outputs, items: Sequence[Item]) -> Sequence[Any]:
        """Take the outputs of a micro-batch apart: one result for each item, in order, that JSON can hold."""

    def tokens(self, item: Item) -> int:  # noqa: ARG002
        """Count the tokens of an item, for answers that say how many a request had."""
        return 0


# A task of any settings and items.
Task = Hooks[Any, Any]
