"""Settings of an archive and options of a request, as frozen dataclasses.

`handler:` of model-config.yaml -> parse(cls, ...)         -> settings, or one InvalidConfig that lists every problem
fields of a request             -> parse_options(cls, ...) -> options, or one InvalidOption that lists every problem
"""

from collections.abc import Callable, Iterable, Mapping, Set
from difflib import get_close_matches
from inspect import signature
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, Strict, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from handlers.errors import InvalidConfig, InvalidOption, show_name

T = TypeVar("T")

# The most options of an item, including those beside "instances", which apply to every item of the list.
MOST_OPTIONS = 100
TOO_MANY = f"{{}} options; at most {MOST_OPTIONS} are accepted."

MOST_PROBLEMS = 5  # the most problems of an item's options in a message: every item of a list has its own message

# Parsing is strict, since YAML has types: `max_batch_items: true` is a mistake, not 1.
SETTINGS = ConfigDict(extra="forbid", strict=True)


def doc(default: object, description: str) -> Any:
    """The default of a setting or an option, and its line in the reference."""
    return Field(default=default, description=description)


Count = Annotated[int, Field(ge=1)]
Answers = Annotated[int, Field(ge=1, le=100)]
Threads = Annotated[int, Field(ge=0)]
Milliseconds = Annotated[float, Field(gt=0, le=3_600_000, allow_inf_nan=False)]  # at most an hour
Share = Annotated[float, Field(ge=0, le=1)]
Side = Annotated[int, Field(ge=1, le=4096)]
Amount = Annotated[float, Field(ge=0)]
# YAML reads `off` as false.
Switch = Annotated[Literal["auto", "off"], BeforeValidator(lambda value: "off" if value is False else value)]
# Not strict, since YAML has lists and no tuples.
Labels = Annotated[tuple[str, ...], Strict(False)]
Channels = Annotated[tuple[float, float, float], Strict(False)]
_Positive = Annotated[float, Field(gt=0)]
Deviations = Annotated[tuple[_Positive, _Positive, _Positive], Strict(False)]


# The names that TorchServe 0.12.0's frontend reads in a model-config.yaml (`ModelConfig.build`).
FRONTEND_NAMES = frozenset({
    "minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "responseTimeout", "startupTimeout", "jobQueueSize",
    "useJobTicket", "clientTimeoutInMills", "maxRetryTimeoutInSec", "deviceType", "deviceIds", "parallelLevel",
    "parallelType", "torchrun", "continuousBatching", "asyncCommunication", "sequenceBatching", "sequenceMaxIdleMSec",
    "sequenceTimeoutMSec", "maxSequenceJobQueueSize", "maxNumSequence", "useVenv",
})  # fmt: skip
# The names that its Python package (ts/) or its documentation has for handlers.
WORKER_NAMES = frozenset({"handler", "pt2", "pippy", "deepspeed", "dali", "micro_batching"})

