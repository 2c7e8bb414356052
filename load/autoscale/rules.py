"""The numbers that KEDA scales by, each with the measurement that it comes from. Pure.

    Tuned (load tune), Wishes (bounds, cold start) -> derive -> Rules

KEDA asks for a number of replicas by each trigger: its metric over its target, rounded up; the largest wins.
docs/autoscaling.md has the simulation that TUNING was chosen by.
"""

import math
from dataclasses import dataclass

from load.autoscale import signals
from load.errors import BadRange, NotPossible
from load.runs.tuned import Tuned


@dataclass(frozen=True, slots=True)
class Tuning:
    """What holds for every model; chosen by the simulation.

    Attributes:
        batches_in_flight: full batches that a replica has in hand on average. At the highest rate that it holds that is
            about one, most of the time one that is not full; half of it leaves room for what comes during a cold start.
        busy_share: of the most that the engine can be busy; the highest that is of use, since the HPA takes a tenth too
            much for right. Lower ones pay for replicas that batches of more requests would have done without.
        assumed_start_s: of a cold start, what cannot be measured at one server: 10 s for scheduling and the container
            where the node of the cluster has the image, 5 s until a readiness probe, 30 s until CoreDNS' cache has let
            the edges see it.
        polling_s: between two questions to Prometheus; as often as the HPA decides.
        stabilization_s: how long fewer replicas must be enough before any goes; Kubernetes' own default.
        cold_starts_kept: the same, at least so many cold starts: what goes too early comes back after one.
        policy_s: period of the policies, s.
        down_percent: most replicas that go in a minute, in %.
        failures: questions without an answer until the fallback.
    """

    batches_in_flight: float = 0.5
    busy_share: float = 0.9
    assumed_start_s: float = 45.0
    polling_s: int = 15
    stabilization_s: int = 300
    cold_starts_kept: int = 4
    policy_s: int = 15
    down_percent: int = 25
    failures: int = 3


TUNING = Tuning()


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a measurement cannot know.

    Attributes:
        min_replicas, max_replicas: bounds.
        cold_start_s: from KEDA's decision until a new replica answers; None takes the measured start of the model and
            `assumed_start_s`.
        is_adaptive: whether the replicas run in adaptive mode.
        deployment: whose replicas.
        prometheus: URL.
    """

    min_replicas: int = 2
    max_replicas: int = 20
    cold_start_s: float | None = None
    is_adaptive: bool = False
    deployment: str = "torchserve-node"
    prometheus: str = "http://prometheus.monitoring:9090"

    def __post_init__(self) -> None:
        """Raise BadRange where no number of replicas is allowed."""
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise BadRange(
                f"--min-replicas {self.min_replicas} --max-replicas {self.max_replicas}: "
                "give 1 <= min <= max; with no replica nothing holds the requests until one is there"
            )


@dataclass(frozen=True, slots=True)
class Trigger:
    """One question and what a replica should have of its answer.

    Attributes:
        name: what it is called in KEDA.
        query: PromQL; its answer is a sum over replicas.
        target: AverageValue of one replica, a whole number: KEDA's fallback cuts off what is behind the point.
        reason: where the target comes from.
    """

    name: str
    query: str
    target: int
    reason: str


@dataclass(frozen=True, slots=True)
class Rules:
    """A ScaledObject's numbers.

    Attributes:
        model: that it is made for.
        wishes: as they were.
        cold_start_s, cold_start_reason: as they are reckoned with.
        fallback_replicas: at least so many where Prometheus does not answer.
        stabilization_s, stabilization_reason: of scale-down.
        triggers: of which the largest wins.
    """

    model: str
    wishes: Wishes
    cold_start_s: float
    cold_start_reason: str
    fallback_replicas: int
    stabilization_s: int
    stabilization_reason: str
    triggers: tuple[Trigger, ...]


def derive(tuned: Tuned, wishes: Wishes, tuning: Tuning = TUNING) -> Rules:
    """Make the rules of one model.

    Args:
        tuned: what was measured of one replica.
        wishes: what cannot be measured.
        tuning: what holds for every model; the simulation tries others.

    Raises:
        NotPossible: a replica holds no rate at all, or the engine's share of a batch was not measured.
    """
    if tuned.held is None:
        raise NotPossible(
            f"tune found no rate at which {tuned.model} keeps {tuned.latency_threshold_ms:g} ms: "
            "more replicas do not make a single request faster"
        )
    if wishes.cold_start_s is None:
        cold_start_s = tuned.ready_s + tuning.assumed_start_s
        cold_start_reason = f"{tuned.ready_s:g} s from registering to READY, and {tuning.assumed_start_s:g} s assumed"
    else:
        cold_start_s, cold_start_reason = wishes.cold_start_s, "--cold-start"
    return Rules(
        model=tuned.model,
        wishes=wishes,
        cold_start_s=cold_start_s,
        cold_start_reason=cold_start_reason,
        fallback_replicas=math.ceil((wishes.min_replicas + wishes.max_replicas) / 2),
        stabilization_s=max(tuning.stabilization_s, math.ceil(tuning.cold_starts_kept * cold_start_s)),
        stabilization_reason=f"{tuning.stabilization_s} or {tuning.cold_starts_kept} cold starts, the longer",
        triggers=(
            _in_flight(tuned, tuning),
            _busy(tuned, tuning, is_adaptive=wishes.is_adaptive),
            _demand(tuned, tuned.held.rate_per_s),
        ),
    )


def _in_flight(tuned: Tuned, tuning: Tuning) -> Trigger:
    size, workers = tuned.advice.batch_size, tuned.workers
    target = max(1, round(tuning.batches_in_flight * size * workers))
    reason = f"{tuning.batches_in_flight:g} batches of {size} on {workers} worker(s): tune's batch_size and workers"
    return Trigger("in-flight", signals.in_flight(tuned.model), target, reason)


def _busy(tuned: Tuned, tuning: Tuning, *, is_adaptive: bool) -> Trigger:
    """An adaptive worker decodes while its engine runs; a classic one does one after the other."""
    if is_adaptive:
        most, reason = 1.0, "an adaptive engine can be busy all the time"
    else:
        share = saturated_share(tuned)
        most = share * tuned.workers
        reason = (
            f"a saturated worker's engine is busy {share:.0%} of the time (tune: forward_ms over batch_ms), "
            f"{tuned.workers} worker(s)"
        )
    # Cut off: rounded up, it could come within the HPA's tolerance of what is possible.
    target = max(1, math.floor(100 * tuning.busy_share * most))
    return Trigger(
        "busy", signals.busy(tuned.model, is_adaptive=is_adaptive), target, f"{tuning.busy_share:.0%}: {reason}"
    )


def saturated_share(tuned: Tuned) -> float:
    """The share of a full batch's time that is the engine's: of the largest batches that were measured.

    Raises:
        NotPossible: the answers did not say how long the engine took.
    """
    point = max(tuned.points, key=lambda each: each.batch_size)
    if point.forward_ms is None:
        raise NotPossible(
            f"{tuned.model} does not say in Server-Timing how long its engine takes: tune another handler"
        )
    return min(1.0, point.forward_ms / point.batch_ms)


def _demand(tuned: Tuned, rate_per_s: float) -> Trigger:
    reason = (
        f"a replica held {rate_per_s:.1f} requests/s with {tuned.percentile:g} % within "
        f"{tuned.latency_threshold_ms:g} ms (tune: held)"
    )
    return Trigger("refusals", signals.demand(tuned.model), max(1, math.floor(rate_per_s)), reason)
