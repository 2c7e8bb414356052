"""Describe the inputs, outputs and options of a loaded task, for the code that unpacks requests and for clients.

task's class, its settings, its decoded sample -> describe -> Shape, Metadata
"""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace

import orjson
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from handlers import archive_files
from handlers.aliases import Json
from handlers.engines import Engine
from handlers.errors import InvalidConfig
from handlers.pipeline.task import Task, inputs_of, samples_of
from handlers.pipeline.values import Inputs, check_attributes
from handlers.protocol.fields import Fields
from handlers.protocol.metadata import Metadata, TensorMetadata
from handlers.protocol.output_tensors import ERROR, Model
from handlers.protocol.responses import encode
from handlers.protocol.rows import TEXT_INPUTS, Shape
from handlers.warm_up import decode_items

# The precision at the end of an engine's description: a setting's or CTranslate2's name.
ARITHMETIC = re.compile(r"(fp|bf|int)[0-9]+(_[a-z]+[0-9]+)?")
# The settings' names of torch's precisions.
TORCH_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
EXAMPLE_BYTES = 2000  # most bytes of a sample in the metadata
# The words of an option's JSON Schema in metadata.
SCHEMA_WORDS = ("type", "enum", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def describe(task: Task, name: str, version: str | None) -> tuple[Shape, Metadata]:
    """Describe a loaded task, with its registered name and version and the settings' names of tensors."""
    check_attributes(task)
    config, accepted, results = task.config, inputs_of(task), task.results
    inputs = _inputs(task, accepted)
    names = _choose_names("outputs", results.tensors.names, config.tensors.outputs, (ERROR,))
    outputs = results.tensors.rename(names) if config.tensors.outputs else results.tensors
    own = Fields(
        accepted.fields,
        config.max_request_items,
        options=frozenset(field.name for field in fields(task.options_class)),
        item_dimensions=accepted.dimensions,
        tensors={tensor.name: key for key, tensor in inputs.items()},
        piped=results.piped,
    )
    model = Model(name, version, outputs, {names[name]: dimension for name, dimension in results.batch_dims.items()})
    items = own if accepted.items is None else accepted.items(own, model)
    limits = (config.max_body_bytes, model, accepted.fields, config.max_request_items)
    apis = (results.api, *results.also) if results.api else ()
    shape = Shape(
        items, *limits, results.api, results.also, accepted.media_types, results.only, results.ranges, results.is_mean
    )
    samples = samples_of(task)[:1]
    item = next(iter(decode_items(task, samples)), None)
    metadata = Metadata(
        name=name,
        version=version,
        platform=f"torchserve_{task.engine.description.partition(' ')[0]}",
        task=type(task).__module__.rpartition(".")[2],
        mode=config.scheduling.mode,
        inputs=list(inputs.values()),
        outputs=outputs.metadata,
        item=_item(accepted, inputs, samples[0].value if samples else None),
        max_batch_size=_most_rows(task, item),
        max_request_items=config.max_request_items,
        options=_options(task.options_class, config),
        accepts=[*accepted.media_types, "application/json"],
        api=results.api,
        apis=apis,
        view=results.view,
        proofs={
            precision: proof.to_json() for precision, proof in archive_files.load_proofs(task.archive.model_dir).items()
        },
        device=_device_of(task),
        fingerprint=task.archive.fingerprint,
    )
    return shape, metadata


def _device_of(task: Task) -> str:
    """Return the device of a task's engine: OpenVINO and ONNX Runtime use the CPU of a worker with a GPU, too."""
    _, _, rest = task.engine.description.partition(" ")
    return "cpu" if rest.partition(" ")[0] == "cpu" else task.archive.device.type


def precision_of(engine: Engine) -> str | None:
    """Return the settings' name of an engine's precision; None if its description has none."""
    word = engine.description.rpartition(" ")[2]
    return TORCH_PRECISIONS.get(word) or (word if ARITHMETIC.fullmatch(word) else None)


def _inputs(task: Task, accepted: Inputs) -> Mapping[str, TensorMetadata]:
    # The order of clients' positional arguments: the model's own, if the task has one.
    known = accepted.tensors.keys()
    names = known if known >= accepted.fields else sorted(accepted.fields)
    own = {name: accepted.tensors.get(name) or _tensor(name, accepted.dimensions) for name in names}
    options = [field.name for field in fields(task.options_class)]
    given = _choose_names("inputs", [tensor.name for tensor in own.values()], task.config.tensors.inputs, options)
    return {key: replace(tensor, name=given[tensor.name]) for key, tensor in own.items()}


def _tensor(name: str, dimensions: int) -> TensorMetadata:
    """Return the tensor of an input. A row of BYTES has one element: tools that read metadata need a dimension."""
    return TensorMetadata(name, "FP32", (-1,) * (1 + dimensions)) if dimensions else TensorMetadata(name, shape=(-1, 1))


def _item(accepted: Inputs, inputs: Mapping[str, TensorMetadata], sample: object) -> Json:
    """Return the JSON Schema of an item without its options, with a small sample as its example."""
    names = {key: tensor.name for key, tensor in inputs.items()} if accepted.items else {key: key for key in inputs}
    texts = {each: {"type": "string"} for each in (*TEXT_INPUTS, "b64")} if accepted.items is None else {}
    fields = {name: texts.get(key) or _values(inputs[key], accepted) for key, name in names.items()}
    schema: Json = {"type": "object", "properties": fields}
    if isinstance(sample, str) and "text" in names:
        sample = {"text": sample}
    if isinstance(sample, Mapping) and names.keys() >= sample.keys() and not any(t.batch_dim for t in inputs.values()):
        # A sample of tensors is a request of one row.
        item = {names[key]: value[0] if accepted.items else value for key, value in sample.items()}
        schema |= {
            "required": sorted(item),
            **({"example": orjson.loads(written)} if (written := _written(item)) else {}),
        }
    return schema


def _values(tensor: TensorMetadata, accepted: Inputs) -> Json:
    """Return the schema of an item's tensor: its numbers or texts, in nested lists."""
    if accepted.items is None or tensor.batch_dim:
        return {}
    kind = "integer" if "INT" in tensor.datatype else "number" if tensor.datatype[:2] in ("FP", "BF") else ""
    kind = {"BYTES": "string", "BOOL": "boolean"}.get(tensor.datatype, kind)
    schema: Json = {"type": kind} if kind else {}
    for size in reversed(tensor.shape[1:]):
        schema = {"type": "array", "items": schema, **({"minItems": size, "maxItems": size} if size >= 0 else {})}
    return schema


def _written(value: object) -> bytes:
    """Return a value as JSON; empty if JSON cannot represent it, or it is long."""
    try:
        written = encode(value)
    except (TypeError, ValueError):
        return b""
    return written if len(written) <= EXAMPLE_BYTES else b""


def _most_rows(task: Task, item: object) -> int:
    """Return the most rows like this item in one request."""
    most: int = task.config.max_request_items
    tokens: int | None = task.config.max_request_tokens
    return most if tokens is None or item is None else max(1, min(most, tokens // task.cost(item).tokens))


def _choose_names(kind: str, own: Iterable[str], given: Mapping[str, str], reserved: Iterable[str]) -> dict[str, str]:
    """Return the name of each tensor, `given` by the settings or its `own`, in the order of `own`."""
    names = {name: given.get(name, name) for name in own}
    if unknown := sorted(given.keys() - names.keys()):
        raise InvalidConfig(f"tensors.{kind}: {', '.join(unknown)}: unknown; this task has {', '.join(names)}")
    if len(set(names.values())) < len(names) or not all(name.strip() for name in names.values()):
        raise InvalidConfig(f"tensors.{kind}: names must be unique and not empty")
    if taken := sorted(set(names.values()) & set(reserved)):
        raise InvalidConfig(f"tensors.{kind}: {', '.join(taken)}: an option or the errors have this name; use another")
    return names


def _options(options_class: type, config: object) -> dict[str, Json]:
    """Return the SCHEMA_WORDS of each option of an item; a setting of the same name is its default."""
    properties = _properties(options_class)
    options = {}
    for each in fields(options_class):
        schema = properties.get(each.name, {})
        default = getattr(config, each.name, None)
        options[each.name] = {
            **_schema(schema),
            "default": default if _is_json(default) else schema.get("default"),
            **({"description": schema["description"]} if "description" in schema else {}),
        }
    return options


def _properties(options_class: type) -> Json:
    """Return the JSON Schema of each field; an empty one if a field's type has none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            properties: Json = TypeAdapter(options_class).json_schema().get("properties", {})
    except PydanticUserError:
        return {}
    return properties


def _is_json(default: object) -> bool:
    """Whether there is a default, and JSON can represent it."""
    try:
        encode(default)
    except (TypeError, ValueError):
        return False
    return default is not None


def _schema(schema: Json) -> Json:
    """Return the schema of a value other than None, which means the default."""
    choices = [choice for choice in schema.get("anyOf", [schema]) if choice.get("type") != "null"]
    (choice,) = choices if len(choices) == 1 else ({},)
    return {"type": "any", **{word: choice[word] for word in SCHEMA_WORDS if word in choice}}
