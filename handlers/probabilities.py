"""Turn logits into probabilities. Pure numpy.

logits (..., classes) -> softmax -> probabilities that sum to 1 along the last axis
logits (...)          -> sigmoid -> an independent probability of each
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Real = TypeVar("Real", bound=np.floating[Any])
Function = Literal["sigmoid", "softmax", "none"]


def softmax(logits: NDArray[Real]) -> NDArray[Real]:
    """Turn the logits of exclusive classes, on the last axis, into probabilities of equal shape and dtype."""
    # Without the largest, so that no exponential overflows.
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def sigmoid(logits: NDArray[Real]) -> NDArray[Real]:
    """Turn each logit into an independent probability, 1 / (1 + exp(-x)), of equal shape and dtype."""
    # By log(1 + exp(-x)) as one function, so that no exponential overflows.
    return np.asarray(np.exp(-np.logaddexp(0, -logits)))


def function_of(problem_type: str | None, labels: int) -> Function:
    """Choose the function of transformers' pipelines; a single label is a probability if the model states no type."""
    if problem_type == "regression":
        return "none"
    return "sigmoid" if problem_type == "multi_label_classification" or labels == 1 else "softmax"


def scores_of_rows(logits: NDArray[Real], functions: Sequence[str]) -> NDArray[Real]:
    """Turn each row of logits, (B, classes), into scores by its own function."""
    found = np.empty_like(logits)
    for function in set(functions):
        rows = [index for index, each in enumerate(functions) if each == function]
        found[rows] = scores(logits[rows], function)
    return found


def scores(logits: NDArray[Real], function: str) -> NDArray[Real]:
    if function == "sigmoid":
        return sigmoid(logits)
    return softmax(logits) if function == "softmax" else logits
