"""What rules do over a day, against replicas that stay as they are; and a sweep of the numbers they were chosen by.

Tuned, Plan -> day of traffic -> ScaledObject's replicas | static at peak | static at mean -> Study
                              -> each number of TUNING moved alone -> sweep: rows
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from load.autoscale import scaled_object
from load.autoscale.rules import TUNING, Wishes, derive, saturated_share
from load.autoscale.scaled_object import ScaledObject
from load.autoscale.simulation.cluster import Cluster, Keda, Outage, Start
from load.autoscale.simulation.hpa import Autoscaler
from load.autoscale.simulation.outcome import Outcome
from load.autoscale.simulation.replica import Service
from load.autoscale.simulation.traffic import Day, typical
from load.runs.tune import Curve
from load.runs.tuned import Tuned

# What is tried, each with the others as they are chosen: TUNING's field -> its values.
SWEPT: dict[str, tuple[float, ...]] = {
    "batches_in_flight": (0.25, 0.5, 0.75, 1.0, 1.5, 2.0),
    "busy_share": (0.6, 0.75, 0.85, 0.9),
    "stabilization_s": (60, 150, 300, 600),
}


# Requests that a rate is tried with: a thousandth of them is twelve, so that 99 % is told from 98.9.
CALIBRATION_REQUESTS = 12_000
# A real replica is slower than its curve by less than this.
MOST_SLOWED = 3.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A day to simulate.

    Attributes:
        replicas_at_peak: how many replicas' held rate the evening takes.
        hours: of the day; fewer make its slopes steeper.
        seed: of the arrivals.
        outage: of Prometheus; None without any.
    """

    replicas_at_peak: float = 8.0
    hours: float = 24.0
    seed: int = 1
    outage: Outage | None = None


@dataclass(frozen=True, slots=True)
class Study:
    """One day with the rules and without.

    Attributes:
        day: the traffic.
        held_per_s: what a replica holds.
        keda: with the rules.
        peak_replicas, peak: as many all day as the day's most requests take.
        mean_replicas, mean: as many as its mean takes.
    """

    day: Day
    held_per_s: float
    keda: Outcome
    peak_replicas: int
    peak: Outcome
    mean_replicas: int
    mean: Outcome

    @property
    def rows(self) -> list[tuple[str, Outcome]]:
        """What is compared, by name."""
        return [
            ("KEDA", self.keda),
            (f"static, {self.peak_replicas} for the peak", self.peak),
            (f"static, {self.mean_replicas} for the mean", self.mean),
        ]


@dataclass(frozen=True, slots=True)
class Scene:
    """What a day is simulated with; everything but who decides on the replicas.

    Attributes:
        service: how a replica serves.
        day: the traffic.
        held_per_s: what a replica holds.
        cold_start_s: of a replica.
        plan: as it was.
    """

    service: Service
    day: Day
    held_per_s: float
    cold_start_s: float
    plan: Plan

    @classmethod
    def of(cls, tuned: Tuned, wishes: Wishes, plan: Plan) -> "Scene":
        """Set a scene.

        Args:
            tuned: the replica.
            wishes: its cold start and mode.
            plan: the day.

        Raises:
            NotPossible: the replica holds no rate.
        """
        rules = derive(tuned, wishes)
        held = tuned.held.rate_per_s if tuned.held else 0.0
        return cls(
            service=calibrated(service(tuned, is_adaptive=wishes.is_adaptive), held, tuned.percentile),
            day=typical(held, plan.replicas_at_peak, 3600 * plan.hours),
            held_per_s=held,
            cold_start_s=rules.cold_start_s,
            plan=plan,
        )

    def scaled(self, rules: ScaledObject) -> Outcome:
        """Run the day with rules, as the YAML has them."""
        # As many to begin with as the traffic takes: no day begins with a step.
        first = max(rules.min_replicas, math.ceil(self.day.rate_per_s(0) / self.held_per_s))
        start = Start(min(first, rules.max_replicas), self.cold_start_s)
        outages = (self.plan.outage,) if self.plan.outage else ()
        cluster = Cluster(self.service, Keda(Autoscaler(rules)), start, outages)
        return cluster.run(self.day.arrivals(self.plan.seed))

    def static(self, replicas: int) -> Outcome:
        """Run the day with as many replicas all the time."""
        return Cluster(self.service, None, Start(replicas, 0.0)).run(self.day.arrivals(self.plan.seed))


def service(tuned: Tuned, *, is_adaptive: bool = False) -> Service:
    """Make the simulated replica of the batches that were measured."""
    return Service(
        curve=tuned.curve,
        batch_size=tuned.advice.batch_size,
        max_batch_delay_s=tuned.advice.max_batch_delay_ms / 1e3,
        queue_size=tuned.advice.job_queue_size,
        engine_share=1.0 if is_adaptive else saturated_share(tuned),
        latency_target_s=tuned.latency_threshold_ms / 1e3,
        is_adaptive=is_adaptive,
    )


def calibrated(ideal: Service, held_per_s: float, percentile: float) -> Service:
    """Slow a replica down until it holds no more than the real one did.

    Batches of a size always take the same here. Real ones do not, and share their machine: at the same mean they keep
    a latency at a lower rate. What the curve leaves out so is put on every batch.

    Args:
        ideal: with the curve as it is fitted.
        held_per_s: the rate that was held.
        percentile: share of all requests, in %, that had to be in time.

    Returns:
        A replica with the curve times a number of at least 1, to a percent.
    """

    def slowed(factor: float) -> Service:
        return replace(ideal, curve=Curve(factor * ideal.curve.per_item_ms, factor * ideal.curve.per_batch_ms))

    def holds(factor: float) -> bool:
        seconds = CALIBRATION_REQUESTS / held_per_s
        arrivals = Day(seconds, held_per_s, held_per_s, 0.0).arrivals(seed=1)
        return 100 * Cluster(slowed(factor), None, Start(1, 0.0)).run(arrivals).share_in_target >= percentile

    low, high = 1.0, MOST_SLOWED
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return slowed(low)


def study(scene: Scene, rules: ScaledObject) -> Study:
    """Run a day three times: with the rules, and with replicas for its peak and for its mean, step left out."""
    day, held = scene.day, scene.held_per_s
    peak, mean = math.ceil(day.most_per_s / held), math.ceil((day.least_per_s + day.most_per_s) / 2 / held)
    return Study(
        day=day,
        held_per_s=held,
        keda=scene.scaled(rules),
        peak_replicas=peak,
        peak=scene.static(peak),
        mean_replicas=mean,
        mean=scene.static(mean),
    )


def sweep(
    tuned: Tuned, wishes: Wishes, scene: Scene, say: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[str, float, Outcome]]:
    """Yield what each value of SWEPT does, its field's name and value before it.

    Args:
        tuned: what the rules are derived from.
        wishes: likewise.
        scene: the day.
        say: called before each run.
    """
    for name, values in SWEPT.items():
        for value in values:
            say(f"{name} {value:g}")
            # A window of any length may be tried: that of cold starts stays out.
            changes: dict[str, Any] = {"cold_starts_kept": 0, name: value}
            rules = scaled_object.read(scaled_object.render(derive(tuned, wishes, replace(TUNING, **changes)), ""))
            yield name, value, scene.scaled(rules)
            if name == "batches_in_flight":
                # The others hide what this one does; where they see nothing it is alone.
                yield f"{name}, alone", value, scene.scaled(replace(rules, triggers=rules.triggers[:1]))
