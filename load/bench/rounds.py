"""Rounds: each measures everything once, one contender right after the other, in a rotating order.

A shared machine changes from minute to minute, so figures are compared within their round.

    Bench.measure(comparisons) -> Results -> Row (load.bench.table)
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from load.bench.contender import Contender, Figures
from load.bench.machine import is_idle
from load.bench.table import Row
from load.generate import ClosedLoop, Load, OpenLoop
from load.schedules import Poisson

# A contender settles before it is measured.
WINDOWS = 8  # the most windows that it has for that
WINDOW_S = 2.0  # the longest window, in seconds
SETTLED = 0.1  # share by which two windows in a row may differ
# Lengths of a measurement of Poisson arrivals: a percentile needs more requests than a rate does.
POISSON_LENGTH = 2.0
PEER_CLIENTS = (1, 16, 48)  # clients that peers are compared with
PEER_SHARE = 0.8  # rate of Poisson arrivals as a share of the best one's with the most clients
MOST_PEER_CLIENTS = PEER_CLIENTS[-1]
POISSON = f"Poisson at {PEER_SHARE:.0%} of the best"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Contenders under one load; `name` replaces the load's own, and `length` is in measurements of the others."""

    load: Load
    contenders: Sequence[Contender]
    name: str = ""
    length: float = 1.0

    def __str__(self) -> str:
        return self.name or str(self.load)


class Results(dict[tuple[str, str], list[Figures]]):
    """Figures of every round, by the names of a comparison and a contender."""

    def row(self, what: str, comparison: object, ours: str, theirs: str, figure: str = "per_s") -> Row:
        """Compare two contenders, named `ours` and `theirs`, by a field of Figures."""
        values = [[float(getattr(each, figure)) for each in self[str(comparison), name]] for name in (ours, theirs)]
        return Row(what, values[0], theirs, values[1])


@dataclass(slots=True)
class Bench:
    """How one part is measured."""

    work: Path  # an empty folder of its own
    classifier: str = "resnet-152"  # the example that classifies images
    rounds: int = 3  # how often everything is measured; at least once
    seconds: float = 5.0  # length of a measurement
    ends_s: float = float("inf")  # when the part is to be over, by `clock`: no round begins that would end later
    remarks: Counter[str] = field(default_factory=Counter)  # lines below the table -> how often
    clock: Callable[[], float] = time.monotonic  # the time in seconds; a test has its own

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the rounds, from 1 on, as far as the time allows."""
        longest_s = 0.0
        for number in range(1, self.rounds + 1):
            started_s = self.clock()
            if number > 1 and started_s + longest_s > self.ends_s:
                self.remark(f"no time for more than {number - 1} of {self.rounds} rounds; --minutes gives more")
                return
            yield number
            longest_s = max(longest_s, self.clock() - started_s)

    def measure(self, comparisons: Sequence[Comparison]) -> Results:
        """Measure every comparison in every round."""
        results = Results()
        for number in self:
            for comparison in comparisons:
                self.compare(number, comparison, results)
        return results

    def compare(self, number: int, comparison: Comparison, results: Results) -> None:
        """Measure the contenders of one comparison once; which one is first changes with the number of the round."""
        first = (number - 1) % len(comparison.contenders)
        for contender in [*comparison.contenders[first:], *comparison.contenders[:first]]:
            if not is_idle(2 * self.seconds):
                self.remark("a measurement began while something else took more than a tenth of the machine")
            figures = contender.run(comparison.load, comparison.length * self.seconds, self.seconds / 4)
            label = f"round {number}, {comparison}, {contender.name}"
            progress(f"{label}: {figures.per_s:.1f}/s, p50 {figures.p50_ms:.1f} ms, p99 {figures.p99_ms:.1f} ms")
            for doubt in figures.doubts:
                self.remark(f"{label}: {doubt}")
            results.setdefault((str(comparison), contender.name), []).append(figures)

    def settle(self, contenders: Sequence[Contender], load: Load) -> None:
        """Put each under load until its rate no longer changes: compilers, caches, batch sizes that are learned."""
        for contender in contenders:
            before, per_s = 0.0, 0.0
            for _ in range(WINDOWS):
                before, per_s = per_s, contender.run(load, min(WINDOW_S, self.seconds), 0.0).per_s
                if abs(per_s - before) <= SETTLED * per_s:
                    break
            progress(f"{contender.name} settled at {per_s:.1f}/s")

    def remark(self, line: str) -> None:
        """Keep a line for below the table, and print it now."""
        self.remarks[line] += 1
        progress(line)


def against_peers(bench: Bench, compared: Mapping[str, Sequence[Contender]], unit: str) -> Iterator[Row]:
    """Measure closed loops, and Poisson arrivals at a share of what the best has just held with the most clients.

    `compared` has contenders by the name of what they serve, ours first.
    """
    results = Results()
    for number in bench:
        for name, contenders in compared.items():
            for clients in PEER_CLIENTS:
                load = ClosedLoop(clients)
                bench.compare(number, Comparison(load, contenders, f"{name}, {load}"), results)
            full = f"{name}, {ClosedLoop(MOST_PEER_CLIENTS)}"
            best_per_s = max(results[full, each.name][-1].per_s for each in contenders)
            arrivals = OpenLoop(Poisson(PEER_SHARE * best_per_s, seed=number))
            poisson = Comparison(arrivals, contenders, f"{name}, {POISSON}", POISSON_LENGTH)
            bench.compare(number, poisson, results)
    for name, (ours, *peers) in compared.items():
        for load, peer in product(map(ClosedLoop, PEER_CLIENTS), peers):
            yield results.row(f"{name}, {load}, {unit}", f"{name}, {load}", ours.name, peer.name)
        for figure, peer in product(("p50", "p99"), peers):
            at = f"{name}, {POISSON}"
            yield results.row(f"{at}, {figure} in ms", at, ours.name, peer.name, f"{figure}_ms")


def progress(line: str) -> None:
    """Print a line on stderr, beside the table on stdout."""
    print(f"bench: {line}", file=sys.stderr, flush=True)


@contextmanager
def quietly() -> Iterator[None]:
    """Redirect other output to stderr meanwhile."""
    with redirect_stdout(sys.stderr):
        yield
