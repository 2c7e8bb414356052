"""Where requests go, with a real Envoy."""

import gzip
import hashlib
import random
import socket
import zlib

import grpc
import pytest
import requests

from tests.deploy.gateway.envoy.harness import TIMEOUT_S, Gateway


@pytest.mark.parametrize(
    ("method", "path", "arrives"),
    [
        ("POST", "/predictions/m", "/predictions/m"),
        ("PUT", "/predictions/m", "/predictions/m"),
        ("POST", "/predictions/m/1.0", "/predictions/m/1.0"),
        ("POST", "/predictions/m/2", "/predictions/m/2.0"),
        ("POST", "/v2/models/m/infer", "/predictions/m"),
        ("POST", "/v2/models/m/versions/1/infer", "/predictions/m/1.0"),
        ("POST", "/v2/models/m/versions/2.0/infer", "/predictions/m/2.0"),
    ],
)
def test_inference_arrives_at_a_node(gateway: Gateway, method: str, path: str, arrives: str) -> None:
    told = gateway.told(method, path, data=b"x" * 10)
    assert (told["by"][:5], told["method"], told["path"], told["bytes"]) == ("node-", method, arrives, 10)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/page/app.js"),
        ("GET", "/openapi.json"),
        ("GET", "/summary"),
        ("GET", "/v2"),
        ("GET", "/v2/health/ready"),
        ("GET", "/v2/models/m"),
        ("GET", "/v2/models/m/versions/1/config"),
        ("POST", "/v2/models/unknown/infer"),
        ("POST", "/v2/models/m/versions/3/infer"),
    ],
)
def test_what_is_asked_about_models_arrives_at_the_control_process(gateway: Gateway, method: str, path: str) -> None:
    told = gateway.told(method, path)
    assert (told["by"], told["method"], told["path"]) == ("control", method, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/control/nodes"),
        ("GET", "/metrics"),
        ("GET", "/models"),
        ("GET", "/models/m?customized=true"),
        ("POST", "/models?url=m.mar"),
        ("POST", "/predictions/unknown"),
        ("POST", "/predictions/m/3"),
        ("POST", "/predictions/m/1.0/more"),
        ("POST", "/invocations"),
        ("OPTIONS", "/predictions/m"),
        ("GET", "/ping"),
        ("GET", "/pages"),
        ("POST", "/inference.GRPCInferenceService/ModelInfer"),
    ],
)
def test_everything_else_is_not_found(gateway: Gateway, method: str, path: str) -> None:
    answer = gateway.ask(method, path)
    assert answer.status_code == 404
    assert answer.json() == {
        "code": 404,
        "type": "NotFound",
        "message": "Neither this path nor this model is served.",
    }


def test_repository_is_not_found_without_management(gateway: Gateway) -> None:
    answer = gateway.ask("POST", "/v2/repository/index")
    assert (answer.status_code, list(answer.json())) == (404, ["error"])


@pytest.mark.parametrize(
    ("message", "arrives"),
    [
        (b"\x0a\x01m", "/predictions/m"),
        (b"\x0a\x01m\x12\x011", "/predictions/m/1.0"),
        (b"\x0a\x01m\x12\x032.0", "/predictions/m/2.0"),
        # An id before the name, and a tensor's bytes that look like a name.
        (b"\x1a\x02id\x3a\x03\x0a\x01x\x0a\x01m", "/predictions/m"),
        (b"\x0a\x07unknown", "/inference.GRPCInferenceService/ModelInfer"),
        (b"\x0a\x03a/b", "/inference.GRPCInferenceService/ModelInfer"),
    ],
)
def test_grpc_inference_arrives_as_a_post_of_its_message(gateway: Gateway, message: bytes, arrives: str) -> None:
    answer, told = gateway.call("ModelInfer", message)
    assert (told["method"], told["path"], told["headers"]["content-type"]) == (
        "POST",
        arrives,
        "application/x-protobuf",
    )
    assert answer == message


def test_grpc_methods_about_models_arrive_at_the_control_process(gateway: Gateway) -> None:
    _, told = gateway.call("ModelMetadata", b"\x0a\x01m")
    assert (told["by"], told["path"]) == ("control", "/inference.GRPCInferenceService/ModelMetadata")


