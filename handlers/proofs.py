"""Proofs: the measured agreement of a precision with fp32, stored in the archive. Pure.

builder: answers in fp32, answers in a precision -> Proof -> build.json
worker:  build.json -> Proof by precision -> candidates of `precision: auto`; metadata
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

# The compared values: the likeliest class of an image; the label of a text, a token, an answer; accuracy against
# known labels; vectors; boxes, by COCO's mean average precision; maps, by the mean intersection over union of a class;
# the order of pairs, by Spearman's correlation; numbers.
Measure = Literal["top-1", "labels", "accuracy", "vectors", "map", "miou", "ranks", "values"]
# The measures whose agreement is not a share of unchanged samples.
AVERAGES = ("accuracy", "vectors", "map", "miou", "ranks", "values")
# The fewest samples: 300 agreeing samples support 0.99 at 95 % confidence (the rule of three); 100 samples show a
# change of accuracy of 0.01.
FEWEST_SAMPLES: Mapping[str, int] = {"top-1": 300, "labels": 300, "accuracy": 100}

# The fewest samples, each with one clear answer, of which one may differ. An engine that chooses one of two labels at
# random differs at most once in 10 with a chance of 1 %.
TOLERANT = 10


@dataclass(frozen=True, slots=True)
class Proof:
    """The comparison of one precision with fp32, on inputs that were not used to make it."""

    measure: Measure
    # Share of samples, 0..1, with equal answers; for AVERAGES see handlers.precision.comparisons.
    agreement: float
    # The largest change of a probability, 0..1; for vectors 1 - the least cosine; for maps the largest share of an
    # image's pixels that changed; for numbers a share of their deviation; None if the task has none of these.
    largest_change: float | None
    samples: int  # compared answers; for top-1 and labels only those whose first label leads clearly in fp32
    least: float  # the required agreement
    detail: str = ""  # further figures, for people
    broken: int = 0  # answers with NaN or infinity, in fp32 or in this precision

    @property
    def holds(self) -> bool:
        return not self.broken and self.agreement >= self.least

    @property
    def is_enough(self) -> bool:
        """Whether the precision may be used: it agrees, or one of TOLERANT clear answers differs, a weak objection."""
        if self.holds or self.broken or self.measure in AVERAGES or self.samples < TOLERANT:
            return self.holds
        return round((1 - self.agreement) * self.samples) <= 1

    def __str__(self) -> str:
        """Return the line that `archive` prints and workers log."""
        change = "" if self.largest_change is None else f", largest change {self.largest_change:.4f}"
        detail = f", {self.detail}" if self.detail else ""
        if self.broken:
            detail += f", {self.broken} answers with NaN or infinity"
        if not self.samples:
            return f"{self.measure}: nothing compared, since no answer in fp32 is clear{change}{detail}"
        return f"{self.measure} {self.agreement:.4f} of {self.samples} samples{change}{detail}"

    @property
    def weakness(self) -> str:
        """A note of the highest agreement that too few samples support; empty if there are enough."""
        fewest = FEWEST_SAMPLES.get(self.measure, 0)
        if not 0 < self.samples < fewest:
            return ""
        return f", weak: so few show {max(0.0, 1 - 3 / self.samples):.2f} at most; --validate with {fewest} or more"

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def read_proofs(content: Mapping[str, Mapping[str, Any]]) -> dict[str, Proof]:
    """Read outputs of `Proof.to_json` by precision; raise ValueError for anything else."""
    try:
        proofs = {precision: Proof(**values) for precision, values in content.items()}
        for proof in proofs.values():
            if not all(0 <= each <= 1 for each in (proof.agreement, proof.least)) or proof.samples < 0:
                raise ValueError("a proof has other values")
            _ = f"{proof}{proof.weakness}{proof.is_enough}"  # which a text in place of a number fails
    except (TypeError, AttributeError):
        raise ValueError("a proof has other fields") from None
    return proofs
