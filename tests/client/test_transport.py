"""The errors of the libraries below, on real sockets."""

import socket
import threading

import pytest

from tests.client.conftest import Listen
from tests.client.listener import answering, silent
from torchserve_client import Client, Closed, NoConnection
from torchserve_client.transport import Request, Transport


def send(url: str, timeout_s: float = 5) -> bytes:
    transport = Transport()
    try:
        return transport.send(Request("POST", f"{url}/predictions/m", b"x"), timeout_s).body
    finally:
        transport.close()


def test_refused_connection_was_never_sent() -> None:
    with pytest.raises(NoConnection, match=r"http://127\.0\.0\.1:9: nothing answers") as raised:
        send("http://127.0.0.1:9")
    assert not raised.value.was_sent


def test_connection_that_is_cut_before_the_answer_may_have_been_served(listen: Listen) -> None:
    for reply in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"):
        listener = listen(lambda connection, reply=reply: _cut(connection, reply))
        with pytest.raises(NoConnection, match="lost before the response") as raised:
            send(listener.url)
        assert raised.value.was_sent


def _cut(connection: socket.socket, reply: bytes) -> None:
    connection.sendall(reply)
    connection.shutdown(socket.SHUT_RDWR)


def test_connection_is_kept_for_the_next_request(listen: Listen) -> None:
    listener = listen(answering)
    with Client(listener.url) as client:
        assert [client.predict("m", "a") for _ in range(3)] == [1, 1, 1]
    assert listener.connections == 1


def test_close_ends_what_is_in_flight(listen: Listen) -> None:
    client = Client(listen(silent).url)
    closer = threading.Timer(0.2, client.close)
    closer.start()
    with pytest.raises(Closed, match="before the response was complete"):
        client.predict("m", "a")
    closer.join()
