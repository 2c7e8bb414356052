"""Serves the graph with LitServe, in .extras/peers: `python -m load.bench.serve_litserve PORT`.

Bodies are raw float32; requests reach its worker through its faster queue, ZeroMQ.
"""

import sys
from typing import Annotated, Any

import litserve
import numpy as np
from fastapi import Body, Response

from load.bench.peer_graph import TIMEOUT_S, PeerGraph

RawBody = Annotated[bytes, Body(media_type="application/octet-stream")]  # a body that FastAPI does not parse


class Network(litserve.LitAPI):  # type: ignore[misc]
    def setup(self, device: str) -> None:  # noqa: ARG002
        self._graph = PeerGraph.from_environment()
        self._run = self._graph.compile()

    def decode_request(self, request: RawBody) -> Any:
        return np.frombuffer(request, np.float32).reshape(self._graph.shape)

    def predict(self, rows: Any) -> Any:
        return self._run(rows)

    def encode_response(self, output: Any) -> Response:
        return Response(output.tobytes(), media_type="application/octet-stream")


def main(port: int) -> None:
    graph = PeerGraph.from_environment()
    api = Network(max_batch_size=graph.batch_size, batch_timeout=graph.wait_ms / 1e3)
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=graph.copies, timeout=TIMEOUT_S, fast_queue=True
    )
    quiet = {"log_level": "error", "access_log": False, "generate_client_file": False}
    server.run(host="127.0.0.1", port=port, num_api_servers=graph.copies, **quiet)


if __name__ == "__main__":
    main(int(sys.argv[1]))
