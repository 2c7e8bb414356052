"""Which mode a worker runs in, and what an adaptive one is held to, as its archive's settings say. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal, TypeVar

from handlers.config import HandlerConfig
from handlers.errors import InvalidConfig
from handlers.pipeline.micro_batches import OVERHEAD, Overhead

# TorchServe's own setting: the worker is sent everything in flight, and answers what it will.
CONTINUOUS = "continuousBatching"

AnyConfig = TypeVar("AnyConfig", bound=HandlerConfig)

# Seconds that stand for the latency target where there is none: the setting's default in the examples.
NOMINAL_S = 0.5
# Longest wait in seconds where there is a target and no `queue_timeout_ms`: four times the examples' target.
QUEUE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Policy:
    """What the scheduler is held to.

    Attributes:
        max_latency_s: target for the time from a request's arrival to its answer; infinity for none.
        max_items: most items of a micro-batch.
        max_tokens: most padded tokens of a micro-batch; None for no limit.
        priority_levels: how many levels there are, 1 being first.
        default_priority: level of a request that names none.
        queue_timeout_s: longest time that a request may wait for its micro-batch.
        is_late_rejected: whether a request that waited longer is refused; otherwise it runs after all others.
        max_queue_items: most items that wait.
        overhead: what one more micro-batch costs, for the plan.
    """

    max_latency_s: float
    max_items: int
    max_tokens: int | None = None
    priority_levels: int = 1
    default_priority: int = 1
    queue_timeout_s: float = inf
    is_late_rejected: bool = True
    max_queue_items: int = 512
    overhead: Overhead = OVERHEAD

    @property
    def has_target(self) -> bool:
        """Whether there is a latency target."""
        return self.max_latency_s < inf

    @property
    def patience_s(self) -> float:
        """The target, or without one what stands for it in ageing and order; always finite."""
        return self.max_latency_s if self.has_target else NOMINAL_S

    @classmethod
    def of(cls, config: HandlerConfig, overhead: Overhead) -> "Policy":
        """Read an archive's settings; `overhead` is what its task says of one more micro-batch."""
        scheduling = config.scheduling
        levels = scheduling.priority_levels
        max_latency_s = inf if scheduling.max_latency_ms is None else scheduling.max_latency_ms / 1000
        queue_timeout_s = QUEUE_TIMEOUT_S if max_latency_s < inf else inf
        if scheduling.queue_timeout_ms is not None:
            queue_timeout_s = scheduling.queue_timeout_ms / 1000
        return cls(
            max_latency_s=max_latency_s,
            max_items=scheduling.max_batch_items or config.max_items,
            max_tokens=scheduling.max_batch_tokens or config.max_tokens,
            priority_levels=levels,
            default_priority=scheduling.default_priority or (levels + 1) // 2,
            queue_timeout_s=queue_timeout_s,
            is_late_rejected=scheduling.timeout_action == "reject",
            max_queue_items=scheduling.max_queue_items,
            overhead=overhead,
        )


def with_mode(config: AnyConfig, settings: Mapping[str, Any]) -> AnyConfig:
    """Return settings with a mode where the archive leaves it open: adaptive where TorchServe lets the worker choose.

    Args:
        config: the archive's settings.
        settings: its whole model-config.yaml.
    """
    if config.scheduling.mode != "auto":
        return config
    mode: Literal["classic", "adaptive"] = "adaptive" if settings.get(CONTINUOUS) is True else "classic"
    return replace(config, scheduling=replace(config.scheduling, mode=mode))


def check_mode(settings: Mapping[str, Any]) -> None:
    """Check that an archive's model-config.yaml lets TorchServe work with adaptive mode.

    Raises:
        InvalidConfig: it does not; the message lists every problem.
    """
    problems = []
    if settings.get(CONTINUOUS) is not True:
        problems.append(f"{CONTINUOUS}: true is needed beside it")
    if settings.get("asyncCommunication"):
        problems.append("asyncCommunication must be off")
    if settings.get("maxWorkers", 1) != 1:
        problems.append("maxWorkers must be 1: TorchServe's frontend starves a busy worker beside an idle one")
    if problems:
        raise InvalidConfig(f"handler: scheduling: mode: adaptive: {'; '.join(problems)}")
