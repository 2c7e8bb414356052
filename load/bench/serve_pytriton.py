"""Serves the graph with PyTriton, in .extras/pytriton: `python -m load.bench.serve_pytriton PORT`.

It uses Triton's dynamic batching; a copy of the graph is a function in its process.
"""

import sys
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from tritonclient.utils import InferenceServerException

from load.bench.peer_graph import INPUT, OUTPUT, PeerGraph

NAME = "network"


def main(port: int) -> None:
    graph = PeerGraph.from_environment()

    def make_copy() -> Any:
        run = graph.compile()
        return batch(lambda **tensors: {OUTPUT: run(tensors[INPUT])})

    config = TritonConfig(http_address="127.0.0.1", http_port=port, allow_grpc=False, allow_metrics=False)
    with Triton(config=config) as server:
        server.bind(
            model_name=NAME,
            infer_func=[make_copy() for _ in range(graph.copies)],
            inputs=[Tensor(name=INPUT, dtype=np.float32, shape=graph.shape)],
            outputs=[Tensor(name=OUTPUT, dtype=np.float32, shape=(graph.scores,))],
            config=ModelConfig(
                max_batch_size=graph.batch_size,
                batcher=DynamicBatcher(max_queue_delay_microseconds=round(1e3 * graph.wait_ms)),
            ),
        )
        server.serve()


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except InferenceServerException:
        # On a busy machine Triton requests the model's settings before PyTriton listens: retry once.
        main(int(sys.argv[1]))
