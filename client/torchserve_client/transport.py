"""HTTP/1.1 requests over urllib3's connection pools, each with one deadline for the whole exchange.

    Outgoing -> Transport.send -> Incoming, or NoConnection, TLSFailed, DeadlineExceeded, Closed

urllib3's timeouts bound each wait for bytes, so a server that sends a byte now and then would hold its client for ever.
Here a timer shuts the connection's socket down when the time of a request is up, whether the request is in the TLS
handshake, the upload or the answer. `close` does the same to all requests in flight, which Ctrl-C needs.
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
from urllib.parse import urlsplit

import certifi
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager, Timeout
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError
from urllib3.util.ssl_ import create_urllib3_context

from torchserve_client.errors import Closed, DeadlineExceeded, InvalidPayload, NoConnection, TLSFailed

# Seconds for each address of a host to accept a connection: TCP sends its first packet again after one and three.
CONNECT_S = 5.0
# Environment variables that name the certificates to trust where `verify` does not: those of requests and of curl.
BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")

Name = str | os.PathLike[str]
# Whether certificates are checked, or the file or folder of those that are trusted.
Verify = bool | Name
# One file with certificate and key, or one of each.
Cert = Name | tuple[Name, Name]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An HTTP request; the url is the whole address with its query."""

    method: str
    url: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Incoming:
    """An HTTP answer; names of headers are case-insensitive, and the reason, the status in words, may be empty."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""

    @property
    def is_ok(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300


def address(url: str) -> str:
    """Return the address of a server without a slash at its end.

    Raises:
        InvalidPayload: it is not the address of one server; it is not quoted, since it may hold a password.
    """
    with contextlib.suppress(ValueError):
        parts = isinstance(url, str) and urlsplit(url)
        is_http = parts and parts.scheme in ("http", "https")
        # A port that is none raises ValueError.
        if is_http and parts.hostname and parts.port != 0 and "," not in parts.netloc:
            return url.rstrip("/")
    raise InvalidPayload(
        "a server's address is http://HOST:PORT or https://HOST:PORT; several servers have the gateway in front of them"
    )


class Transport:
    """Sends requests, from several threads at once; it uses no proxy and no .netrc of the environment."""

    def __init__(self, connections: int = 64, *, verify: Verify = True, cert: Cert | None = None) -> None:
        """Open no connection yet.

        Args:
            connections: connections to a server that are kept; more threads open others for one request.
            verify: whether the certificate of an https server is checked, or the file or folder of the CA bundle to
                check it against. True uses the bundle that REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE names, or certifi's.
            cert: the client's certificate: a file with certificate and key, or (certificate, key).
        """
        self._pools = PoolManager(maxsize=connections)
        self._pools.pool_classes_by_scheme = {
            "http": _Pool,
            # A context takes 20 ms: it is made when a server first needs it.
            "https": partial(_tls_pool, verify, cert),  # type: ignore[dict-item]
        }
        self._exchanges: set[_Exchange] = set()
        self._is_closed = False

    def send(self, request: Outgoing, timeout_s: float) -> Incoming:
        """Send a request once and wait for its answer; resolving a host's name is bounded by the system alone.

        Args:
            request: the request.
            timeout_s: most seconds from now to the last byte of the answer.

        Raises:
            NoConnection: the connection was refused, or lost before the answer.
            TLSFailed: a certificate is not trusted, or client and server have no version of TLS in common.
            DeadlineExceeded: the answer was not complete within `timeout_s`.
            Closed: `close` was called.
        """
        exchange = _Exchange(timeout_s)
        self._exchanges.add(exchange)
        try:
            with self._errors(request, exchange, timeout_s):
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
                return Incoming(response.status, response.data, response.headers, response.reason or "")
        finally:
            self._exchanges.discard(exchange)
            exchange.end()

    @contextlib.contextmanager
    def _errors(self, request: Outgoing, exchange: "_Exchange", timeout_s: float) -> Iterator[None]:
        """Raise the client's errors in place of urllib3's and the system's."""
        url = urlsplit(request.url)
        origin = f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
        if self._is_closed:
            raise Closed("the client is closed")
        try:
            yield
            if exchange.is_cut:
                # A body without a length looks complete when its connection ends.
                raise TimeoutError
        except ValueError as error:
            # An address or a header that cannot be sent; the error may quote a key.
            raise InvalidPayload(f"{origin}: no address or no header of HTTP ({type(error).__name__})") from None
        except (HTTPError, OSError) as error:
            if self._is_closed:
                raise Closed("the client was closed before the answer was complete") from error
            causes = list(_causes(error))
            if any(isinstance(cause, NewConnectionError | ConnectTimeoutError) for cause in causes):
                raise NoConnection(f"{origin}: nothing answers", was_sent=False) from error
            if exchange.is_cut:
                raise DeadlineExceeded(f"{origin}: no answer within {timeout_s:.3g} s") from error
            for cause in causes:
                # A server that goes away ends TLS in these two ways; trying again may help then.
                if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
                    raise TLSFailed(f"{origin}: TLS: {_tls_reason(cause)}") from error
            raise NoConnection(f"{origin}: the connection was lost before the answer came", was_sent=True) from error

    def close(self) -> None:
        """End all requests in flight, and send no more."""
        self._is_closed = True
        for exchange in list(self._exchanges):
            exchange.cut()
        self._pools.clear()


