"""A request's headers, and those of an answer by TorchServe's own gRPC. Pure."""

from collections.abc import Mapping
from typing import Any

# TorchServe 0.12.0 ends the worker whose answer to a StreamPredictions lacks this header. A Predictions takes it too,
# and cannot be told from the other. Over HTTP it would begin a stream, so only answers by gRPC have it.
GRPC_HEADERS = {"ts_stream_next": "false"}


class Headers(dict[str, str]):
    """A request's headers by their names in lower case; none if it came by TorchServe's own gRPC.

    Attributes:
        types: the content type of each field of its form, or of its body, by the field's name.
        sent: the headers as TorchServe has them, in their own case.
    """

    __slots__ = ("sent", "types")

    sent: Mapping[str, Any]

    types: Mapping[str, str]
