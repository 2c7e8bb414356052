"""How near answers in one precision are to those in fp32, on inputs that nothing has seen. Pure.

probabilities, or vectors: fp32's, another precision's -> Nearness

A second way to the figures of an archive's proof (handlers.proofs): from the engine's numbers, without the task.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Nearness(NamedTuple):
    """What differs.

    Attributes:
        mean: the share of inputs with the same likeliest class, 0..1; of vectors the mean cosine.
        worst: the largest change of a probability; of vectors the least cosine.
    """

    mean: float
    worst: float


def of_classes(expected: NDArray[np.float32], found: NDArray[np.float32]) -> Nearness:
    """Compare probabilities, (N, classes), row by row."""
    same = expected.argmax(axis=1) == found.argmax(axis=1)
    return Nearness(float(same.mean()), float(np.abs(expected - found).max()))


def of_vectors(expected: NDArray[np.float32], found: NDArray[np.float32]) -> Nearness:
    """Compare vectors, (N, D), row by row."""
    lengths = np.linalg.norm(expected, axis=1) * np.linalg.norm(found, axis=1)
    cosines = (expected * found).sum(axis=1) / lengths
    return Nearness(float(cosines.mean()), float(cosines.min()))
