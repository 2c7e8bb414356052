"""A transport carries a request by its one method, so that tests bring a script instead of sockets.

    Outgoing -> Transport.send          -> Incoming, or NoConnection, TLSFailed, DeadlineExceeded
             -> StreamingTransport.open -> Opened: the head of the answer, and its bytes as they come

PooledTransport keeps connections in a pool of `requests`, on sockets of its own (torchserve_client.sockets): a timeout
bounds the whole exchange, however slowly it drips, and a thread that waits for an answer is let go at once when the
transport is closed, which Ctrl-C needs.
"""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import requests
from requests.adapters import HTTPAdapter
from urllib3 import Timeout
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError, ReadTimeoutError

from torchserve_client import tls
from torchserve_client.errors import Closed, DeadlineExceeded, InvalidPayload, NoConnection, TLSFailed
from torchserve_client.sockets import Sockets, left_s


def authorization(token: str | None) -> dict[str, str]:
    """Give the header that a key is sent in; none without a key.

    Raises:
        ValueError: the key has characters that a header may not have; the message does not quote it.
    """
    if token is None:
        return {}
    if not (token.isascii() and token.isprintable()):
        raise ValueError("token: characters that a header may not have, a line break perhaps")
    return {"Authorization": f"Bearer {token}"}


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An HTTP request.

    Attributes:
        method: "GET", "POST", ...
        url: the whole address, its query included.
        body: the bytes that are sent.
        headers: name -> value.
    """

    method: str
    url: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Incoming:
    """An HTTP answer.

    Attributes:
        status: HTTP status.
        body: the bytes that came.
        headers: name -> value, looked up without regard to case.
        reason: the status in words; empty where the server gives none.
    """

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


class Transport(Protocol):
    """Carries requests, from several threads at once."""

    def send(self, request: Outgoing, timeout_s: float) -> Incoming:
        """Send a request once and wait for its answer.

        Args:
            request: what is sent.
            timeout_s: most seconds from now to the last byte of the answer.

        Raises:
            NoConnection: the connection was refused, or lost before the answer.
            TLSFailed: the two do not trust each other, or speak no TLS in common.
            DeadlineExceeded: the whole answer was not there within `timeout_s`.
            Closed: `close` was called.
        """

    def close(self) -> None:
        """Let go of everything that is in flight, and send no more."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An HTTP answer whose body is still to come.

    Attributes:
        status: HTTP status.
        chunks: the body as it comes; it raises what `Transport.send` does.
        close: lets go of the connection, before the body's end or after it.
        headers: name -> value, looked up without regard to case.
        reason: the status in words; empty where the server gives none.
    """

    status: int
    chunks: Iterator[bytes]
    close: Callable[[], None]
    headers: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


@runtime_checkable
class StreamingTransport(Protocol):
    """A transport that can also hand out an answer before it is whole."""

    def open(self, request: Outgoing, timeout_s: float) -> Opened:
        """Send a request once and wait for the head of its answer.

        Args:
            request: what is sent.
            timeout_s: most seconds from now to the last byte of the answer.

        Raises:
            As `Transport.send`.
        """


class PooledTransport:
    """Sends over HTTP/1.1 on connections that it keeps."""

    def __init__(
        self,
        connections: int = 64,
        *,
        verify: tls.Verify = True,
        cert: tls.Cert | None = None,
        hosts: int = 1,
        connect_s: float | None = None,
    ) -> None:
        """Open nothing yet.

        Args:
            connections: number of connections to a server that are kept; more threads open others for one request.
            verify: whether the certificate of an https server is checked, or what it is checked against: the file or
                folder of a CA bundle. True takes the bundle that REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE names.
            cert: the client's certificate: a file with certificate and key, or (certificate, key).
            hosts: number of servers to which connections are kept.
            connect_s: most seconds for connecting; None gives it all of a request's time.
        """
        self._sockets = Sockets()
        self._connect_s = connect_s
        adapter = _Adapter(connections, self._sockets, verify, cert, hosts)
        self._session = requests.Session()
        # No proxy and no .netrc of the caller's comes between it and its own server.
        self._session.trust_env = False
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)
        self._is_closed = False

    def send(self, request: Outgoing, timeout_s: float) -> Incoming:
        """See `Transport.send`; only looking up a name is left to the system's own timeouts."""
        with self._explained(request, timeout_s):
            response = self._request(request, timeout_s, is_streamed=False)
            return Incoming(response.status_code, response.content, response.headers, response.reason or "")

    def open(self, request: Outgoing, timeout_s: float) -> Opened:
        """See `StreamingTransport.open`."""
        with self._explained(request, timeout_s):
            response = self._request(request, timeout_s, is_streamed=True)

        def chunks() -> Iterator[bytes]:
            with self._explained(request, timeout_s):
                # Each chunk of HTTP as it comes; what has no chunks as a whole.
                yield from response.iter_content(chunk_size=None)

        return Opened(response.status_code, chunks(), response.close, response.headers, response.reason or "")

    @contextlib.contextmanager
    def _explained(self, request: Outgoing, timeout_s: float) -> Iterator[None]:
        """Raise an error of the client's for one of `requests`, or of the system's."""
        if self._is_closed:
            raise Closed("the client is closed")
        try:
            yield
        except (requests.RequestException, OSError) as error:
            if self._is_closed:
                raise Closed("the client was closed before the answer came") from error
            raise _reason(error, request, timeout_s) from error

    def _request(self, request: Outgoing, timeout_s: float, *, is_streamed: bool) -> requests.Response:
        return self._session.request(
            request.method,
            request.url,
            data=request.body or None,
            headers=dict(request.headers),
            # requests passes it on as it is; its own kinds bound each wait for bytes by itself.
            timeout=Timeout(total=timeout_s, connect=self._connect_s),  # type: ignore[arg-type]
            allow_redirects=False,
            stream=is_streamed,
        )

    def close(self) -> None:
        """See `Transport.close`."""
        self._is_closed = True
        self._sockets.abort()
        self._session.close()


