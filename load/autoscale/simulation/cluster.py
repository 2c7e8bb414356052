"""Runs a day: arrivals, batches, replicas that start and are drained, and every 15 s somebody who decides.

    arrivals ─┐
    batches ──┼─> the next event ─> the replica with the fewest requests | answers | samples, a decision
    decisions ┘

Which replica goes first when there are too many is Kubernetes' order: one that is not ready yet, then the newest.
Not simulated: that the edge brings a new replica up to its share in ten seconds, and several workers of a replica.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from load.autoscale.simulation.hpa import SYNC_S, Autoscaler
from load.autoscale.simulation.outcome import MINUTE_S, Outcome
from load.autoscale.simulation.prometheus import SCRAPE_S, Prometheus, Sample, window_s
from load.autoscale.simulation.replica import Replica, Service


@dataclass(slots=True)
class Keda:
    """A ScaledObject: its triggers' questions to Prometheus, and its HPA."""

    autoscaler: Autoscaler

    def decide(self, now_s: float, current: int, prometheus: Prometheus) -> int:
        """Ask, and decide."""
        triggers = self.autoscaler.rules.triggers
        return self.autoscaler.decide(now_s, current, [prometheus.ask(query, now_s) for query in triggers])

    @property
    def window_s(self) -> float:
        """The longest window of the queries."""
        return max(window_s(query) for query in self.autoscaler.rules.triggers)


@dataclass(frozen=True, slots=True)
class Start:
    """How replicas begin and end.

    Attributes:
        replicas: that take requests when the day begins.
        cold_start_s: from the decision to the first request.
        drain_s: from the decision to the end, at least: until every edge has seen it.
    """

    replicas: int
    cold_start_s: float
    drain_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Outage:
    """Prometheus answers nothing meanwhile."""

    starts_s: float
    ends_s: float