# Settings by their former names, with what an archive has in their place.
RENAMED = {
    "max_latency_ms": "now latency_target_ms",
    "max_items": "now max_batch_items",
    "max_tokens": "now max_batch_tokens",
    "max_instances": "now max_request_items",
    "max_batch_size": "now max_batch_items for one run of the model and max_request_items for one request",
    "split_requests": "removed; max_request_items may exceed max_batch_items",
}
# Limits that belong to every mode, not to `scheduling:`.
LIMITS = frozenset({"max_batch_items", "max_batch_tokens", "max_request_items", "max_request_tokens"})


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class SchedulingConfig:
    """Settings of the schedule: what decides which items run together, and when."""

    mode: Literal["auto", "classic", "adaptive"] = doc(
        "auto",
        "`classic` runs the batch that TorchServe formed; `adaptive` lets the worker choose from all "
        "requests in flight; `auto` depends on the task. The build sets TorchServe's continuousBatching to match.",
    )
    latency_target_ms: Milliseconds | None = doc(
        None,
        "The target for the time from a request's arrival at the worker to its response; None for no "
        "target, so that no request is rejected for lack of time.",
    )
    priority_levels: Annotated[int, Field(ge=1, le=10)] = doc(
        1, "The number of levels that the header X-Priority may name; level 1 is served first."
    )
    default_priority: Count | None = doc(None, "The level of a request without X-Priority; None for the middle level.")
    queue_timeout_ms: Milliseconds | None = doc(
        None,
        "Maximum time that a request may wait for the engine; the header X-Timeout-Ms may shorten it. None "
        "for 2000 with a latency target, and for no limit without one.",
    )
    timeout_action: Literal["reject", "delay"] = doc(
        "reject",
        "The outcome of a request that waited longer: `reject` responds with 504, `delay` serves it after all others.",
    )
    max_queue_items: Count = doc(512, "Maximum items that may wait.")
    overload_status: Literal[429, 503] = doc(503, "The HTTP status of a rejected request.")
    streams: Count | Literal["auto"] = doc(
        "auto",
        "Number of micro-batches that may run side by side, each with its share of the engine's threads; "
        "`auto` measures the best number for at most two seconds when the worker first loads. OpenVINO's streams need "
        "the weights a second time. Only OpenVINO and CTranslate2 have streams.",
    )

    @model_validator(mode="after")
    def _check_priority(self) -> "SchedulingConfig":
        if self.default_priority is not None and self.default_priority > self.priority_levels:
            raise ValueError(
                f"default_priority {self.default_priority} is more than priority_levels {self.priority_levels}"
            )
        return self


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class TensorNames:
    """Names of tensors in the Open Inference Protocol that replace the task's; each by the task's name."""

    inputs: dict[str, str] = Field(default_factory=dict, description="Names of inputs.")
    outputs: dict[str, str] = Field(default_factory=dict, description="Names of outputs.")


def from_mapping(cls: Callable[..., object]) -> BeforeValidator:
    """Return a validator that turns YAML's mapping into settings, which strict parsing would reject."""

    def read(value: object) -> object:
        if isinstance(cls, type) and isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise PydanticCustomError("nested", "must be a mapping of names to values")
        try:
            return cls(**value)
        except ValidationError as error:
            raise PydanticCustomError("nested", "{problems}", {"problems": _problems(error, cls=cls)}) from None

    return BeforeValidator(read)


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class HandlerConfig:
    """Settings that every task has."""

    engine: Literal["auto", "openvino", "torch"] = doc(
        "auto", "The library that runs the model; `auto` selects torch on a GPU and OpenVINO on a CPU."
    )
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"] = doc(
        "auto",
        "The engine's arithmetic. `int8` needs an archive that was built with it. `auto` selects the "
        "fastest of fp32, bf16 if the hardware has it, and int8 if the archive has it; only those that passed an "
        "accuracy check on this kind of processor. PyTorch runs `auto` in fp32 on a CPU and in bf16 or fp16 on a GPU.",
    )
    cuda_graphs: Switch = doc(
        "auto",
        "On a GPU, PyTorch records CUDA graphs of texts and images while the worker loads, if they are "
        "faster; `off` for none.",
    )
    cuda_graph_seconds: Amount = doc(60.0, "Maximum seconds of recording CUDA graphs.")
    cuda_graph_gib: Amount = doc(2.0, "Maximum GiB of a GPU's memory for CUDA graphs.")
    threads: Threads = doc(0, "Number of the engine's threads; 0 for one on every core of this process.")
    decode_threads: Threads = doc(0, "Number of threads that decode items; 0 for one on every core of this process.")
    max_batch_items: Count = doc(64, "Maximum items per micro-batch.")
    max_batch_tokens: Count | None = doc(None, "Maximum padded tokens per micro-batch; None if nothing is padded.")
    max_request_items: Count = doc(64, "Maximum items per request.")
    max_body_bytes: Count = doc(
        6 * 2**20, "Maximum bytes of a request's body; TorchServe's own `max_request_size` applies before it."
    )
    max_request_tokens: Count | None = doc(
        None, "Maximum tokens of all items of one request, including generated ones; None if nothing is padded."
    )
    max_groups: Count = doc(
        16,
        "Maximum groups of one request's items; items of different groups cannot share a micro-batch "
        "because of their options.",
    )
    max_response_bytes: Count = doc(
        16 * 2**20,
        "Maximum bytes per response; TorchServe ends a worker whose response exceeds its own `max_response_size`.",
    )
    share_equal: bool | None = doc(
        None,
        "Whether equal items that wait together run once, in adaptive mode; None for true, except for Python "
        "functions, stock handlers and random operations.",
    )
    cache_mib: Amount = doc(
        0.0,
        "Maximum MiB of results that adaptive mode keeps for later equal items, in each process; 0 for none.",
    )
    scheduling: Annotated[SchedulingConfig, from_mapping(SchedulingConfig)] = doc(
        SchedulingConfig(), "Settings that decide which items run together, and when."
    )
    tensors: Annotated[TensorNames, from_mapping(TensorNames)] = doc(
        TensorNames(), "Names of tensors in the Open Inference Protocol that replace the task's."
    )


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class NoOptions:
    """The options of a task that has none."""


