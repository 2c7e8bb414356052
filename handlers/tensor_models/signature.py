"""The inputs and outputs of a model: names, datatypes, shapes, and which dimension counts rows. Pure.

    DeclaredSignature, the model's own + model-config.yaml -> merge_signature -> Signature, or InvalidConfig
    DeclaredSignature <-> signature.json, which the builder writes beside the model

A shape has the batch dimension, as -1 like every other size that is the request's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from handlers.aliases import Array
from handlers.errors import InvalidConfig
from handlers.protocol.tensors import (
    DTYPES,
    JSON_TYPES,
    convert,
    datatype_of,
    encode_elements,
    make_objects,
    to_objects,
)
from handlers.tensor_models.config import InputConfig, OutputConfig, Padding, TensorConfig, TensorsConfig

SIGNATURE = "signature.json"  # the file of an archive with its model's own description
ANY = "ANY"  # the datatype in metadata if neither the model nor the configuration names one: any is accepted

# Datatypes of JSON's values for a tensor of any datatype: the first type that occurs among them decides.
GUESSED = ((str, "BYTES"), (float, "FP64"), (int, "INT64"), (bool, "BOOL"))

Shape = tuple[int, ...]

# Fields of tensors that only the configuration or the engine sets; signature.json lacks them.
_CONFIGURED: Any = {"__all__": {"batch_dim", "pad", "follows", "computes_in"}}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output, by the name that requests, answers and the model use."""

    name: str
    datatype: str | None = None  # one of handlers.protocol.tensors.DTYPES; None for any
    shape: Shape | None = None  # with the batch dimension; -1 for a size of the request's; None for any shape
    batch_dim: int = 0  # the dimension that counts rows
    pad: Padding | None = None  # of an input: how rows of different sizes are padded
    follows: str | None = None  # of an output: the padded input with its free dimensions
    computes_in: str | None = None  # of an input: the engine's datatype, if that has fewer whole numbers

    @property
    def row_shape(self) -> Shape | None:
        """The shape of one row, without the batch dimension; None for any shape."""
        return None if self.shape is None else remove_dimension(self.shape, self.batch_dim)

    @property
    def free(self) -> tuple[int, ...]:
        """The free dimensions except the batch's, as indices into `shape`; none for any shape."""
        return tuple(i for i, size in enumerate(self.shape or ()) if size < 0 and i != self.batch_dim)

    def __str__(self) -> str:
        """Write datatype and shape for messages."""
        return f"{self.datatype or 'any datatype'} {'of any shape' if self.shape is None else list(self.shape)}"


def fits(shape: Sequence[int], wanted: Shape) -> bool:
    return len(shape) == len(wanted) and all(b in (-1, a) for a, b in zip(shape, wanted, strict=True))


def remove_dimension(shape: Sequence[int], dimension: int) -> Shape:
    return (*shape[:dimension], *shape[dimension + 1 :])


@dataclass(frozen=True, slots=True)
class DeclaredSignature:
    """A model's own description."""

    inputs: tuple[Tensor, ...]  # at least one; only names for a function or a TorchScript file
    outputs: tuple[Tensor, ...] | None = None  # None if the model does not declare them

    def to_json(self) -> str:
        return (
            TypeAdapter(DeclaredSignature)
            .dump_json(self, indent=1, exclude={"inputs": _CONFIGURED, "outputs": _CONFIGURED})
            .decode()
        )

    @classmethod
    def from_json(cls, text: str) -> "DeclaredSignature":
        return TypeAdapter(DeclaredSignature).validate_json(text)


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs that requests and answers are checked against, by name."""

    inputs: Mapping[str, Tensor]  # in the model's order
    outputs: Mapping[str, Tensor] | None  # in the model's order; None if only a run shows them
    constants: Mapping[str, Array]  # of the inputs that every row shares
    arguments: Mapping[str, Tensor]  # all inputs of the model in its order, `constants` included

    @property
    def masks(self) -> Mapping[str, str]:
        """The padded input of each mask, by the mask's name."""
        return {tensor.pad.mask: tensor.name for tensor in self.inputs.values() if tensor.pad is not None}


