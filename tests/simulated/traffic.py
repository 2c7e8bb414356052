"""What is sent to a simulated worker, and what became of it: requests, clients, a machine and outcomes. Pure."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from math import inf
from typing import Protocol


@dataclass(frozen=True)
class Arrival:
    """A request of one item or more, each as long as the other.

    Attributes:
        at_s: when it comes.
        length: of each item, in tokens; an image is one.
        priority, timeout_s: what its client asks for.
        items: how many it holds.
        decode_s: what a processor core needs to decode all of them.
    """

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
    retry_after_s: float = 0.0

    @property
    def latency_s(self) -> float:
        """Seconds from arrival to answer."""
        return self.ended_s - self.arrival.at_s


class Clients(Protocol):
    """Whoever sends requests."""

    def first(self) -> list[Arrival]:
        """Give what comes whatever is answered."""

    def after(self, outcome: Outcome) -> list[Arrival]:
        """Give what comes because this was answered, not before that."""


@dataclass(frozen=True)
class Recorded:
    """Arrivals that are known beforehand."""

    arrivals: Sequence[Arrival]

    def first(self) -> list[Arrival]:
        """Give all of them."""
        return sorted(self.arrivals, key=lambda arrival: arrival.at_s)

    def after(self, outcome: Outcome) -> list[Arrival]:
        """Give nothing more."""
        return []


@dataclass(frozen=True)
class ClosedLoop:
    """Clients that each send the next request as soon as they are answered.

    Attributes:
        clients: how many.
        until_s: after this none is sent.
        kinds: what they send, one after the other.
        pause_s: seconds between an answer and the next request.
        spread_s: the first requests come within so many seconds.
    """

    clients: int
    until_s: float
    kinds: Iterator[Arrival]
    pause_s: float = 0.0003
    spread_s: float = 0.05

    def first(self) -> list[Arrival]:
        """Give each client's first."""
        step_s = self.spread_s / self.clients
        return [replace(next(self.kinds), at_s=number * step_s) for number in range(self.clients)]

    def after(self, outcome: Outcome) -> list[Arrival]:
        """Give the same client's next."""
        at_s = outcome.ended_s + self.pause_s
        return [replace(next(self.kinds), at_s=at_s)] if at_s < self.until_s else []


def kinds(lengths: Sequence[int], decode_s: float = 0.0) -> Iterator[Arrival]:
    """Give requests of one item of these lengths, over and over."""
    return cycle([Arrival(0.0, length=length, decode_s=decode_s) for length in lengths])


def mixed_lengths(count: int = 997, mean: float = 38.0, sigma: float = 0.6, longest: int = 256) -> list[int]:
    """Give lengths of texts, lognormal about that mean, rounded up to multiples of 8 as the engine pads them."""
    chosen = random.Random(0)
    drawn = (chosen.lognormvariate(0.0, sigma) * mean / 1.2 for _ in range(count))
    return [min(longest, 8 * int(1 + length // 8)) for length in drawn]


def poisson(rate_per_s: float, seconds: float, seed: int, kinds: Iterator[Arrival]) -> Recorded:
    """Give independent arrivals at that rate."""
    chosen = random.Random(seed)
    arrivals, now_s = [], chosen.expovariate(rate_per_s)
    while now_s < seconds:
        arrivals.append(replace(next(kinds), at_s=now_s))
        now_s += chosen.expovariate(rate_per_s)
    return Recorded(arrivals)


@dataclass(frozen=True)
class Machine:
    """What takes time besides waiting.

    Attributes:
        wide_s: seconds of a micro-batch of so many padded tokens that has the whole engine.
        narrow_s: the same on one of `streams` streams, the others being busy.
        streams: of the engine.
        exchange_s: seconds from an answer to the next rows; None for a worker without a frontend, which sees each
            request as it comes.
        request_s: seconds that each request in flight adds to that.
        cores: processor cores that the engine takes whole; what is decoded meanwhile takes its part of them.
        noise: standard deviation of the logarithm of a micro-batch's time.
        delay_s: TorchServe's max_batch_delay: what an idle worker waits for a second request.
    """

    wide_s: Callable[[int], float]
    narrow_s: Callable[[int], float]
    streams: int = 1
    exchange_s: float | None = None
    request_s: float = 0.00005
    cores: int = 2
    noise: float = 0.0
    delay_s: float = 0.001

    def passes(self, seed: int = 0) -> Callable[[int, bool], float]:
        """Give the time of one micro-batch after the other, by its padded tokens and whether it is wide."""
        chosen = random.Random(seed)

        def seconds(tokens: int, is_wide: bool) -> float:
            exact_s = self.wide_s(tokens) if is_wide else self.narrow_s(tokens)
            return exact_s * (chosen.lognormvariate(0.0, self.noise) if self.noise else 1.0)

        return seconds
