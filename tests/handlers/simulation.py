"""A worker in simulated time: arrivals in, what became of each out. The scheduler is the real one."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from handlers.latency import LatencyModel
from handlers.passes import Pass, Ticket
from handlers.plan import Cost
from handlers.schedule import Policy, Refusal, Scheduler

FIXED_S, TOKEN_S = 0.002, 0.0001


def true_s(tokens: int) -> float:
    """What a pass takes, unless a test says otherwise."""
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

    def of(self, end: str) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.ends == [end]]


def model() -> LatencyModel:
    """A model that knows the engine."""
    return LatencyModel([(10, true_s(10)), (1000, true_s(1000))])


def simulate(arrivals: Sequence[Arrival], policy: Policy, engine_s: Callable[[int], float] = true_s) -> Simulated:
    """Run until nothing is left to happen."""
    scheduler: Scheduler[int] = Scheduler(policy, model())
    arrivals = sorted(arrivals, key=lambda arrival: arrival.at_s)
    simulated = Simulated([Outcome(arrival) for arrival in arrivals], [])
    tickets: dict[int, int] = {}
    left: dict[int, int] = {}
    running: Pass[int] | None = None
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
            assert running is not None
            scheduler.finish(engine_s(running.tokens))
            for entry in running.entries:
                left[entry.key] -= 1
                if not left[entry.key]:
                    simulated.outcomes[entry.key].is_in_time = scheduler.answered(entry.ticket, now_s)
                    end(entry.key, "done", now_s)
            running = None
        for ticket in scheduler.expire(now_s):
            end(tickets[ticket.number], "expired", now_s)
        if running is None:
            started = scheduler.start(now_s)
            if isinstance(started, Pass):
                running = started
                simulated.passes.append((now_s, tuple(entry.key for entry in started.entries)))
                heapq.heappush(events, (now_s + engine_s(started.tokens), next(order), "finished", None))
            elif started < inf:
                heapq.heappush(events, (started, next(order), "ask", None))
    assert scheduler.waiting_items == 0
    return simulated