class _Exchange:
    """One request and its answer, whose connection can be shut down from another thread."""

    def __init__(self, timeout_s: float) -> None:
        self.is_cut = False
        # A duplicate, since TLS takes the socket itself apart under the thread that reads from it.
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(min(timeout_s, threading.TIMEOUT_MAX), self.cut)
        self._timer.daemon = True
        self._timer.start()

    def use(self, connected: socket.socket) -> None:
        """Remember the socket that carries the request."""
        self._release()
        self._socket = socket.fromfd(connected.fileno(), connected.family, connected.type)
        if self.is_cut:
            self.cut()

    def cut(self) -> None:
        """Shut the connection down; the thread that waits for it gets an error at once."""
        with self._lock:
            self.is_cut = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Leave the connection alone from now on."""
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
    """A connection without timeouts of its own once it is connected."""

    def _new_conn(self) -> socket.socket:
        connected = super()._new_conn()
        _exchanges.current.use(connected)
        connected.settimeout(None)
        return connected

    def request(self, *arguments: Any, **options: Any) -> None:
        """Send a request, on a connection that is new or was kept."""
        if self.sock is not None:
            _exchanges.current.use(self.sock)
        super().request(*arguments, **options)


class _TLSConnection(_Connection, HTTPSConnection):
    def send(self, data: Any) -> None:
        """Send bytes; a server that refuses the client's certificate has closed the connection by then."""
        try:
            super().send(data)
        except ssl.SSLEOFError as error:
            # After this error urllib3 reads the alert that the server sent.
            raise BrokenPipeError from error


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _TLSConnection


def _tls_pool(verify: Verify, cert: Cert | None, *where: Any, **options: Any) -> _TLSPool:
    return _TLSPool(*where, **options, ssl_context=_tls_context(verify, cert))


def _tls_context(verify: Verify, cert: Cert | None) -> ssl.SSLContext:
    """Make a TLS context; raise TLSFailed for a file that cannot be used."""
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
    """Return the words of an error of the system or of OpenSSL, without its place in a source file."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no certificate in it").lower().replace("_", " ")
    return error.strerror or str(error)


def authorization(token: str | None) -> dict[str, str]:
    """Return the header that holds a key; no header without a key.

    Raises:
        ValueError: the key has characters that a header may not have; the message does not quote it.
    """
    if token is None:
        return {}
    if not (token.isascii() and token.isprintable()):
        raise ValueError("token: characters that a header may not have, a line break perhaps")
    return {"Authorization": f"Bearer {token}"}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those it wraps: urllib3 passes the system's as arguments of its own."""
    yield error
    for cause in (*error.args, getattr(error, "reason", None)):
        if isinstance(cause, BaseException):
            yield from _causes(cause)
