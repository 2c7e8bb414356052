"""Decides on the number of replicas as KEDA and Kubernetes' HorizontalPodAutoscaler do together. Pure.

    metric of each trigger, or none -> KEDA: fallback -> HPA: wanted by each -> the largest
                                    -> stabilization -> policies -> bounds -> replicas

By the sources of Kubernetes 1.32, pkg/controller/podautoscaler: `GetExternalPerPodMetricReplicas` of
replica_calculator.go; `computeReplicasForMetrics`, `stabilizeRecommendationWithBehaviors` and
`convertDesiredReplicasWithBehaviorRate` of horizontal.go; described at
https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details. Of KEDA: pkg/fallback, and
https://keda.sh/docs/latest/reference/scaledobject-spec/#fallback.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from load.autoscale.scaled_object import Direction, Query, ScaledObject

# The defaults of kube-controller-manager: --horizontal-pod-autoscaler-sync-period, s, and -tolerance.
SYNC_S = 15.0
TOLERANCE = 0.1


@dataclass(slots=True)
class Autoscaler:
    """One ScaledObject with its HPA, and what both remember.

    Attributes:
        rules: the ScaledObject.
        failures: how often in a row each trigger had no answer.
        recommendations: time in s, replicas; of the longer of the two windows.
        changes: time in s, replicas more or fewer.
    """

    rules: ScaledObject
    failures: list[int] = field(default_factory=list)
    recommendations: list[tuple[float, int]] = field(default_factory=list)
    changes: list[tuple[float, int]] = field(default_factory=list)

    def decide(self, now_s: float, current: int, metrics: Sequence[float | None]) -> int:
        """Give the number of replicas that there should be from now on.

        Args:
            now_s: the time.
            current: replicas that there are, those that start included.
            metrics: of each trigger, summed over replicas; None where Prometheus has no answer.
        """
        self.failures = self.failures or [0] * len(metrics)
        values = [
            self._with_fallback(number, query, metric, current)
            for number, (query, metric) in enumerate(zip(self.rules.triggers, metrics, strict=True))
        ]
        wanted = [
            proposed(value, query.threshold, current)
            for query, value in zip(self.rules.triggers, values, strict=True)
            if value is not None
        ]
        # Without any metric nothing is done; where some are missing, what the others say may not scale down.
        if not wanted or (None in values and max(wanted) < current):
            return current
        stable = self._stabilized(now_s, current, max(wanted))
        allowed = self._limited(now_s, current, min(max(stable, self.rules.min_replicas), self.rules.max_replicas))
        if allowed != current:
            self.changes.append((now_s, allowed - current))
        return allowed

    def _with_fallback(self, number: int, query: Query, metric: float | None, current: int) -> float | None:
        """What KEDA tells the HPA: the metric, what makes it the fallback's replicas, or None, an error."""
        if metric is not None or query.ignores_nulls:
            self.failures[number] = 0
            return metric or 0.0
        self.failures[number] += 1
        if self.rules.fallback_replicas is None or self.failures[number] <= self.rules.failures:
            return None
        replicas = self.rules.fallback_replicas
        # KEDA cuts the threshold down to a whole number here.
        return int(query.threshold) * max(replicas, current if self.rules.keeps_current else 0)

    def _stabilized(self, now_s: float, current: int, wanted: int) -> int:
        """No more than the least of one window, no fewer than the most of the other."""
        up_s, down_s = self.rules.up.stabilization_s, self.rules.down.stabilization_s
        if not self.recommendations:
            # An HPA begins with what it finds (recordInitialRecommendation).
            self.recommendations.append((now_s, current))
        recent = [(time_s, count) for time_s, count in self.recommendations if time_s > now_s - max(up_s, down_s)]
        least = min([wanted, *(count for time_s, count in recent if time_s > now_s - up_s)])
        most = max([wanted, *(count for time_s, count in recent if time_s > now_s - down_s)])
        self.recommendations = [*recent, (now_s, wanted)]
        return min(max(current, least), most)

    def _limited(self, now_s: float, current: int, wanted: int) -> int:
        """As far as the policies let it go; of several the one that allows most."""
        if wanted > current:
            return min(wanted, max(current, *self._limits(now_s, current, self.rules.up, 1)))
        if wanted < current:
            return max(wanted, min(current, *self._limits(now_s, current, self.rules.down, -1)))
        return current

    def _limits(self, now_s: float, current: int, direction: Direction, sign: int) -> list[int]:
        """Where each policy ends, from what there was when its period began."""
        found = []
        for policy in direction.policies:
            before = current - sum(change for time_s, change in self.changes if time_s > now_s - policy.period_s)
            if policy.kind == "Pods":
                found.append(before + sign * policy.value)
            else:
                # Up is rounded up, down is cut off: one replica of two may always go.
                moved = before * (1 + sign * policy.value / 100)
                found.append(math.ceil(moved) if sign > 0 else int(moved))
        return found


def proposed(value: float, target: float, current: int) -> int:
    """Give the replicas that one metric asks for.

    Args:
        value: the metric, summed over replicas.
        target: AverageValue.
        current: replicas that there are; they stay where the metric is within the tolerance of their target.
    """
    if current and abs(1 - value / (target * current)) <= TOLERANCE:
        return current
    return math.ceil(value / target)
