"""An adaptive worker in simulated time, with the real scheduler and timing of exchanges. Pure.

    a request arrives -> waits for an exchange -> admitted -> decoded -> micro-batch -> exchange -> answered

Without a frontend (`Machine.exchange_s` None) a request is admitted on arrival, and answered at the end of its
micro-batch. Decoding beside the engine, and an exchange, use processor time of the engine.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, cycle
from math import inf

from handlers.batching.engine import RunningBatch
from handlers.batching.pending import Entry, Pending
from handlers.batching.scheduler import Scheduler
from handlers.continuous.timing import Timing, WorkerState
from handlers.protocol.requests import Cost
from handlers.protocol.responses import OneItem


@dataclass(frozen=True)
class Arrival:
    """A request of one or more items of equal length."""

    at_s: float
    length: int = 10  # of each item, in tokens; an image is one
    priority: int | None = None
    timeout_s: float = inf
    items: int = 1
    decode_s: float = 0.0  # of all items, on one processor core


@dataclass
class Outcome:
    arrival: Arrival
    ends: list[str] = field(default_factory=list)  # one entry, unless the simulation has a bug
    ended_s: float = inf
    is_in_time: bool = False
    retry_after_s: float = 0.0

    @property
    def latency_s(self) -> float:
        return self.ended_s - self.arrival.at_s


@dataclass(frozen=True)
class Clients:
    arrivals: Sequence[Arrival]  # independent of responses
    after: Callable[[Outcome], Sequence[Arrival]] = lambda _: ()  # requests that follow a response


def closed_loop(clients: int, until_s: float, kinds: Iterable[Arrival]) -> Clients:
    """Return clients that each send the next request 0.3 ms after a response, until `until_s`."""
    sent = iter(cycle(kinds))

    def after(outcome: Outcome) -> Sequence[Arrival]:
        at_s = outcome.ended_s + 0.0003
        return [replace(next(sent), at_s=at_s)] if at_s < until_s else ()

    # The first requests arrive within 50 ms.
    return Clients([replace(next(sent), at_s=number * 0.05 / clients) for number in range(clients)], after)


def poisson(rate_per_s: float, seconds: float, seed: int, kinds: Iterable[Arrival]) -> list[Arrival]:
    chosen, sent = random.Random(seed), iter(cycle(kinds))
    arrivals, now_s = [], chosen.expovariate(rate_per_s)
    while now_s < seconds:
        arrivals.append(replace(next(sent), at_s=now_s))
        now_s += chosen.expovariate(rate_per_s)
    return arrivals


@dataclass(frozen=True)
class Machine:
    wide_s: Callable[[int], float]  # seconds of a micro-batch by its padded tokens, on the whole engine
    narrow_s: Callable[[int], float]  # on one of `streams` streams while the others are busy
    streams: int = 1
    exchange_s: float | None = None  # seconds from an answer to the next exchange; None without a frontend
    request_s: float = 0.00005  # added to that by each request in flight
    cores: int = 2  # all used by the engine, unless a core decodes
    noise: float = 0.0  # standard deviation of the logarithm of a micro-batch's seconds
    delay_s: float = 0.001  # TorchServe's max_batch_delay: an idle worker's wait for a second request

    def passes(self) -> Callable[[int, bool], float]:
        """Return a function from padded tokens and width to the seconds of the next micro-batch."""
        chosen = random.Random(0)

        def seconds(tokens: int, is_wide: bool) -> float:
            exact_s = self.wide_s(tokens) if is_wide else self.narrow_s(tokens)
            return exact_s * (chosen.lognormvariate(0.0, self.noise) if self.noise else 1.0)

        return seconds


@dataclass
class Simulated:
    outcomes: list[Outcome]  # in the order of arrival
    # Start of each micro-batch, and the indices into `outcomes` of its items.
    micro_batches: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    # Start and end of each micro-batch, and whether it had the whole engine.
    spans: list[tuple[float, float, bool]] = field(default_factory=list)
    exchanges: int = 0

    def of(self, end: str) -> list[Outcome]:
        """List the outcomes with one end: done, expired or the reason of a rejection."""
        return [outcome for outcome in self.outcomes if outcome.ends == [end]]


@dataclass(slots=True, eq=False, kw_only=True)
class _Request(Pending):
    index: int
    how: str = "done"


def _is_complete(request: Pending) -> bool:
    return not (request.decoding or request.queued or request.running)


@dataclass(slots=True, eq=False)
class _Running:
    """A micro-batch in the engine, and its end, which decoding beside it delays."""

    batch: RunningBatch
    ends_s: float


class AdaptiveWorker:
    def __init__(self, clients: Clients, scheduler: Scheduler, machine: Machine, timing: Timing | None = None) -> None:
        """`timing` is needed with a frontend."""
        self._clients, self._scheduler, self._machine, self._timing = clients, scheduler, machine, timing
        self._pass_s = machine.passes()
        self.simulated = Simulated([])
        self._order = count()
        self._events: list[tuple[float, int, str, object]] = []
        self._running: list[_Running] = []
        self._decode_free_s = [0.0] * machine.cores
        self._at_frontend: deque[int] = deque()
        self._in_flight: dict[int, _Request] = {}
        # Whether the frontend waits for the worker.
        self._has_turn = False
        self._is_awaited = True

    def run(self) -> Simulated:
        for arrival in sorted(self._clients.arrivals, key=lambda arrival: arrival.at_s):
            self._at(arrival.at_s, "arrival", Outcome(arrival))
        while self._events:
            now_s, _, kind, subject = heapq.heappop(self._events)
            getattr(self, f"_{kind}")(now_s, subject)
            self._look(now_s)
        if self._scheduler.queue.items:
            raise RuntimeError("a request was forgotten")
        return self.simulated

    def _at(self, when_s: float, kind: str, subject: object = None) -> None:
        heapq.heappush(self._events, (when_s, next(self._order), kind, subject))

    def _arrival(self, now_s: float, outcome: Outcome) -> None:
        self.simulated.outcomes.append(outcome)
        index = len(self.simulated.outcomes) - 1
        if self._machine.exchange_s is None:
            self._admit(now_s, [index], now_s)
            return
        self._at_frontend.append(index)
        if self._is_awaited:
            self._is_awaited = False
            self._at(now_s + self._machine.delay_s + self._machine.request_s, "rows")

    def _rows(self, now_s: float, _: object) -> None:
        """Send the worker an exchange; the frontend then waits for the answer."""
        assert self._timing is not None
        room = self._timing.window - len(self._in_flight)
        newcomers = [self._at_frontend.popleft() for _ in range(min(room, len(self._at_frontend)))]
        arrived_s = self._timing.estimate_arrival_s(now_s, len(self._in_flight))
        self._timing.received_s = now_s
        self._admit(now_s, newcomers, arrived_s)
        self._has_turn = True

    def _admit(self, now_s: float, indices: list[int], arrived_s: float) -> None:
        lone = len(indices) == 1 and not self._running
        for index in indices:
            arrival = self.simulated.outcomes[index].arrival
            slots = [Entry(cost=Cost(arrival.length)) for _ in range(arrival.items)]
            request = _Request(form=OneItem(), slots=slots, arrived_s=arrived_s, index=index)
            request.priority, request.timeout_s = arrival.priority, arrival.timeout_s
            self._in_flight[index] = request
            if rejection := self._scheduler.admit(request, arrival.items * arrival.length):
                request.how, request.retry_after_s = rejection.reason, rejection.retry_after_s
                self.simulated.outcomes[index].retry_after_s = rejection.retry_after_s
            elif arrival.decode_s and self._machine.exchange_s is not None:
                self._decode(now_s, request, arrival.decode_s, is_alone=lone)
            else:
                self._at(now_s + arrival.decode_s, "decoded", request)
        if self._machine.exchange_s is None:
            self._answer(now_s, [self._in_flight[index] for index in indices])

    def _decode(self, now_s: float, request: _Request, decode_s: float, *, is_alone: bool) -> None:
        if self._running:
            self._delay_engine(decode_s)
            decode_s *= 2
        free_s = now_s + decode_s if is_alone else max(now_s, heapq.heappop(self._decode_free_s)) + decode_s
        if not is_alone:
            heapq.heappush(self._decode_free_s, free_s)
        self._at(free_s, "decoded", request)

    def _delay_engine(self, seconds: float) -> None:
        """Delay the running micro-batches by so many seconds of a core."""
        for running in self._running:
            running.ends_s += seconds / self._machine.cores
            self._at(running.ends_s, "finished", running)

    def _decoded(self, _: float, request: _Request) -> None:
        for slot in request.slots:
            self._scheduler.queue.end_decoding(slot)

    def _finished(self, now_s: float, running: _Running) -> None:
        if running not in self._running or now_s < running.ends_s:
            return  # it was delayed
        self._running.remove(running)
        batch = running.batch
        self._scheduler.finish(batch, now_s - batch.started_s)
        self.simulated.spans.append((batch.started_s, now_s, batch.is_wide))
        if self._machine.exchange_s is None:
            requests = dict.fromkeys(item.request for item in batch.items)
            self._answer(now_s, [request for request in requests if isinstance(request, _Request)])

    def _ask(self, now_s: float, _: object) -> None:
        """Look again."""

    def _look(self, now_s: float) -> None:
        expired = [request for request in self._scheduler.queue.expire(now_s) if isinstance(request, _Request)]
        for request in expired:
            request.how = "expired"
        while batch := self._scheduler.next_batch(now_s):
            indices = tuple(item.request.index for item in batch.items if isinstance(item.request, _Request))
            self.simulated.micro_batches.append((now_s, indices))
            seconds = self._pass_s(batch.tokens, batch.is_wide)
            self._running.append(_Running(batch, now_s + seconds))
            self._at(now_s + seconds, "finished", self._running[-1])
        if self._machine.exchange_s is None:
            self._answer(now_s, expired)
        elif self._has_turn:
            self._goes_if_due(now_s)

    def _goes_if_due(self, now_s: float) -> None:
        assert self._timing is not None and self._machine.exchange_s is not None
        state = self._read_state()
        due_s = self._timing.due_s(state)
        if due_s > now_s:
            look_s = min(due_s, self._scheduler.queue.next_expiry_s())
            if look_s < inf:
                self._at(max(look_s, now_s + 1e-6), "ask")
            return
        self.simulated.exchanges += 1
        self._has_turn = False
        # Responses leave first; then the exchange sends the other requests again, with the new ones.
        half_s = self._machine.exchange_s / 2
        answered_s = self._answer(now_s + half_s, list(self._in_flight.values()), self._machine.request_s)
        left = len(self._in_flight) + min(len(self._at_frontend), self._timing.window)
        self._delay_engine(half_s + self._machine.request_s * left)
        if left:
            self._at(answered_s + half_s + self._machine.request_s * left, "rows")
        else:
            self._is_awaited = True

    def _answer(self, at_s: float, requests: Sequence[_Request], request_s: float = 0.0) -> float:
        """Answer complete requests, `request_s` apart, and return the time of the last."""
        complete = [request for request in requests if _is_complete(request)]
        for request in complete:
            del self._in_flight[request.index]
            at_s += request_s
            outcome = self.simulated.outcomes[request.index]
            outcome.ends.append(request.how)
            outcome.ended_s = at_s
            if request.how == "done":
                self._scheduler.observe_response(request, at_s)
                allowed_s = min(self._scheduler.policy.max_latency_s, outcome.arrival.timeout_s)
                outcome.is_in_time = outcome.latency_s <= allowed_s
            for arrival in self._clients.after(outcome):
                self._at(arrival.at_s, "arrival", Outcome(arrival))
        return at_s

    def _read_state(self) -> WorkerState:
        complete = [request for request in self._in_flight.values() if _is_complete(request)]
        rejected_s = [request.arrived_s for request in complete if request.retry_after_s is not None]
        return WorkerState(
            in_flight=len(self._in_flight),
            complete=len(complete),
            rejected=len(rejected_s),
            oldest_rejection_s=min(rejected_s, default=inf),
            is_running=bool(self._scheduler.streams.running),
        )
