"""Answers of an archive compared with those of the library that owns its model: one shape for all kinds of models.

samples, each with its exact answer -> the archive's task, samples one by one and in micro-batches -> the largest error
                                                                                                  -> failures in words

An exact answer is that of a single sample in fp32. Texts and images are compared so; models of tensors, which have no
task as they are built, use `relative_error` on their own runs.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from handlers.errors import reason
from handlers.pipeline.task import Task as Served

Array = NDArray[Any]
Key = TypeVar("Key", int, tuple[int, int])  # of a sample

# The largest error, as a share of the largest number of an output; sums in fp32 differ by a hundredth of that.
TOLERANCE = 1e-3


class Sample(NamedTuple):
    """An input of a task, with a measure of the outputs' error for each answer that its model may return."""

    name: str
    item: object
    measures: Sequence[Callable[[Sequence[Array]], float]]


@dataclass(slots=True)
class Outcome(Generic[Key]):
    """The samples that agree, and the first failure of each other one, in words."""

    largest_error: float = 0.0
    agreed: set[Key] = field(default_factory=set)
    failures: dict[Key, str] = field(default_factory=dict)
    # Failures of samples whose model has several answers: rounding chooses among them.
    tied: dict[Key, str] = field(default_factory=dict)


def relative_error(got: Array, exact: Array, scale: float | None = None) -> float:
    """Return the largest error as a share of the largest exact number; infinity for other NaN or unequal integers."""
    if got.shape != exact.shape or got.dtype.kind != "f" or exact.dtype.kind != "f":
        return 0.0 if np.array_equal(got, exact) else math.inf
    finite = np.isfinite(exact)
    if not np.array_equal(np.isfinite(got), finite) or not np.array_equal(got[~finite], exact[~finite], equal_nan=True):
        return math.inf
    ours, theirs = got[finite].astype(np.float64), exact[finite].astype(np.float64)
    error = float(np.abs(ours - theirs).max(initial=0.0))
    scale = float(np.abs(theirs).max(initial=0.0)) if scale is None else scale
    return error / scale if scale else math.inf if error else 0.0


def compare_samples(
    task: Served, samples: Mapping[Key, Sample], groups: Iterable[Sequence[Key]], *, kind: str, owner: str
) -> Outcome[Key]:
    """Run groups of samples, and compare each answer with the exact one."""
    outcome = Outcome[Key]()
    for group in _split_groups(task, samples, groups):
        items: list[object] = [samples[key].item for key in group]
        names = ", ".join(samples[key].name for key in group)
        try:
            outputs = [*task.forward(task.collate(items), items).values()]
            if any(len(array) != len(items) for array in outputs):
                raise ValueError(f"it returns {[len(array) for array in outputs]} rows for {len(items)}")
        except Exception as error:
            outcome.failures.setdefault(max(group), f"fails on {kind} {names}: {reason(error)}")
            continue
        for at, key in enumerate(group):
            sample = samples[key]
            found = min(measure([array[at] for array in outputs]) for measure in sample.measures)
            if found <= TOLERANCE:
                outcome.largest_error = max(outcome.largest_error, found)
                outcome.agreed.add(key)
                continue
            beside = f" in a micro-batch of {names}" if len(group) > 1 else ""
            words = f"differs from {owner} by {found:.2g} of the largest number on {kind} {sample.name}{beside}"
            (outcome.tied if len(sample.measures) > 1 else outcome.failures).setdefault(key, words)
    return outcome


def _split_groups(
    task: Served, samples: Mapping[Key, Sample], groups: Iterable[Sequence[Key]]
) -> Iterator[Sequence[Key]]:
    """Split groups into those that may share a micro-batch."""
    for group in groups:
        kinds = {key: task.cost(samples[key].item).group for key in group}
        for kind in dict.fromkeys(kinds.values()):
            yield [key for key in group if kinds[key] == kind]
