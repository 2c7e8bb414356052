"""The check that an archive answers as its model does, without which it is not built; its precisions, and their proofs.

files of an archive -> the task, loaded as a worker does, in fp32 -> samples, one by one and in micro-batches
the model           -> the library that owns it                   -> samples one by one -> nearly equal?

files of an archive, inputs -> answers in fp32 -> answers in bf16, if the processor has it -> proof
                                               -> int8, on request                         -> proof, or a rejection
samples of this project     -> answers in fp32 -> precision-samples.npz, for workers on other processors
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deploy.archives.precision import inputs
from deploy.archives.precision.inputs import FEWEST, MOST, MOST_VALIDATING, DecodedInput, fit_sample
from deploy.archives.precision.request import PrecisionRequest
from deploy.archives.sources import Source
from deploy.archives.tasks import import_quietly, load_task, task_class, task_of
from deploy.models import Engine as Choice
from deploy.models import ModelEntry
from deploy.rooms import open_room
from handlers.archive_files import FIDELITY, GRAPH, INT8_GRAPH, LABEL, PROOFS
from handlers.config import parse
from handlers.engines import Arrays, Engine
from handlers.engines.openvino import OpenVinoEngine
from handlers.errors import InvalidConfig, Unfaithful, reason
from handlers.pipeline.task import Task as Served
from handlers.pipeline.task import inputs_of, samples_of
from handlers.precision.answers import answer_items, exact_settings, kind_of, make_proof
from handlers.precision.samples import SAMPLES, Samples, name_place
from handlers.proofs import Proof
from handlers.warm_up import decode_items, run

EXACT_S = 120.0  # the most seconds of answers in fp32 that validate; the first micro-batch is always answered
STATISTICS_S = 60.0  # the most seconds of the inputs that calibrate
# The cost of an input that calibrates, in answers in fp32: 4 with ResNet-152, 7 with MobileNetV2.
STATISTICS_RUNS = 8.0
LEAST_CALIBRATING = 32  # the fewest inputs that calibrate, however long they take; more hardly move the ranges
KEPT_S = 20.0  # the most seconds of answers in fp32 to the samples that the archive keeps
TIMED = 8  # inputs that time an answer in fp32


def make(model: ModelEntry, request: PrecisionRequest, folder: Path, out: Path, *, is_trained: bool) -> None:
    """Write proofs.json, samples for other processors, and on request the int8 graph and label.json, into `out`."""
    config = parse(task_of(model).settings_class(), model.config().get("handler"))
    kind = task_class(model.handler).answer_kind
    task = load_task(model.handler, folder, exact_settings(kind, config))
    calibration, validation = _read_inputs(model, request, task)
    engine = task.engine  # in fp32; `prove` gives the task other engines
    arrays = _collate_calibration(task, calibration) if calibration else []
    items = [each.item for each in validation]
    exact = answer_items(task, items, engine, EXACT_S)
    items, right = items[: len(exact)], _match_labels(model, validation[: len(exact)], task)

    def prove(other: Engine) -> Proof:
        return make_proof(kind_of(task), exact, answer_items(task, items, other), request.least, right)

    proofs: dict[str, Proof] = {}
    is_tried = is_trained and config.precision in ("auto", "bf16")
    if is_tried and "bf16" in OpenVinoEngine(folder / GRAPH, threads=config.threads).precisions:
        proofs["bf16"] = prove(engine.in_precision("bf16"))
    if request.precision is not None:

        def prove_graph(graph: Path) -> Proof:
            # As in a worker, the parts in floating point are bf16 if the processor has it.
            return prove(OpenVinoEngine(graph, precision="int8", threads=config.threads))

        int8 = open_room("int8")
        proofs["int8"] = int8.make(model, folder / GRAPH, out / INT8_GRAPH, arrays, prove_graph)
        int8.check_proof(model, request, proofs, is_trained=is_trained)
    if config.precision != "fp32" or request.precision is not None:
        _keep_samples(model, task, engine, request.least, out)
    _write(out, proofs, len(arrays) if request.precision else None)


def _print(model: ModelEntry, line: str) -> None:
    print(f"{model.name}: {line}", flush=True)  # flushed, since the next line may be a minute away


def _read_inputs(model: ModelEntry, request: PrecisionRequest, task: Served) -> tuple[list[object], list[DecodedInput]]:
    """Decode the inputs that calibrate and those that validate; InvalidConfig if there are too few."""
    given = [None if path is None else _read(model, path, task) for path in (request.calibrate, request.validate)]
    calibration, validation = given
    if calibration is not None and len(calibration) < FEWEST:
        raise InvalidConfig(f"{model.name}: --calibrate: {len(calibration)} inputs; at least {FEWEST} are needed")
    if calibration is not None and validation is None:
        calibration, validation = inputs.split(calibration)
    if validation is None:
        samples = (fit_sample(task, each) for each in inputs.make_sample_payloads(model, inputs_of(task).fields))
        validation = [DecodedInput(sample[0], None) for sample in samples if sample]
    return [each.item for each in (calibration or [])[:MOST]], validation[:MOST_VALIDATING]


def _keep_samples(model: ModelEntry, task: Served, engine: Engine, least: float | None, out: Path) -> None:
    """Write samples and their answers in fp32, for workers on another kind of processor."""
    kept = inputs.make_kept_payloads(model, inputs_of(task).fields)
    samples = [sample for each in kept if (sample := fit_sample(task, each))]
    answers = answer_items(task, [item for item, _ in samples], engine, KEPT_S)
    payloads = [payload for _, payload in samples[: len(answers)]]
    Samples(name_place(), least, payloads, answers).write(out / SAMPLES)


def _match_labels(model: ModelEntry, validation: Sequence[DecodedInput], task: Any) -> list[int] | None:
    """Return the numbers of the right classes, if an input of the task has one and all inputs have labels."""
    if not kind_of(task).has_classes or getattr(task, "function", None) == "sigmoid":
        return None
    names = task.labels.values() if isinstance(task.labels, Mapping) else task.labels
    try:
        return inputs.match_labels(validation, [*names])
    except InvalidConfig as error:
        raise InvalidConfig(f"{model.name}: {error}") from None


def _read(model: ModelEntry, path: Path, task: Served) -> list[DecodedInput]:
    """Decode a folder's files or a file's lines, in an order by a seed."""
    given = inputs.draw(inputs.list_inputs(path))
    items, rejected = inputs.decode_inputs(task, given, is_text=task_of(model).samples != "images")
    if line := inputs.describe_rejections(path, len(given), rejected):
        _print(model, line)
    return items


def _collate_calibration(task: Served, items: Sequence[object]) -> list[Arrays]:
    """Return the model's inputs for as many items as the time allows."""
    first = items[:TIMED]
    # The first run, in which the engine prepares itself for a shape, does not count.
    answer_items(task, first, task.engine)
    started = time.perf_counter()
    answer_items(task, first, task.engine)
    answer_s = (time.perf_counter() - started) / len(first)
    count = max(LEAST_CALIBRATING, int(STATISTICS_S / (STATISTICS_RUNS * answer_s)))
    return [task.collate([item]) for item in items[:count]]


