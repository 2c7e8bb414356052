"""TorchServe's own gRPC calls: each is answered, and none ends a worker."""

import json
from collections.abc import Callable, Iterator

import grpc
import pytest

from deploy.server import Server
from tests.e2e.conftest import send

CLASSIC, ADAPTIVE = "language-id", "sentence-embedding-adaptive"
SERVICE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService"
TIMEOUT_S = 60


def number(value: int) -> bytes:
    """A number as protobuf writes it."""
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + number(rest) if rest else bytes([low])


def field(tag: int, content: bytes) -> bytes:
    """A field of a protobuf message that holds bytes."""
    return number(tag << 3 | 2) + number(len(content)) + content


def request(name: str, inputs: dict[str, bytes]) -> bytes:
    """TorchServe's PredictionsRequest: model_name = 1, input = 3, a map of names to bytes."""
    entries = [field(3, field(1, key.encode()) + field(2, value)) for key, value in inputs.items()]
    return field(1, name.encode()) + b"".join(entries)


def body(response: bytes) -> bytes:
    """Of TorchServe's PredictionResponse, whose one field is prediction = 1."""
    assert response[:1] == b"\x0a"
    start = 1 + next(index for index, byte in enumerate(response[1:], 1) if byte < 0x80)
    assert field(1, response[start:]) == response
    return response[start:]


@pytest.fixture
def channel(server: Server) -> Iterator[grpc.Channel]:
    lines = dict(line.split("=", 1) for line in server.config.read_text().splitlines() if "=" in line)
    with grpc.insecure_channel(f"127.0.0.1:{lines['grpc_inference_port']}") as opened:
        yield opened


@pytest.fixture(params=[CLASSIC, ADAPTIVE])
def served(request: pytest.FixtureRequest, archive: Callable[..., str], serve: Callable[..., str]) -> str:
    return serve(archive=archive(request.param), name=request.param, batch_size=32, max_batch_delay_ms=1)


def test_grpc_calls_are_answered_like_http_and_no_worker_dies(
    server: Server, served: str, channel: grpc.Channel
) -> None:
    (before,) = server.management.describe(served)["workers"]
    predict = channel.unary_unary(f"{SERVICE}/Predictions")
    stream = channel.unary_stream(f"{SERVICE}/StreamPredictions")
    good, bad = {"data": b"Good morning, how are you?"}, {"data": b"\xff\xfe"}
    by_http = send(server, served, good["data"])
    assert by_http.status == 200
    for inputs, expected in ((good, by_http.body), (bad, "InvalidText")):
        answers = [predict(request(served, inputs), timeout=TIMEOUT_S)]
        for _ in range(3):
            answers += list(stream(request(served, inputs), timeout=TIMEOUT_S))
        assert len(answers) == 4
        for answer in answers:
            document = json.loads(body(answer))
            assert (document["type"] if inputs is bad else document) == expected
    # A form may name its field like a header, and HTTP's answers are still no streams.
    form = b'--b\r\nContent-Disposition: form-data; name="explain"\r\n\r\nGood morning, how are you?\r\n--b--\r\n'
    assert send(server, served, form, "multipart/form-data; boundary=b").body == by_http.body
    (after,) = server.management.describe(served)["workers"]
    assert (after["pid"], after["status"]) == (before["pid"], "READY")
