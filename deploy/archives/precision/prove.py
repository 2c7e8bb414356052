"""The precisions of a staged archive, and their proofs.

files of an archive, inputs -> answers in fp32 -> answers in bf16, if the processor has it -> proof
                                               -> int8, on request                         -> proof, or a refusal
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
from numpy.typing import NDArray

from deploy.archives.precision.answers import answer_items, exact_settings, make_proof, name_kind
from deploy.archives.precision.inputs import (
    FEWEST,
    IMAGES,
    MOST,
    MOST_VALIDATING,
    DecodedInput,
    decode_inputs,
    describe_refusals,
    draw,
    fit_sample,
    list_inputs,
    make_sample_payloads,
    match_labels,
    split,
)
from deploy.archives.precision.request import PrecisionRequest
from deploy.archives.tasks import load_task, task_of
from deploy.models import ROOT, ModelEntry
from deploy.places import INSTALL_INT8
from handlers.archive_files import GRAPH, INT8_GRAPH, LABEL, PROOFS
from handlers.config import parse
from handlers.engines import Engine
from handlers.engines.openvino import OpenVinoEngine
from handlers.errors import InvalidConfig
from handlers.proofs import FEWEST_SAMPLES, Proof

Arrays = Mapping[str, NDArray[Any]]

# Tasks with one right class for an input.
CLASSIFIERS = ("image_classification", "text_classification")

EXTRA = ROOT / ".extras" / "int8"
# The most seconds of answers in fp32 that validate; the first micro-batch is always answered.
EXACT_S = 120.0
# The most seconds of NNCF: a build takes five minutes at most, of which export and archive have one.
QUANTISE_S = 240.0
# The most seconds of the inputs that calibrate.
STATISTICS_S = 60.0
# The cost of an input that calibrates, in answers in fp32: 4 with ResNet-152, 7 with MobileNetV2.
STATISTICS_RUNS = 8.0
# The fewest inputs that calibrate, however long they take; more hardly move the ranges.
LEAST_CALIBRATING = 32
# Inputs that time an answer in fp32.
TIMED = 8


def make(model: ModelEntry, request: PrecisionRequest, folder: Path, out: Path, *, is_trained: bool) -> None:
    """Write proofs.json, and on request the int8 graph and label.json, into `out`.

    Args:
        model: the entry of the list, of a task whose answers can be compared.
        request: the options, checked.
        folder: the archive's files, with a graph for OpenVINO.
        out: an empty folder.
        is_trained: whether the weights are trained; for random ones only int8 is proven.

    Raises:
        InvalidConfig: there are too few inputs, or int8 is not near enough.
    """
    config = parse(task_of(model).settings_class(), model.config().get("handler"))
    task = load_task(model.handler, folder, exact_settings(model.handler, config))
    calibration, validation = _read_inputs(model, request, task)
    # In fp32; `prove` gives the task other engines.
    engine = task.engine
    arrays = _collate_calibration(task, calibration) if calibration else []
    items = [each.item for each in validation]
    exact = answer_items(task, items, engine, EXACT_S)
    items, right = items[: len(exact)], _match_labels(model, validation[: len(exact)], task)

    def prove(other: Engine) -> Proof:
        return make_proof(name_kind(task), exact, answer_items(task, items, other), request.least, right)

    proofs: dict[str, Proof] = {}
    is_tried = is_trained and config.precision in ("auto", "bf16")
    if is_tried and "bf16" in OpenVinoEngine(folder / GRAPH, threads=config.threads).precisions:
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
        # As in a worker, the parts in floating point are bf16 if the processor has it.
        proofs["int8"] = prove(OpenVinoEngine(out / INT8_GRAPH, precision="int8", threads=config.threads))
        seconds = time.perf_counter() - started
        _print(model, f"int8: {proofs['int8']}; calibrated on {len(arrays)} inputs, {seconds:.0f} s")
        is_default = request.least is None
        _check(model, proofs["int8"], proofs.get("bf16"), is_trained=is_trained, is_default=is_default)
    _write(out, proofs, len(arrays) if request.precision else None)


def _print(model: ModelEntry, line: str) -> None:
    # Flushed, since the next line may be a minute away.
    print(f"{model.name}: {line}", flush=True)


def _read_inputs(model: ModelEntry, request: PrecisionRequest, task: Any) -> tuple[list[Any], list[DecodedInput]]:
    """Decode the inputs that calibrate and those that validate; InvalidConfig if there are too few."""
    given = [None if path is None else _read(model, path, task) for path in (request.calibrate, request.validate)]
    calibration, validation = given
    if calibration is not None and len(calibration) < FEWEST:
        raise InvalidConfig(f"{model.name}: --calibrate: {len(calibration)} inputs; at least {FEWEST} are needed")
    if calibration is not None and validation is None:
        calibration, validation = split(calibration)
    if validation is None:
        samples = (fit_sample(task, each) for each in make_sample_payloads(model, task.inputs))
        validation = [DecodedInput(sample[0], None) for sample in samples if sample]
    return [each.item for each in (calibration or [])[:MOST]], validation[:MOST_VALIDATING]


def _match_labels(model: ModelEntry, validation: Sequence[DecodedInput], task: Any) -> list[int] | None:
    """Return the numbers of the right classes, if an input of the task has one and all inputs have labels."""
    if name_kind(task) not in CLASSIFIERS or getattr(task, "function", None) == "sigmoid":
        return None
    names = task.labels.values() if isinstance(task.labels, Mapping) else task.labels
    try:
        return match_labels(validation, [*names])
    except InvalidConfig as error:
        raise InvalidConfig(f"{model.name}: {error}") from None


def _read(model: ModelEntry, path: Path, task: Any) -> list[DecodedInput]:
    """Decode a folder's files or a file's lines, in an order by a seed."""
    inputs = draw(list_inputs(path))
    items, refused = decode_inputs(task, inputs, is_text=model.handler not in IMAGES)
    if line := describe_refusals(path, len(inputs), refused):
        _print(model, line)
    return items


def _collate_calibration(task: Any, items: Sequence[Any]) -> list[Arrays]:
    """Return the model's inputs for as many items as the time allows."""
    first = items[:TIMED]
    # The first run, in which the engine prepares itself for a shape, does not count.
    answer_items(task, first, task.engine)
    started = time.perf_counter()
    answer_items(task, first, task.engine)
    answer_s = (time.perf_counter() - started) / len(first)
    count = max(LEAST_CALIBRATING, int(STATISTICS_S / (STATISTICS_RUNS * answer_s)))
    return [task.collate([item]) for item in items[:count]]


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


def _check(model: ModelEntry, made: Proof, bf16: Proof | None, *, is_trained: bool, is_default: bool) -> None:
    """Raise InvalidConfig if an int8 graph is not near enough, or by default if there are too few samples."""
    fewest = FEWEST_SAMPLES.get(made.measure, 0) if is_default else 0
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


def _write(out: Path, proofs: Mapping[str, Proof], calibrated: int | None = None) -> None:
    (out / PROOFS).write_text(json.dumps({name: each.to_json() for name, each in proofs.items()}), encoding="utf-8")
    if calibrated is not None:
        (out / LABEL).write_text(json.dumps({"int8_calibrated_on": calibrated}), encoding="utf-8")