def _write(out: Path, proofs: Mapping[str, Proof], calibrated: int | None = None) -> None:
    (out / PROOFS).write_text(json.dumps({name: each.to_json() for name, each in proofs.items()}), encoding="utf-8")
    if calibrated is not None:
        (out / LABEL).write_text(json.dumps({"int8_calibrated_on": calibrated}), encoding="utf-8")


def check(model: ModelEntry, origin: Source, engine: Choice, folder: Path, out: Path) -> None:
    """Compare an archive's answers; write the words, the error and the settings that it needs to fidelity.json."""
    config = parse(task_of(model).settings_class(), model.config().get("handler"))
    is_compared = task_of(model).samples is not None
    runs: Choice = "torch" if engine == "torch" else "openvino"
    settings = replace(config, engine=runs if is_compared else engine, precision="fp32" if is_compared else "auto")
    name = "PyTorch" if engine == "torch" else "OpenVINO" if is_compared else "its engine"
    try:
        task = load_task(model.handler, folder, settings)
        if samples := samples_of(task):
            run(task, decode_items(task, samples[:1]))
    except InvalidConfig:
        raise
    except Exception as error:
        raise Unfaithful(f"{name} cannot answer a sample: {reason(error)}") from error
    if not is_compared:
        (out / FIDELITY).write_text("{}")
        return
    kind = "image_fidelity" if task_of(model).samples == "images" else "text_fidelity"
    words, largest = import_quietly(f"deploy.archives.precision.{kind}").check(model, origin, config, task, name)
    padding = getattr(task.config, "padding", None)
    needed = {} if padding == getattr(config, "padding", None) else {"padding": padding}
    (out / FIDELITY).write_text(
        json.dumps({"said": words, "engine": runs, "largest_error": largest, "settings": needed})
    )
