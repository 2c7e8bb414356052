"""Certificates by the openssl command, and servers on real sockets that send the bytes of a test."""

import contextlib
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.load import fake_server

HERE = "subjectAltName=IP:127.0.0.1,DNS:localhost"
ELSEWHERE = "subjectAltName=DNS:elsewhere.example"
_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


class Certificates:
    """Two authorities and certificates that they signed, as NAME.pem and NAME.key in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for authority in ("ca", "stranger"):
            out = f"-keyout {authority}.key -out {authority}.pem"
            self._openssl(f"req -x509 {_KEY} -days 2 -subj /CN={authority} {out}")
        self._sign("server", "ca", HERE)
        self._sign("elsewhere", "ca", ELSEWHERE)
        self._sign("client", "ca", "extendedKeyUsage=clientAuth")
        self._sign("strange-client", "stranger", "extendedKeyUsage=clientAuth")
        both = self.pem("client").read_text() + self.key("client").read_text()
        (folder / "both.pem").write_text(both)

    def pem(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def server(self, name: str = "server", *, asks_for_client: bool = False) -> ssl.SSLContext:
        """Return the context of a server with this certificate, optionally one that requires a client certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.pem(name), self.key(name))
        if asks_for_client:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.pem("ca"))
        return context

    def _sign(self, name: str, authority: str, extension: str) -> None:
        (self.folder / "extension").write_text(extension)
        self._openssl(f"req {_KEY} -subj /CN={name} -keyout {name}.key -out request")
        signer = f"-CA {authority}.pem -CAkey {authority}.key -CAcreateserial"
        self._openssl(f"x509 -req -days 2 {signer} -in request -extfile extension -out {name}.pem")

    def _openssl(self, arguments: str) -> None:
        subprocess.run(["openssl", *arguments.split()], cwd=self.folder, capture_output=True, check=True)


Reply = Callable[[socket.socket], None]
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1"


class Listener:
    def __init__(self, reply: Reply, tls: ssl.SSLContext | None = None, *, is_http: bool = True) -> None:
        """Listen; call `reply` after each HTTP request, or after each read unless `is_http`."""
        self.connections = 0
        self._reply, self._tls, self._is_http = reply, tls, is_http
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http{'' if tls is None else 's'}://127.0.0.1:{self._socket.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            self._threads.append(threading.Thread(target=self._serve, args=[connection]))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.suppress(OSError))
            stack.enter_context(connection)
            if self._tls is not None:
                connection = stack.enter_context(self._tls.wrap_socket(connection, server_side=True))
            unread = b""
            while content := connection.recv(65536):
                unread += content
                while unread and (size := _size(unread) if self._is_http else len(unread)):
                    unread = unread[size:]
                    self._reply(connection)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()


def _size(content: bytes) -> int:
    """Return the length of the first request in the content; 0 if it is not complete."""
    head, end, _ = content.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    size = len(head) + len(end) + (int(length[1]) if length else 0)
    return size if end and len(content) >= size else 0


def silent(connection: socket.socket) -> None:
    """Send nothing."""


def answering(connection: socket.socket) -> None:
    """Send 1."""
    connection.sendall(ANSWER)


def serving(answer: Callable[[str, str, bytes], Any]) -> contextlib.AbstractContextManager[str]:
    """Serve a function of path, content type and body, and yield the address; responses are JSON."""

    async def respond(request: web.Request) -> web.Response:
        body = await request.read()
        return web.json_response(answer(request.raw_path, request.headers.get("Content-Type", ""), body))

    return fake_server.serving(respond, path="/{path:.*}")


Listen = Callable[..., Listener]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Return a function that starts listeners, which the test's end closes."""
    opened: list[Listener] = []

    def start(reply: Reply, tls: ssl.SSLContext | None = None, **options: bool) -> Listener:
        opened.append(Listener(reply, tls, **options))
        return opened[-1]

    yield start
    for listener in opened:
        listener.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(Path(tmp_path_factory.mktemp("certificates")))
