"""Requests, clients, a machine and outcomes of a simulated worker. Pure."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from math import inf


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
    """The outcome of a request: `ends` has how it ended, as often as it did."""

    arrival: Arrival
    ends: list[str] = field(default_factory=list)
    ended_s: float = inf
    is_in_time: bool = False
    retry_after_s: float = 0.0

    @property
    def latency_s(self) -> float:
        """Seconds from arrival to answer."""
        return self.ended_s - self.arrival.at_s


@dataclass(frozen=True)
class Clients:
    """The clients of a simulated worker.

    Attributes:
        arrivals: requests that do not depend on answers.
        after: returns the requests that follow an answer.
    """

    arrivals: Sequence[Arrival]
    after: Callable[[Outcome], Sequence[Arrival]] = lambda _: ()


def closed_loop(clients: int, until_s: float, kinds: Iterable[Arrival]) -> Clients:
    """Make so many clients, each of which sends the next request 0.3 ms after it is answered, until then."""
    sent = iter(cycle(kinds))

    def after(outcome: Outcome) -> Sequence[Arrival]:
        at_s = outcome.ended_s + 0.0003
        return [replace(next(sent), at_s=at_s)] if at_s < until_s else ()

    # The first requests come within 50 ms.
    return Clients([replace(next(sent), at_s=number * 0.05 / clients) for number in range(clients)], after)


def poisson(rate_per_s: float, seconds: float, seed: int, kinds: Iterable[Arrival]) -> list[Arrival]:
    """Return independent arrivals at that rate, one kind after the other."""
    chosen, sent = random.Random(seed), iter(cycle(kinds))
    arrivals, now_s = [], chosen.expovariate(rate_per_s)
    while now_s < seconds:
        arrivals.append(replace(next(sent), at_s=now_s))
        now_s += chosen.expovariate(rate_per_s)
    return arrivals


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

    def passes(self) -> Callable[[int, bool], float]:
        """Return what gives the seconds of one micro-batch after the other, by padded tokens and whether it is wide."""
        chosen = random.Random(0)

        def seconds(tokens: int, is_wide: bool) -> float:
            exact_s = self.wide_s(tokens) if is_wide else self.narrow_s(tokens)
            return exact_s * (chosen.lognormvariate(0.0, self.noise) if self.noise else 1.0)

        return seconds