@dataclass(slots=True)
class Cluster:
    """The state of a run; `run` is the only thing to call.

    Attributes:
        service: how replicas serve.
        scaler: decides how many there are; None leaves them as they are.
        start: how replicas begin and end.
        outages: of Prometheus.
    """

    service: Service
    scaler: Keda | None
    start: Start
    outages: Sequence[Outage] = ()
    prometheus: Prometheus = field(default_factory=Prometheus)
    outcome: Outcome = field(default_factory=Outcome)
    _replicas: list[Replica] = field(default_factory=list)
    # Of these the router takes one: READY, and not draining.
    _open: list[Replica] = field(default_factory=list)
    _events: list[tuple[float, int, str, Replica | None]] = field(default_factory=list)
    _number: int = 0
    _in_flight: int = 0
    _seen_s: float = 0.0

    def run(self, seconds: Iterable[list[float]]) -> Outcome:
        """Run until the last answer.

        Args:
            seconds: times of the requests, s, ascending, in lists.

        Returns:
            What it came to.
        """
        for _ in range(self.start.replicas):
            self._create(0.0, 0.0)
        self._refresh(0.0)
        self._push(0.0, "minute")
        if self.scaler is not None:
            self._push(SCRAPE_S / 2, "scrape")
            self._push(SYNC_S, "decide")
        now_s = 0.0
        for second in seconds:
            for now_s in second:
                if self._events[0][0] <= now_s:
                    self._until(now_s)
                self._arrive(now_s)
        day_s = now_s
        while self._in_flight:
            self._until(self._events[0][0])
        self.outcome.lasted_s = max(day_s, self._seen_s)
        for replica in list(self._replicas):
            self._end(replica, self.outcome.lasted_s)
        return self.outcome

    # -- events ------------------------------------------------------------------------------------------------------

    def _push(self, time_s: float, kind: str, replica: Replica | None = None) -> None:
        self._number += 1
        heapq.heappush(self._events, (time_s, self._number, kind, replica))

    def _until(self, now_s: float) -> None:
        """Let everything happen that is due."""
        while self._events and self._events[0][0] <= now_s:
            time_s, _, kind, replica = heapq.heappop(self._events)
            if kind == "answers" and replica is not None:
                self._answer(replica, time_s)
            elif kind == "delay" and replica is not None:
                self._start_batch(replica, time_s, is_due=True)
            elif kind == "end" and replica is not None:
                self._end_drained(replica, time_s)
            elif kind == "ready":
                self._refresh(time_s)
            elif kind == "scrape" and self.scaler is not None:
                self._scrape(time_s, self.scaler)
            elif kind == "decide" and self.scaler is not None:
                self._decide(time_s, self.scaler)
            elif kind == "minute":
                self._count_replicas(time_s)

    def _advance(self, now_s: float) -> None:
        self.outcome.in_flight_s += self._in_flight * (now_s - self._seen_s)
        self._seen_s = now_s

    # -- requests ----------------------------------------------------------------------------------------------------

    def _arrive(self, now_s: float) -> None:
        self.outcome.arrivals += 1
        self.outcome.minute(now_s).arrivals += 1
        least: Replica | None = None
        fewest = 0
        for each in self._open:
            count = len(each.queue) + len(each.running)
            if least is None or count < fewest:
                least, fewest = each, count
                if not count:
                    break
        if least is None or not least.admits(self.service, now_s):
            self.outcome.refused += 1
            return
        self._advance(now_s)
        self._in_flight += 1
        least.queue.append(now_s)
        if least.ends_s is None:
            self._start_batch(least, now_s)

    def _start_batch(self, replica: Replica, now_s: float, *, is_due: bool = False) -> None:
        """Start what waits, unless a batch runs or more may come in time."""
        if replica.ends_s is not None or not replica.queue:
            return
        delay_s = self.service.max_batch_delay_s
        is_full = len(replica.queue) >= self.service.batch_size
        if delay_s and not is_full and not is_due:
            if len(replica.queue) == 1:
                self._push(now_s + delay_s, "delay", replica)
            return
        self._push(replica.start(self.service, now_s), "answers", replica)

    def _answer(self, replica: Replica, now_s: float) -> None:
        self._advance(now_s)
        engine_s = replica.engine_s
        answered = replica.end(self.service)
        self.outcome.engine_s += replica.engine_s - engine_s
        self._in_flight -= len(answered)
        self.outcome.answered += len(answered)
        target_s = self.service.latency_target_s
        for arrived_s in answered:
            latency_s = now_s - arrived_s
            self.outcome.latency_s += latency_s
            if latency_s <= target_s:
                self.outcome.in_target += 1
                self.outcome.minute(arrived_s).in_target += 1
        # What has waited meanwhile has waited longer than any delay.
        self._start_batch(replica, now_s, is_due=True)
        if replica.is_draining:
            self._end_drained(replica, now_s)

    # -- replicas ----------------------------------------------------------------------------------------------------

    def _create(self, now_s: float, cold_start_s: float) -> None:
        replica = Replica(self._number, now_s, now_s + cold_start_s)
        self._replicas.append(replica)
        self._push(replica.ready_s, "ready", replica)

    def _refresh(self, now_s: float) -> None:
        self._open = [each for each in self._replicas if each.ready_s <= now_s and not each.is_draining]

    def _end_drained(self, replica: Replica, now_s: float) -> None:
        """End a replica that drains, where it has nothing in hand and the edges have seen it."""
        if replica in self._replicas and not replica.in_flight and now_s >= replica.ready_s:
            self._end(replica, now_s)

    def _end(self, replica: Replica, now_s: float) -> None:
        self.outcome.replica_s += now_s - replica.created_s
        self._replicas.remove(replica)

    @property
    def _current(self) -> list[Replica]:
        """Replicas that count: those that start, and those that are ready."""
        return [each for each in self._replicas if not each.is_draining]

    def _scale(self, now_s: float, wanted: int) -> None:
        current = self._current
        for _ in range(wanted - len(current)):
            self._create(now_s, self.start.cold_start_s)
        surplus = max(0, len(current) - wanted)
        newest_first = sorted(current, key=lambda each: each.ready_s, reverse=True)
        for replica in newest_first[:surplus]:
            replica.is_draining = True
            # From here on this is the time at which it may end.
            replica.ready_s = now_s + self.start.drain_s
            self._push(replica.ready_s, "end", replica)
        self._refresh(now_s)

    # -- every 15 s --------------------------------------------------------------------------------------------------

    def _scrape(self, now_s: float, scaler: Keda) -> None:
        self.prometheus.is_out = any(each.starts_s <= now_s < each.ends_s for each in self.outages)
        sample = Sample(
            time_s=now_s,
            in_flight=self._in_flight,
            asked=self.outcome.arrivals,
            refused=self.outcome.refused,
            engine_s={each.name: each.engine_s for each in self._replicas},
            cpu_share=sum(each.ends_s is not None for each in self._replicas),
        )
        self.prometheus.scrape(sample, scaler.window_s)
        self._push(now_s + SCRAPE_S, "scrape")

    def _decide(self, now_s: float, scaler: Keda) -> None:
        current = len(self._current)
        wanted = scaler.decide(now_s, current, self.prometheus)
        if wanted != current:
            self._scale(now_s, wanted)
        self._push(now_s + SYNC_S, "decide")

    def _count_replicas(self, now_s: float) -> None:
        minute = self.outcome.minute(now_s)
        minute.replicas, minute.asked_for = len(self._open), len(self._current)
        self._push(now_s + MINUTE_S, "minute")
