"""A task: the hooks that the pipeline, the schedule, the warm-up and the description call, in the order of their calls.

handlers.base.BatchHandler adds the lifecycle, and contains an example.
"""

import abc
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from handlers.config import HandlerConfig, NoOptions, parse_options
from handlers.engines import Arrays, Engine, Listener, Outputs
from handlers.errors import InvalidOption, ItemError
from handlers.pipeline.declared import complete
from handlers.pipeline.values import Archive, Inputs, Results
from handlers.protocol import retrieval, rows
from handlers.protocol.requests import UNIT_COST, Cost, Payload, Request
from handlers.protocol.rows import Headers
from handlers.protocol.wire import API_HEADER

Config = TypeVar("Config", bound=HandlerConfig)
Item = TypeVar("Item")


class Hooks(abc.ABC, Generic[Config, Item]):
    """Hooks that a task implements, on `BatchHandler`. B is the number of items of a micro-batch."""

    config_class: ClassVar[type[HandlerConfig]]  # its settings: a plain class or a dataclass
    options_class: ClassVar[Any] = NoOptions  # the options of one item: such a class, too
    inputs: Inputs | Set[str] = Inputs()  # a set is the fields of JSON
    results: Results = Results()
    staged_files: ClassVar[tuple[str, ...]] = ()  # names or patterns of files beside the model's configuration

    config: Config
    engine: Engine
    archive: Archive

    def __init_subclass__(cls, **more: object) -> None:
        """Complete the classes of settings and options, which TorchServe must not count as handlers."""
        super().__init_subclass__(**more)
        for name, base in (("config_class", HandlerConfig), ("options_class", NoOptions)):
            if (own := vars(cls).get(name)) is not None:
                setattr(cls, name, complete(own, base))
                if own.__module__ == cls.__module__:
                    own.__module__ += ".own"

    @abc.abstractmethod
    def load(self) -> Engine:
        """Load the model from the folders of `archive`, as `config` specifies.

        Raises:
            InvalidConfig: the archive cannot be served; its owner reads the message.
        """

    @abc.abstractmethod
    def sample(self) -> Payload | Sequence[Payload] | None:
        """Return a payload that a client might send, for warm-up; None if that is unknown.

        After the first, a list has payloads of other graphs or sizes; each runs once before the worker is ready.
        """

    def unpack(self, row: Mapping[str, object], headers: Headers) -> Request:
        """Divide one row, which is a request, into payloads. Few tasks override it.

        Args:
            row: the values of its fields by name, as TorchServe passes them.
            headers: by their names in lower case.
        """
        if API_HEADER in headers:
            return retrieval.unpack(row, headers, self.archive.shape)
        return rows.unpack(row, headers, self.archive.shape)

    @abc.abstractmethod
    def decode(self, payload: Payload) -> Item:
        """Check and decode one item. Several threads may call it.

        Args:
            payload: its `options` are an `options_class`; settings of the same name are their defaults.

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

    def forward(self, inputs: Arrays, items: Sequence[Item]) -> Outputs:  # noqa: ARG002
        """Run the model once, again for each half of a micro-batch that failed.

        Args:
            inputs: from `collate`.
            items: of this micro-batch.

        Returns:
            Arrays of shape (B, ...) by name, for `split`.

        Raises:
            OutOfMemory: the micro-batch does not fit.
            OutOfTime: the run was stopped after `archive.longest_run_s`.
        """
        return self.engine.run(inputs)

    @abc.abstractmethod
    def split(self, outputs: Outputs, items: Sequence[Item]) -> Sequence[object]:
        """Divide the outputs of a micro-batch, arrays of shape (B, ...), into one result per item, in order.

        JSON can represent a result; numpy arrays are lists.
        """


Task = Hooks[Any, Any]  # a task of any settings and items


@runtime_checkable
class Reporting(Protocol):
    """A task whose engine may end items of a micro-batch before the others."""

    def forward_reporting(self, inputs: Arrays, items: Sequence[object], ended: Listener) -> Outputs:
        """Run the model once, as `forward`, in adaptive mode; call `ended` with the index and the outputs, (1, ...), of
        an item that ends before the others; `split` then gets these outputs and this item.
        """


@runtime_checkable
class Shaped(Protocol):
    """A task whose items have several shapes that each deserve a CUDA graph."""

    def examples(self, items: Sequence[object]) -> Sequence[Arrays]:
        """Return the inputs of one item for each of these shapes; `items` are the samples."""


def inputs_of(task: Task) -> Inputs:
    if isinstance(task.inputs, Inputs):
        return task.inputs
    declared = (vars(each).get("inputs") for each in type(task).__mro__)
    return replace(next(each for each in declared if isinstance(each, Inputs)), fields=frozenset(task.inputs))


def samples_of(task: Task) -> list[Payload]:
    made = task.sample()
    return [made] if isinstance(made, Payload) else [*(made or ())]


def decode(task: Task, payload: Payload) -> Any:
    """Call the hook with the options checked."""
    sent, value = payload.options, payload.value
    if isinstance(sent, task.options_class):
        return task.decode(payload)
    if sent and (inputs := inputs_of(task)).are_shared and isinstance(value, Mapping):
        value = {**{name: sent[name] for name in inputs.fields & sent.keys()}, **value}
        sent = {name: each for name, each in sent.items() if name not in inputs.fields}
    return task.decode(Payload(value, _read_options(task, sent), payload.allowance))


def default_options(task: Task) -> tuple[object, object]:
    """Return `Archive.defaults`: reading the settings for each item would cost more than most items."""
    try:
        return task.config, _read_options(task, {})
    except InvalidOption:  # each item must state one
        return None, None


def _read_options(task: Task, sent: Mapping[str, object]) -> object:
    known, (config, options) = task.options_class, task.archive.defaults
    if not sent and config is task.config:
        return options
    names = [each.name for each in fields(known)] if getattr(known, "has_settings", True) else []
    defaults = {name: getattr(task.config, name) for name in names if hasattr(task.config, name)}
    made: object = parse_options(known, {**defaults, **sent})
    return made
