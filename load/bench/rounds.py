"""Rounds: each measures every contender once, in a rotating order; the table of their ratios; the machine.

A shared machine changes from minute to minute, so figures are only compared within their round.

    Bench.measure(comparisons) -> Results -> Row, a line of the table
"""

import importlib.metadata
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from itertools import product
from math import isfinite
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil
from rich.table import Table

from load.bench.contender import Contender, Figures
from load.generate import ClosedLoop, Load, OpenLoop
from load.schedules import Poisson
from torchserve_client.payloads import Json

# Instructions that determine the speed of a model, by their names in /proc/cpuinfo: x86-64's, then Arm's.
X86 = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
INSTRUCTIONS = (*X86, "asimddp", "i8mm", "bf16", "sve")
# Variables that disable some of them in an engine.
CAPS = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "CT2_FORCE_CPU_ISA")
# Most time of all cores, in %, that other processes may use; an idle machine uses less. Threads of PyTorch and OpenVINO
# wait for each other, so a process that uses one core for a moment stops all of them.
IDLE_PERCENT = 10.0
CHECK_S = 0.5  # seconds over which the load is averaged; psutil advises at least 0.1
COLUMNS = ("measured", "ours", "against", "theirs", "ours / theirs")
# A contender runs for some windows before it is measured, until its rate is stable.
WINDOWS = 8  # most windows
WINDOW_S = 2.0  # longest window, in seconds
SETTLED = 0.1  # largest difference of two successive windows, as a share
# Length of a measurement of Poisson arrivals, in measurements of a rate: a percentile needs more requests.
POISSON_LENGTH = 2.0
PEER_CLIENTS = (1, 16, 48)  # clients of the closed loops
PEER_SHARE = 0.8  # rate of Poisson arrivals, as a share of the best contender's with the most clients
MOST_PEER_CLIENTS = PEER_CLIENTS[-1]
POISSON = f"Poisson at {PEER_SHARE:.0%} of the best"


def describe_processor(cpuinfo: str, cores: int, environment: Mapping[str, str]) -> str:
    """Describe a processor by /proc/cpuinfo: name, cores, instructions, and the variables that disable some."""
    lines = (line.split(":", 1) for line in cpuinfo.partition("\n\n")[0].splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in lines}
    flags = (fields.get("flags") or fields.get("Features", "")).split()
    found = " ".join(name for name in INSTRUCTIONS if name in flags) or "instructions unknown"
    caps = [f"{name}={environment[name]}" for name in CAPS if name in environment]
    return ", ".join([fields.get("model name", "processor"), f"{cores} cores", found, *caps])


def describe_machine(*packages: str) -> str:
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    return f"{describe_processor(text, len(os.sched_getaffinity(0)), os.environ)}; {versions}"


def is_idle(timeout_s: float) -> bool:
    """Wait until the machine is idle, at most `timeout_s`; return whether it is."""
    deadline_s = time.monotonic() + timeout_s
    while psutil.cpu_percent(CHECK_S) > IDLE_PERCENT:
        if time.monotonic() > deadline_s:
            return False
    return True


