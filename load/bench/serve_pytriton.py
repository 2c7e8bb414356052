"""Serves the graph with PyTriton, in .extras/pytriton: `python -m load.bench.serve_pytriton PORT`.

Triton's own dynamic batching, which waits no longer than ours does; a copy of the graph is a function in its process.
"""

import sys
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from tritonclient.utils import InferenceServerException

from load.bench.peer_graph import INPUT, OUTPUT, Given

NAME = "network"
# What a batch waits: ours waits 1 ms.
DELAY_US = 1000


def main(port: int) -> None:
    """Serve until a signal ends it."""
    given = Given.from_environment()

    def worker() -> Any:
        run = given.run()
        return batch(lambda **tensors: {OUTPUT: run(tensors[INPUT])})

    config = TritonConfig(http_address="127.0.0.1", http_port=port, allow_grpc=False, allow_metrics=False)
    with Triton(config=config) as server:
        server.bind(
            model_name=NAME,
            infer_func=[worker() for _ in range(given.copies)],
            inputs=[Tensor(name=INPUT, dtype=np.float32, shape=given.shape)],
            outputs=[Tensor(name=OUTPUT, dtype=np.float32, shape=(given.scores,))],
            config=ModelConfig(
                max_batch_size=given.batch_size, batcher=DynamicBatcher(max_queue_delay_microseconds=DELAY_US)
            ),
        )
        server.serve()


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except InferenceServerException:
        # On a busy machine Triton asks for the model's settings before PyTriton listens.
        main(int(sys.argv[1]))
