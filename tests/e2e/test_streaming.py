"""Answers in pieces on the real TorchServe: the rules of its wire, and what clients and a gateway see of them."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
import yaml

from deploy.archive import Recipe
from deploy.gateway.sandbox import Sandbox
from deploy.models import ROOT, Model, model
from deploy.server import Server
from tests import tiny_seq2seq
from tests.e2e.conftest import metrics, send, send_together, url, worker_pid
from tests.handlers.adaptive.spelling import events
from torchserve_client import Client, NoConnection, RetryPolicy, ServerFailed

NAME, TINY = "spelling", "tiny-translation"
LIST = ROOT / "tests" / "e2e" / NAME / "models.yaml"
# A character every 20 ms: 0.8 s.
STEP_S, TEXT = 0.02, "The ferry leaves at seven in the morning"
TIMEOUT_S = 60
JSON, EVENTS = "application/json", "text/event-stream"


@pytest.fixture
def spelling(archive: Callable[..., str], serve: Callable[..., str]) -> str:
    return serve(archive=archive(model(NAME, LIST), engine="auto"), name=NAME, batch_size=32, max_batch_delay_ms=1)


@pytest.fixture(scope="module")
def tiny(model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An archive of a seeded Marian, in adaptive mode."""
    folder = tmp_path_factory.mktemp("tiny")
    config = yaml.safe_load((ROOT / "examples" / "translation" / "model-config.yaml").read_text())
    config |= {"continuousBatching": True, "maxBatchDelay": 1, "minWorkers": 1, "maxWorkers": 1}
    config["handler"] |= {"threads": 1, "scheduling": {"mode": "adaptive", "max_latency_ms": 20_000, "warm_up_s": 0}}
    (folder / "model-config.yaml").write_text(yaml.safe_dump(config))
    (folder / "checkpoint").mkdir()
    checkpoint = tiny_seq2seq.marian(folder / "checkpoint")
    entry = Model(name=TINY, handler="translation", version="1.0", folder=folder)
    return Recipe(entry, str(checkpoint), export_path=model_store).build().path.name


def asked(text: str = TEXT, **options: Any) -> bytes:
    return json.dumps({"text": text, "stream": True, **options}).encode()


def joined(body: bytes) -> tuple[str, Any]:
    """The pieces of a stream joined, and the data of its last event."""
    *pieces, (kind, last) = events(body)
    assert kind == "message"
    return "".join(data["text"] for _, data in pieces), last


def on_the_wire(server: Server, body: bytes) -> bytes:
    """All bytes of an answer, to the end of the connection."""
    address = urlsplit(server.settings.inference_url)
    head = f"POST /predictions/{NAME} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: {JSON}\r\n"
    with socket.create_connection((address.hostname, address.port), TIMEOUT_S) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        content = b""
        while more := connection.recv(65536):
            content += more
            if content.endswith(b"\r\n0\r\n\r\n"):
                break
    return content


def test_streamed_answer_is_one_http_chunk_a_reply_and_ends_as_http_has_it(server: Server, spelling: str) -> None:
    content = on_the_wire(server, asked())
    head, _, rest = content.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines[0] == b"http/1.1 200 ok"
    assert b"content-type: text/event-stream" in lines
    assert b"transfer-encoding: chunked" in lines
    chunks = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        chunks.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    assert chunks[-1] == b""
    assert len(chunks) > len(TEXT) / 3
    # Each is whole events: TorchServe neither cuts nor joins what it is given.
    assert all(chunk.endswith(b"\n\n") and events(chunk) for chunk in chunks[:-1])
    assert joined(b"".join(chunks)) == (TEXT, {"spelled": TEXT})


def test_curl_shows_the_first_piece_long_before_the_last(server: Server, spelling: str) -> None:
    command = ["curl", "-sSN", "--noproxy", "*", "-H", f"Content-Type: {JSON}", "-d", asked().decode()]
    began_s = time.monotonic()
    with subprocess.Popen([*command, url(server, spelling)], stdout=subprocess.PIPE) as curl:
        assert curl.stdout is not None
        first = curl.stdout.readline()
        first_s = time.monotonic() - began_s
        rest = curl.stdout.read()
        whole_s = time.monotonic() - began_s
    assert joined(first + rest) == (TEXT, {"spelled": TEXT})
    # The pace is of the task's own making: a machine that stalls at the start has these later, and the end with them.
    assert whole_s - first_s > 0.5 * STEP_S * len(TEXT)


