"""An int8 graph of a staged archive, made on its user's inputs, with the layers that hurt left in floating point.

fp32 graph, calibration inputs -> the program of quantise.py -> model-int8.xml -> proof
                where it does not hold: layers ranked -> quantised without the worst -> proof, until time is over
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.build.precision.quantise import Order
from deploy.build.precision.search import layers_of, ranked, tries, write_released
from deploy.models import ROOT
from handlers.archive_files import GRAPH, INT8_GRAPH
from handlers.errors import InvalidConfig
from handlers.proofs import Proof

Arrays = Mapping[str, NDArray[Any]]

EXTRA = ROOT / ".extras" / "int8"


@dataclass(frozen=True, slots=True)
class Tuning:
    """What bounds the time; builds are to take five minutes at most, of which the export and the archive have one.

    Attributes:
        all_s: seconds of everything here, after which nothing is begun.
        statistics_s: seconds that the inputs which calibrate may take.
        statistics_runs: how many fp32 answers one input costs there: 4 with ResNet-152, 7 with MobileNetV2.
        fewest: inputs that calibrate however long they take; more hardly move the ranges, where inputs are alike.
        ranking_s: seconds for the search of layers that hurt.
        ranking_samples: inputs that it looks at.
    """

    all_s: float = 240.0
    statistics_s: float = 60.0
    statistics_runs: float = 8.0
    fewest: int = 32
    ranking_s: float = 60.0
    ranking_samples: int = 8


TUNING = Tuning()


@dataclass(frozen=True, slots=True)
class Int8:
    """An int8 graph that was made.

    Attributes:
        proof: how near its answers are.
        layers: how many layers compute in int8 or would.
        kept: names of those that stay in floating point.
        calibrated: how many inputs it learnt from.
    """

    proof: Proof
    layers: int
    kept: tuple[str, ...]
    calibrated: int


def interpreter() -> Path:
    """Find a Python that has NNCF: this one, or that of the extra's own environment.

    Raises:
        InvalidConfig: there is none; it says how to make one.
    """
    if find_spec("nncf") is not None:
        return Path(sys.executable)
    python = EXTRA / "bin" / "python"
    if not (EXTRA / ".installed").is_file():
        raise InvalidConfig("--precision int8 needs NNCF, once: deploy/extras/environment.sh int8")
    return python


def calibrating(inputs: int, answer_s: float) -> int:
    """Say how many of the inputs are to calibrate.

    Args:
        inputs: how many there are.
        answer_s: seconds that one takes in fp32.
    """
    fitting = int(TUNING.statistics_s / (TUNING.statistics_runs * answer_s))
    return min(inputs, max(TUNING.fewest, fitting))


def make(
    folder: Path,
    out: Path,
    samples: Sequence[Arrays],
    prove: Callable[[Path], Proof],
    *,
    is_transformer: bool,
    say: Callable[[str], None],
    quantise: Callable[[Order, float], None] | None = None,
) -> Int8:
    """Make the int8 graph of an archive's files.

    Args:
        folder: those files, with the graph in fp32.
        out: gets the int8 graph.
        samples: the model's inputs that calibrate, as `collate` gives them of one item each.
        prove: holds the answers of a graph against fp32's.
        is_transformer: see `Order`.
        say: is told what happens, a line each.
        quantise: carries out an order within so many seconds; None for the program.

    Returns:
        What was made; where its proof does not hold, nothing better was found in the time, and there is no graph.

    Raises:
        InvalidConfig: there is no NNCF, or it failed.
    """
    ends_s = time.perf_counter() + TUNING.all_s
    started = time.perf_counter()
    run, exact = quantise or program(interpreter()), folder / GRAPH
    with TemporaryDirectory() as name:
        work = Path(name)
        _save(work / "inputs.npz", samples)
        whole = work / INT8_GRAPH
        run(Order(str(exact), str(work / "inputs.npz"), str(whole), is_transformer), TUNING.all_s)
        first = prove(whole)
        say(f"int8: {first}; calibrated on {len(samples)} inputs, {time.perf_counter() - started:.0f} s")
        count = len(layers_of(whole))
        made, best = whole, Int8(first, count, (), len(samples))
        left_s = ends_s - time.perf_counter()
        if not first.holds and left_s > 0:
            say(f"int8: less than {first.least:g}: looking among {count} layers for those that hurt")
            groups = ranked(exact, whole, samples[: TUNING.ranking_samples], min(TUNING.ranking_s, left_s))
            for number, kept in enumerate(tries(groups, count)):
                if time.perf_counter() > ends_s:
                    say(f"int8: {TUNING.all_s:g} s are over")
                    break
                # Never over another: OpenVINO has the weights of a graph that it runs mapped from its file.
                path = work / str(number) / INT8_GRAPH
                write_released(whole, kept, path)
                proof = prove(path)
                say(f"int8: {proof}; {len(kept)} of {count} layers in floating point")
                if proof.agreement > best.proof.agreement:
                    made, best = path, Int8(proof, count, tuple(kept), len(samples))
                if proof.holds:
                    break
        if best.proof.holds:
            if best.kept:
                say(f"int8: in floating point stay {', '.join(best.kept)}")
            for path in (made, made.with_suffix(".bin")):
                shutil.copyfile(path, out / path.name)
        return best


def _save(path: Path, samples: Sequence[Arrays]) -> None:
    arrays: dict[str, Any] = {
        f"{number:05d}/{name}": array for number, each in enumerate(samples) for name, array in each.items()
    }
    np.savez(path, **arrays)


def program(python: Path) -> Callable[[Order, float], None]:
    """Give what runs the program of quantise.py.

    Args:
        python: that has NNCF.
    """

    def run(order: Order, longest_s: float) -> None:
        with TemporaryDirectory() as work:
            path, log = Path(work) / "order.json", Path(work) / "log"
            path.write_text(order.to_json(), encoding="utf-8")
            command = [str(python), "-W", "ignore", "-m", "deploy.build.precision.quantise", str(path)]
            own = {**os.environ, "PYTHONPATH": str(ROOT)}
            with log.open("w") as written:
                try:
                    finished = subprocess.run(
                        command,
                        cwd=ROOT,
                        env=own,
                        stdout=written,
                        stderr=written,
                        timeout=longest_s,
                        check=False,
                    )
                except subprocess.TimeoutExpired:
                    raise InvalidConfig(
                        f"--precision int8: NNCF was not done after {longest_s:.0f} s; give fewer or smaller inputs"
                    ) from None
            if finished.returncode != 0:
                reason = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
                raise InvalidConfig(f"--precision int8: NNCF failed: {reason or finished.returncode}")

    return run
