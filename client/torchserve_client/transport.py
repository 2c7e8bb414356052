"""HTTP/1.1 requests over urllib3's connection pools, each with one deadline for the whole exchange.

    Request -> Transport.send -> Response, or NoConnection, TLSFailed, DeadlineExceeded, Closed

urllib3's timeouts bound each wait for bytes, so a server that sends one byte at a time could delay its client forever.
Here a timer shuts down the connection's socket at the deadline of a request, whether the request is in the TLS
handshake, the upload or the response. `close` does this to all requests in flight, which Ctrl-C needs.
"""

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import certifi
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager, Timeout
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError
from urllib3.util.ssl_ import create_urllib3_context

from torchserve_client.errors import Closed, DeadlineExceeded, InvalidPayload, NoConnection, TLSFailed

# Seconds for each address of a host to accept a connection: TCP repeats its first packet after one and three.
CONNECT_S = 5.0
# Environment variables of requests and of curl that name the certificates to trust, unless `verify` does.
BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")

Name = str | os.PathLike[str]
Verify = bool | Name  # whether to check certificates, or the file or folder of the trusted ones
Cert = Name | tuple[Name, Name]  # one file with certificate and key, or one of each


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    url: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response; names of headers are case-insensitive, and the reason phrase may be empty."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""

    @property
    def is_ok(self) -> bool:
        return 200 <= self.status < 300


def address(url: str) -> str:
    """Return the address of a server without a slash at its end; InvalidPayload if not the address of one server."""
    with contextlib.suppress(ValueError):
        parts = isinstance(url, str) and urlsplit(url)
        is_http = parts and parts.scheme in ("http", "https")
        # An invalid port raises ValueError.
        if is_http and parts.hostname and parts.port != 0 and "," not in parts.netloc:
            return url.rstrip("/")
    raise InvalidPayload(
        "not the address of a server: write http://HOST:PORT or https://HOST:PORT; for several servers, the gateway's"
    )


def path_of(*parts: str | None) -> str:
    """Return the path of these parts of a URL, without those that are None."""
    return "".join(f"/{quote(part, safe='')}" for part in parts if part is not None)


class Transport:
    """Sends requests from several threads at once; it ignores the environment's proxies and .netrc."""

    def __init__(self, connections: int = 64, *, verify: Verify = True, cert: Cert | None = None) -> None:
        """Prepare connection pools; the first request opens a connection."""
        self._pools = PoolManager(maxsize=connections)
        self._pools.pool_classes_by_scheme = {
            "http": _Pool,
            # A context takes 20 ms, so it is made when a server first needs it.
            "https": partial(_tls_pool, verify, cert),  # type: ignore[dict-item]
        }
        self._exchanges: set[_Exchange] = set()
        self._is_closed = False

    def send(self, request: Request, timeout_s: float) -> Response:
        """Send a request once and return its response of any status; only the system bounds a host's lookup."""
        exchange = _Exchange(timeout_s)
        self._exchanges.add(exchange)
        try:
            with self._translate_errors(request, exchange, timeout_s):
                _exchanges.current = exchange
                response = self._pools.urlopen(
                    request.method,
                    request.url,
                    redirect=False,
                    body=request.body or None,
                    headers=request.headers,
                    retries=False,
                    timeout=Timeout(connect=min(CONNECT_S, timeout_s), read=None),
                )
                return Response(response.status, response.data, response.headers, response.reason or "")
        finally:
            self._exchanges.discard(exchange)
            exchange.end()

    @contextlib.contextmanager
    def _translate_errors(self, request: Request, exchange: "_Exchange", timeout_s: float) -> Iterator[None]:
        """Raise the client's errors in place of urllib3's and the system's."""
        url = urlsplit(request.url)
        origin = f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
        if self._is_closed:
            raise Closed("the client is closed")
        try:
            yield
            if exchange.is_cut:
                raise TimeoutError  # a body without a length looks complete when its connection ends
        except ValueError as error:
            # An address or a header that cannot be sent; the error may quote an API key.
            raise InvalidPayload(f"{origin}: not a valid HTTP address or header ({type(error).__name__})") from None
        except (HTTPError, OSError) as error:
            if self._is_closed:
                raise Closed("the client was closed before the response was complete") from error
            causes = list(_causes(error))
            if any(isinstance(cause, NewConnectionError | ConnectTimeoutError) for cause in causes):
                raise NoConnection(f"{origin}: nothing answers", was_sent=False) from error
            if exchange.is_cut:
                raise DeadlineExceeded(f"{origin}: no response within {timeout_s:.3g} s") from error
            for cause in causes:
                # A server that exits ends TLS in these two ways, after which a retry may help.
                if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
                    raise TLSFailed(f"{origin}: TLS: {_tls_reason(cause)}") from error
            raise NoConnection(f"{origin}: the connection was lost before the response", was_sent=True) from error

    def close(self) -> None:
        """End all requests in flight and reject further ones with Closed."""
        self._is_closed = True
        for exchange in list(self._exchanges):
            exchange.cut()
        self._pools.clear()


