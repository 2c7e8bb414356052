"""Requests, clients, a machine and outcomes of a simulated worker. Pure."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from math import inf


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
