"""Settings of an archive and options of a request, as frozen dataclasses.

`handler:` of model-config.yaml -> parse(cls, ...)         -> settings, or one InvalidConfig that lists every problem
fields of a request             -> parse_options(cls, ...) -> options, or one UnknownOption, likewise
"""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, Strict, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from handlers.errors import InvalidConfig, UnknownOption

T = TypeVar("T")

# Strict: YAML already has types, and `max_items: true` is a mistake, not a one.
SETTINGS = ConfigDict(extra="forbid", strict=True)

Count = Annotated[int, Field(ge=1)]
Answers = Annotated[int, Field(ge=1, le=100)]
Threads = Annotated[int, Field(ge=0)]
# Of durations, a whole number or not.
Milliseconds = Annotated[float, Field(gt=0, le=3_600_000, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Side = Annotated[int, Field(ge=1, le=4096)]
# A YAML list is a list; only its length and values are checked.
Labels = Annotated[tuple[str, ...], Strict(False)]
Channels = Annotated[tuple[float, float, float], Strict(False)]


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class SchedulingConfig:
    """Who decides what runs together, and when.

    Attributes:
        mode: `classic`, the batch that TorchServe formed; `adaptive`, the worker, which needs continuousBatching.
        max_latency_ms: target from arrival at the worker to the answer.
        max_batch_items, max_batch_tokens: of a forward pass; None for `max_items` and `max_tokens`.
        priority_levels: that the header X-Priority may name; 1 is first.
        default_priority: of a request that names none; None for the middle.
        queue_timeout_ms: most that a request may wait for the engine; the header X-Timeout-Ms may shorten it.
        timeout_action: what becomes of one that waited longer: 504, or its turn after all others.
        max_queue_items: most items that wait.
        overload_status: of a request that is refused.
        streams: passes that may run side by side, each on its part of the engine's threads; 1 for one at a time. Only
            OpenVINO has them, and they hold the weights a second time.
        warm_up_s: most seconds of passes at the shapes that are likely, before the first request; each comes a few
            milliseconds later where the engine has not met its shape. 0 for none.
    """

    mode: Literal["classic", "adaptive"] = "classic"
    max_latency_ms: Milliseconds = 500.0
    max_batch_items: Count | None = None
    max_batch_tokens: Count | None = None
    priority_levels: Annotated[int, Field(ge=1, le=10)] = 1
    default_priority: Count | None = None
    queue_timeout_ms: Milliseconds = 2000.0
    timeout_action: Literal["reject", "delay"] = "reject"
    max_queue_items: Count = 512
    overload_status: Literal[429, 503] = 503
    streams: Count = 2
    # OpenVINO takes 4 to 6 ms more for a shape it has not met, and MiniLM meets some two hundred on each lane.
    warm_up_s: Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)] = 3.0

    @model_validator(mode="after")
    def _check_priority(self) -> "SchedulingConfig":
        if self.default_priority is not None and self.default_priority > self.priority_levels:
            raise ValueError(
                f"default_priority {self.default_priority} is more than priority_levels {self.priority_levels}"
            )
        return self


def _scheduling(value: Any) -> Any:
    """YAML's mapping as the settings it stands for: strict settings take no mapping for an object."""
    if isinstance(value, SchedulingConfig):
        return value
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise PydanticCustomError("scheduling", "a mapping of names to values is needed")
    try:
        return SchedulingConfig(**value)
    except ValidationError as error:
        raise PydanticCustomError("scheduling", "{problems}", {"problems": _problems(error)}) from None


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
        scheduling: who decides what runs together, and when.
    """

    engine: Literal["auto", "openvino", "torch"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    threads: Threads = 0
    decode_threads: Threads = 0
    max_items: Count = 64
    max_tokens: Count | None = None
    max_instances: Count = 64
    max_body_bytes: Count = 16 * 2**20
    scheduling: Annotated[SchedulingConfig, BeforeValidator(_scheduling)] = SchedulingConfig()


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class NoOptions:
    """Options of a task that has none."""


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
