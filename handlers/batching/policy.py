"""The limits and targets of an adaptive worker, from its archive's settings. Pure."""

from dataclasses import dataclass
from math import inf

from handlers.config import HandlerConfig
from handlers.pipeline.micro_batches import OVERHEAD, Overhead

NOMINAL_S = 0.5  # seconds that replace the latency target in ageing and order if there is none: the examples' target
# Default of `queue_timeout_ms` if there is a latency target, in seconds: four times the examples' target.
QUEUE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Policy:
    max_latency_s: float  # target for the time from a request's arrival to its response; infinity for none
    max_items: int  # of a micro-batch
    max_tokens: int | None = None  # padded tokens of a micro-batch; None for no limit
    priority_levels: int = 1
    default_priority: int = 1
    queue_timeout_s: float = inf  # longest time that a request may wait for its micro-batch
    is_late_rejected: bool = (
        True  # whether a request that waited longer is rejected; otherwise it runs after all others
    )
    max_queue_items: int = 512
    overhead: Overhead = OVERHEAD

    @property
    def has_target(self) -> bool:
        return self.max_latency_s < inf

    @property
    def patience_s(self) -> float:
        """The target, or NOMINAL_S without one; always finite."""
        return self.max_latency_s if self.has_target else NOMINAL_S

    @classmethod
    def of(cls, config: HandlerConfig, overhead: Overhead) -> "Policy":
        """Read an archive's settings; `overhead` is the task's."""
        scheduling = config.scheduling
        levels = scheduling.priority_levels
        max_latency_s = inf if scheduling.latency_target_ms is None else scheduling.latency_target_ms / 1000
        queue_timeout_s = QUEUE_TIMEOUT_S if max_latency_s < inf else inf
        if scheduling.queue_timeout_ms is not None:
            queue_timeout_s = scheduling.queue_timeout_ms / 1000
        return cls(
            max_latency_s=max_latency_s,
            max_items=config.max_batch_items,
            max_tokens=config.max_batch_tokens,
            priority_levels=levels,
            default_priority=scheduling.default_priority or (levels + 1) // 2,
            queue_timeout_s=queue_timeout_s,
            is_late_rejected=scheduling.timeout_action == "reject",
            max_queue_items=scheduling.max_queue_items,
            overhead=overhead,
        )