def check_names(
    settings: object,
    known: Set[str] = FRONTEND_NAMES | WORKER_NAMES,
    otherwise: str = "settings of a task belong under handler:",
) -> None:
    """Check the top of a model-config.yaml; InvalidConfig lists unknown names, with near ones or `otherwise`."""
    if not isinstance(settings, Mapping):
        raise InvalidConfig("expected a mapping of names to values")
    problems = [
        f"{show_name(str(name))}: unknown name ({_suggest(str(name), known) or otherwise})"
        for name in settings
        if name not in known
    ]
    if problems:
        raise InvalidConfig("; ".join(problems))


def _place(name: str) -> str | None:
    """Return the place of a known name, or the new name of a former one."""
    if name in FRONTEND_NAMES:
        return "it belongs above handler:"
    return "it belongs directly under handler:" if name in LIMITS else RENAMED.get(name)


def _suggest(name: str, known: Iterable[str]) -> str | None:
    """Return advice with the nearest known name; None if no name is near."""
    names = {_fold(each): each for each in sorted(known)}
    similar = get_close_matches(_fold(name), names, n=1, cutoff=0.75)
    return f"did you mean {names[similar[0]]}?" if similar else None


def _fold(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def parse(cls: Callable[..., T], values: object) -> T:
    """Parse the mapping under `handler:` (None is empty) as a class of settings; InvalidConfig lists all problems."""
    values = {} if values is None else values
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise InvalidConfig("handler: must be a mapping of names to values")
    try:
        return cls(**values)
    except ValidationError as error:
        raise InvalidConfig(f"handler: {_problems(error, cls=cls)}") from None


def parse_options(cls: Callable[..., T], values: Mapping[str, object]) -> T:
    """Parse the fields beside an input; InvalidOption lists the first problems, and the known options."""
    if len(values) > MOST_OPTIONS:
        raise InvalidOption(TOO_MANY.format(len(values)))
    try:
        return cls(**values)
    except ValidationError as error:
        known = ", ".join(signature(cls).parameters)
        problems = _problems(error, MOST_PROBLEMS)
        raise InvalidOption(f"Options: {problems}. Known options: {known or 'none'}.") from None
    except TypeError:
        # An option has the name of another parameter of the constructor, such as `self`.
        known = ", ".join(signature(cls).parameters)
        raise InvalidOption(f"Options: an option has an invalid name. Known options: {known or 'none'}.") from None


def _problems(error: ValidationError, most: int | None = None, cls: Callable[..., object] | None = None) -> str:
    """List the field and reason, never the value, of `most` problems; with `cls`, advice on unknown names."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    for problem in problems:
        if cls is not None and problem["type"] == "unexpected_keyword_argument":
            name = str(problem["loc"][-1])
            advice = _place(name) or _suggest(name, signature(cls).parameters)
            problem["msg"] = f"unknown name ({advice})" if advice else "unknown name"
    lines = [
        f"{'.'.join(show_name(str(part)) for part in problem['loc']) or 'all'}: {problem['msg']}"
        for problem in problems[:most]
    ]
    more = len(problems) - len(lines)
    return "; ".join([*lines, f"{more} more"] if more else lines)
