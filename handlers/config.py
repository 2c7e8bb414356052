"""Settings of an archive and options of a request, as frozen dataclasses.

`handler:` of model-config.yaml -> parse(cls, ...)         -> settings, or one InvalidConfig that lists every problem
fields of a request             -> parse_options(cls, ...) -> options, or one UnknownOption, likewise
"""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, Strict, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from handlers.errors import InvalidConfig, UnknownOption

T = TypeVar("T")

# Strict: YAML already has types, and `max_items: true` is a mistake, not a one.
SETTINGS = ConfigDict(extra="forbid", strict=True)

Count = Annotated[int, Field(ge=1)]
Threads = Annotated[int, Field(ge=0)]
Side = Annotated[int, Field(ge=1, le=4096)]
# A YAML list is a list; only its length and values are checked.
Channels = Annotated[tuple[float, float, float], Strict(False)]

# Statistics of the ImageNet training set, per channel, as torchvision's ImageClassification transform has them.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class HandlerConfig:
    """Settings that every task has.

    Attributes:
        engine: `auto` takes torch on a GPU and OpenVINO on a CPU.
        precision: arithmetic of the engine; `auto` takes bf16 where the hardware has it.
        threads: processor threads of the engine; 0 for every core this process may use.
        decode_threads: threads that decode a batch's items; 0 for every core.
        max_items: most items of one forward pass.
        max_tokens: most padded tokens of one forward pass; None where nothing is padded.
        max_instances: most items of one request.
        max_body_bytes: most bytes of one request's body (TorchServe's own `max_request_size` stands before it).
    """

    engine: Literal["auto", "openvino", "torch"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    threads: Threads = 0
    decode_threads: Threads = 0
    max_items: Count = 64
    max_tokens: Count | None = None
    max_instances: Count = 64
    max_body_bytes: Count = 16 * 2**20


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ImageClassificationConfig(HandlerConfig):
    """Settings of image classification. The defaults of the geometry are torchvision's IMAGENET1K_V1.

    Attributes:
        arch: name of a torchvision classifier, as `torchvision.models.get_model` takes it.
        resize_size: the shorter side is resized to this, in pixels.
        crop_size: then the centre square of this side is taken, in pixels.
        mean, std: per channel, of values in 0..1.
        top_k: labels of an answer, where the request does not say.
        max_pixels: most pixels of an image, refused from its header before it is decoded.
        scaled_decode: let libjpeg decode large JPEGs at 1/2, 1/4 or 1/8, never below twice `resize_size`.
    """

    arch: str
    resize_size: Side = 256
    crop_size: Side = 224
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD
    top_k: Count = 5
    max_pixels: Count = 50_000_000
    scaled_decode: bool = True

    @model_validator(mode="after")
    def _check_geometry(self) -> "ImageClassificationConfig":
        if self.crop_size > self.resize_size:
            raise ValueError(f"crop_size {self.crop_size} is more than resize_size {self.resize_size}")
        if min(self.std) <= 0:
            raise ValueError("every value of std must be more than 0")
        return self


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TextConfig(HandlerConfig):
    """Settings that every task on a transformer has.

    Attributes:
        max_tokens: most padded tokens of one forward pass, items times the longest.
        max_length: most tokens of one text, special ones included; None for what the model's own files say.
        max_characters: most characters of one text, refused before it is tokenised.
        truncation: cut a text that is too long, instead of refusing it.
        padding: `longest` of the micro-batch, rounded up to one of few sizes, or always `max_length`.
        trust_remote_code: run Python that the model's folder brings.
    """

    max_tokens: Count | None = 8192
    max_length: Count | None = None
    max_characters: Count = 50_000
    truncation: bool = False
    padding: Literal["longest", "max_length"] = "longest"
    trust_remote_code: bool = False
    max_instances: Count = 256
    max_body_bytes: Count = 2**20


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class NoOptions:
    """Options of a task that has none."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ImageClassificationOptions:
    """Options of one image.

    Attributes:
        top_k: labels of its answer; None for the configuration's.
    """

    top_k: Count | None = None


def parse(cls: Callable[..., T], values: Any) -> T:
    """Build a configuration from YAML's values.

    Args:
        cls: a settings class of this module.
        values: the mapping under `handler:`; None counts as empty.

    Raises:
        InvalidConfig: lists every unknown key, missing key, wrong type and value out of range.
    """
    values = {} if values is None else values
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise InvalidConfig("handler: a mapping of names to values is needed")
    try:
        return cls(**values)
    except ValidationError as error:
        raise InvalidConfig(f"handler: {_problems(error)}") from None


def parse_options(cls: Callable[..., T], values: Mapping[str, Any]) -> T:
    """Build one item's options.

    Args:
        cls: an options class of this module.
        values: what the client sent beside its input.

    Raises:
        UnknownOption: lists every problem, and the options there are.
    """
    try:
        return cls(**values)
    except ValidationError as error:
        known = ", ".join(signature(cls).parameters)
        raise UnknownOption(f"Options: {_problems(error)}. Known options: {known or 'none'}.") from None


def _problems(error: ValidationError) -> str:
    """Field and reason of each, never the value that was sent."""
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'all'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_input=False, include_context=False)
    )
