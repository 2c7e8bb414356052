"""The precisions of a staged archive, and their proofs: out of the cache where it has them, or made here.

files of an archive, inputs -> answers in fp32 -> answers in bf16, where the processor has it -> proof
                                               -> int8, where it was asked for                -> proof, or a refusal
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

from deploy.build.precision.answers import ask, exact_settings, is_comparable, proof
from deploy.build.precision.inputs import (
    FEWEST,
    IMAGES,
    MOST,
    MOST_VALIDATING,
    Taken,
    decoded,
    left_out,
    listed,
    sample_payloads,
    some,
    split,
    truths,
)
from deploy.build.precision.request import PrecisionRequest
from deploy.build.tasks import load_task, task_of
from deploy.models import ROOT, ModelEntry
from handlers.archive_files import GRAPH, INT8_GRAPH, LABEL, PROOFS
from handlers.config import parse
from handlers.engines import Engine
from handlers.engines.openvino import OpenVinoEngine
from handlers.errors import InvalidConfig, ItemError
from handlers.proofs import FEWEST_SAMPLES, Proof

Arrays = Mapping[str, NDArray[Any]]

# Tasks whose input has one right class.
CLASSIFIERS = ("image_classification", "text_classification")

EXTRA = ROOT / ".extras" / "int8"
# Seconds that answers in fp32 may take, of inputs that validate; the first micro-batch is always answered.
EXACT_S = 120.0
# Seconds that NNCF may take: a build takes five minutes at most, of which the export and the archive have one.
QUANTISE_S = 240.0
# Seconds that the inputs which calibrate may take, and how many fp32 answers one of them costs there: 4 with
# ResNet-152, 7 with MobileNetV2. So many calibrate however long they take: more hardly move the ranges.
STATISTICS_S, STATISTICS_RUNS, LEAST_CALIBRATING = 60.0, 8.0, 32
# Inputs that an answer in fp32 is timed with.
TIMED = 8


def make(model: ModelEntry, request: PrecisionRequest, folder: Path, out: Path, *, is_trained: bool) -> None:
    """Write proofs.json, and the int8 graph with a label where it was asked for.

    Args:
        model: the entry of the list, of a task whose answers can be compared.
        request: what was asked for, checked.
        folder: the archive's files so far, with a graph for OpenVINO.
        out: gets the files.
        is_trained: whether the weights mean anything; of random ones int8 alone is proven.

    Raises:
        InvalidConfig: the inputs do not do, or int8 is not near enough.
    """
    config = parse(task_of(model).settings_class(), model.config().get("handler"))
    task = load_task(model.handler, folder, exact_settings(model.handler, config))
    if not is_comparable(model.handler, task):
        if request.precision or request.validate:
            raise InvalidConfig(f"{model.name}: its answers are numbers, not labels: no agreement is defined")
        _write(out, {})
        return
    calibration, validation = _inputs(model, request, task)
    # With the engine in fp32, which `prove` puts others in the place of.
    engine = task.engine
    arrays = _calibrating(task, calibration) if calibration else []
    items = [each.item for each in validation]
    exact = ask(task, items, engine, EXACT_S)
    items, right = items[: len(exact)], _truths(model, validation[: len(exact)], task)

    def prove(other: Engine) -> Proof:
        return proof(model.handler, exact, ask(task, items, other), request.least, right)

    proofs: dict[str, Proof] = {}
    if is_trained and "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        proofs["bf16"] = prove(engine.in_precision("bf16"))
    if request.precision == "int8":
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as work:
            inputs = Path(work) / "inputs.npz"
            numbered = {
                f"{number:05d}/{name}": array for number, each in enumerate(arrays) for name, array in each.items()
            }
            np.savez(inputs, **numbered)  # type: ignore[arg-type]
            quantise(folder / GRAPH, inputs, out / INT8_GRAPH, "cnn" if model.handler in IMAGES else "transformer")
        # What stays in floating point is bf16 where the processor has it, as in a worker.
        proofs["int8"] = prove(OpenVinoEngine(out / INT8_GRAPH, precision="int8", threads=config.threads))
        _say(
            model, f"int8: {proofs['int8']}; calibrated on {len(arrays)} inputs, {time.perf_counter() - started:.0f} s"
        )
        is_default = request.least is None
        _check(model, proofs["int8"], proofs.get("bf16"), is_trained=is_trained, is_default=is_default)
    _write(out, proofs, len(arrays) if request.precision else None)


def _say(model: ModelEntry, line: str) -> None:
    # At once: the next line may be a minute away.
    print(f"{model.name}: {line}", flush=True)


def _inputs(model: ModelEntry, request: PrecisionRequest, task: Any) -> tuple[list[Any], list[Taken]]:
    """Decode what is to calibrate and what is to validate.

    Raises:
        InvalidConfig: there is too little of it.
    """
    given = [None if path is None else _read(model, path, task) for path in (request.calibrate, request.validate)]
    calibration, validation = given
    if calibration is not None and len(calibration) < FEWEST:
        raise InvalidConfig(f"{model.name}: --calibrate: {len(calibration)} inputs; at least {FEWEST} are needed")
    if calibration is not None and validation is None:
        calibration, validation = split(calibration)
    if validation is None:
        items = task.prepare([task.decode(each) for each in sample_payloads(model, task.inputs)])
        validation = [Taken(item, None) for item in items if not isinstance(item, ItemError)]
    return [each.item for each in (calibration or [])[:MOST]], validation[:MOST_VALIDATING]


def _truths(model: ModelEntry, validation: Sequence[Taken], task: Any) -> list[int] | None:
    """Return the numbers of the right classes, where the task has one for an input and all inputs have labels.

    Raises:
        InvalidConfig: some have one, and others have not.
    """
    if model.handler not in CLASSIFIERS or getattr(task, "function", None) == "sigmoid":
        return None
    names = task.labels.values() if isinstance(task.labels, Mapping) else task.labels
    try:
        return truths(validation, [*names])
    except InvalidConfig as error:
        raise InvalidConfig(f"{model.name}: {error}") from None


def _read(model: ModelEntry, path: Path, task: Any) -> list[Taken]:
    """Decode a folder's files or a file's lines, in an order that a seed decides."""
    inputs = some(listed(path))
    items, refused = decoded(task, inputs, is_text=model.handler not in IMAGES)
    if line := left_out(path, len(inputs), refused):
        _say(model, line)
    return items


def _calibrating(task: Any, items: Sequence[Any]) -> list[Arrays]:
    """Give the model's inputs of the items that calibrate: as many as the time allows."""
    first = items[:TIMED]
    # Once before it counts: the engine prepares itself for a shape.
    ask(task, first, task.engine)
    started = time.perf_counter()
    ask(task, first, task.engine)
    answer_s = (time.perf_counter() - started) / len(first)
    count = max(LEAST_CALIBRATING, int(STATISTICS_S / (STATISTICS_RUNS * answer_s)))
    return [task.collate([item]) for item in items[:count]]


