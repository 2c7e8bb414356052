"""An answer in pieces, from the bytes on the wire to what a caller iterates over."""

import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.client.listener import Listener
from torchserve_client import Client, DeadlineExceeded, NoConnection, Rejected, RetryPolicy, ServerFailed, Unavailable
from torchserve_client.cli import main
from torchserve_client.events import Event, Events
from torchserve_client.transport import Incoming, Opened, Outgoing

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


Serve = Callable[[Callable[[socket.socket], None]], Listener]


@pytest.fixture
def serve() -> Iterator[Serve]:
    listeners: list[Listener] = []

    def make(reply: Callable[[socket.socket], None]) -> Listener:
        listeners.append(Listener(reply))
        return listeners[-1]

    yield make
    for listener in listeners:
        listener.close()


def test_events_cut_anywhere_are_the_same_events() -> None:
    content = b': note\r\nevent: error\r\ndata: {"a":\ndata: 1}\n\n\n\ndata: x\n\nid: 3\ndata:y\n\ndata: unfinished\n'
    for size in range(1, len(content) + 1):
        events = Events()
        found = [each for at in range(0, len(content), size) for each in events.add(content[at : at + size])]
        assert found == [Event("error", b'{"a":\n1}'), Event("message", b"x"), Event("message", b"y")]


def test_stream_yields_each_piece_when_it_comes_and_has_the_answer_in_the_end(serve: Serve) -> None:
    go = threading.Semaphore(1)

    def reply(connection: socket.socket) -> None:
        connection.sendall(HEAD)
        for piece in PIECES:
            assert go.acquire(timeout=TIMEOUT_S)
            connection.sendall(chunk(event({"text": piece})))
        connection.sendall(chunk(event(ANSWER)) + END)

    server = serve(reply)
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


