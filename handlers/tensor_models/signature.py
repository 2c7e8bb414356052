"""The inputs and outputs of a model: names, datatypes, shapes, and which dimension counts rows. Pure.

    the model's own description (Said) + model-config.yaml -> signed -> Signature, or InvalidConfig
    Said <-> signature.json, which the builder writes beside the model

A shape has the batch dimension, as -1 like every other size that is the request's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from handlers.errors import InvalidConfig
from handlers.protocol.tensors import DTYPES, JSON_TYPES, converted, datatype_of, encoded, nested, objects
from handlers.tensor_models.config import InputConfig, OutputConfig, Padding, TensorConfig, TensorsConfig

# The file of an archive with the description that its model gave as it was built.
SIGNATURE = "signature.json"
# The datatype in metadata where neither the model nor the configuration names one: any is accepted.
ANY = "ANY"

# What elements of any datatype are read as, by the type of the first that decides.
GUESSED = ((str, "BYTES"), (float, "FP64"), (int, "INT64"), (bool, "BOOL"))

Shape = tuple[int, ...]

# The attributes of tensors that only the configuration or the engine says, and signature.json therefore lacks.
_CONFIGURED: Any = {"__all__": {"batch_dim", "pad", "follows", "computes_in"}}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output.

    Attributes:
        name: as requests, answers and the model have it.
        datatype: one of handlers.protocol.tensors.DTYPES; None where it may be any.
        shape: with the batch dimension; -1 where a size is the request's. None where it may be any.
        batch_dim: the dimension that counts rows.
        pad: of an input, how rows of different sizes are padded.
        follows: of an output, the padded input that its free dimensions follow.
        computes_in: of an input, the datatype that the engine computes with, where that holds fewer whole numbers.
    """

    name: str
    datatype: str | None = None
    shape: Shape | None = None
    batch_dim: int = 0
    pad: Padding | None = None
    follows: str | None = None
    computes_in: str | None = None

    @property
    def row_shape(self) -> Shape | None:
        """The shape of one row, which has no batch dimension; None where it may be any."""
        return None if self.shape is None else without(self.shape, self.batch_dim)

    @property
    def free(self) -> tuple[int, ...]:
        """The free dimensions but the batch's, as indices into `shape`; none where the shape may be any."""
        return tuple(i for i, size in enumerate(self.shape or ()) if size < 0 and i != self.batch_dim)

    def __str__(self) -> str:
        """Write datatype and shape as messages have them."""
        return f"{self.datatype or 'any datatype'} {'of any shape' if self.shape is None else list(self.shape)}"


def without(shape: Sequence[int], dimension: int) -> Shape:
    """Leave one dimension out of a shape."""
    return (*shape[:dimension], *shape[dimension + 1 :])


@dataclass(frozen=True, slots=True)
class Said:
    """What a model says of itself.

    Attributes:
        inputs: at least one; of a function and a TorchScript file names alone.
        outputs: None where the model does not say which it has.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...] | None = None

    def to_json(self) -> str:
        """Write signature.json."""
        return (
            TypeAdapter(Said)
            .dump_json(self, indent=1, exclude={"inputs": _CONFIGURED, "outputs": _CONFIGURED})
            .decode()
        )

    @classmethod
    def from_json(cls, text: str) -> "Said":
        """Read signature.json, as `to_json` wrote it."""
        return TypeAdapter(Said).validate_json(text)


@dataclass(frozen=True, slots=True)
class Signature:
    """What requests and answers are held against.

    Attributes:
        inputs: by name, in the model's order.
        outputs: by name, in the model's order; None where only a run will tell.
        constants: the arrays of the inputs that every row shares, by name.
        arguments: all inputs of the model in its order, those of `constants` included.
    """

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor] | None
    constants: Mapping[str, NDArray[Any]]
    arguments: Mapping[str, Tensor]

    @property
    def masks(self) -> Mapping[str, str]:
        """The padded input of each mask, by the mask's name."""
        return {tensor.pad.mask: tensor.name for tensor in self.inputs.values() if tensor.pad is not None}


def narrowed(signature: Signature, datatypes: Mapping[str, str]) -> Signature:
    """Note the inputs that the engine computes with fewer whole numbers than their datatype has.

    `datatypes` has what the engine computes with, by the datatype of its input.
    """
    inputs = {
        name: replace(tensor, computes_in=datatypes.get(tensor.datatype or ""))
        for name, tensor in signature.inputs.items()
    }
    return replace(signature, inputs=inputs)


def signed(said: Said, config: TensorsConfig) -> Signature:
    """Combine the model's own description with the configuration.

    Raises:
        InvalidConfig: they disagree, or leave open what must be known.
    """
    constants = {each.name: _constant(each, config) for each in said.inputs if each.name in config.constants}
    known = [tensor.name for tensor in said.inputs]
    if unknown := sorted(config.constants.keys() - constants.keys()):
        raise InvalidConfig(f"constants: {', '.join(unknown)}: this model has {', '.join(sorted(known))}")
    fixed = [Tensor(name, datatype_of(array), array.shape) for name, array in constants.items()]
    inputs = _combined("inputs", [each for each in said.inputs if each.name not in constants], config.inputs)
    if not inputs:
        raise InvalidConfig("constants: there is no input left for requests")
    arguments = {**inputs, **{tensor.name: tensor for tensor in fixed}}
    arguments = {name: arguments[name] for name in known}
    for name, tensor in inputs.items():
        _check_padding(name, tensor, inputs)
    if said.outputs is None and not config.outputs:
        return Signature(inputs, None, constants, arguments)
    outputs = _combined("outputs", said.outputs or [Tensor(name) for name in config.outputs], config.outputs)
    for name, tensor in outputs.items():
        _check_follows(name, tensor, inputs)
    return Signature(inputs, outputs, constants, arguments)


