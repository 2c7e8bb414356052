"""A transport carries a request by its one method, so that tests bring a script instead of sockets.

    Outgoing -> Transport.send -> Incoming, or NoConnection, or DeadlineExceeded

PooledTransport keeps connections in a pool of `requests`, and can be aborted: a thread that waits for an answer is
let go at once, which Ctrl-C needs.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, NewConnectionError

from torchserve_client.errors import Closed, DeadlineExceeded, InvalidPayload, NoConnection
from torchserve_client.sockets import Sockets


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
            timeout_s: most seconds to wait.

        Raises:
            NoConnection: the connection was refused, or lost before the answer.
            DeadlineExceeded: there was no answer within `timeout_s`.
            Closed: `close` was called.
        """

    def close(self) -> None:
        """Let go of everything that is in flight, and send no more."""


class PooledTransport:
    """Sends over HTTP/1.1 on connections that it keeps."""

    def __init__(self, connections: int = 64) -> None:
        """Open nothing yet.

        Args:
            connections: number of connections that are kept; more threads than that open others for one request.
        """
        self._sockets = Sockets()
        adapter = _Adapter(connections, self._sockets)
        self._session = requests.Session()
        # No proxy and no .netrc of the caller's comes between it and its own server.
        self._session.trust_env = False
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)
        self._is_closed = False

    def send(self, request: Outgoing, timeout_s: float) -> Incoming:
        """See `Transport.send`; `timeout_s` bounds connecting and each wait for bytes."""
        if self._is_closed:
            raise Closed("the client is closed")
        try:
            response = self._session.request(
                request.method,
                request.url,
                data=request.body or None,
                headers=dict(request.headers),
                timeout=timeout_s,
                allow_redirects=False,
            )
        except (requests.RequestException, OSError) as error:
            if self._is_closed:
                raise Closed("the client was closed before the answer came") from error
            raise _reason(error, request, timeout_s) from error
        return Incoming(response.status_code, response.content, response.headers, response.reason or "")

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
    if isinstance(error, requests.ReadTimeout):
        return DeadlineExceeded(f"{origin}: no answer within {timeout_s:.3g} s")
    cause: Any = error.args[0] if error.args else None
    if isinstance(cause, MaxRetryError):
        cause = cause.reason
    was_sent = not isinstance(cause, NewConnectionError | ConnectTimeoutError)
    what = "the connection was lost before the answer came" if was_sent else "nothing answers"
    return NoConnection(f"{origin}: {what}", was_sent=was_sent)


class _Adapter(HTTPAdapter):
    """Opens its connections by way of `Sockets`, which can cut them."""

    def __init__(self, connections: int, sockets: Sockets) -> None:
        self._sockets = sockets
        # One pool for each address: an inference and a management API, each perhaps under two names.
        super().__init__(pool_connections=4, pool_maxsize=connections)

    def init_poolmanager(self, *arguments: Any, **keywords: Any) -> None:
        super().init_poolmanager(*arguments, **keywords)
        manager: Any = self.poolmanager
        manager.pool_classes_by_scheme = {
            "http": _pool_on(self._sockets, HTTPConnectionPool, HTTPConnection),
            "https": _pool_on(self._sockets, HTTPSConnectionPool, HTTPSConnection),
        }


def _pool_on(sockets: Sockets, pool: Any, connection: Any) -> Any:
    """Make a pool class whose connections take their sockets from there."""

    class Connection(connection):  # type: ignore[misc]
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

        def connect(self) -> None:
            super().connect()
            # TLS has put a socket of its own in the place of the one it was given.
            sockets.add(self.sock)

    class Pool(pool):  # type: ignore[misc]
        ConnectionCls = Connection

    return Pool
