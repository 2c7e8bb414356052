"""A worker in simulated time: arrivals in, what became of each out. The scheduler is the real one."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.slots import Slot
from handlers.scheduling.latency_model import LatencyModel
from handlers.scheduling.policy import Policy
from handlers.scheduling.request_queue import ScheduledRequest
from handlers.scheduling.scheduler import Scheduler
from handlers.scheduling.streams import RunningBatch, Streams

FIXED_S, TOKEN_S = 0.002, 0.0001
# How many times longer a micro-batch takes on one of two streams.
NARROW = 1.8


def true_s(tokens: int) -> float:
    """What a micro-batch takes that has the engine to itself, unless a test says otherwise."""
    return FIXED_S + TOKEN_S * tokens


@dataclass(frozen=True)
class Arrival:
    """A request of one item or more, each as long as the other."""

    at_s: float
    length: int = 10
    priority: int | None = None
    timeout_s: float = inf
    items: int = 1
    decode_s: float = 0.0


@dataclass
class Outcome:
    """What became of a request: `ends` says how, once for every time it was told."""

    arrival: Arrival
    ends: list[str] = field(default_factory=list)
    ended_s: float = inf
    is_in_time: bool = False

    @property
    def latency_s(self) -> float:
        return self.ended_s - self.arrival.at_s


@dataclass
class Simulated:
    outcomes: list[Outcome]
    # (started, index of the arrival of each item) of each micro-batch.
    micro_batches: list[tuple[float, tuple[int, ...]]]
    # (started, ended, whether it took the whole engine) of each micro-batch.
    spans: list[tuple[float, float, bool]] = field(default_factory=list)

    def of(self, end: str) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.ends == [end]]


def model(times: float = 1.0) -> LatencyModel:
    """A model that knows the engine, or one that is so many times slower."""
    return LatencyModel([(10, times * true_s(10)), (1000, times * true_s(1000))])


def simulate(
    arrivals: Sequence[Arrival],
    policy: Policy,
    engine_s: Callable[[int], float] = true_s,
    streams: int = 1,
    *,
    believed: tuple[float, float] = (1.0, 1.0),
) -> Simulated:
    """Run until nothing is left to happen.

    Args:
        arrivals: in any order.
        policy: the scheduler's.
        engine_s: what a micro-batch takes that has the engine to itself.
        streams: of the engine.
        believed: how many times longer the scheduler takes wide and narrow micro-batches to be, until it learns better.
    """
    wide, narrow = believed
    engine = Streams(model(wide), model(narrow * NARROW) if streams > 1 else None, streams)
    scheduler = Scheduler(policy, engine)
    arrivals = sorted(arrivals, key=lambda arrival: arrival.at_s)
    simulated = Simulated([Outcome(arrival) for arrival in arrivals], [])
    admitted: dict[int, int] = {}
    order = iter(range(10**9))
    events: list[tuple[float, int, str, object]] = [
        (arrival.at_s, next(order), "arrival", index) for index, arrival in enumerate(arrivals)
    ]
    heapq.heapify(events)

    def end(index: int, how: str, now_s: float) -> None:
        outcome = simulated.outcomes[index]
        outcome.ends.append(how)
        outcome.ended_s = now_s

    while events:
        now_s, _, kind, subject = heapq.heappop(events)
        if kind == "arrival":
            assert isinstance(subject, int)
            arrival = arrivals[subject]
            request = ScheduledRequest(
                slots=[Slot(None) for _ in range(arrival.items)],
                arrived_s=now_s,
                priority=arrival.priority,
                timeout_s=arrival.timeout_s,
            )
            if refusal := scheduler.admit(request, arrival.items * arrival.length):
                assert request.is_complete
                end(subject, refusal.reason, now_s)
            else:
                admitted[request.number] = subject
                heapq.heappush(events, (now_s + arrival.decode_s, next(order), "decoded", request))
        elif kind == "decoded":
            assert isinstance(subject, ScheduledRequest)
            for slot in subject.slots:
                scheduler.decoded(subject, slot, Cost(arrivals[admitted[subject.number]].length))
        elif kind == "finished":
            assert isinstance(subject, RunningBatch)
            scheduler.finish(subject, now_s - subject.started_s)
            simulated.spans.append((subject.started_s, now_s, subject.is_wide))
            for request in dict.fromkeys(item.request for item in subject.items):
                if request.is_complete:
                    index = admitted[request.number]
                    simulated.outcomes[index].is_in_time = scheduler.answered(request, now_s)
                    end(index, "done", now_s)
        for request in scheduler.expire(now_s):
            end(admitted[request.number], "expired", now_s)
        while running := scheduler.next_batch(now_s):
            indices = tuple(admitted[item.request.number] for item in running.items)
            simulated.micro_batches.append((now_s, indices))
            seconds = engine_s(running.micro_batch.tokens) * (NARROW if not running.is_wide else 1.0)
            heapq.heappush(events, (now_s + seconds, next(order), "finished", running))
        if scheduler.held_until_s < inf:
            heapq.heappush(events, (scheduler.held_until_s, next(order), "ask", None))
    assert scheduler.waiting_items == 0
    return simulated