def set_engine_types(signature: Signature, datatypes: Mapping[str, str]) -> Signature:
    """Note the inputs whose datatype the engine replaces by a smaller one; `datatypes` maps one to the other."""
    inputs = {
        name: replace(tensor, computes_in=datatypes.get(tensor.datatype or ""))
        for name, tensor in signature.inputs.items()
    }
    return replace(signature, inputs=inputs)


def merge_signature(declared: DeclaredSignature, config: TensorsConfig) -> Signature:
    constants = {each.name: _make_constant(each, config) for each in declared.inputs if each.name in config.constants}
    known = [tensor.name for tensor in declared.inputs]
    if unknown := sorted(config.constants.keys() - constants.keys()):
        raise InvalidConfig(f"constants: {', '.join(unknown)}: this model has {', '.join(sorted(known))}")
    fixed = [Tensor(name, datatype_of(array), array.shape) for name, array in constants.items()]
    inputs = _merge_tensors("inputs", [each for each in declared.inputs if each.name not in constants], config.inputs)
    if not inputs:
        raise InvalidConfig("constants: every input is constant; leave at least one for requests")
    arguments = {**inputs, **{tensor.name: tensor for tensor in fixed}}
    arguments = {name: arguments[name] for name in known}
    for name, tensor in inputs.items():
        _check_padding(name, tensor, inputs)
    if declared.outputs is None and not config.outputs:
        return Signature(inputs, None, constants, arguments)
    outputs = _merge_tensors("outputs", declared.outputs or [Tensor(name) for name in config.outputs], config.outputs)
    for name, tensor in outputs.items():
        _check_follows(name, tensor, inputs)
    return Signature(inputs, outputs, constants, arguments)


def _make_constant(declared: Tensor, config: TensorsConfig) -> Array:
    """Make the array of an input that the configuration sets; one number fills the model's shape."""
    place, value = f"constants.{declared.name}", config.constants[declared.name]
    listed, types = to_objects(value)
    datatype = declared.datatype or next((name for kind, name in GUESSED if kind in types), "FP32")
    dtype = np.dtype(np.float32) if datatype == "BF16" else DTYPES[datatype]
    if not types <= JSON_TYPES[dtype.kind]:
        raise InvalidConfig(f"{place}: {declared} is expected, as a value or as lists of them")
    if listed.ndim == 0 and declared.shape:
        listed = np.full([max(1, size) for size in declared.shape], listed[()], object)
    shape = declared.shape
    if shape is not None and not fits(listed.shape, shape):
        raise InvalidConfig(f"{place}: {declared} is expected, not the shape {list(listed.shape)}")
    try:
        return (
            make_objects(encode_elements(listed)).reshape(listed.shape)
            if datatype == "BYTES"
            else convert(listed, dtype)
        )
    except OverflowError:
        raise InvalidConfig(f"{place}: contains a value that {datatype} cannot represent") from None


def _merge_tensors(kind: str, declared: Sequence[Tensor], given: Mapping[str, TensorConfig]) -> dict[str, Tensor]:
    known = {tensor.name for tensor in declared}
    if unknown := sorted(given.keys() - known):
        raise InvalidConfig(f"{kind}: {', '.join(unknown)}: this model has {', '.join(sorted(known))}")
    combined = {}
    for tensor in declared:
        config = given.get(tensor.name)
        if config is not None:
            tensor = _merge_tensor(tensor, config, kind)  # noqa: PLW2901
        combined[tensor.name] = _free_batch_dimension(tensor, kind)
    return combined


def _merge_tensor(declared: Tensor, given: TensorConfig, kind: str) -> Tensor:
    place = f"{kind}.{declared.name}"
    if declared.datatype and given.datatype and declared.datatype != given.datatype:
        raise InvalidConfig(f"{place}: the model has {declared.datatype}, not {given.datatype}")
    shape = declared.shape
    if given.shape is not None:
        if shape is not None and not _fits(shape, given.shape, given.batch_dim):
            raise InvalidConfig(f"{place}: the model has {list(shape)}, not {list(given.shape)}")
        shape = given.shape
    return replace(
        declared,
        datatype=declared.datatype or given.datatype,
        shape=shape,
        batch_dim=given.batch_dim,
        pad=given.pad if isinstance(given, InputConfig) else None,
        follows=given.follows if isinstance(given, OutputConfig) else None,
    )


