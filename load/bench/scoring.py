"""Measures Ray Data on this machine against the loop without it: `make bench ONLY=ray`.

    in_process, in_process_texts: decode and engine alone      ray_loop, in .extras/ray: deploy.scoring.score
                                        -> inputs per second, by turns -> ratios

Ray has the machine to itself, as the loop has. The environment is built first, if it is not there.
"""

import subprocess
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from deploy.archive import Recipe
from deploy.models import ROOT, model
from load.bench.archives import OURS, ours
from load.bench.machine import Processor
from load.bench.peers import BenchError, Child
from load.bench.progress import aside, progress
from load.bench.rounds import Rounds, Series, measure_in_turn
from load.bench.table import Bound, Row, ratios, render

EXTRA = "ray"
EMBEDDING = "sentence-embedding"


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says what both are given."""

    # Inputs of a batch: those of the examples.
    photographs: int = 16
    texts: int = 32
    # Of a measurement, as many inputs as the loop does in so many of its durations: results come a block at a time.
    durations: float = 3.0


TUNING = Tuning()
# This deployment is held to this bound.
OF_IN_PROCESS = Bound(0.85, is_minimum=True)


@dataclass(slots=True)
class Pair:
    """One model in both ways.

    Attributes:
        inputs: "photographs" or "texts".
        batch_size: inputs of a batch.
        loop, ray: the processes that are asked.
        way: what else the loop is told.
        per_s: what the loop did last, in inputs per second.
    """

    inputs: str
    batch_size: int
    loop: Child
    ray: Child
    way: dict[str, str]
    per_s: float = 0.0

    def in_process(self, duration_s: float) -> float:
        """Measure the loop."""
        answer = self.loop.ask({**self.way, "batch_size": self.batch_size, "duration_s": duration_s})
        self.per_s = float(answer["throughput_per_s"])
        return self.per_s

    def scored(self, duration_s: float) -> float:
        """Measure Ray, for about as long as it takes the loop; the loop goes first."""
        batches = max(8, round(self.per_s * duration_s * TUNING.durations / self.batch_size))
        order = {"inputs": self.inputs, "count": batches * self.batch_size, "batch_size": self.batch_size}
        return float(self.ray.ask(order)["throughput_per_s"])


def run(*, rounds: Rounds, duration_s: float, is_markdown: bool) -> str:
    """Measure, and say what came out; arguments and errors are those of load.bench.resnet."""
    progress(f"environment: .extras/{EXTRA}")
    if subprocess.run([ROOT / "deploy" / "extras" / "environment.sh", EXTRA], cwd=ROOT, check=False).returncode:
        raise BenchError(f"the environment of {EXTRA} cannot be built; its own words are above")
    python = ROOT / ".extras" / EXTRA / "bin" / "python"
    rates: Series = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as work:
        with aside():
            images = ours(Path(work)).path
            texts = Recipe(model(EMBEDDING), export_path=Path(work)).build().path
        for archive, inputs, size, module, way in (
            (images, "photographs", TUNING.photographs, "load.bench.in_process", {}),
            (texts, "texts", TUNING.texts, "load.bench.in_process_texts", {"way": "arrival"}),
        ):
            folder = Path(work, inputs)
            with zipfile.ZipFile(archive) as content:
                content.extractall(folder)
            with (
                Child.started(module, folder) as loop,
                Child.started("load.bench.ray_loop", archive, python=python) as ray,
            ):
                pair = Pair(inputs, size, loop, ray, way)
                figures: dict[str, Callable[[], float]] = {
                    f"{inputs}, in process": partial(pair.in_process, duration_s),
                    f"{inputs}, ray": partial(pair.scored, duration_s),
                }
                measure_in_turn(rounds, EXTRA, figures, rates)
                engines = f"{ray.engine}, {loop.engine}"
    head = f"Ray Data on {Processor.here()}; {engines}; {OURS} and {EMBEDDING}; one actor with every core"
    return f"{head}\n\n{render(table(rates), is_markdown=is_markdown)}"


def table(rates: Series) -> list[Row]:
    """Make the rows."""
    rows = []
    for inputs in ("photographs", "texts"):
        loop, ray = rates[f"{inputs}, in process"], rates[f"{inputs}, ray"]
        rows.append(
            Row(f"{inputs}/s: ray / in-process", [], ray, loop, ratios(ray, loop), bound=OF_IN_PROCESS),
        )
    return rows