def interpreter() -> Path:
    """Find a Python that has NNCF: this one, or that of the extra's own environment.

    Raises:
        InvalidConfig: there is none; it says how to make one.
    """
    if find_spec("nncf") is not None:
        return Path(sys.executable)
    if not (EXTRA / ".installed").is_file():
        raise InvalidConfig("--precision int8 needs NNCF, once: deploy/extras/environment.sh int8")
    return EXTRA / "bin" / "python"


def quantise(graph: Path, inputs: Path, out: Path, kind: str) -> None:
    """Run the program of quantise.py, whose arguments these are.

    Raises:
        InvalidConfig: there is no NNCF, or it failed, or took too long.
    """
    words = [str(interpreter()), "-W", "ignore", "-m", "deploy.build.precision.quantise"]
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
                f"--precision int8: NNCF was not done after {QUANTISE_S:.0f} s; give fewer or smaller inputs"
            ) from None
        if finished.returncode != 0:
            log.seek(0)
            reason = log.read().strip().rpartition("\n")[2]
            raise InvalidConfig(f"--precision int8: NNCF failed: {reason or finished.returncode}")


def _check(model: ModelEntry, made: Proof, bf16: Proof | None, *, is_trained: bool, is_default: bool) -> None:
    """Check that an int8 graph is as near as was asked for, or by default on enough samples.

    Raises:
        InvalidConfig: it is not; the figures are in it.
    """
    fewest = FEWEST_SAMPLES.get(made.measure, 0) if is_default else 0
    if made.holds and made.samples >= fewest:
        return
    if made.holds:
        labels = "" if made.measure == "accuracy" else ", or labels of them,"
        raise InvalidConfig(
            f"{model.name}: int8: {made}: at least {fewest} samples are needed: give more inputs{labels} or "
            "--min-agreement, which takes as many as there are"
        )
    why = "" if is_trained else "; the weights are random: --min-agreement 0 builds it all the same"
    most = "" if bf16 is None or bf16.holds else f"; bf16, too, has {bf16.agreement:.4f} on these inputs"
    raise InvalidConfig(
        f"{model.name}: int8: {made}: less than --min-agreement {made.least:g}, so nothing was built{most}{why}"
    )


def _write(out: Path, proofs: Mapping[str, Proof], calibrated: int | None = None) -> None:
    (out / PROOFS).write_text(json.dumps({name: each.to_json() for name, each in proofs.items()}), encoding="utf-8")
    if calibrated is not None:
        (out / LABEL).write_text(json.dumps({"int8_calibrated_on": calibrated}), encoding="utf-8")