class _Exchange:
    """One request and its response, whose connection another thread can shut down."""

    def __init__(self, timeout_s: float) -> None:
        self.is_cut = False
        # A duplicate, since shutting down a TLS socket breaks the thread that reads from it.
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(min(timeout_s, threading.TIMEOUT_MAX), self.cut)
        self._timer.daemon = True
        self._timer.start()

    def use(self, connected: socket.socket) -> None:
        self._release()
        self._socket = socket.fromfd(connected.fileno(), connected.family, connected.type)
        if self.is_cut:
            self.cut()

    def cut(self) -> None:
        """Shut the connection down, which raises an error in the thread that waits for it."""
        with self._lock:
            self.is_cut = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Release the connection without shutting it down."""
        self._timer.cancel()
        self._release()

    def _release(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None


# `current`: the exchange of this thread, for the connection that urllib3 chooses for it.
_exchanges = threading.local()


class _Connection(HTTPConnection):
    """A connection without a timeout after it is established."""

    def _new_conn(self) -> socket.socket:
        connected = super()._new_conn()
        _exchanges.current.use(connected)
        connected.settimeout(None)
        return connected

    def request(self, *arguments: Any, **options: Any) -> None:
        if self.sock is not None:
            _exchanges.current.use(self.sock)
        super().request(*arguments, **options)


class _TLSConnection(_Connection, HTTPSConnection):
    def send(self, data: Any) -> None:
        """Send bytes; a server that rejects the client's certificate may have closed the connection."""
        try:
            super().send(data)
        except ssl.SSLEOFError as error:
            raise BrokenPipeError from error  # after this error urllib3 reads the alert that the server sent


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _TLSConnection


def _tls_pool(verify: Verify, cert: Cert | None, *where: Any, **options: Any) -> _TLSPool:
    return _TLSPool(*where, **options, ssl_context=_tls_context(verify, cert))


def _tls_context(verify: Verify, cert: Cert | None) -> ssl.SSLContext:
    """Make a TLS context; raise TLSFailed for an unusable file."""
    made = create_urllib3_context()
    if verify is False:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    else:
        named = next(filter(None, map(os.environ.get, BUNDLES)), None) or certifi.where()
        bundle = Path(named if isinstance(verify, bool) else verify)
        try:
            made.load_verify_locations(*([None, bundle] if bundle.is_dir() else [bundle]))
        except OSError as error:
            raise TLSFailed(f"verify: {bundle}: {_tls_reason(error)}") from error
    if cert is not None:
        certificate, key = cert if isinstance(cert, tuple) else (cert, cert)
        try:
            # Without a password OpenSSL would ask for one on the terminal.
            made.load_cert_chain(certificate, key, password="")
        except OSError as error:
            raise TLSFailed(f"cert: {certificate}, {key}: {_tls_reason(error)}") from error
    return made


def _tls_reason(error: OSError) -> str:
    """Return the message of an error of the system or of OpenSSL, without its place in a source file."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no certificate in it").lower().replace("_", " ")
    return error.strerror or str(error)


def authorization(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    if not (token.isascii() and token.isprintable()):
        raise ValueError("token: contains characters that are invalid in a header, such as a line break")
    return {"Authorization": f"Bearer {token}"}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors it wraps: urllib3 passes the system's errors as arguments."""
    yield error
    for cause in (*error.args, getattr(error, "reason", None)):
        if isinstance(cause, BaseException):
            yield from _causes(cause)
