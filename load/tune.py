"""Finds the parameters to register a model with, for a latency target (classic batching).

    batch sizes 1, 2, 4, ... -> time of a full batch -> Advice -> highest Poisson rate that meets the target

A registered model's batch_size cannot change, so each candidate is registered beside it as MODEL-tune, measured and
unregistered. The rules, for a server that batches the requests that queued during the previous batch:
    batch_size         the largest whose batch takes half of the threshold: a request that just misses a batch waits for
                       two
    max_batch_delay    1 ms: under load the queue fills batches, and without load a delay only adds latency
    job_queue_size     the most requests that can queue and be answered in time; further requests get 503 at once
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from load.errors import LoadError
from load.generate import Attack, ClosedLoop, OpenLoop
from load.measure import measure
from load.results import Summary
from load.run_file import Run, now
from load.schedules import Poisson
from load.search import find_highest, meets_target
from load.served import Served
from torchserve_client.errors import ClientError

SCHEMA = "load-tune/1"
# max_batch_delay of every candidate, by the rules of this module: the least that TorchServe accepts.
MAX_BATCH_DELAY_MS = 1
# Seconds for a candidate's worker to become ready: more than twice TorchServe's default of startupTimeout, 120 s.
READY_TIMEOUT_S = 300.0
# Clients per request of a batch: while a full batch runs, the next one queues.
CLIENTS_PER_BATCH = 2
# Least requests of a measured rate on average, for a percentile.
LEAST_REQUESTS = 10
# Steps of the search for the rate, from a tenth of the saturated throughput to all of it.
RATE_STEPS = 20


@dataclass(frozen=True, slots=True)
class Point:
    """One batch size, and the mean time of a full batch."""

    batch_size: int
    batch_ms: float
    forward_ms: float | None = None  # the engine's part; None if the responses do not report it


@dataclass(frozen=True, slots=True)
class Advice:
    """The parameters to register a model with."""

    batch_size: int
    max_batch_delay_ms: int
    job_queue_size: int


def advise(points: Sequence[Point], threshold_ms: float) -> Advice:
    """Apply this module's rules to ascending batch sizes from 1; LoadError if a single request takes too long."""
    single_ms = points[0].batch_ms
    if single_ms > threshold_ms:
        raise LoadError(f"a single request takes {single_ms:.1f} ms: no setting answers within {threshold_ms:g} ms")
    best = [points[0], *(point for point in points if 2 * point.batch_ms <= threshold_ms)][-1]
    queued_batches = threshold_ms / best.batch_ms - 1
    return Advice(best.batch_size, MAX_BATCH_DELAY_MS, max(best.batch_size, int(queued_batches * best.batch_size)))


@dataclass(frozen=True, slots=True)
class Tuner:
    """Measures variants of a registered model."""

    served: Served
    attack: Attack  # the common settings of all measurements
    threshold_ms: float
    percentile: float  # percentage of all requests that must meet the threshold
    archive: str  # file name in the model store, to register variants from
    ready_s: list[float] = field(default_factory=list)  # seconds from registering to READY, of each variant so far

    def tune(self, max_batch_size: int) -> dict[str, Any]:
        """Measure the variants and return the contents of TUNE.json (README.md beside this file)."""
        points: list[Point] = []
        for power in range(max_batch_size.bit_length()):
            with self._variant(2**power) as (attack, run):
                points.append(_measure_full_batches(attack, run, 2**power))
            if points[-1].batch_ms > self.threshold_ms:
                break
        advice, held = advise(points, self.threshold_ms), None
        with self._variant(advice.batch_size) as (attack, run):
            point = _measure_full_batches(attack, run, advice.batch_size)
            most_per_s = 1e3 * point.batch_size / point.batch_ms
            loads = [OpenLoop(Poisson(most_per_s * step / RATE_STEPS)) for step in range(2, RATE_STEPS + 1)]

            def measure_rate(load: OpenLoop) -> Summary:
                duration_s = max(attack.duration_s, LEAST_REQUESTS / load.value)
                return measure(replace(attack, load=load, duration_s=duration_s), run)

            if found := find_highest(loads, measure_rate, lambda summary: meets_target(summary, self.percentile)):
                latency_ms = found[1].latencies.statistics_ms()
                held = {"rate_per_s": found[0].value, "mean_ms": latency_ms["mean"], "p99_ms": latency_ms["p99"]}
        return {
            "schema": SCHEMA,
            "model": self.served.model,
            "created_at": now(),
            "latency_threshold_ms": self.threshold_ms,
            "percentile": self.percentile,
            "points": points,
            "advice": advice,
            "workers": 1,
            "held": held,
            "ready_s": round(median(self.ready_s), 1),
        }

    @contextmanager
    def _variant(self, batch_size: int) -> Iterator[tuple[Attack, Run]]:
        """Register the model under another name, yield the attack on it and its run, and unregister it."""
        served = replace(self.served, model=f"{self.served.model}-tune")
        run = Run(f"batch_size {batch_size}", now(), served.model, served.target.url, {}, {}, [])
        registered_s = time.monotonic()
        try:
            served.management.register(
                self.archive,
                model_name=served.model,
                batch_size=batch_size,
                max_batch_delay_ms=MAX_BATCH_DELAY_MS,
                initial_workers=1,
            )
            try:
                served.management.wait_ready(served.model, READY_TIMEOUT_S)
                self.ready_s.append(time.monotonic() - registered_s)
                served.send(self.attack.inputs.items[0])
                yield replace(self.attack, target=served.target), run
            finally:
                served.management.unregister(served.model)
        except ClientError as error:
            raise LoadError(f"cannot serve {self.archive} as {served.model}: {error}") from error


def _measure_full_batches(attack: Attack, run: Run, size: int) -> Point:
    summary = measure(replace(attack, load=ClosedLoop(CLIENTS_PER_BATCH * size)), run)
    if not summary.completed:
        raise LoadError(f"batch_size {size}: no response had status 200; statuses {summary.failures}")
    return Point(size, 1e3 * size / summary.throughput_per_s, summary.server_ms.get("forward"))
