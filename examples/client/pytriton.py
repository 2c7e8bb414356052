"""Sends five rows to batch2, which accepts two at a time, with PyTriton's client, through the gateway.

    .extras/pytriton/bin/python -m examples.client.pytriton [http://HOST:8000 | grpc://HOST:8001]

The model is examples/batch2: `torchserve-batching archive batch2`. PyTriton does not work with NumPy 2, so it needs
a separate environment: `make bench ONLY=peers` builds one, or use `pip install nvidia-pytriton`.
"""

import sys

import numpy as np
from pytriton.client import FuturesModelClient, ModelClient
from pytriton.client.exceptions import PyTritonClientInferenceServerError

MODEL, ROWS = "batch2", np.arange(5, dtype=np.int32).reshape(5, 1)


def main(url: str = "http://localhost:8000") -> None:
    """Print the error of too many rows, and then the result of each chunk, in order."""
    with ModelClient(url, MODEL) as client:
        size = client.model_config.max_batch_size
        try:
            client.infer_batch(ROWS[: 2 * size])
        except PyTritonClientInferenceServerError as error:
            print(error)
    # The second thread of PyTriton 0.7.0's FuturesModelClient forgets grpc:// and speaks HTTP.
    with FuturesModelClient(url, MODEL, max_workers=1 if url.startswith("grpc:") else None) as client:
        chunks = [client.infer_batch(ROWS[start : start + size]) for start in range(0, len(ROWS), size)]
        for future in chunks:
            print(future.result()["OUTPUT_1"].tolist())


if __name__ == "__main__":
    main(*sys.argv[1:])
