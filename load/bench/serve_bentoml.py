"""Serves the graph with BentoML, in .extras/peers: `bentoml serve load.bench.serve_bentoml:Network`.

BentoML sends arrays as JSON by default, which costs more than a small model. A descriptor reads and writes raw float32
instead. `max_latency_ms` bounds the wait of its adaptive batching.
"""

from typing import Any

import bentoml
import numpy as np
from bentoml import IODescriptor
from starlette.requests import Request
from starlette.responses import Response

from load.bench.peer_graph import TIMEOUT_S, PeerGraph

GRAPH = PeerGraph.from_environment()


class Row(IODescriptor):  # type: ignore[misc]
    """One row as bytes; BentoML batches arrays along their first dimension."""

    __root_input__ = True

    @classmethod
    async def from_http_request(cls, request: Request, serde: Any) -> Any:  # noqa: ARG003
        return np.frombuffer(await request.body(), np.float32).reshape(1, *GRAPH.shape)

    @classmethod
    async def to_http_response(cls, obj: Any, serde: Any) -> Response:  # noqa: ARG003
        return Response(obj.tobytes(), media_type="application/octet-stream")


BATCHES = {"batchable": True, "max_batch_size": GRAPH.batch_size, "max_latency_ms": int(GRAPH.wait_ms)}
QUIET = {"metrics": {"enabled": False}, "logging": {"access": {"enabled": False}}}


@bentoml.service(workers=GRAPH.copies, threads=1, traffic={"timeout": TIMEOUT_S}, **QUIET)
class Network:
    def __init__(self) -> None:
        self._run = GRAPH.compile()

    @bentoml.api(input_spec=Row, output_spec=Row, **BATCHES)  # type: ignore[untyped-decorator]
    def infer(self, rows: Any) -> Any:
        return self._run(rows)