def _fits(declared: Shape, given: Shape, batch_dim: int) -> bool:
    """Return whether the configured shape only sets sizes that are free in the model's."""
    pairs = enumerate(zip(declared, given, strict=False))
    return len(declared) == len(given) and all(i == batch_dim or a in (-1, b) for i, (a, b) in pairs)


def _free_batch_dimension(tensor: Tensor, kind: str) -> Tensor:
    """Check the batch dimension, and make its size free."""
    if tensor.shape is None:
        return tensor
    if kind == "inputs" and not tensor.shape:
        raise InvalidConfig(
            f"inputs.{tensor.name}: a scalar has no rows; set its value in model-config.yaml: "
            f"handler: {{constants: {{{tensor.name}: VALUE}}}}"
        )
    if tensor.batch_dim >= len(tensor.shape):
        shape = list(tensor.shape)
        raise InvalidConfig(f"{kind}.{tensor.name}: shape {shape} lacks batch_dim {tensor.batch_dim}")
    at = tensor.batch_dim
    return replace(tensor, shape=(*tensor.shape[:at], -1, *tensor.shape[at + 1 :]))


def _check_padding(name: str, tensor: Tensor, inputs: Mapping[str, Tensor]) -> None:
    if tensor.pad is None:
        return
    place = f"inputs.{name}.pad"
    if not tensor.free:
        raise InvalidConfig(f"{place}: {tensor} has no free dimension; set its shape, with -1 for sizes that differ")
    if tensor.datatype in (None, "BYTES"):
        raise InvalidConfig(f"{place}: {tensor.datatype or 'a tensor of any datatype'} cannot be padded")
    mask = inputs.get(tensor.pad.mask)
    if mask is None or mask.name == name or mask.pad is not None:
        raise InvalidConfig(f"{place}.mask: {tensor.pad.mask} must be another input, without a `pad`")
    if (
        mask.datatype in (None, "BYTES")
        or len(mask.free) != len(tensor.free)
        or len(mask.shape or ()) != len(mask.free) + 1
    ):
        raise InvalidConfig(f"{place}.mask: {mask.name} is {mask}; a number for each free position is needed")
    padded = [other.name for other in inputs.values() if other.pad and other.pad.mask == mask.name]
    if len(padded) > 1:
        raise InvalidConfig(f"{place}.mask: {mask.name} is the mask of {' and of '.join(padded)}")
    kind = DTYPES[tensor.datatype].kind
    fits = {"b": (bool,), "u": (int,), "i": (int,)}.get(kind, (int, float))
    is_kind = isinstance(tensor.pad.value, fits) and (kind == "b" or not isinstance(tensor.pad.value, bool))
    if not is_kind or not _can_hold(tensor.datatype, tensor.pad.value):
        raise InvalidConfig(f"{place}.value: {tensor.pad.value} is not a valid {tensor.datatype}")


def _can_hold(datatype: str, value: float) -> bool:
    """Return whether a datatype can represent a number."""
    dtype = DTYPES[datatype]
    try:
        with np.errstate(over="raise"):
            np.full((), value, np.float32 if dtype.kind == "V" else dtype)
    except (OverflowError, FloatingPointError):
        return False
    return True


def _check_follows(name: str, tensor: Tensor, inputs: Mapping[str, Tensor]) -> None:
    if tensor.follows is None:
        return
    padded = inputs.get(tensor.follows)
    if padded is None or padded.pad is None:
        raise InvalidConfig(f"outputs.{name}.follows: {tensor.follows} must be an input with a pad")
    if len(tensor.free) != len(padded.free):
        raise InvalidConfig(
            f"outputs.{name}.follows: {tensor} and {padded.name}, {padded}, have different numbers of free dimensions"
        )
