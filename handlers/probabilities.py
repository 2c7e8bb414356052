"""Turn logits into probabilities. Pure numpy.

logits (..., classes) -> softmax -> probabilities that sum to 1 along an axis
logits (...)          -> sigmoid -> a probability by itself for each
"""

from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Real = TypeVar("Real", bound=np.floating[Any])
Function = Literal["sigmoid", "softmax", "none"]


def softmax(logits: NDArray[Real], axis: int = -1) -> NDArray[Real]:
    """Turn the logits of classes that exclude each other into probabilities.

    Args:
        logits: (..., classes, ...) of any float dtype. The largest is subtracted first, so that none overflows.
        axis: the axis of the classes.

    Returns:
        An array of the same shape and dtype, which sums to 1 along `axis`.
    """
    exponentials = np.exp(logits - logits.max(axis=axis, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=axis, keepdims=True))


def sigmoid(logits: NDArray[Real]) -> NDArray[Real]:
    """Turn each logit into a probability of its own: 1 / (1 + exp(-x)).

    Args:
        logits: (...) of any float dtype. No logit overflows: log(1 + exp(-x)) is taken first, as one function.

    Returns:
        An array of the same shape and dtype, between 0 and 1.
    """
    return np.asarray(np.exp(-np.logaddexp(0, -logits)))


def function_of(problem_type: str | None, labels: int) -> Function:
    """Choose what transformers' pipelines apply; one label alone is a probability, unless the model says otherwise."""
    if problem_type == "regression":
        return "none"
    return "sigmoid" if problem_type == "multi_label_classification" or labels == 1 else "softmax"


def scores(logits: NDArray[Real], function: str) -> NDArray[Real]:
    """Apply a function by its name."""
    if function == "sigmoid":
        return sigmoid(logits)
    return softmax(logits) if function == "softmax" else logits
