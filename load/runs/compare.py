"""Compares two stored runs by ratios with confidence intervals. Pure.

    A, B -> steps of the same load, paired by repeat -> ratio of each pair -> geometric mean and its 95 % interval

The interval is Student's t over the logarithms of the ratios: repeats are few, and ratios multiply. It says how sure
the difference is on that machine and day, if the repeats were taken in turn: what drifts, drifts for both. Two runs
that were not measured in turn are compared too, with a remark that says so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

from rich.table import Table

from load.runs.run_file import Run, StepResult

# Quantiles of Student's t at 97.5 % for 1, 2, ... degrees of freedom, from any table of it, and one for all beyond.
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
T_975_BEYOND = 2.12
QUANTITIES = ("throughput 1/s", "goodput 1/s", "p50 ms", "p99 ms")


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio B over A.

    Attributes:
        mean: geometric mean of the repeats' ratios.
        low, high: bounds of the 95 % confidence interval; both are the mean where there is one repeat, which has none.
        repeats: number of pairs.
    """

    mean: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, base: Sequence[float], other: Sequence[float]) -> "Ratio":
        """Compare repeats pair by pair.

        Args:
            base: A's values, all above 0.
            other: B's values of the same repeats, all above 0.
        """
        logs = [math.log(b / a) for a, b in zip(base, other, strict=True)]
        mean, half = fmean(logs), 0.0
        if len(logs) > 1:
            freedom = len(logs) - 1
            quantile = T_975[freedom - 1] if freedom <= len(T_975) else T_975_BEYOND
            half = quantile * stdev(logs) / math.sqrt(len(logs))
        return cls(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))

    @property
    def is_different(self) -> bool:
        """Whether the interval leaves 1 out."""
        return self.repeats > 1 and not self.low <= 1 <= self.high


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity of one load.

    Attributes:
        load: name of the steps.
        quantity: one of QUANTITIES.
        base, other: means of A's and of B's repeats, in the quantity's unit.
        ratio: B over A.
    """

    load: str
    quantity: str
    base: float
    other: float
    ratio: Ratio


def compare(base: Run, other: Run) -> list[Comparison]:
    """Compare every quantity of every load that both runs have; steps that are not valid are left out."""
    rows = []
    for load in dict.fromkeys(step.name for step in base.steps):
        pairs = _pairs(base, other, load)
        for quantity in QUANTITIES:
            values = [(_value(a, quantity), _value(b, quantity)) for a, b in pairs]
            a_values, b_values = [a for a, b in values if a and b], [b for a, b in values if a and b]
            if a_values:
                ratio = Ratio.of(a_values, b_values)
                rows.append(Comparison(load, quantity, fmean(a_values), fmean(b_values), ratio))
    return rows


def is_interleaved(base: Run, other: Run) -> bool:
    """Return whether the runs were measured in turn: each repeat of both before any of the next repeat."""
    repeats: dict[int, list[str]] = {}
    for step in [*base.steps, *other.steps]:
        repeats.setdefault(step.repeat, []).append(step.started_at)
    in_order = [repeats[number] for number in sorted(repeats)]
    return len(in_order) > 1 and all(max(a) < min(b) for a, b in pairwise(in_order))


def table(base: Run, other: Run, rows: Sequence[Comparison]) -> Table:
    """Draw the comparison for a terminal."""
    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for name in ("load", "quantity", f"A: {base.label}", f"B: {other.label}", "B / A", "95 % interval", "repeats", ""):
        drawn.add_column(name, justify="left" if name in ("load", "quantity", "") else "right", no_wrap=True)
    for row in rows:
        ratio = row.ratio
        verdict = "differs" if ratio.is_different else "no difference shown"
        drawn.add_row(
            row.load,
            row.quantity,
            f"{row.base:.1f}",
            f"{row.other:.1f}",
            f"{ratio.mean:.3f}",
            f"{ratio.low:.3f} .. {ratio.high:.3f}" if ratio.repeats > 1 else "",
            str(ratio.repeats),
            verdict if ratio.repeats > 1 else "",
        )
    return drawn


def remarks(base: Run, other: Run, rows: Sequence[Comparison]) -> list[str]:
    """List what the reader of a comparison must know, a line each."""
    said = []
    if not rows:
        said.append("the runs have no valid load in common: nothing to compare")
    elif max(row.ratio.repeats for row in rows) == 1:
        said.append("one repeat says nothing about chance: measure both with --repeats 5")
    elif not is_interleaved(base, other):
        said.append(
            "not measured in turn: the intervals leave out what drifted between the runs; see --model A --model B"
        )
    left_out = sum(not step.is_valid for step in [*base.steps, *other.steps])
    if left_out:
        said.append(f"left out: {left_out} steps that are not valid")
    return said


def _pairs(base: Run, other: Run, load: str) -> list[tuple[StepResult, StepResult]]:
    theirs = {step.repeat: step for step in other.steps if step.name == load and step.is_valid}
    mine = [step for step in base.steps if step.name == load and step.is_valid]
    return [(step, theirs[step.repeat]) for step in mine if step.repeat in theirs]


def _value(step: StepResult, quantity: str) -> float:
    """Return one quantity of a step; 0 where it was not measured."""
    if quantity == "throughput 1/s":
        return step.throughput_per_s
    if quantity == "goodput 1/s":
        return step.goodput_per_s if step.latency_threshold_ms is not None else 0.0
    return step.latency_ms.get(quantity.removesuffix(" ms"), 0.0)
