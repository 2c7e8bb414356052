"""A model whose max_batch_size is 2, to try chunking with: it doubles numbers."""

import numpy as np


def infer(INPUT_1: np.ndarray) -> dict[str, np.ndarray]:  # noqa: N803 - requests name it so
    """INPUT_1 (B, 1) int32 -> OUTPUT_1 (B, 1) int32."""
    return {"OUTPUT_1": INPUT_1 * 2}
