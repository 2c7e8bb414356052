"""A model that doubles numbers and accepts two rows a request, to try chunking with."""

import numpy as np


def infer(INPUT_1: np.ndarray) -> dict[str, np.ndarray]:  # noqa: N803 - requests name it so
    """INPUT_1 (B, 1) int32 -> OUTPUT_1 (B, 1) int32."""
    return {"OUTPUT_1": INPUT_1 * 2}