@pytest.mark.parametrize(
    ("method", "message", "status", "text"),
    [
        ("ModelInfer", b"", 3, "model_name is empty"),
        ("ModelInfer", b"\x12\x011", 3, "model_name is empty"),
        ("ModelInfer", b"\x0a\xff", 3, "no ModelInferRequest"),
        ("ModelInfer", b"\xff" * 20, 3, "no ModelInferRequest"),
        ("ModelInfer", b"\x0b", 3, "no ModelInferRequest"),
        ("ModelStreamInfer", b"", 12, "ModelStreamInfer is not supported"),
        ("TraceSetting", b"", 12, "tracing is not supported"),
        ("SystemSharedMemoryRegister", b"", 12, "shared memory is not supported"),
        ("/org.pytorch.serve.grpc.inference.InferenceAPIsService/StreamPredictions", b"", 12, "only inference."),
        ("/predictions/m", b"", 12, "only inference."),
    ],
)
def test_grpc_calls_that_cannot_be_are_told_why(
    gateway: Gateway, method: str, message: bytes, status: int, text: str
) -> None:
    code, details = gateway.refused(method, message)
    assert (code, text in details) == (status, True), details


def test_grpc_several_messages_are_refused(gateway: Gateway) -> None:
    call = gateway.channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
    with pytest.raises(grpc.RpcError) as raised:
        call(iter([b"\x0a\x01m", b"\x0a\x01m"]), timeout=TIMEOUT_S)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "one message" in raised.value.details()


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_grpc_compressed_messages_arrive_inflated(gateway: Gateway, compression: grpc.Compression) -> None:
    message = b"\x0a\x01m" + b"\x1a\x64" + b"i" * 100
    call = gateway.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    answer, _ = call.with_call(message, timeout=TIMEOUT_S, compression=compression)
    assert answer == message


def test_grpc_on_http_1_gets_nothing(gateway: Gateway) -> None:
    with pytest.raises(requests.ConnectionError):
        requests.get(f"http://127.0.0.1:{gateway.settings.ports.grpc}/", timeout=TIMEOUT_S)


@pytest.mark.parametrize("name", ["X-Client", "X-Model-Metadata", "X-Envoy-Upstream-Alt-Stat-Name", "Authorization"])
@pytest.mark.parametrize("path", ["/predictions/m", "/v2/models/m"])
def test_headers_that_only_the_gateway_may_set_do_not_arrive(gateway: Gateway, name: str, path: str) -> None:
    told = gateway.told("POST", path, headers={name: "mine"})
    assert name.lower() not in told["headers"]


@pytest.mark.parametrize(
    ("accept", "arrives"),
    [
        ("application/x-npy", True),
        ("text/plain, Application/X-NPZ;q=0.9", True),
        ("*/*", False),
        ("application/json", False),
        (None, False),
    ],
)
def test_accept_arrives_where_it_asks_for_arrays(gateway: Gateway, accept: str | None, arrives: bool) -> None:
    told = gateway.told("POST", "/predictions/m", headers={"Accept": accept})
    assert told["headers"].get("accept") == (accept if arrives else None)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw"])
@pytest.mark.parametrize("size", [1, 100_000])
def test_compressed_bodies_arrive_inflated(gateway: Gateway, encoding: str, size: int) -> None:
    body = random.Random(1).randbytes(size)
    deflate = zlib.compressobj(wbits=-15)
    packed = {
        "gzip": gzip.compress(body, mtime=0),
        "deflate": zlib.compress(body),
        "raw": deflate.compress(body) + deflate.flush(),
    }[encoding]
    told = gateway.told(
        "POST", "/predictions/m", data=packed, headers={"Content-Encoding": encoding.replace("raw", "deflate")}
    )
    assert (told["bytes"], told["sha256"]) == (size, hashlib.sha256(body).hexdigest())
    assert told["headers"].get("content-length") == str(size)
    assert "content-encoding" not in told["headers"]


def test_chunked_bodies_arrive_with_their_length(gateway: Gateway) -> None:
    told = gateway.told("POST", "/predictions/m", data=iter([b"a" * 1000, b"b" * 1000]))
    assert (told["bytes"], told["headers"]["content-length"]) == (2000, "2000")


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"no gzip"),
        ("gzip", b""),
        ("gzip", gzip.compress(b"", mtime=0)),
        ("gzip", gzip.compress(b"a text " * 1000, mtime=0)[:-10]),
        ("gzip", gzip.compress(b"a text", mtime=0) + gzip.compress(b"another one", mtime=0)),
        ("deflate", b"no deflate"),
        ("deflate", b"x"),
    ],
)
def test_compressed_bodies_that_are_damaged_are_refused(gateway: Gateway, encoding: str, body: bytes) -> None:
    """Whole or cut off: no node sees what came out of them."""
    answer = gateway.ask("POST", "/predictions/m", data=body, headers={"Content-Encoding": encoding})
    assert (answer.status_code, answer.json()["type"]) == (400, "BadRequest")


def test_http_1_0_is_answered(gateway: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.settings.ports.http), timeout=TIMEOUT_S) as connection:
        connection.sendall(b"POST /predictions/m HTTP/1.0\r\nContent-Length: 1\r\n\r\nx")
        assert connection.recv(65536).startswith(b"HTTP/1.0 200 ")
