"""What a loaded task takes and gives, said once: to what unpacks requests, and to clients who ask.

task's class, its settings, a run of its sample -> described -> Shape, Metadata
"""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, Protocol

from handlers.engines import Engine
from handlers.pipeline import runner
from handlers.pipeline.warm_up import decoded, result
from handlers.protocol.fields import Fields
from handlers.protocol.metadata import Metadata, TensorMetadata, names_given, options_metadata
from handlers.protocol.open_inference import ERROR, Model
from handlers.protocol.output_tensors import OutputTensors, Renamed
from handlers.protocol.requests import Items, Payload, Shape

# The names that engines' descriptions end with: the settings', CTranslate2's own beside them, and torch's.
ARITHMETIC = re.compile(r"(fp|bf|int)[0-9]+(_[a-z]+[0-9]+)?")
TORCH_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class Task(runner.Task, Protocol):
    """A loaded task; see handlers.base.BatchHandler."""

    engine: Engine
    options_class: Any
    inputs: Any
    item_dimensions: Any
    input_tensors: Any
    output_tensors: OutputTensors
    batch_dims: Any
    media_types: Any

    def sample(self) -> Payload | None: ...
    def items(self, fields: Fields, model: Model) -> Items: ...


def described(task: Task, name: str, version: str | None) -> tuple[Shape, Metadata]:
    """Describe a task, under the names that its archive's owner gave to tensors.

    Args:
        task: loaded; its sample is decoded, and run where the sizes of outputs are the model's.
        name, version: as registered.

    Raises:
        InvalidConfig: the settings name tensors that there are not, or two alike.
    """
    config = task.config
    inputs = _inputs(task)
    given = names_given("outputs", task.output_tensors.names, config.tensors.outputs, (ERROR,))
    outputs = Renamed(task.output_tensors, given) if config.tensors.outputs else task.output_tensors
    own = Fields(
        task.inputs,
        config.max_instances,
        options=frozenset(field.name for field in fields(task.options_class)),
        item_dimensions=task.item_dimensions,
        tensors={tensor.name: key for key, tensor in inputs.items()},
    )
    model = Model(name, version, outputs, {given[name]: dimension for name, dimension in task.batch_dims.items()})
    shape = Shape(task.items(own, model), config.max_body_bytes, model)
    payload = task.sample()
    item = None if payload is None else next(iter(decoded(task, [payload])), None)
    metadata = Metadata(
        name=name,
        version=version,
        platform=f"torchserve_{task.engine.description.partition(' ')[0]}",
        task=type(task).__module__.rpartition(".")[2],
        mode=config.scheduling.mode,
        inputs=list(inputs.values()),
        outputs=outputs.metadata(partial(result, task, item)),
        max_batch_size=_most_rows(task, item),
        max_instances=config.max_instances,
        options=options_metadata(task.options_class, config),
        accepts=[*task.media_types, "application/json"],
    )
    return shape, metadata


def precision_of(engine: Engine) -> str | None:
    """Tell an engine's precision, by the settings' name of it; None where its description has none."""
    word = engine.description.rpartition(" ")[2]
    return TORCH_PRECISIONS.get(word) or (word if ARITHMETIC.fullmatch(word) else None)


def _inputs(task: Task) -> Mapping[str, TensorMetadata]:
    """Give the tensor of each input by the input's name."""
    # Positional arguments of clients go by this order: the model's own, where the task knows one.
    known = task.input_tensors.keys()
    names = known if known >= task.inputs else sorted(task.inputs)
    own = {name: task.input_tensors.get(name) or _tensor(name, task.item_dimensions) for name in names}
    options = [field.name for field in fields(task.options_class)]
    given = names_given("inputs", [tensor.name for tensor in own.values()], task.config.tensors.inputs, options)
    return {key: replace(tensor, name=given[tensor.name]) for key, tensor in own.items()}


def _tensor(name: str, dimensions: int) -> TensorMetadata:
    """A row of BYTES has one element: tools that make requests of the metadata want a dimension for it."""
    return TensorMetadata(name, "FP32", (-1,) * (1 + dimensions)) if dimensions else TensorMetadata(name, shape=(-1, 1))


def _most_rows(task: Task, item: Any) -> int:
    """How many rows like this item one request may carry."""
    most, tokens = task.config.max_instances, task.config.max_request_tokens
    return most if tokens is None or item is None else max(1, min(most, tokens // task.cost(item).tokens))
