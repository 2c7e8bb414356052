"""An answer in pieces, from the bytes on the wire to what a caller iterates over."""

import json
import socket
import threading

import pytest

from tests.client.conftest import Listen
from torchserve_client import Client, DeadlineExceeded, NoConnection, ServerFailed
from torchserve_client.streams import events

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
PIECES = ["Bon", "jour", " à ", "tous", "\n"]
ANSWER = {"translation_text": "".join(PIECES)}
TIMEOUT_S = 20


def chunk(content: bytes) -> bytes:
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


def event(data: object, kind: str = "") -> bytes:
    prefix = f"event: {kind}\n" if kind else ""
    return f"{prefix}data: {json.dumps(data)}\n\n".encode()


def plain(status: str, body: object) -> bytes:
    content = json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


def test_events_cut_anywhere_are_the_same_events() -> None:
    content = b': note\r\nevent: error\r\ndata: {"a":\ndata: 1}\n\n\n\ndata: x\n\nid: 3\ndata:y\n\ndata: unfinished\n'
    for size in range(1, len(content) + 1):
        found = events(content[at : at + size] for at in range(0, len(content), size))
        assert list(found) == [("error", b'{"a":\n1}'), ("message", b"x"), ("message", b"y")]


def test_stream_yields_each_piece_when_it_comes_and_has_the_answer_in_the_end(listen: Listen) -> None:
    go = threading.Semaphore(1)

    def reply(connection: socket.socket) -> None:
        connection.sendall(HEAD)
        for piece in PIECES:
            assert go.acquire(timeout=TIMEOUT_S)
            connection.sendall(chunk(event({"text": piece})))
        connection.sendall(chunk(event(ANSWER)) + END)

    server = listen(reply)
    with Client(server.url, timeout_s=TIMEOUT_S) as client:
        stream = client.stream("m", "Good day to all", tgt_lang="fr")
        with pytest.raises(ValueError, match="all of its pieces"):
            _ = stream.answer
        for piece in PIECES:
            # The server sends the next one only when this one has come.
            assert next(stream) == piece
            go.release()
        assert list(stream) == []
        assert stream.answer == ANSWER
        # The connection is one for the next request.
        for _ in PIECES:
            go.release()
        assert "".join(client.stream("m", "Good day to all")) == ANSWER["translation_text"]
        assert server.connections == 1


def test_stream_that_breaks_off_raises_and_is_not_tried_again(listen: Listen) -> None:
    def reply(connection: socket.socket) -> None:
        connection.sendall(HEAD + chunk(event({"text": "Bon"})))
        connection.shutdown(socket.SHUT_RDWR)

    server = listen(reply)
    with Client(server.url, timeout_s=TIMEOUT_S) as client:
        stream = client.stream("m", "text")
        assert next(stream) == "Bon"
        with pytest.raises(NoConnection):
            next(stream)
    assert server.requests == 1


def test_error_in_the_middle_is_raised_with_what_the_server_says(listen: Listen) -> None:
    error = {"code": 500, "type": "InternalError", "message": "No."}
    server = listen(
        lambda connection: connection.sendall(HEAD + chunk(event({"text": "Bon"}) + event(error, "error")) + END)
    )
    with Client(server.url) as client:
        stream = client.stream("m", "text")
        assert next(stream) == "Bon"
        with pytest.raises(ServerFailed) as caught:
            next(stream)
    assert caught.value.to_json() == error


def test_stream_has_one_deadline_over_all_of_its_pieces(listen: Listen) -> None:
    is_over = threading.Event()

    def reply(connection: socket.socket) -> None:
        connection.sendall(HEAD)
        while not is_over.wait(0.05):
            connection.sendall(chunk(event({"text": "."})))

    server = listen(reply)
    with Client(server.url, timeout_s=0.5) as client, pytest.raises(DeadlineExceeded):
        list(client.stream("m", "text"))
    is_over.set()