class Script:
    """A transport without sockets, which keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Outgoing] = []
        self.open_connections = 0

    def send(self, request: Outgoing, timeout_s: float) -> Incoming:
        raise AssertionError(request, timeout_s)

    def open(self, request: Outgoing, timeout_s: float) -> Opened:
        assert 0 < timeout_s <= TIMEOUT_S
        self.asked.append(request)
        self.open_connections += 1
        headers = {"Content-Type": "text/event-stream; charset=utf-8"}
        return Opened(200, iter([event({"text": "B"}), event(ANSWER)]), self._let_go, headers)

    def _let_go(self) -> None:
        self.open_connections -= 1

    def close(self) -> None:
        """Nothing is kept."""


def test_stream_asks_for_events_and_lets_go_in_the_end() -> None:
    script = Script()
    with Client("http://server", token="key", timeout_s=TIMEOUT_S, transport=script) as client:  # noqa: S106
        stream = client.stream("m/n", "text", version="2", tgt_lang="fr")
        assert script.open_connections == 1
        assert list(stream) == ["B"]
    assert script.open_connections == 0
    (asked,) = script.asked
    assert (asked.method, asked.url) == ("POST", "http://server/predictions/m%2Fn/2")
    assert json.loads(asked.body) == {"text": "text", "tgt_lang": "fr", "stream": True}
    assert asked.headers["Accept"] == "text/event-stream"
    assert asked.headers["Authorization"] == "Bearer key"
    assert 0 < int(asked.headers["X-Timeout-Ms"]) <= 1000 * TIMEOUT_S


def test_stream_needs_a_transport_that_can_open() -> None:
    class Plain:
        def send(self, request: Outgoing, timeout_s: float) -> Incoming:
            raise AssertionError(request, timeout_s)

        def close(self) -> None:
            """Nothing is kept."""

    with Client("http://server", transport=Plain()) as client, pytest.raises(ValueError, match="open"):
        client.stream("m", "text")


def test_stream_that_breaks_off_raises_and_is_not_tried_again(serve: Serve) -> None:
    def reply(connection: socket.socket) -> None:
        connection.sendall(HEAD + chunk(event({"text": "Bon"})))
        connection.shutdown(socket.SHUT_RDWR)

    server = serve(reply)
    with Client(server.url, timeout_s=TIMEOUT_S) as client:
        stream = client.stream("m", "text")
        assert next(stream) == "Bon"
        with pytest.raises(NoConnection):
            next(stream)
    assert server.requests == 1


def test_stream_that_ends_without_an_answer_is_a_lost_connection(serve: Serve) -> None:
    server = serve(lambda connection: connection.sendall(HEAD + chunk(event({"text": "Bon"})) + END))
    with Client(server.url) as client, pytest.raises(NoConnection, match="before the answer was whole"):
        list(client.stream("m", "text"))


def test_error_in_the_middle_is_raised_with_what_the_server_says(serve: Serve) -> None:
    error = {"code": 500, "type": "InternalError", "message": "No."}
    server = serve(
        lambda connection: connection.sendall(HEAD + chunk(event({"text": "Bon"}) + event(error, "error")) + END)
    )
    with Client(server.url) as client:
        stream = client.stream("m", "text")
        assert next(stream) == "Bon"
        with pytest.raises(ServerFailed) as caught:
            next(stream)
    assert caught.value.to_json() == error


def test_answer_that_is_an_error_is_raised_or_tried_again_as_any_other(serve: Serve) -> None:
    replies = [
        plain("503 Service Unavailable", {"code": 503, "type": "QueueFull", "message": "Full."}),
        HEAD + chunk(event(ANSWER)) + END,
        plain("400 Bad Request", {"code": 400, "type": "UnknownOption", "message": "stream: no."}),
        plain("503 Service Unavailable", {"code": 503, "type": "QueueFull", "message": "Full."}),
    ]
    server = serve(lambda connection: connection.sendall(replies.pop(0)))
    with Client(server.url, retry=RetryPolicy(first_pause_s=0.001, attempts=2)) as client:
        stream = client.stream("m", "text")
        assert (list(stream), stream.answer) == ([], ANSWER)
        with pytest.raises(Rejected, match="stream: no"):
            client.stream("m", "text")
    with Client(server.url, retry=RetryPolicy(attempts=1)) as client, pytest.raises(Unavailable):
        client.stream("m", "text")


def test_server_that_knows_no_pieces_gives_the_answer_alone(serve: Serve) -> None:
    server = serve(lambda connection: connection.sendall(plain("200 OK", ANSWER)))
    with Client(server.url) as client:
        stream = client.stream("m", "text")
        assert (list(stream), stream.answer) == ([], ANSWER)


def test_stream_has_one_deadline_over_all_of_its_pieces(serve: Serve) -> None:
    is_over = threading.Event()

    def reply(connection: socket.socket) -> None:
        connection.sendall(HEAD)
        while not is_over.wait(0.05):
            connection.sendall(chunk(event({"text": "."})))

    server = serve(reply)
    with Client(server.url, timeout_s=0.5) as client, pytest.raises(DeadlineExceeded):
        list(client.stream("m", "text"))
    is_over.set()


def test_stream_that_is_closed_lets_go_of_its_connection(serve: Serve) -> None:
    is_gone = threading.Event()

    def reply(connection: socket.socket) -> None:
        connection.sendall(HEAD + chunk(event({"text": "."})))
        assert connection.recv(1) == b""
        is_gone.set()

    server = serve(reply)
    with Client(server.url) as client, client.stream("m", "text") as stream:
        assert next(stream) == "."
        stream.close()
        assert is_gone.wait(TIMEOUT_S)


def test_command_prints_the_pieces(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    content = b"".join(chunk(event({"text": piece})) for piece in PIECES)
    server = serve(lambda connection: connection.sendall(HEAD + content + chunk(event(ANSWER)) + END))
    assert main(["--server", server.url, "stream", "m", "Good day", "--option", "tgt_lang=fr"]) == 0
    assert capsys.readouterr().out == "".join(PIECES) + "\n"


def test_command_says_what_went_wrong(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    error = {"code": 500, "type": "InternalError", "message": "No."}
    server = serve(
        lambda connection: connection.sendall(HEAD + chunk(event({"text": "Bon"}) + event(error, "error")) + END)
    )
    assert main(["--server", server.url, "stream", "m", "Good day"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "Bon\n"
    assert "No." in captured.err
