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
# So many samples must count: 300 that agree bear a share of 0.99 with a confidence of 95 % (the rule of three); of
# accuracies, one sample in a hundred is the least change that they show.
FEWEST_SAMPLES: Mapping[str, int] = {"top-1": 300, "labels": 300, "accuracy": 100}


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
        broken: how many answers hold NaN or infinity, in fp32 or in this precision.
    """

    measure: Measure
    agreement: float
    largest_change: float | None
    samples: int
    least: float
    detail: str = ""
    broken: int = 0

    @property
    def holds(self) -> bool:
        """Whether it is as near as was asked for."""
        return not self.broken and self.agreement >= self.least

    @property
    def is_refuted(self) -> bool:
        """Whether more answers differ than was asked for, and more than one: one of twenty says little of 0.99."""
        if self.broken:
            return True
        if self.measure in AVERAGES:
            return not self.holds and self.samples > 0
        return not self.holds and round((1 - self.agreement) * self.samples) > 1

    def __str__(self) -> str:
        """Write it as archive.sh prints it, and the log."""
        change = "" if self.largest_change is None else f", largest change {self.largest_change:.4f}"
        detail = f", {self.detail}" if self.detail else ""
        if self.broken:
            detail += f", {self.broken} answers with NaN or infinity"
        if not self.samples:
            return f"{self.measure}: nothing compared, since no answer in fp32 is clear{change}{detail}"
        return f"{self.measure} {self.agreement:.4f} of {self.samples} samples{change}{detail}"

    @property
    def weakness(self) -> str:
        """Say what too few samples show at most, by the rule of three; empty if there are enough."""
        fewest = FEWEST_SAMPLES.get(self.measure, 0)
        if not 0 < self.samples < fewest:
            return ""
        return f", weak: so few show {max(0.0, 1 - 3 / self.samples):.2f} at most; --validate with {fewest} or more"

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
