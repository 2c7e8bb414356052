"""A task: the hooks that the pipeline, the schedule, the warm-up and the description call, in the order of their calls.

handlers.base.BatchHandler adds the lifecycle, and contains an example.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from handlers.config import HandlerConfig, NoOptions, parse_options
from handlers.engines import Arrays, Device, Engine, Listener, Outputs
from handlers.errors import ItemError
from handlers.pipeline.declared import complete
from handlers.pipeline.micro_batches import OVERHEAD, Overhead
from handlers.protocol import retrieval, rows
from handlers.protocol.fields import Fields
from handlers.protocol.metadata import Metadata, TensorMetadata
from handlers.protocol.output_tensors import Model, OutputTensors, documents
from handlers.protocol.requests import UNIT_COST, Cost, Items, Payload, Request
from handlers.protocol.responses import Piped
from handlers.protocol.rows import Headers, Shape
from handlers.protocol.wire import API_HEADER

Config = TypeVar("Config", bound=HandlerConfig)
Item = TypeVar("Item")


class Hooks(abc.ABC, Generic[Config, Item]):
    """Hooks that a task implements, on `BatchHandler`. B is the number of items of a micro-batch."""

    config_class: ClassVar[type[HandlerConfig]]  # its settings: a plain class or a dataclass
    options_class: ClassVar[Any] = NoOptions  # the options of one item: such a class, too
    # Whether `decode` reads the options as the client sent them; else it gets a checked `options_class`.
    reads_options: ClassVar[bool] = False
    inputs: frozenset[str]  # the JSON fields of its input; other fields are options
    item_dimensions: ClassVar[int] = 0  # of an item that is a tensor of numbers
    # Tensors of inputs by name, unless they are BYTES [B], or FP32 with `item_dimensions`.
    input_tensors: Mapping[str, TensorMetadata] = {}
    output_tensors: OutputTensors = documents()  # how results become tensors of the Open Inference Protocol
    piped: Piped = Piped()  # how it answers {"inputs": ...}
    batch_dims: Mapping[str, int] = {}  # by the name of an output tensor: its dimension of rows, unless the first
    media_types: tuple[str, ...] = ()  # of bodies other than JSON, for the metadata
    decodes_in_threads: ClassVar[bool] = True  # whether decoding an item takes longer than passing it to a thread
    api: ClassVar[retrieval.Api | None] = None  # the API whose responses contain its results
    view: ClassVar[str] = ""  # how the gateway's page shows an answer (results.js); empty for JSON
    ranges: Any = None  # the least and the greatest value of vectors in int8, (2, D)
    staged_files: ClassVar[tuple[str, ...]] = ()  # names or patterns of files beside the model's configuration
    overhead: Overhead = OVERHEAD  # cost of one more micro-batch
    graph_lengths: Sequence[int] = ()  # padded lengths of CUDA graphs, ascending

    config: Config
    engine: Engine
    model_dir: Path
    longest_run_s: float  # most seconds of one run, for engines that can stop one
    fingerprint: str | None  # hash of everything that the archive was made from; None if unknown
    device: Device  # of the engine
    shape: Shape  # of requests, for `unpack`
    metadata: Metadata

    def __init_subclass__(cls, **more: Any) -> None:
        """Complete the classes of settings and options, which TorchServe must not count as handlers."""
        super().__init_subclass__(**more)
        for name, base in (("config_class", HandlerConfig), ("options_class", NoOptions)):
            if (own := vars(cls).get(name)) is not None:
                setattr(cls, name, complete(own, base))
                if own.__module__ == cls.__module__:
                    own.__module__ += ".own"
        if "decode" in vars(cls) and not cls.reads_options:
            cls.decode = _with_options(cls.decode)  # type: ignore[method-assign,assignment]

    @abc.abstractmethod
    def load(self) -> Engine:
        """Load the model from `model_dir` and `checkpoint_dir`, as `config` specifies.

        Raises:
            InvalidConfig: the archive cannot be served; its owner reads the message.
        """

    @abc.abstractmethod
    def sample(self) -> Payload | None:
        """Return a payload that a client might send, for warm-up; None if that is unknown."""

    def samples(self) -> Sequence[Payload]:
        """Return `sample` first, then payloads of other graphs or sizes; each runs once before the worker is ready."""
        sample = self.sample()
        return () if sample is None else (sample,)

    def items(self, fields: Fields, model: Model) -> Items:  # noqa: ARG002
        """Return the object that makes items of a request's contents; called once. `fields` does it by `inputs`."""
        return fields

    def only_values(self) -> Mapping[str, Any]:
        """Return the only accepted value of each field with which clients of `api` would change the answer."""
        return {}

    def unpack(self, row: Mapping[str, Any], headers: Headers) -> Request:
        """Divide one row, which is a request, into payloads. Few tasks override it.

        Args:
            row: the values of its fields by name, as TorchServe passes them.
            headers: by their names in lower case.
        """
        if API_HEADER in headers:
            return retrieval.unpack(row, headers, self.shape)
        return rows.unpack(row, headers, self.shape)

    @abc.abstractmethod
    def decode(self, payload: Payload) -> Item:
        """Check and decode one item. Several threads may call it.

        Args:
            payload: its `options` are an `options_class`, unless `reads_options`.

        Raises:
            InvalidInput: this item cannot be served; its client reads the message.
        """

    def prepare(self, items: Sequence[Item]) -> Sequence[Item | ItemError]:
        """Do the work that is cheaper for several items at once, such as tokenisation. Return one outcome per item."""
        return items

    def cost(self, item: Item) -> Cost:  # noqa: ARG002
        """Return the item's length in tokens, and the group of items with which it may share a micro-batch."""
        return UNIT_COST

    @abc.abstractmethod
    def collate(self, items: Sequence[Item]) -> Arrays:
        """Stack the items of one micro-batch: arrays of shape (B, ...), named as the model's inputs."""

    def examples(self, items: Sequence[Item]) -> Sequence[Arrays]:
        """Return the inputs of one item for each shape that deserves a CUDA graph; `items` are the samples."""
        return [self.collate([item]) for item in items]

    def forward(self, inputs: Arrays, items: Sequence[Item]) -> Outputs:  # noqa: ARG002
        """Run the model once, again for each half of a micro-batch that failed.

        Args:
            inputs: from `collate`.
            items: of this micro-batch.

        Returns:
            Arrays of shape (B, ...) by name, for `split`.

        Raises:
            OutOfMemory: the micro-batch does not fit.
            OutOfTime: the run was stopped after `longest_run_s`.
        """
        return self.engine.run(inputs)

    def forward_reporting(self, inputs: Arrays, items: Sequence[Item], ended: Listener) -> Outputs:  # noqa: ARG002
        """Run the model once, as `forward`, in adaptive mode.

        Args:
            inputs: from `collate`.
            items: of this micro-batch.
            ended: called with the index and the outputs, (1, ...), of an item that ends before the others; `split` then
                gets these outputs and this item.
        """
        return self.forward(inputs, items)

    @abc.abstractmethod
    def split(self, outputs: Outputs, items: Sequence[Item]) -> Sequence[Any]:
        """Divide the outputs of a micro-batch, arrays of shape (B, ...), into one result per item, in order.

        JSON can represent a result; numpy arrays are lists.
        """

    def tokens(self, item: Item) -> int:  # noqa: ARG002
        """Return the number of an item's tokens, for responses that contain their request's sum."""
        return 0


def _with_options(decode: Callable[[Any, Payload], Any]) -> Callable[[Any, Payload], Any]:
    """Check a payload's options before `decode`; settings of the same name are their defaults."""

    @wraps(decode)
    def checked(task: Any, payload: Payload) -> Any:
        known = task.options_class
        if isinstance(payload.options, known):
            return decode(task, payload)
        names = [each.name for each in fields(known)]
        defaults = {name: getattr(task.config, name) for name in names if hasattr(task.config, name)}
        return decode(task, replace(payload, options=parse_options(known, {**defaults, **payload.options})))

    return checked


Task = Hooks[Any, Any]  # a task of any settings and items
