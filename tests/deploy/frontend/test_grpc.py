"""Triton's gRPC service of all models: messages are bounded before protobuf parses them."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tritonclient.grpc.service_pb2 import ModelInferRequest

from deploy.frontend.grpc import Service
from deploy.frontend.routes import Models
from tests.deploy.frontend.test_routes import texts

MOST = 1_000_000


@pytest.mark.parametrize(
    ("message", "words"),
    [
        # An empty tensor takes two bytes here and a hundred once it is read.
        (b"\x2a\x00" * 100_000, "more than 1000 tensors"),
        (b"\x78\x9c" + bytes(9), "not valid gzip or zlib"),
        (b"\xff" * 20, "not a valid ModelInferRequest"),
    ],
)
def test_hostile_message_is_refused_before_it_is_parsed(message: bytes, words: str) -> None:
    found: dict[str, Any] = {}
    context = SimpleNamespace(
        invocation_metadata=tuple,
        set_code=lambda code: found.update(code=code),
        set_details=lambda details: found.update(details=details),
    )
    service: Any = Service(Models({"texts": texts}, None, MOST))
    assert asyncio.run(service.ModelInfer(message, context)) == b""
    assert found["code"] == grpc.StatusCode.INVALID_ARGUMENT and words in found["details"]
    found.clear()
    asyncio.run(service.ModelInfer(ModelInferRequest(model_name="texts").SerializeToString(), context))
    assert not found
