"""Against real sockets: what the errors of the libraries below mean."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

import psutil
import pytest

from tests.client.certificates import Certificates
from tests.client.conftest import Listen
from tests.client.listener import answering, silent
from torchserve_client import Client, Closed, DeadlineExceeded, FuturesClient, NoConnection
from torchserve_client.transport import Outgoing, PooledTransport


def send(url: str, timeout_s: float = 5) -> bytes:
    transport = PooledTransport()
    try:
        return transport.send(Outgoing("POST", f"{url}/predictions/m", b"x"), timeout_s).body
    finally:
        transport.close()


def test_refused_connection_was_never_sent() -> None:
    with pytest.raises(NoConnection, match=r"http://127\.0\.0\.1:9: nothing answers") as raised:
        send("http://127.0.0.1:9")
    assert not raised.value.was_sent


def test_connection_that_is_cut_before_the_answer_may_have_been_served(listen: Listen) -> None:
    for reply in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"):
        listener = listen(lambda connection, reply=reply: _cut(connection, reply))
        with pytest.raises(NoConnection, match="lost before the answer came") as raised:
            send(listener.url)
        assert raised.value.was_sent


def _cut(connection: socket.socket, reply: bytes) -> None:
    connection.sendall(reply)
    connection.shutdown(socket.SHUT_RDWR)


def test_silence_ends_at_the_deadline(listen: Listen) -> None:
    listener = listen(silent)
    with pytest.raises(DeadlineExceeded, match=r"no answer within 0\.2 s"):
        send(listener.url, timeout_s=0.2)


def test_connection_is_kept_for_the_next_request(listen: Listen) -> None:
    listener = listen(answering)
    with Client(listener.url) as client:
        assert [client.predict("m", "a") for _ in range(3)] == [1, 1, 1]
    assert listener.connections == 1


@pytest.mark.parametrize("is_tls", [False, True])
def test_close_lets_threads_go_that_wait_for_an_answer(
    is_tls: bool, listen: Listen, certificates: Certificates
) -> None:
    listener = listen(silent, certificates.server() if is_tls else None)
    client = Client(listener.url, verify=certificates.pem("ca"))
    errors: list[Exception] = []

    def ask() -> None:
        try:
            client.predict("m", "a")
        except Closed as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    while listener.requests < 3:
        time.sleep(0.01)
    client.close()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert len(errors) == 3


def cut_within_s(transport: PooledTransport, url: str, begins: Callable[[], bool]) -> float:
    """Close a transport from another thread once a send has got so far; give the seconds until it ends in Closed."""
    errors: list[Exception] = []

    def ask() -> None:
        try:
            transport.send(Outgoing("POST", f"{url}/predictions/m", b"x"), timeout_s=60)
        except Closed as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while not begins():
        time.sleep(0.01)
    closed_s = time.monotonic()
    transport.close()
    thread.join(30)
    assert [str(error) for error in errors] == ["the client was closed before the answer came"]
    return time.monotonic() - closed_s


def test_close_just_before_a_send_connects_lets_it_open_nothing(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The name is looked up when the send has found the transport open and before there is a socket.
    listener = listen(silent)
    looking_up, closed, look_up = threading.Event(), threading.Event(), socket.getaddrinfo

    def slow(*arguments: Any, **keywords: Any) -> Any:
        looking_up.set()
        assert closed.wait(10)
        return look_up(*arguments, **keywords)

    class Transport(PooledTransport):
        def close(self) -> None:
            super().close()
            closed.set()

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    assert cut_within_s(Transport(), listener.url, looking_up.is_set) < 10
    assert listener.connections == 0


def test_close_lets_a_thread_go_that_is_connecting() -> None:
    # A queue of one that nobody accepts from: once it is full, the system answers no further connection.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as stack:
        port = full.getsockname()[1]
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))

        def connecting() -> int:
            return sum(
                bool(each.raddr) and each.raddr.port == port and each.status == psutil.CONN_SYN_SENT
                for each in psutil.Process().net_connections("tcp4")
            )

        before = connecting()
        assert cut_within_s(PooledTransport(), f"http://127.0.0.1:{port}", lambda: connecting() > before) < 10


def test_close_lets_a_thread_go_that_shakes_hands(listen: Listen, certificates: Certificates) -> None:
    # It accepts, reads the first message of TLS and says nothing.
    listener = listen(silent)
    url = listener.url.replace("http:", "https:")
    transport = PooledTransport(verify=certificates.pem("ca"))
    assert cut_within_s(transport, url, lambda: listener.received > 0) < 10


def test_send_after_close_is_refused(listen: Listen) -> None:
    listener = listen(answering)
    transport = PooledTransport()
    assert transport.send(Outgoing("GET", listener.url), 5).body == b"1"
    transport.close()
    with pytest.raises(Closed, match="the client is closed"):
        transport.send(Outgoing("GET", listener.url), 5)
    assert listener.connections == 1


def test_interrupted_block_leaves_no_thread_and_no_pending_future(listen: Listen) -> None:
    listener = listen(silent)
    before = threading.active_count()
    started_s = time.monotonic()
    futures: list[Future[Any]] = []

    def interrupted() -> None:
        with FuturesClient(Client(listener.url), max_workers=2, max_queue_items=4) as client:
            futures.extend(client.submit("m", "a") for _ in range(6))
            while listener.connections < 2:
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not wait(futures, timeout=0).not_done
    assert sum(future.cancelled() for future in futures) == 4
    assert [type(future.exception()) for future in futures if not future.cancelled()] == [Closed, Closed]
    assert time.monotonic() - started_s < 5
    assert threading.active_count() <= before + 2  # the listener's own
