"""What a model says of itself: its tensors, options and limits. Pure.

    header X-Model-Metadata, on any request -> asks_for_metadata
    task's class, settings, loaded model    -> Metadata -> pack -> Reply, without an item and so without the engine

The names are those of the Open Inference Protocol's own metadata, which a gateway makes of it.
"""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from inspect import cleandoc
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from handlers.errors import InvalidConfig
from handlers.protocol.headers import header
from handlers.protocol.responses import Reply, encode

METADATA_HEADER = "x-model-metadata"

# Of a docstring's "Attributes:", "name, name: what they are." and the lines that go on with it.
ATTRIBUTE = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n     +.*)*)", re.MULTILINE)
# What JSON Schema says of a value, as far as it is told.
TOLD = ("type", "enum", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """One input or output of a model.

    Attributes:
        name: as requests and answers have it.
        datatype: one of handlers.protocol.tensors.DTYPES.
        shape: with the dimension of rows; -1 there and where a size is the request's.
        batch_dim: the dimension that counts rows; told where it is not the first.
    """

    name: str
    datatype: str = "BYTES"
    shape: tuple[int, ...] = (-1,)
    batch_dim: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Metadata:
    """The form of the answer to whoever asks for metadata; see `handlers.protocol.responses.Form`.

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
        proofs: how near its answers in a precision are to those in fp32, as `handlers.proofs.Proof.to_json` gives it,
            by precision; empty where its builder compared nothing.
        precision: the engine's arithmetic; None where that says nothing.
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

    def pack(self, results: Sequence[Any]) -> Reply:  # noqa: ARG002
        """See `Form`; there are no results."""
        document = asdict(self)
        for tensor in (*document["inputs"], *document["outputs"]):
            if tensor["batch_dim"] == 0:
                del tensor["batch_dim"]
        return Reply(200, encode(document))


def asks_for_metadata(headers: Mapping[str, Any]) -> bool:
    """Whether a request asks for the model's metadata, whatever else it holds.

    Args:
        headers: the request's, and for each field {"content-type": as sent}.
    """
    return header(headers, METADATA_HEADER) is not None


def names_given(kind: str, own: Iterable[str], given: Mapping[str, str], reserved: Iterable[str]) -> dict[str, str]:
    """Give each tensor the name that the archive's owner chose for it, or else the task's.

    Args:
        kind: `inputs` or `outputs`, for the message.
        own: the task's names.
        given: the owner's name by the task's.
        reserved: names that mean something else.

    Returns:
        The name of each tensor by the task's name, in the order of `own`.

    Raises:
        InvalidConfig: a tensor there is not, or a name twice, empty, or reserved.
    """
    names = {name: given.get(name, name) for name in own}
    if unknown := sorted(given.keys() - names.keys()):
        raise InvalidConfig(f"tensors.{kind}: {', '.join(unknown)}: this task has {', '.join(names)}")
    if len(set(names.values())) < len(names) or not all(name.strip() for name in names.values()):
        raise InvalidConfig(f"tensors.{kind}: every tensor needs a name of its own")
    if taken := sorted(set(names.values()) & set(reserved)):
        raise InvalidConfig(f"tensors.{kind}: {', '.join(taken)} is taken already, by an option or the errors")
    return names


def options_metadata(options_class: Any, config: Any) -> dict[str, dict[str, Any]]:
    """Describe the options of an item.

    Args:
        options_class: their dataclass.
        config: the settings; one that is named like an option is its default.

    Returns:
        For each option "type", "default" and what else of TOLD holds, and its "description" where a docstring has one.
    """
    properties = _properties(options_class)
    described = {**_descriptions(type(config)), **_descriptions(options_class)}
    options = {}
    for each in fields(options_class):
        schema = properties.get(each.name, {})
        default = getattr(config, each.name, None)
        options[each.name] = {
            **_told(schema),
            "default": default if _is_json(default) else schema.get("default"),
            **({"description": described[each.name]} if each.name in described else {}),
        }
    return options


def _properties(options_class: Any) -> Mapping[str, Any]:
    """Write a dataclass as JSON Schema, by field; without what JSON does not have, in a task of one's own."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            properties: Mapping[str, Any] = TypeAdapter(options_class).json_schema().get("properties", {})
    except PydanticUserError:
        return {}
    return properties


def _is_json(default: Any) -> bool:
    """Whether there is a default that JSON can hold."""
    try:
        encode(default)
    except (TypeError, ValueError):
        return False
    return default is not None


def _told(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Take what a schema says of a value that is there: None stands for the default."""
    choices = [choice for choice in schema.get("anyOf", [schema]) if choice.get("type") != "null"]
    (choice,) = choices if len(choices) == 1 else ({},)
    return {"type": "any", **{word: choice[word] for word in TOLD if word in choice}}


def _descriptions(cls: Any) -> dict[str, str]:
    """Read what the docstring of a class says of its attributes."""
    _, _, attributes = cleandoc(cls.__doc__ or "").partition("Attributes:\n")
    found = ATTRIBUTE.findall(attributes)
    return {name: " ".join(text.split()) for names, text in found for name in names.split(", ")}
