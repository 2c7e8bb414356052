"""The precisions of a staged archive, and their proofs.

files of an archive, inputs -> answers in fp32 -> answers in bf16, where the processor has it -> proof
                                               -> int8, where it was asked for                -> proof, or a refusal
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import openvino

from deploy.build.precision import int8, samples
from deploy.build.precision.answers import ask, exact_settings, is_comparable, proof
from deploy.build.precision.inputs import TUNING, decoded, left_out, listed, some, split
from deploy.build.precision.wanted import IMAGES, Wanted
from deploy.build.task_loading import loaded
from deploy.build.tasks import task_of
from deploy.models import Model
from handlers.archive_files import GRAPH, LABEL, PROOFS
from handlers.config import parse
from handlers.engines.openvino import OpenVinoEngine
from handlers.errors import InvalidConfig, ItemError
from handlers.proofs import Proof

# Is told what happens, a line each.
Say = Callable[[str], None]

# Seconds that answers in fp32 may take, of inputs that validate; the first micro-batch is always answered.
EXACT_S = 60.0


def make(model: Model, wanted: Wanted, folder: Path, out: Path, *, is_trained: bool, say: Say) -> None:
    """Write proofs.json, and the int8 graph with a label where it was asked for.

    Args:
        model: the entry of the list, of a task whose answers can be compared.
        wanted: what was asked for, checked.
        folder: the archive's files so far, with a graph for OpenVINO.
        out: gets the files.
        is_trained: whether the weights mean anything; of random ones int8 alone is proven.
        say: is told what happens, a line each.

    Raises:
        InvalidConfig: the inputs do not do, or int8 is not near enough.
    """
    config = parse(task_of(model).settings_class(), model.config().get("handler"))
    task = loaded(model.handler, folder, exact_settings(model.handler, config))
    if not is_comparable(model.handler, task):
        if wanted.precision or wanted.validate:
            raise InvalidConfig(f"{model.name}: its answers are numbers, not labels: no agreement is defined")
        _write(out, {})
        return
    calibration, validation = _inputs(model, wanted, task, say)
    # With the engine in fp32, which `prove` puts others in the place of.
    arrays = _calibrating(task, calibration) if calibration else []
    exact = ask(task, validation, task.engine, EXACT_S)
    validation = validation[: len(exact)]

    def prove(graph: Path, precision: Any) -> Proof:
        engine = OpenVinoEngine(graph, precision=precision, threads=config.threads)
        return proof(model.handler, exact, ask(task, validation, engine), wanted.least)

    proofs: dict[str, Proof] = {}
    made: int8.Int8 | None = None
    if is_trained and "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        proofs["bf16"] = prove(folder / GRAPH, "bf16")
    if wanted.precision == "int8":
        # What stays in floating point is bf16 where the processor has it, as in a worker.
        made = int8.make(
            folder,
            out,
            arrays,
            lambda graph: prove(graph, "int8"),
            is_transformer=model.handler not in IMAGES,
            say=say,
        )
        proofs["int8"] = made.proof
        _check(model, made, proofs.get("bf16"), is_trained=is_trained)
    _write(out, proofs, made)


def _inputs(model: Model, wanted: Wanted, task: Any, say: Say) -> tuple[list[Any], list[Any]]:
    """Decode what is to calibrate and what is to validate.

    Raises:
        InvalidConfig: there is too little of it.
    """
    given = [None if path is None else _read(model, path, task, say) for path in (wanted.calibrate, wanted.validate)]
    calibration, validation = given
    if calibration is not None and len(calibration) < TUNING.fewest:
        raise InvalidConfig(
            f"{model.name}: --calibrate: {len(calibration)} inputs; at least {TUNING.fewest} are needed"
        )
    if calibration is not None and validation is None:
        calibration, validation = split(calibration)
    if validation is None:
        items = task.prepare([task.decode(each) for each in samples.payloads(model)])
        validation = [item for item in items if not isinstance(item, ItemError)]
    return (calibration or [])[: TUNING.most], validation[: TUNING.most]


def _read(model: Model, path: Path, task: Any, say: Say) -> list[Any]:
    """Decode a folder's files or a file's lines, in an order that a seed decides."""
    inputs = some(listed(path))
    items, refused = decoded(task, inputs, is_text=model.handler not in IMAGES)
    if line := left_out(path, len(inputs), refused):
        say(line)
    return items


def _calibrating(task: Any, items: Sequence[Any]) -> list[Any]:
    """Give the model's inputs of the items that calibrate: as many as the time allows."""
    first = items[: int8.TUNING.ranking_samples]
    # Once before it counts: the engine prepares itself for a shape.
    ask(task, first, task.engine)
    started = time.perf_counter()
    ask(task, first, task.engine)
    count = int8.calibrating(len(items), (time.perf_counter() - started) / len(first))
    return [task.collate([item]) for item in items[:count]]


def _check(model: Model, made: int8.Int8, bf16: Proof | None, *, is_trained: bool) -> None:
    """Check that an int8 graph is as near as was asked for.

    Raises:
        InvalidConfig: it is not; the figures are in it.
    """
    if made.proof.holds:
        return
    tried = f"; with {len(made.kept)} of {made.layers} layers in floating point" if made.kept else ""
    why = "" if is_trained else "; the weights are random: --min-agreement 0 builds it all the same"
    # Layers in floating point are in bf16, and so the whole of them is the best that a search can come to.
    most = "" if bf16 is None or bf16.holds else f"; bf16, too, has {bf16.agreement:.4f} on these inputs"
    raise InvalidConfig(
        f"{model.name}: int8: {made.proof}{tried}: less than --min-agreement {made.proof.least:g}, so nothing was "
        f"built{most}{why}"
    )


def _write(out: Path, proofs: Mapping[str, Proof], made: int8.Int8 | None = None) -> None:
    (out / PROOFS).write_text(json.dumps({name: each.to_json() for name, each in proofs.items()}), encoding="utf-8")
    if made is not None:
        label = {"int8_calibrated_on": made.calibrated, "int8_layers_in_floating_point": len(made.kept)}
        (out / LABEL).write_text(json.dumps(label), encoding="utf-8")