def _reason(error: Exception, request: Outgoing, timeout_s: float) -> Exception:
    origin = "/".join(request.url.split("/", 3)[:3])
    if isinstance(error, ValueError):
        # requests raises these for an invalid URL, scheme or header.
        return InvalidPayload(f"{origin or request.url}: cannot be asked: {error}")
    causes = list(_causes(error))
    # A server that goes away ends TLS without a word, too; that is no matter of trust, and may pass.
    lost = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
    for cause in causes:
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, lost):
            return TLSFailed(f"{origin}: TLS: {tls.reason(cause)}")
    was_sent = not any(isinstance(cause, NewConnectionError | ConnectTimeoutError) for cause in causes)
    if was_sent and any(isinstance(cause, TimeoutError | ReadTimeoutError) for cause in causes):
        return DeadlineExceeded(f"{origin}: no answer within {timeout_s:.3g} s")
    what = "the connection was lost before the answer came" if was_sent else "nothing answers"
    return NoConnection(f"{origin}: {what}", was_sent=was_sent)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it was made of: requests wraps those of urllib3, which wraps the system's."""
    yield error
    for cause in (*error.args, getattr(error, "reason", None)):
        if isinstance(cause, BaseException):
            yield from _causes(cause)


class _Adapter(HTTPAdapter):
    """Opens its connections by way of `Sockets`, which can cut them, and has one TLS context for all."""

    def __init__(
        self, connections: int, sockets: Sockets, verify: tls.Verify, cert: tls.Cert | None, hosts: int
    ) -> None:
        self._sockets = sockets
        self._verify, self._cert = verify, cert
        self._context: tls.Context | None = None
        self._lock = threading.Lock()
        # One pool for each address: inference APIs and a management API, each perhaps under two names.
        super().__init__(pool_connections=2 * (hosts + 1), pool_maxsize=connections)

    def init_poolmanager(self, *arguments: Any, **keywords: Any) -> None:
        super().init_poolmanager(*arguments, **keywords)
        manager: Any = self.poolmanager
        manager.pool_classes_by_scheme = {
            "http": _pool_on(self._sockets, HTTPConnectionPool, HTTPConnection),
            "https": _pool_on(self._sockets, HTTPSConnectionPool, HTTPSConnection),
        }

    def build_connection_pool_key_attributes(
        self, request: requests.PreparedRequest, verify: Any, cert: Any = None
    ) -> Any:
        """Return what a pool is found by, and what it is made with."""
        host, _ = super().build_connection_pool_key_attributes(request, verify, cert)
        return host, {"ssl_context": self._tls()} if host["scheme"] == "https" else {}

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Leave it to the context: what is set here would be trusted beside it."""

    def _tls(self) -> tls.Context:
        """Make the context when it is first needed: most servers are asked without TLS, and a bundle takes 20 ms."""
        with self._lock:
            if self._context is None:
                self._context = tls.context(self._verify, self._cert, self._sockets)
            return self._context


def _pool_on(sockets: Sockets, pool: Any, connection: Any) -> Any:
    """Make a pool class whose connections take their sockets from there."""

    class Connection(connection):  # type: ignore[misc]
        @property
        def timeout(self) -> float | None:
            """What is left of the timeout that was set last: TLS and a slow upload must not begin it anew."""
            return left_s(self._until_s)

        @timeout.setter
        def timeout(self, value: float | None) -> None:
            self._until_s = None if value is None else time.monotonic() + value

        def _new_conn(self) -> socket.socket:
            try:
                return sockets.connect(self.host, self.port, self.timeout, self.socket_options)
            except (socket.gaierror, UnicodeError) as error:
                # UnicodeError: a label of more than 63 characters.
                raise NewConnectionError(self, f"no such name: {error}") from error
            except TimeoutError as error:
                raise ConnectTimeoutError(self, str(error)) from error
            except OSError as error:
                raise NewConnectionError(self, str(error)) from error

    class Pool(pool):  # type: ignore[misc]
        ConnectionCls = Connection

    return Pool