def _constant(said: Tensor, config: TensorsConfig) -> NDArray[Any]:
    """Make the array of an input that the configuration fixes; one number fills the shape that the model has."""
    place, value = f"constants.{said.name}", config.constants[said.name]
    listed, types = nested(value)
    datatype = said.datatype or next((name for kind, name in GUESSED if kind in types), "FP32")
    dtype = np.dtype(np.float32) if datatype == "BF16" else DTYPES[datatype]
    if not types <= JSON_TYPES[dtype.kind]:
        raise InvalidConfig(f"{place}: {said} is expected, as a value or as lists of them")
    if listed.ndim == 0 and said.shape:
        listed = np.full([max(1, size) for size in said.shape], listed[()], object)
    shape = said.shape
    if shape is not None and (
        len(shape) != listed.ndim or any(a not in (-1, b) for a, b in zip(shape, listed.shape, strict=True))
    ):
        raise InvalidConfig(f"{place}: {said} is expected; it has the shape {list(listed.shape)}")
    try:
        return objects(encoded(listed)).reshape(listed.shape) if datatype == "BYTES" else converted(listed, dtype)
    except OverflowError:
        raise InvalidConfig(f"{place}: there is a number that {datatype} has not") from None


def _combined(kind: str, said: Sequence[Tensor], given: Mapping[str, TensorConfig]) -> dict[str, Tensor]:
    known = {tensor.name for tensor in said}
    if unknown := sorted(given.keys() - known):
        raise InvalidConfig(f"{kind}: {', '.join(unknown)}: this model has {', '.join(sorted(known))}")
    combined = {}
    for tensor in said:
        config = given.get(tensor.name)
        if config is not None:
            tensor = _agreed(tensor, config, kind)  # noqa: PLW2901
        combined[tensor.name] = _batched(tensor, kind)
    return combined


def _agreed(said: Tensor, given: TensorConfig, kind: str) -> Tensor:
    """Add what the model leaves out; both must not contradict each other."""
    place = f"{kind}.{said.name}"
    if said.datatype and given.datatype and said.datatype != given.datatype:
        raise InvalidConfig(f"{place}: the model has {said.datatype}, and not {given.datatype}")
    shape = said.shape
    if given.shape is not None:
        if shape is not None and not _fits(shape, given.shape, given.batch_dim):
            raise InvalidConfig(f"{place}: the model has {list(shape)}, and not {list(given.shape)}")
        shape = given.shape
    return replace(
        said,
        datatype=said.datatype or given.datatype,
        shape=shape,
        batch_dim=given.batch_dim,
        pad=given.pad if isinstance(given, InputConfig) else None,
        follows=given.follows if isinstance(given, OutputConfig) else None,
    )


def _fits(said: Shape, given: Shape, batch_dim: int) -> bool:
    """Whether a configured shape is one that the model has: it may fix sizes that are free there."""
    pairs = enumerate(zip(said, given, strict=False))
    return len(said) == len(given) and all(i == batch_dim or a in (-1, b) for i, (a, b) in pairs)


def _batched(tensor: Tensor, kind: str) -> Tensor:
    """Check the batch dimension, and leave it free."""
    if tensor.shape is None:
        return tensor
    if kind == "inputs" and not tensor.shape:
        raise InvalidConfig(
            f"inputs.{tensor.name}: it is a scalar, which has no rows; model-config.yaml can fix its value, with "
            f"handler: {{constants: {{{tensor.name}: VALUE}}}}"
        )
    if tensor.batch_dim >= len(tensor.shape):
        shape = list(tensor.shape)
        raise InvalidConfig(f"{kind}.{tensor.name}: shape {shape} has no dimension {tensor.batch_dim} to count rows")
    at = tensor.batch_dim
    return replace(tensor, shape=(*tensor.shape[:at], -1, *tensor.shape[at + 1 :]))


def _check_padding(name: str, tensor: Tensor, inputs: Mapping[str, Tensor]) -> None:
    if tensor.pad is None:
        return
    place = f"inputs.{name}.pad"
    if not tensor.free:
        raise InvalidConfig(f"{place}: nothing is free in {tensor}; say its shape, with -1 where rows differ")
    if tensor.datatype in (None, "BYTES"):
        raise InvalidConfig(f"{place}: {tensor.datatype or 'what may be of any datatype'} cannot be padded")
    mask = inputs.get(tensor.pad.mask)
    if mask is None or mask.name == name or mask.pad is not None:
        raise InvalidConfig(f"{place}.mask: {tensor.pad.mask} must be another input, without a pad of its own")
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
    if not is_kind or not _has(tensor.datatype, tensor.pad.value):
        raise InvalidConfig(f"{place}.value: {tensor.pad.value} is no {tensor.datatype}")


def _has(datatype: str, value: float) -> bool:
    """Whether a number is one of a datatype."""
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
            f"outputs.{name}.follows: {tensor} has not as many free dimensions as {padded.name}, {padded}"
        )
