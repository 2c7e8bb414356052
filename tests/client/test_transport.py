"""Requests on real sockets: lost connections, certificates of a private authority, and one deadline for everything."""

import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import urllib3
from urllib3.connection import HTTPConnection

from tests.client.conftest import Certificates, Listen, Listener, answering, silent
from tests.client.script import Script, failed
from tests.tables import table
from torchserve_client import Client, Closed, DeadlineExceeded, NoConnection, RetryPolicy, TLSFailed
from torchserve_client.transport import Request, Transport


def send(url: str) -> bytes:
    with closing(Transport()) as transport:
        return transport.send(Request("POST", f"{url}/predictions/m", b"x"), 5).body


def test_refused_request_was_never_sent_and_one_that_is_cut_off_may_have_been_served(listen: Listen) -> None:
    with pytest.raises(NoConnection, match=r"http://127\.0\.0\.1:9: nothing answers") as raised:
        send("http://127.0.0.1:9")
    assert not raised.value.was_sent

    def cut(reply: bytes, connection: socket.socket) -> None:
        connection.sendall(reply)
        connection.shutdown(socket.SHUT_RDWR)

    for reply in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"):
        with pytest.raises(NoConnection, match="lost before the response") as raised:
            send(listen(partial(cut, reply)).url)
        assert raised.value.was_sent


