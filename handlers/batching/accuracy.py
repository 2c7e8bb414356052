"""The accuracy check of a worker: a precision is used if it was compared with fp32 on this kind of processor.

the build's proofs, if made here | an earlier start's | the archive's samples, run now -> Proof -> used or left out
too few samples in CHECK_S -> left out, at later starts without a run
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from handlers import archive_files
from handlers.batching import measurements
from handlers.engines import Engine
from handlers.errors import InvalidConfig, reason
from handlers.pipeline.task import Task
from handlers.precision.answers import answer_items, kind_of, make_proof
from handlers.precision.samples import Samples, name_place, read_samples
from handlers.proofs import Proof, read_proofs
from handlers.warm_up import decode_items

logger = logging.getLogger(__name__)

LOWER = ("bf16", "fp16", "int8")  # precisions whose answers differ from fp32's
FEWEST = 8  # the fewest compared samples that decide for the starts to come
CHECK_S = 2.0  # the most seconds of runs with all lower precisions together, without their first

EngineIn = Callable[[str], Engine]


class TooSlow(Exception):
    """Too few samples run in a precision within the time of a start."""


def find_proofs(task: Task, precisions: Sequence[str], engine_in: EngineIn) -> dict[str, Proof]:
    """Return the proofs that hold on this processor, or failed on it; precisions without one are missing."""
    lower = [each for each in precisions if each in LOWER]
    if not lower:
        return {}
    try:
        samples = read_samples(task.archive.model_dir, kind_of(task))
    except Exception as error:
        logger.warning("Samples for the accuracy check cannot be read: %s", reason(error))
        return {}
    if samples is None:
        return {}  # proofs without a processor count nowhere
    made = archive_files.load_proofs(task.archive.model_dir) if samples.place == name_place() else {}
    found = {each: proof for each, proof in made.items() if each in lower}
    missing = [each for each in lower if each not in found]
    return found | (_compare_once(task, samples, missing, engine_in) if missing else {})


def choose_precisions(task: Task, precisions: Sequence[str], proofs: Mapping[str, Proof]) -> tuple[str, ...]:
    """Leave out precisions without a proof that is enough, with a line on each; one that a setting names stays.

    InvalidConfig if none is left: a compilation in fp32 that ended a former process is no candidate.
    """
    kept = []
    for each in precisions:
        proof, is_set = proofs.get(each), task.config.precision == each
        if each not in LOWER or (proof is not None and proof.is_enough):
            kept.append(each)
            continue
        use = "Used as `precision` sets it" if is_set else "Not used"
        if proof is not None:
            logger.warning("%s: %s, %s, less than %g on this processor", use, each, proof, proof.least)
        else:
            logger.info("%s: %s, without a comparison with fp32 on this processor", use, each)
        if is_set:
            kept.append(each)
    if not kept:
        names = ", ".join(precisions)
        raise InvalidConfig(
            f"precision: none of {names} agrees with fp32 on this processor, and fp32 cannot be compiled"
        )
    return tuple(kept)


def _compare_once(task: Task, samples: Samples, lower: Sequence[str], engine_in: EngineIn) -> dict[str, Proof]:
    """Compare precisions, unless an earlier start has stored their proofs; workers of one archive take turns."""
    path = measurements.path_for(task, f"proofs {name_place()}") if task.archive.fingerprint else None
    with measurements.lock(path):
        stored, slow = _read_stored(path)
        for each in slow:
            logger.warning("%s: at an earlier start, %s; remove %s to compare again", each, slow[each], path)
        if missing := [each for each in lower if each not in {*stored, *slow}]:
            for each in missing:
                try:
                    stored[each] = _compare(task, samples, engine_in(each), CHECK_S / len(missing))
                    logger.info("Compared %s with fp32 on this processor: %s", each, stored[each])
                except TooSlow as error:
                    slow[each] = str(error)
                    logger.warning("%s: not compared with fp32: %s", each, error)
                except Exception as error:
                    logger.warning("%s: not compared with fp32: %s", each, reason(error))
            if path:
                proofs = {name: proof.to_json() for name, proof in stored.items()}
                measurements.write(path, {"proofs": proofs, "slow": slow})
    return {each: stored[each] for each in lower if each in stored}


def _read_stored(path: Path | None) -> tuple[dict[str, Proof], dict[str, str]]:
    """Return the proofs of earlier starts, and for each precision that was too slow to compare a reason."""
    try:
        stored = measurements.load(path) or {}
        return read_proofs(stored.get("proofs", {})), {str(name): str(why) for name, why in stored["slow"].items()}
    except (ValueError, AttributeError, KeyError):
        return {}, {}


def _compare(task: Task, samples: Samples, engine: Engine, longest_s: float) -> Proof:
    own: Any = copy(task)
    kind = kind_of(task)
    own.config = replace(task.config, **kind.settings)
    items = decode_items(own, samples.payloads)
    if len(items) != len(samples.answers):
        raise ValueError("the task rejects its samples")
    answers = answer_items(own, items, engine, longest_s, kind)
    if len(answers) < FEWEST:
        raise TooSlow(f"only {len(answers)} of {FEWEST} samples in {longest_s:g} s")
    return make_proof(kind, samples.answers[: len(answers)], answers, samples.least)
