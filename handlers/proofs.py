"""How near an archive's answers in one precision are to those in fp32: measured as it is built, told by it. Pure.

builder: answers in fp32, answers in a precision -> Proof -> build.json
worker:  build.json -> Proof by precision -> `precision: auto` takes none that it refutes; metadata tells all
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

# What is compared: the likeliest class of an image; the label of a text, of each token, of an answer; either against
# known labels; vectors; boxes, by COCO's mean average precision; maps, by the mean intersection over union of a class;
# the order of pairs, by Spearman's correlation.
Measure = Literal["top-1", "labels", "accuracy", "vectors", "map", "miou", "ranks"]
# Those whose agreement is no share of samples that did not change.
AVERAGES = ("accuracy", "vectors", "map", "miou", "ranks")


@dataclass(frozen=True, slots=True)
class Proof:
    """One precision held against fp32, on inputs that its making has not seen.

    Attributes:
        measure: what is compared.
        agreement: share of the samples, 0..1, with the same answer; of AVERAGES see deploy.build.precision.comparisons.
        largest_change: the most that a probability moved, 0..1; of vectors 1 - the least cosine; of maps the largest
            share of an image's pixels that changed; None where the task gives neither.
        samples: how many answers were compared; of top-1 and labels those where fp32's first label leads clearly.
        least: the agreement that was asked for.
        detail: further figures, for people.
    """

    measure: Measure
    agreement: float
    largest_change: float | None
    samples: int
    least: float
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Whether it is as near as was asked for."""
        return self.agreement >= self.least

    @property
    def is_refuted(self) -> bool:
        """Whether more answers differ than was asked for, and more than one: one of twenty says little of 0.99."""
        if self.measure in AVERAGES:
            return not self.holds and self.samples > 0
        return not self.holds and round((1 - self.agreement) * self.samples) > 1

    def __str__(self) -> str:
        """Write it as archive.sh prints it, and the log."""
        change = "" if self.largest_change is None else f", largest change {self.largest_change:.4f}"
        detail = f", {self.detail}" if self.detail else ""
        return f"{self.measure} {self.agreement:.4f} of {self.samples} samples{change}{detail}"

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON has it."""
        return asdict(self)


def read_proofs(content: Mapping[str, Mapping[str, Any]]) -> dict[str, Proof]:
    """Read what `Proof.to_json` gave, by precision.

    Raises:
        ValueError: it is something else.
    """
    try:
        return {precision: Proof(**values) for precision, values in content.items()}
    except (TypeError, AttributeError):
        raise ValueError("a proof has other fields") from None