@table((b"x\xff", b"Teapot", "Teapot"), (b"", b"", ""))
def test_request_and_response_arrive_as_they_were_sent(body: bytes, reason: bytes, expected: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, closing(Transport()) as transport:
        server.settimeout(20)
        received = list[bytes]()

        def answer() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as file:
                lines = [*iter(file.readline, b"\r\n")]
                received.extend([*lines, file.read(len(body))])
                connection.sendall(b"HTTP/1.1 418 %s\r\nX-A: b\r\nContent-Length: 2\r\n\r\n{}" % reason)

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/predictions/m"
        found = transport.send(Request("PUT", url, body, {"X-Own": "1"}), 20)
        thread.join()
    assert (received[0], received[-1], b"X-Own: 1\r\n" in received) == (b"PUT /predictions/m HTTP/1.1\r\n", body, True)
    assert (found.status, found.body, found.headers["x-a"], found.reason) == (418, b"{}", "b", expected)


def test_connection_is_kept_for_the_next_request(listen: Listen) -> None:
    listener = listen(answering)
    with Client(listener.url) as client:
        assert [client.predict("m", "a") for _ in range(3)] == [1, 1, 1]
    assert listener.connections == 1


@table((None, "before the response was complete"), (failed(503, **{"Retry-After": "30"}), "between two tries"))
def test_close_ends_what_is_in_flight_or_waits_for_another_try(step: Any, words: str, listen: Listen) -> None:
    client = Client(listen(silent).url, transport=step and Script(step))
    closer = threading.Timer(0.2, client.close)
    closer.start()
    with pytest.raises(Closed, match=words):
        client.predict("m", "a")
    closer.join()


def test_request_that_is_closed_while_it_connects_is_not_sent(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    listener, connect = listen(answering), HTTPConnection._new_conn
    client = Client(listener.url)

    def close_meanwhile(connection: HTTPConnection) -> socket.socket:
        connected = connect(connection)
        client.close()
        return connected

    reply = Mock(wraps=listener._reply)
    monkeypatch.setattr(listener, "_reply", reply)
    monkeypatch.setattr(HTTPConnection, "_new_conn", close_meanwhile)
    with pytest.raises(Closed):
        client.predict("m", "a")
    reply.assert_not_called()


# Retries at once and often, unless an error excludes a retry.
EAGER = RetryPolicy(attempts=5, first_pause_s=0.0)


@pytest.fixture(autouse=True)
def no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


def predict(url: str, **trust: Any) -> Any:
    with Client(url, timeout_s=20, retry=EAGER, **trust) as client:
        return client.predict("m", "a")


def refused(listener: Listener, words: str, **trust: Any) -> None:
    """Assert an error of TLS with these words at the first try."""
    before = listener.connections
    with pytest.raises(TLSFailed, match=words) as raised:
        predict(listener.url, **trust)
    assert raised.value.message.startswith(f"{listener.url}: TLS: ")
    assert (raised.value.to_json()["type"], listener.connections) == ("TLSFailed", before + 1)


def test_private_authority_is_trusted_where_it_is_named(listen: Listen, certificates: Certificates) -> None:
    server = listen(answering, certificates.server())
    assert predict(server.url, verify=certificates.pem("ca")) == 1
    assert predict(server.url, verify=str(certificates.pem("ca"))) == 1
    refused(server, "certificate verify failed: unable to get local issuer certificate")
    refused(server, "certificate verify failed", verify=certificates.pem("stranger"))
    elsewhere = listen(answering, certificates.server("elsewhere"))
    refused(elsewhere, "IP address mismatch", verify=certificates.pem("ca"))


def test_client_certificate_is_shown_and_a_strangers_is_refused(listen: Listen, certificates: Certificates) -> None:
    ca, asking = certificates.pem("ca"), listen(answering, certificates.server(asks_for_client=True))
    assert predict(asking.url, verify=ca, cert=(certificates.pem("client"), str(certificates.key("client")))) == 1
    assert predict(asking.url, verify=ca, cert=certificates.pem("both")) == 1
    refused(asking, "alert certificate required", verify=ca)
    strange = certificates.pem("strange-client"), certificates.key("strange-client")
    refused(asking, "alert unknown ca", verify=ca, cert=strange)


@pytest.mark.parametrize("error", [ssl.SSLZeroReturnError, ssl.SSLEOFError])
def test_end_of_tls_by_a_server_is_a_lost_connection(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*_: object, **__: object) -> None:
        raise error("ended")

    monkeypatch.setattr(urllib3.PoolManager, "urlopen", end)
    with pytest.raises(NoConnection):
        Transport().send(Request("POST", "https://127.0.0.1:9/predictions/m", b"x"), 5)


# Seconds between two bytes, and their number: ten seconds.
DRIP_S, DRIPS = 0.05, 200
DEADLINE_S = 0.3
ALLOWED_S = 5.0  # on a machine that stops for some seconds

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
WHOLE: dict[str, tuple[bytes, bytes, bytes]] = {
    # Bytes sent at once, bytes sent one by one, bytes sent at once: together a good response.
    "status line": (b"HTTP/1.1 200 ", b"O" * DRIPS, b"\r\nContent-Length: 1\r\n\r\n1"),
    "header": (HEAD + b"X-Long: ", b"a" * DRIPS, b"\r\nContent-Length: 1\r\n\r\n1"),
    "body": (HEAD + b"Content-Length: %d\r\n\r\n" % DRIPS, b"1" * DRIPS, b""),
    "body without a length": (HEAD + b"Connection: close\r\n\r\n", b"1" * DRIPS, b""),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n1\r\n" * (DRIPS // 6), b"0\r\n\r\n"),
}


def drip(name: str, connection: socket.socket) -> None:
    before, drops, after = WHOLE[name]
    connection.sendall(before)
    for drop in drops:
        connection.sendall(bytes([drop]))
        time.sleep(DRIP_S)
    connection.sendall(after)
    connection.shutdown(socket.SHUT_WR)


def took_s(call: Callable[[], object]) -> float:
    """Assert that a call ends at its deadline; return its seconds."""
    started_s = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="no response within"):
        call()
    return time.monotonic() - started_s


@pytest.mark.parametrize(("name", "is_tls"), [*((name, False) for name in WHOLE), ("body", True)])
def test_dripping_answer_ends_in_time(name: str, is_tls: bool, listen: Listen, certificates: Certificates) -> None:
    listener = listen(partial(drip, name), certificates.server() if is_tls else None)
    with Client(listener.url, verify=certificates.pem("ca"), timeout_s=DEADLINE_S) as client:
        assert DEADLINE_S <= took_s(lambda: client.predict("m", "a")) < ALLOWED_S


@pytest.mark.builds
def test_deadline_bounds_handshake_upload_and_answer_together(listen: Listen, certificates: Certificates) -> None:
    # A late handshake, a late start of reading, no response.
    class Late(ssl.SSLContext):
        def wrap_socket(self, sock: socket.socket, *arguments: object, **keywords: object) -> ssl.SSLSocket:
            time.sleep(1.5)
            return super().wrap_socket(sock, server_side=True)

    late = Late(ssl.PROTOCOL_TLS_SERVER)
    late.load_cert_chain(certificates.pem("server"), certificates.key("server"))
    pauses = iter([1])
    listener = listen(lambda _: time.sleep(next(pauses, 0)), late, is_http=False)
    transport = Transport(verify=certificates.pem("ca"))
    request = Request("POST", f"{listener.url}/predictions/m", bytes(64 << 20))
    # Separate deadlines would take 1.5 + 1 + 3 s.
    assert 3 <= took_s(lambda: transport.send(request, 3)) < 5.4
    transport.close()
