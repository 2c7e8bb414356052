"""A worker in simulated time: arrivals in, what became of each out. The scheduler is the real one."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from handlers.pipeline.micro_batches import Cost
from handlers.scheduling.batch_selection import Ticket
from handlers.scheduling.latency_model import LatencyModel
from handlers.scheduling.policy import Policy
from handlers.scheduling.scheduler import Refusal, Scheduler
from handlers.scheduling.streams import Lanes, Running

FIXED_S, TOKEN_S = 0.002, 0.0001
# How many times longer a pass takes on one of two lanes.
NARROW = 1.8


def true_s(tokens: int) -> float:
    """What a pass takes that has the engine to itself, unless a test says otherwise."""
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
    # (started, index of the arrival of each item) of each pass.
    passes: list[tuple[float, tuple[int, ...]]]
    # (started, ended, whether it took the whole engine) of each pass.
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
    lanes: int = 1,
    *,
    believed: tuple[float, float] = (1.0, 1.0),
) -> Simulated:
    """Run until nothing is left to happen.

    Args:
        arrivals: in any order.
        policy: the scheduler's.
        engine_s: what a pass takes that has the engine to itself.
        lanes: of the engine.
        believed: how many times longer the scheduler takes wide and narrow passes to be, until it learns better.
    """
    wide, narrow = believed
    engine: Lanes[int] = Lanes(model(wide), model(narrow * NARROW) if lanes > 1 else None, lanes)
    scheduler: Scheduler[int] = Scheduler(policy, engine)
    arrivals = sorted(arrivals, key=lambda arrival: arrival.at_s)
    simulated = Simulated([Outcome(arrival) for arrival in arrivals], [])
    tickets: dict[int, int] = {}
    left: dict[int, int] = {}
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
            answer = scheduler.arrive(
                now_s, arrival.items, arrival.items * arrival.length, arrival.priority, arrival.timeout_s
            )
            if isinstance(answer, Refusal):
                end(subject, answer.reason, now_s)
            else:
                tickets[answer.number] = subject
                left[subject] = arrival.items
                heapq.heappush(events, (now_s + arrival.decode_s, next(order), "decoded", answer))
        elif kind == "decoded":
            assert isinstance(subject, Ticket)
            index = tickets[subject.number]
            scheduler.decoded(subject, [(index, Cost(arrivals[index].length))] * arrivals[index].items)
        elif kind == "finished":
            assert isinstance(subject, Running)
            scheduler.finish(subject, now_s - subject.started_s)
            simulated.spans.append((subject.started_s, now_s, subject.is_wide))
            for entry in subject.chosen.entries:
                left[entry.key] -= 1
                if not left[entry.key]:
                    simulated.outcomes[entry.key].is_in_time = scheduler.answered(entry.ticket, now_s)
                    end(entry.key, "done", now_s)
        for ticket in scheduler.expire(now_s):
            end(tickets[ticket.number], "expired", now_s)
        while isinstance(started := scheduler.start(now_s), Running):
            simulated.passes.append((now_s, tuple(entry.key for entry in started.chosen.entries)))
            seconds = engine_s(started.chosen.tokens) * (NARROW if not started.is_wide else 1.0)
            heapq.heappush(events, (now_s + seconds, next(order), "finished", started))
        if started < inf:
            heapq.heappush(events, (started, next(order), "ask", None))
    assert scheduler.waiting.items == 0
    return simulated
