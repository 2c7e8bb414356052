"""int8 beside fp32, `archive --precision int8`: the conditions, the graph, and its proof.

graph in fp32, inputs -> quantise.py, in the environment that has NNCF -> graph in int8 -> proof, or a rejection
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from deploy.archives.differences import Array
from deploy.archives.precision.inputs import FEWEST
from deploy.archives.precision.request import PrecisionRequest
from deploy.archives.tasks import BUILT_IN, task_of
from deploy.models import ROOT, Engine, ModelEntry
from deploy.places import INSTALL_INT8
from handlers.errors import InvalidConfig
from handlers.proofs import FEWEST_SAMPLES, Proof

INPUTS = {
    "images": "FOLDER, of images",
    "questions": 'FILE, of lines {"question": ..., "context": ...}',
    "pairs": 'FILE, of lines {"query": ..., "document": ...}',
    "texts": "FILE, of texts, one a line, or FOLDER, of texts",
}
EXTRA = ROOT / ".extras" / "int8"
# The most seconds of NNCF: a build takes five minutes at most, of which export and archive have one.
QUANTISE_S = 240.0


def check(request: PrecisionRequest, model: ModelEntry, engine: Engine) -> None:
    """Raise InvalidConfig if the model cannot have int8, or no inputs calibrate it."""
    task = task_of(model)
    if task.int8:
        raise InvalidConfig(f"{model.name}: {task.int8}")
    if task.samples is None or task.graphs > 1:
        tasks = [name for name, each in BUILT_IN.items() if each.samples is not None and each.graphs == 1]
        raise InvalidConfig(f"{model.name}: --precision int8 is for {', '.join(tasks)}; this is {model.handler}")
    if engine == "torch":
        raise InvalidConfig(f"{model.name}: --precision int8 needs OpenVINO: leave out --engine torch")
    if request.calibrate is None:
        raise InvalidConfig(
            f"{model.name}: --precision int8 needs --calibrate {_describe_inputs(model)}, at least {FEWEST} and "
            "preferably some hundred such as clients send; int8 learns the ranges of activations from them"
        )


def _describe_inputs(model: ModelEntry) -> str:
    return INPUTS[task_of(model).samples or "texts"]


def make(
    model: ModelEntry,
    graph: Path,
    out: Path,
    arrays: Sequence[Mapping[str, Array]],
    prove: Callable[[Path], Proof],
) -> Proof:
    """Write a graph in int8 to `out`, calibrated with a model's input arrays, and return its proof."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as work:
        inputs = Path(work) / "inputs.npz"
        numbered = {f"{number:05d}/{name}": array for number, each in enumerate(arrays) for name, array in each.items()}
        np.savez(inputs, **numbered)  # type: ignore[arg-type]
        quantise(graph, inputs, out, "cnn" if task_of(model).samples == "images" else "transformer")
    proof, seconds = prove(out), time.perf_counter() - started
    # Flushed, since the next line may be a minute away.
    print(f"{model.name}: int8: {proof}; calibrated on {len(arrays)} inputs, {seconds:.0f} s", flush=True)
    return proof


def find_interpreter() -> Path:
    """Find a Python with NNCF: this one, or the extra's; InvalidConfig if neither has it."""
    if find_spec("nncf") is not None:
        return Path(sys.executable)
    if not (EXTRA / ".installed").is_file():
        raise InvalidConfig(f"--precision int8 needs NNCF; install it once with {INSTALL_INT8}")
    return EXTRA / "bin" / "python"


def quantise(graph: Path, inputs: Path, out: Path, kind: str) -> None:
    """Run quantise.py with these arguments; InvalidConfig if NNCF is missing, fails or takes too long."""
    words = [str(find_interpreter()), "-W", "ignore", "-m", "deploy.archives.precision.quantise"]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        try:
            finished = subprocess.run(
                [*words, str(graph), str(inputs), str(out), kind],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
                timeout=QUANTISE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise InvalidConfig(
                f"--precision int8: NNCF took more than {QUANTISE_S:.0f} s; use fewer or smaller inputs"
            ) from None
        if finished.returncode != 0:
            log.seek(0)
            reason = log.read().strip().rpartition("\n")[2]
            raise InvalidConfig(f"--precision int8: NNCF failed: {reason or finished.returncode}")


def check_proof(model: ModelEntry, request: PrecisionRequest, proofs: Mapping[str, Proof], *, is_trained: bool) -> None:
    """Raise InvalidConfig if an int8 graph is not near enough, or by default if there are too few samples."""
    made, bf16 = proofs["int8"], proofs.get("bf16")
    fewest = FEWEST_SAMPLES.get(made.measure, 0) if request.least is None else 0
    if made.holds and made.samples >= fewest:
        return
    if made.holds:
        labels = "" if made.measure == "accuracy" else ", or labels of them,"
        raise InvalidConfig(
            f"{model.name}: int8: {made}: at least {fewest} samples are needed: use more inputs{labels} or "
            "--min-agreement, which accepts fewer"
        )
    why = "" if is_trained else "; the weights are random: --min-agreement 0 builds it anyway"
    most = "" if bf16 is None or bf16.holds else f"; bf16 has {bf16.agreement:.4f} on these inputs, too"
    raise InvalidConfig(
        f"{model.name}: int8: {made}: less than --min-agreement {made.least:g}, so nothing was built{most}{why}"
    )
