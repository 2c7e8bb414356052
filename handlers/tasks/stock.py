"""Runs the handler of a stock archive unchanged, TorchServe's or one on BaseHandler; each request has its own error.

row, headers -> the old handler, with the other rows of the micro-batch -> its answer, status and headers

A micro-batch whose handler raises, or returns a wrong number of answers, runs again in halves, down to the request at
fault. So a handler may see a request more than once; one that answers only the first row receives rows one by one.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import torch

from handlers.base import BatchHandler
from handlers.engines import Arrays, Engine, Outputs
from handlers.engines.function import FunctionEngine
from handlers.errors import BodyTooLarge, ItemError, WrongOutput
from handlers.original_archive import (
    ORIGINAL,
    OriginalArchive,
    OriginalResponse,
    OriginalRow,
    StockConfig,
    decode_values,
)
from handlers.pipeline.values import Inputs, Results
from handlers.protocol.requests import Payload, Request
from handlers.protocol.responses import OneItem, Response
from handlers.protocol.rows import Headers
from handlers.protocol.tensors import make_objects
from handlers.torchserve import STOCK_PRECISION


class StockHandler(BatchHandler[StockConfig, OriginalRow]):
    """Serves the files of an old archive, original/: its MAR-INF/MANIFEST.json names its handler."""

    config_class = StockConfig
    inputs = Inputs(frozenset({"data"}), in_threads=False)
    results = Results(is_repeatable=False)  # the old handler decides

    class AsReturned:
        """The form of an answer that the old handler has written."""

        def pack(self, results: Sequence[Any]) -> Response:
            (result,) = results
            if isinstance(result, ItemError):
                return OneItem().pack(results)
            return Response(result.status, result.body, result.content_type, result.headers)

    def initialize(self, context: object) -> None:
        """See `BatchHandler.initialize`; the old handler's own gets TorchServe's context of its archive."""
        self._context = context
        super().initialize(context)

    def load(self) -> Engine:
        torch.set_float32_matmul_precision(STOCK_PRECISION)
        self.original = OriginalArchive(self._context, self.archive.model_dir / ORIGINAL)
        return FunctionEngine(self.run, ["rows"])

    def sample(self) -> None:
        """Return nothing: the inputs of the old handler are unknown."""
        return

    def unpack(self, row: Mapping[str, object], headers: Headers) -> Request:
        """Take the whole row for one item."""
        size = sum(len(value) for value in row.values() if isinstance(value, bytes | bytearray | str))
        if size > (limit := self.config.max_body_bytes):
            error = BodyTooLarge(f"The body has {size} bytes; max_body_bytes is {limit}.")
            return Request((ItemError.of(error),), self.AsReturned())
        return Request((Payload({"row": row, "headers": headers.sent}),), self.AsReturned())

    def decode(self, payload: Payload) -> OriginalRow:
        """Return the row as the old handler expects it; all other decoding is its own."""
        value: Any = payload.value
        row = OriginalRow(value["row"], value["headers"])
        return decode_values(row) if self.config.decode_input_request else row

    def collate(self, items: Sequence[OriginalRow]) -> Arrays:
        """Put the rows into an array of objects, (B,)."""
        return {"rows": make_objects(items)}

    def run(self, rows: Sequence[OriginalRow]) -> Outputs:
        responses = self.original.handle([*rows])
        for response in responses:
            if isinstance(response, OriginalResponse) and response.status not in [*HTTPStatus]:
                raise WrongOutput(f"The handler set the status {response.status}, which is not one of HTTP.")
        return {"responses": make_objects(responses)}

    def split(self, outputs: Outputs, items: Sequence[OriginalRow]) -> Sequence[object]:  # noqa: ARG002
        return [*outputs["responses"]]
