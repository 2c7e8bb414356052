"""Asks batch2, which takes two rows at a time, about five, with a client shaped as PyTriton's.

    python -m examples.client.pytriton [ADDRESS]

The model is examples/batch2: `./archive.sh batch2`. A program of PyTriton's moves here by its import line.
"""

import sys

import numpy as np

from torchserve_client.pytriton import ChunkingClient, FuturesModelClient
from torchserve_client.pytriton.exceptions import PyTritonClientInferenceServerError

ROWS = np.arange(5, dtype=np.int32).reshape(5, 1)


def main(address: str = "localhost") -> None:
    """Print what each chunk gave, in order; then what becomes of too many rows at once."""
    with ChunkingClient(address, "batch2") as client:
        for future in client.infer_batch(INPUT_1=ROWS):
            print(future.result()["OUTPUT_1"].tolist())
    with FuturesModelClient(address, "batch2") as client:
        try:
            client.infer_batch(ROWS[:4]).result()
        except PyTritonClientInferenceServerError as error:
            print(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
