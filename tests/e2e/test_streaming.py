"""Answers in pieces on the real TorchServe: the rules of its wire, and what clients and a gateway see of them."""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from deploy.models import ROOT, model
from deploy.run.server import Server
from deploy.sandbox import Sandbox
from tests.e2e.conftest import send, url, worker_pid
from torchserve_client import Client, NoConnection, RetryPolicy, ServerFailed

NAME = "spelling"
LIST = ROOT / "tests" / "e2e" / NAME / "models.yaml"
# A character every 20 ms: 0.8 s.
STEP_S, TEXT = 0.02, "The ferry leaves at seven in the morning"
TIMEOUT_S = 60
JSON, EVENTS = "application/json", "text/event-stream"


@pytest.fixture
def spelling(archive: Callable[..., str], serve: Callable[..., str]) -> str:
    return serve(archive=archive(model(NAME, LIST), engine="auto"), name=NAME, batch_size=32, max_batch_delay_ms=1)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    # What a worker that was killed has left unanswered is asked again until one is there.
    retry = RetryPolicy(attempts=40)
    with Client(server.settings.inference_url, timeout_s=TIMEOUT_S, retry=retry) as connected:
        yield connected


def asked(text: str = TEXT, **options: Any) -> bytes:
    return json.dumps({"text": text, "stream": True, **options}).encode()


def joined(body: bytes) -> tuple[str, Any]:
    """The pieces of a stream joined, and the data of its last event."""
    *events, rest = body.split(b"\n\n")
    *pieces, last = (json.loads(event.removeprefix(b"data: ")) for event in events)
    assert rest == b""
    return "".join(piece["text"] for piece in pieces), last


def on_the_wire(server: Server, body: bytes) -> bytes:
    """All bytes of an answer, to the end of its chunks."""
    address = urlsplit(server.settings.inference_url)
    head = f"POST /predictions/{NAME} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: {JSON}\r\n"
    with socket.create_connection((address.hostname, address.port), TIMEOUT_S) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        content = b""
        while not content.endswith(b"\r\n0\r\n\r\n") and (more := connection.recv(65536)):
            content += more
    return content


def test_streamed_answer_is_one_http_chunk_a_reply_and_ends_as_http_has_it(server: Server, spelling: str) -> None:
    content = on_the_wire(server, asked())
    head, _, rest = content.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines[0] == b"http/1.1 200 ok"
    assert {b"content-type: text/event-stream", b"transfer-encoding: chunked"} <= {*lines}
    chunks = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        chunks.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    assert chunks.pop() == b""
    assert len(chunks) > len(TEXT) / 3
    # Each is whole events: TorchServe neither cuts nor joins what it is given.
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in chunks)
    assert joined(b"".join(chunks)) == (TEXT, {"spelled": TEXT})


def test_streams_and_plain_requests_at_once_each_get_their_own_text(server: Server, spelling: str) -> None:
    def ask(number: int) -> Any:
        text = TEXT[: 3 + number]
        if number % 2:
            return send(server, spelling, json.dumps({"text": text}).encode(), JSON).body["spelled"] == text
        answer = requests.post(url(server, spelling), asked(text), headers={"Content-Type": JSON}, timeout=TIMEOUT_S)
        return joined(answer.content) == (text, {"spelled": text})

    with ThreadPoolExecutor(24) as threads:
        assert all(threads.map(ask, range(24)))
    # Before a first chunk can be sent, or in the exchange after it: both end, again and again.
    for _ in range(20):
        answer = requests.post(url(server, spelling), asked("a"), headers={"Content-Type": JSON}, timeout=TIMEOUT_S)
        assert (joined(answer.content), answer.headers["Content-Type"]) == (("a", {"spelled": "a"}), EVENTS)


def test_worker_that_dies_ends_its_streams_and_comes_back(server: Server, spelling: str, client: Client) -> None:
    stream = client.stream(spelling, TEXT * 10)
    assert next(stream)
    os.kill(worker_pid(server, spelling), signal.SIGKILL)
    with pytest.raises((NoConnection, ServerFailed)):
        list(stream)
    assert "".join(client.stream(spelling, TEXT)) == TEXT


def test_gateway_passes_pieces_on_as_they_come(server: Server, spelling: str, gateway: Sandbox) -> None:
    # The gateway may not have seen yet that the model is there.
    patient = RetryPolicy(attempts=40, statuses=frozenset({404, 503}))
    with Client(gateway.http, timeout_s=TIMEOUT_S, retry=patient) as client:
        stream = client.stream(spelling, TEXT)
        came_s = [(piece, time.monotonic()) for piece in stream]
    assert "".join(piece for piece, _ in came_s) == TEXT
    assert stream.answer == {"spelled": TEXT}
    # The pace is of the task's own making: a machine that stalls has these later, and the end with them.
    assert came_s[-1][1] - came_s[0][1] > 0.5 * STEP_S * len(TEXT)
    # By the header alone, which the gateway lets through.
    place = f"{gateway.http}/predictions/{spelling}"
    answer = requests.post(place, TEXT.encode(), headers={"Accept": EVENTS}, timeout=TIMEOUT_S)
    assert joined(answer.content) == (TEXT, {"spelled": TEXT})