def test_streams_of_many_and_plain_requests_share_micro_batches(server: Server, spelling: str) -> None:
    def shared() -> float:
        """Micro-batches of several items."""
        ran = {name: value for name, value in metrics(server).items() if name.startswith("handler_executions_total")}
        return sum(value for name, value in ran.items() if 'Size="1"' not in name)

    before = shared()

    def ask(number: int) -> Any:
        text = TEXT[: 3 + number]
        if number % 2:
            return send(server, spelling, json.dumps({"text": text}).encode(), JSON).body["spelled"] == text
        answer = requests.post(url(server, spelling), asked(text), headers={"Content-Type": JSON}, timeout=TIMEOUT_S)
        return joined(answer.content) == (text, {"spelled": text})

    with ThreadPoolExecutor(24) as threads:
        assert all(threads.map(ask, range(24)))
    # Metrics are told once a second.
    deadline = time.monotonic() + TIMEOUT_S
    while shared() == before:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_text_that_ends_at_once_and_errors_are_answered_plainly(server: Server, spelling: str) -> None:
    # Before a first chunk can be sent, or in the exchange after it: both end, again and again.
    for _ in range(20):
        answer = requests.post(url(server, spelling), asked("a"), headers={"Content-Type": JSON}, timeout=TIMEOUT_S)
        assert joined(answer.content) == ("a", {"spelled": "a"})
        assert answer.headers["Content-Type"] == EVENTS
    listed = json.dumps({"instances": [{"text": "a"}, {"text": "b"}], "stream": True}).encode()
    for body in (asked(speed=2), listed):
        refused = send(server, spelling, body, JSON)
        assert (refused.status, refused.headers["content-type"]) == (400, JSON)
    assert send(server, spelling, asked("#a"), JSON).status == 500


def test_error_in_the_middle_is_an_event(server: Server, spelling: str) -> None:
    with Client(server.settings.inference_url, timeout_s=TIMEOUT_S) as client:
        stream = client.stream(spelling, TEXT[:10] + "#" + TEXT)
        pieces: list[str] = []
        with pytest.raises(ServerFailed) as caught:
            pieces.extend(stream)
    assert caught.value.to_json()["type"] == "InternalError"


def test_client_that_leaves_is_forgotten_with_the_next_piece(server: Server, spelling: str) -> None:
    def abandoned() -> float:
        return sum(value for name, value in metrics(server).items() if name.startswith("handler_abandoned_total"))

    before = abandoned()
    with Client(server.settings.inference_url, timeout_s=TIMEOUT_S) as client:
        # A minute's text, whose worker has another client to look after.
        stream = client.stream(spelling, TEXT * 75)
        assert next(stream)
        with ThreadPoolExecutor(1) as threads:
            other = threads.submit(client.predict, spelling, {"text": TEXT * 2})
            stream.close()
            assert other.result(TIMEOUT_S) == {"spelled": TEXT * 2}
        deadline = time.monotonic() + TIMEOUT_S / 2
        while abandoned() == before:
            assert time.monotonic() < deadline
            # The worker tells its metrics as it answers.
            assert client.predict(spelling, {"text": "a"}) == {"spelled": "a"}
            time.sleep(0.3)


def test_worker_that_dies_ends_its_streams_and_comes_back(server: Server, spelling: str) -> None:
    with Client(server.settings.inference_url, timeout_s=TIMEOUT_S, retry=RetryPolicy(attempts=40)) as client:
        stream = client.stream(spelling, TEXT * 10)
        assert next(stream)
        os.kill(worker_pid(server, spelling), signal.SIGKILL)
        with pytest.raises((NoConnection, ServerFailed)):
            list(stream)
        stream = client.stream(spelling, TEXT)
        assert "".join(stream) == TEXT


def test_gateway_passes_pieces_on_as_they_come(server: Server, spelling: str, gateway: Sandbox) -> None:
    # The gateway may not have seen yet that the model is there.
    patient = RetryPolicy(attempts=40, statuses=frozenset({404, 503}))
    with Client(gateway.http, timeout_s=TIMEOUT_S, retry=patient) as client:
        came_s = []
        stream = client.stream(spelling, TEXT)
        pieces = []
        for piece in stream:
            pieces.append(piece)
            came_s.append(time.monotonic())
    assert "".join(pieces) == TEXT
    assert stream.answer == {"spelled": TEXT}
    assert came_s[-1] - came_s[0] > 0.5 * STEP_S * len(TEXT)
    # By the header alone, which the gateway lets through.
    answer = requests.post(
        f"{gateway.http}/predictions/{spelling}", TEXT.encode(), headers={"Accept": EVENTS}, timeout=TIMEOUT_S
    )
    assert joined(answer.content) == (TEXT, {"spelled": TEXT})


def test_translation_in_pieces_is_what_a_plain_request_gets(
    server: Server, tiny: str, serve: Callable[..., str]
) -> None:
    serve(archive=tiny, name=TINY, batch_size=32, max_batch_delay_ms=1)
    texts = [*tiny_seq2seq.SENTENCES, "The sea is rough."]
    plain = send_together(server, TINY, [json.dumps({"text": text}).encode() for text in texts])
    with (
        Client(server.settings.inference_url, timeout_s=TIMEOUT_S) as client,
        ThreadPoolExecutor(len(texts)) as threads,
    ):

        def ask(text: str) -> tuple[str, Any]:
            stream = client.stream(TINY, text)
            return "".join(stream), stream.answer

        for (pieces, whole), answer in zip(threads.map(ask, texts), plain, strict=True):
            assert whole == answer.body
            assert pieces == whole["translation_text"]