class Row(NamedTuple):
    what: str  # the measured quantity with its unit
    ours: Sequence[float]  # one value per round
    against: str  # name of the peer
    theirs: Sequence[float]  # the peer's values in these rounds

    def cells(self) -> tuple[str, ...]:
        compared = spread(ratios(self.ours, self.theirs), 2)
        return self.what, spread(self.ours), self.against, spread(self.theirs), compared

    def to_json(self) -> Json:
        """Return the row for JSON: the quantity, and both figures and their ratio as median, min and max."""
        figures = {"ours": self.ours, "theirs": self.theirs, "ratio": ratios(self.ours, self.theirs)}
        spreads = {name: {"median": median(of), "min": min(of), "max": max(of)} for name, of in figures.items()}
        return {"measured": self.what, "against": self.against, **spreads}


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Divide the values of each round, in which the machine is the same for both."""
    return [value / other for value, other in zip(ours, theirs, strict=True)]


def spread(values: Sequence[float], digits: int | None = None) -> str:
    """Write the median and, for several values, (min..max), with three significant digits by default."""
    if digits is None:
        largest = max((abs(value) for value in values if isfinite(value)), default=0.0)
        digits = max(0, 3 - len(f"{largest:.0f}"))
    middle, least, most = (f"{value:.{digits}f}" for value in (median(values), min(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({least}..{most})"


def render(rows: Sequence[Row]) -> Table:
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row.cells())
    return table


@dataclass(frozen=True, slots=True)
class Comparison:
    load: Load
    contenders: Sequence[Contender]
    name: str = ""  # default: the load's
    length: float = 1.0  # in units of Bench.seconds

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
    """The settings of one part."""

    work: Path  # an empty folder
    classifier: str = "resnet-152"  # the example that classifies images
    rounds: int = 3  # most rounds, at least 1
    seconds: float = 5.0  # length of a measurement
    ends_s: float = float("inf")  # end of the part, by `clock`: no round begins that would end later
    remarks: Counter[str] = field(default_factory=Counter)  # lines below the table -> number of times
    clock: Callable[[], float] = time.monotonic  # seconds

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the rounds, from 1, while the time allows."""
        longest_s = 0.0
        for number in range(1, self.rounds + 1):
            started_s = self.clock()
            if number > 1 and started_s + longest_s > self.ends_s:
                self.remark(f"no time for more than {number - 1} of {self.rounds} rounds; raise --minutes")
                return
            yield number
            longest_s = max(longest_s, self.clock() - started_s)

    def measure(self, comparisons: Sequence[Comparison]) -> Results:
        results = Results()
        for number in self:
            for comparison in comparisons:
                self.compare(number, comparison, results)
        return results

    def compare(self, number: int, comparison: Comparison, results: Results) -> None:
        """Measure the contenders of one comparison once; each round begins with another one."""
        first = (number - 1) % len(comparison.contenders)
        for contender in [*comparison.contenders[first:], *comparison.contenders[:first]]:
            if not is_idle(2 * self.seconds):
                self.remark("a measurement began while other processes used more than a tenth of the machine")
            figures = contender.run(comparison.load, comparison.length * self.seconds, self.seconds / 4)
            label = f"round {number}, {comparison}, {contender.name}"
            progress(f"{label}: {figures.per_s:.1f}/s, p50 {figures.p50_ms:.1f} ms, p99 {figures.p99_ms:.1f} ms")
            for remark in figures.remarks:
                self.remark(f"{label}: {remark}")
            results.setdefault((str(comparison), contender.name), []).append(figures)

    def settle(self, contenders: Sequence[Contender], load: Load) -> None:
        """Run each contender until its rate is stable: compilers, caches and learned batch sizes need time."""
        for contender in contenders:
            before, per_s = 0.0, 0.0
            for _ in range(WINDOWS):
                before, per_s = per_s, contender.run(load, min(WINDOW_S, self.seconds), 0.0).per_s
                if abs(per_s - before) <= SETTLED * per_s:
                    break
            progress(f"{contender.name} settled at {per_s:.1f}/s")

    def remark(self, line: str) -> None:
        """Add a line below the table, and print it now."""
        self.remarks[line] += 1
        progress(line)


def compare_with_peers(bench: Bench, models: Mapping[str, Sequence[Contender]], unit: str) -> Iterator[Row]:
    """Measure closed loops, and Poisson arrivals at a share of the best rate; `models` has ours first."""
    results = Results()
    for number in bench:
        for name, contenders in models.items():
            for clients in PEER_CLIENTS:
                load = ClosedLoop(clients)
                bench.compare(number, Comparison(load, contenders, f"{name}, {load}"), results)
            full = f"{name}, {ClosedLoop(MOST_PEER_CLIENTS)}"
            best_per_s = max(results[full, each.name][-1].per_s for each in contenders)
            arrivals = OpenLoop(Poisson(PEER_SHARE * best_per_s, seed=number))
            poisson = Comparison(arrivals, contenders, f"{name}, {POISSON}", POISSON_LENGTH)
            bench.compare(number, poisson, results)
    for name, (ours, *peers) in models.items():
        for load, peer in product(map(ClosedLoop, PEER_CLIENTS), peers):
            yield results.row(f"{name}, {load}, {unit}", f"{name}, {load}", ours.name, peer.name)
        for figure, peer in product(("p50", "p99"), peers):
            at = f"{name}, {POISSON}"
            yield results.row(f"{at}, {figure} in ms", at, ours.name, peer.name, f"{figure}_ms")


def progress(line: str) -> None:
    """Print a line on stderr; the table goes to stdout."""
    print(f"bench: {line}", file=sys.stderr, flush=True)


@contextmanager
def redirect_output() -> Iterator[None]:
    with redirect_stdout(sys.stderr):
        yield
