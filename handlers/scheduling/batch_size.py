"""What a micro-batch may hold: by the configuration, by the latency target, and for courtesy. Pure.

    what came lately, what micro-batches took -> limits -> batch_selection

A micro-batch may take half of the latency target, because who arrives just after one starts waits for it and then for
its own. While a more urgent priority keeps coming, micro-batches of the others are courteous, that is shorter: a
sixteenth of the target, or where that is longer five times their fixed cost, so that courtesy costs at most a fifth of
the engine.

Without a target a micro-batch takes as long as pays. For courtesy and ageing `patience_s` stands for it: the default
target, or patient_batches times what a micro-batch lately took, where that is longer.
"""

from dataclasses import dataclass, field, replace
from math import inf

from handlers.scheduling.batch_selection import Limits
from handlers.scheduling.latency_model import Line
from handlers.scheduling.policy import Policy
from handlers.scheduling.running_mean import RunningMean


@dataclass(frozen=True, slots=True)
class Tuning:
    """What the size of micro-batches is tuned by; the reasons stand in the module's first lines.

    Attributes:
        longest_share: share of the latency target that a micro-batch may take.
        courteous_share: the same of a courteous one.
        courteous_costs: a courteous one may at least take so many times its fixed cost.
        courtesy_targets: for so many latency targets after it last came, a more urgent priority is expected again.
        patient_batches: without a target, what stands for it is so many micro-batches: who gained a level sooner would
            gain it before those ahead had their turn.
        latest_weight: share of the latest micro-batch in the running mean of what one takes.
    """

    longest_share: float = 0.5
    courteous_share: float = 0.0625
    courteous_costs: float = 5.0
    courtesy_targets: float = 10.0
    patient_batches: float = 8.0
    latest_weight: float = 0.1


TUNING = Tuning()


@dataclass(slots=True)
class BatchSize:
    """Knows the limits of micro-batches.

    Attributes:
        policy: what the worker is held to.
        batch_s: what a micro-batch lately took, in seconds.
    """

    policy: Policy
    batch_s: RunningMean = field(default_factory=lambda: RunningMean(0.0, TUNING.latest_weight))
    _latest_s: dict[int, float] = field(default_factory=dict)

    @property
    def patience_s(self) -> float:
        """The latency target, or what stands for it."""
        if self.policy.has_target:
            return self.policy.max_latency_s
        return max(self.policy.nominal_latency_s, TUNING.patient_batches * self.batch_s.value)

    def came(self, level: int, now_s: float) -> None:
        """Note that a request of that level came."""
        self._latest_s[level] = now_s

    def is_courteous(self, level: float, now_s: float) -> bool:
        """Whether a more urgent priority than that level came lately."""
        lately_s = now_s - TUNING.courtesy_targets * self.patience_s
        return any(other < level and latest_s > lately_s for other, latest_s in self._latest_s.items())

    def limits(self, line: Line, margin: float, *, is_courteous: bool = False) -> Limits:
        """Tell what a micro-batch may hold, by the configuration and by time; it is at least a token.

        Args:
            line: what micro-batches take.
            margin: factor by which nine of ten of them stay under that.
            is_courteous: whether it is kept short for a more urgent priority.
        """
        policy = self.policy
        overhead, allowed = policy.overhead, inf
        if line.token_s > 0:
            # The task's own figure is of another machine, or of this one when it had more to itself.
            overhead = replace(overhead, tokens=max(overhead.tokens, round(line.fixed_s / line.token_s)))
            longest_s = TUNING.longest_share * policy.max_latency_s / margin
            if is_courteous:
                courteous_s = max(TUNING.courteous_share * self.patience_s, TUNING.courteous_costs * line.fixed_s)
                longest_s = min(longest_s, courteous_s)
            allowed = (longest_s - line.fixed_s) / line.token_s
        configured = inf if policy.max_tokens is None else policy.max_tokens
        return Limits(policy.max_items, int(max(1, min(allowed, configured, 2**31))), overhead)
