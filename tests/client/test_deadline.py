"""Slow servers: a deadline bounds the whole response."""

import socket
import ssl
import time
from collections.abc import Callable

import pytest

from tests.client.certificates import Certificates
from tests.client.conftest import Listen
from torchserve_client import Client, DeadlineExceeded
from torchserve_client.transport import Request, Transport

DRIP_S = 0.05  # seconds between two bytes
DRIPS = 200  # ten seconds
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


def dripping(name: str) -> Callable[[socket.socket], None]:
    """Return a reply that sends its bytes one by one, for ten seconds."""
    before, drops, after = WHOLE[name]

    def reply(connection: socket.socket) -> None:
        connection.sendall(before)
        for drop in drops:
            connection.sendall(bytes([drop]))
            time.sleep(DRIP_S)
        connection.sendall(after)
        connection.shutdown(socket.SHUT_WR)

    return reply


def pausing(seconds: float) -> Callable[[socket.socket], None]:
    """Return a reply that sends nothing and pauses reading once."""
    pauses = [seconds]

    def reply(connection: socket.socket) -> None:
        time.sleep(pauses.pop() if pauses else 0)

    return reply


def took_s(call: Callable[[], object]) -> float:
    """Assert that a call ends at its deadline; return its seconds."""
    started_s = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="no response within"):
        call()
    return time.monotonic() - started_s


@pytest.mark.parametrize(("name", "is_tls"), [*((name, False) for name in WHOLE), ("body", True)])
def test_dripping_answer_ends_at_the_deadline(
    name: str, is_tls: bool, listen: Listen, certificates: Certificates
) -> None:
    listener = listen(dripping(name), certificates.server() if is_tls else None)
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
    listener = listen(pausing(1), late, is_http=False)
    transport = Transport(verify=certificates.pem("ca"))
    request = Request("POST", f"{listener.url}/predictions/m", bytes(64 << 20))
    # Separate deadlines would take 1.5 + 1 + 3 s.
    assert 3 <= took_s(lambda: transport.send(request, 3)) < 5.4
    transport.close()
