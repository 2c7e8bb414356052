"""Serves the graph with BentoML, in .extras/peers: `bentoml serve load.bench.serve_bentoml:Network`.

BentoML's own way to send an array is JSON, which costs it more than all else of a small model. A descriptor reads and
writes raw float32 instead. Its adaptive batching has no limit of latency that it would drop requests for.
"""

from typing import Any

import bentoml
import numpy as np
from bentoml import IODescriptor
from starlette.requests import Request
from starlette.responses import Response

from load.bench.peer_graph import MOST_S, Given

GIVEN = Given.from_environment()


class Row(IODescriptor):  # type: ignore[misc]
    """One row as bytes; BentoML's batches are of arrays with the batch dimension."""

    __root_input__ = True

    @classmethod
    async def from_http_request(cls, request: Request, serde: Any) -> Any:  # noqa: ARG003
        return np.frombuffer(await request.body(), np.float32).reshape(1, *GIVEN.shape)

    @classmethod
    async def to_http_response(cls, obj: Any, serde: Any) -> Response:  # noqa: ARG003
        return Response(obj.tobytes(), media_type="application/octet-stream")


BATCHES = {"batchable": True, "max_batch_size": GIVEN.batch_size, "max_latency_ms": int(MOST_S * 1e3)}
QUIET = {"metrics": {"enabled": False}, "logging": {"access": {"enabled": False}}}


@bentoml.service(workers=GIVEN.copies, threads=1, traffic={"timeout": MOST_S}, **QUIET)
class Network:
    """The model."""

    def __init__(self) -> None:
        self._run = GIVEN.run()

    @bentoml.api(input_spec=Row, output_spec=Row, **BATCHES)  # type: ignore[untyped-decorator]
    def infer(self, rows: Any) -> Any:
        return self._run(rows)
