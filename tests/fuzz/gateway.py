"""Requests that no client should send to the gateway, over HTTP and gRPC, and what must hold of their answers.

seed, number -> http_request -> a path, a Sent -> ask      -> wrong -> what does not hold
             -> grpc_request -> a method, bytes, metadata -> call -> wrong_code -> likewise
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import grpc
from tritonclient.grpc import service_pb2

from tests.fuzz import bodies
from tests.fuzz.checks import CANARIES, CUT_OFF, Received
from tests.fuzz.kinds import KINDS
from tests.fuzz.sent import Sent
from tests.fuzz.served import ask
from tests.fuzz.values import CANARY, LENGTHS, STRANGE, Draw

# Names of models and methods are told; the payload, which has the canary, never is.
SERVICE = "/inference.GRPCInferenceService"
# What may go wrong behind the gateway: no node, a node that dies or refuses, a time that is up.
BEHIND = (502, 503, 504)
TIMEOUT_S = 60
# What a client can bring about by gRPC, as against a bug.
BUGS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)
METHODS = (
    "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig", "ModelStatistics",
    "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings",
    "SystemSharedMemoryStatus", "CudaSharedMemoryRegister", "Nothing", "", "x" * 300,
)  # fmt: skip
ROUTES = (
    "/", "/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v2/models", "/v2/models/{m}",
    "/v2/models/{m}/ready", "/v2/models/{m}/config", "/v2/models/{m}/stats", "/v2/models/stats",
    "/v2/models/{m}/versions/{v}", "/v2/repository/index", "/v2/repository/models/{m}/unload",
    "/v2/systemsharedmemory/status", "/v2/trace/setting", "/predictions", "/predictions/", "/predictions/{x}",
    "/predictions/{m}/{x}", "/predictions/{m}/../../models", "/models/{m}", "/models", "/metrics",
    "/control/nodes", "/control/canaries/{m}", "/summary", "/openapi.json", "/page/{x}", "/page/../control.py",
    "/{x}", "//v2//models//{m}", "/v2/models/{x}/infer", "/ping", "/api-description",
    "/v2/models/{m}/versions/{x}/infer", "/%2e%2e/metrics", "/v2/models/{m}%2finfer", "/explanations/{m}",
    "/wfpredict/{x}",
)  # fmt: skip


class Rpc(NamedTuple):
    """One call by gRPC."""

    method: str
    message: bytes
    metadata: Sequence[tuple[str, str | bytes]]


def http_request(task: str, model: str, seed: int, number: int) -> tuple[str, Sent]:
    """Make a path and a request; most go to the model, the others to whatever else there is or is not."""
    draw = Draw(f"{seed}/gateway/{number}")
    sent = bodies.request(KINDS[task], seed, number)
    if draw.often(0.7):
        path = draw.one(
            f"/predictions/{model}",
            f"/predictions/{model}/1.0",
            f"/v2/models/{model}/infer",
            f"/v2/models/{model}/versions/1/infer",
        )
        return path, sent
    odd = quote(draw.choice(STRANGE) or "x", safe="", errors="replace")[:2000]
    path = draw.choice(ROUTES).format(m=model, v=draw.one("1", "1.0", "7", odd), x=draw.one(odd, "x" * 44, "x" * 5000))
    query = draw.one("", "", f"?{CANARY}", "?customized=true", f"?a={odd}")
    return path + query, sent.but(wire=draw.one("GET", "PUT", ""))


def send(address: str, path: str, sent: Sent) -> Received:
    """Send it; what is cut off has CUT_OFF for its status."""
    base = urlsplit(address)
    return ask(base._replace(path=path), sent)


def wrong(received: Received) -> Iterator[str]:
    """Say what is wrong with an answer over HTTP."""
    if received.status == CUT_OFF:
        return
    if received.status >= 500 and received.status not in (*BEHIND, 501):
        yield f"status {received.status}"
    if received.status >= 400:
        yield from _wrong_form(received)
    if received.status >= 400 and CANARIES.search(received.body.decode("utf-8", "replace")):
        yield f"an error {received.status} that quotes the payload"


def _wrong_form(received: Received) -> Iterator[str]:
    """An error has the project's JSON form, or the protocol's; a list has an error for each item.

    Of a message of gRPC, which came without its bridge here, the headers that the bridge reads have it.
    """
    if received.content_type == "application/x-protobuf":
        if "x-grpc-message" not in {name.lower() for name in received.headers}:
            yield f"an error {received.status} of a message without X-Grpc-Message"
        return
    try:
        document: Any = json.loads(received.body)
    except ValueError:
        yield f"an error {received.status} that is no JSON: {received.body[:60]!r}"
        return
    if not isinstance(document, dict) or not (
        document.keys() in ({"error"}, {"code", "type", "message"}) or "predictions" in document
    ):
        yield f"an error {received.status} of another form"


def grpc_request(model: str, seed: int, number: int) -> Rpc:
    """Make a call: a message of inference that was changed, or any bytes, to any method."""
    draw = Draw(f"{seed}/gateway grpc/{number}")
    metadata: list[tuple[str, str | bytes]] = []
    if draw.often(0.2):
        odd: dict[str, str | bytes] = {
            "x-timeout-ms": draw.one("60000", "-1", "soon"),
            "x-priority": draw.one("1", "4", CANARY),
            "x-model-metadata": "1",
            "x-grpc-status": "0",
            "odd-bin": bytes(draw.randrange(256) for _ in range(30)),
            "content-encoding": "gzip",
            "x-long": "x" * 4000,
        }
        metadata.append(draw.choice(list(odd.items())))
    message = draw.of(
        (6, lambda: _infer(model, draw)),
        (2, lambda: _named(model, draw)),
        (1, lambda: bytes(draw.randrange(256) for _ in range(draw.choice(LENGTHS[:13])))),
    )
    if draw.often(0.3) and message:
        message = _changed(draw, message)
    method = "ModelInfer" if draw.often(0.7) else draw.choice(METHODS)
    return Rpc(f"{SERVICE}/{method}", message, metadata)


def call(channel: grpc.Channel, rpc: Rpc) -> tuple[grpc.StatusCode, str]:
    """Make a call; returns its status and what it says."""
    try:
        channel.unary_unary(rpc.method)(rpc.message, timeout=TIMEOUT_S, metadata=rpc.metadata)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def wrong_code(code: grpc.StatusCode, details: str) -> Iterator[str]:
    """Say what is wrong with an answer over gRPC."""
    if code in BUGS:
        yield f"{code.name}: {details[:200]}"
    if CANARIES.search(details):
        yield f"{code.name} that quotes the payload"
    if code is not grpc.StatusCode.OK and not details:
        yield f"{code.name} without a message"


def _infer(model: str, draw: Draw) -> bytes:
    request = service_pb2.ModelInferRequest(
        model_name=draw.one(*[model] * 8, "", "nobody", "x" * 300, model + "/1.0", "../models", "%2e%2e"),
        model_version=draw.one("", "", "1", "1.0", "7", "x", "é" * 300),
        id=draw.one("", "7", CANARY, "é" * 100),
    )
    for _ in range(draw.one(1, 1, 1, 0, 2)):
        rows = draw.one(1, 1, 2, 5, 100)
        datatype = draw.one(*["BYTES"] * 6, "FP32", "INT64", "BF16", "", CANARY)
        shape = draw.one([rows], [rows, 1], [rows, 1], [-1, 1], [0], [], [2**62, 2], [rows, 2])
        given = request.inputs.add(name=draw.one("text", "text", "top_k", "", CANARY), datatype=datatype, shape=shape)
        data = [draw.choice(STRANGE).encode("utf-8", "replace") for _ in range(rows)]
        if draw.often(0.4):
            given.contents.bytes_contents.extend(data)
        if draw.often(0.7):
            raw = b"".join(len(each).to_bytes(draw.one(4, 4, 4, 4, 3), "little") + each for each in data)
            request.raw_input_contents.append(raw)
        if draw.often(0.1):
            given.parameters[draw.one("binary_data_size", "shared_memory_region", CANARY)].string_param = CANARY
    for name in draw.one([], [], ["label"], ["nothing"], [CANARY] * 3):
        request.outputs.add(name=name)
    if draw.often(0.2):
        request.parameters[draw.one("top_k", "priority", "timeout", "sequence_id", CANARY)].int64_param = draw.one(
            0, 1, -1, 2**62
        )
    return bytes(request.SerializeToString())


def _named(model: str, draw: Draw) -> bytes:
    """What most other methods take: name and version, as fields 1 and 2."""
    request = service_pb2.ModelReadyRequest(
        name=draw.one(model, "", "nobody", "x" * 300), version=draw.one("", "1", "7", "é")
    )
    return bytes(request.SerializeToString())


def _changed(draw: Draw, message: bytes) -> bytes:
    value = bytearray(message)
    place = draw.randrange(len(value))
    change = draw.one("cut", "flip", "insert")
    if change == "cut":
        del value[place:]
    elif change == "flip":
        value[place] ^= 1 << draw.randrange(8)
    else:
        value[place:place] = draw.one(b"\xff" * 10, b"\0", b"\x0a\x7f", b"\x08" * 50)
    return bytes(value)
