"""Where a model is asked: an address as PyTriton's programs write it, and what answers there.

"localhost", "http://host:8000", "https://models.example" -> candidates -> Server: the first that anything answers at
"""

import threading
from dataclasses import dataclass
from urllib.parse import urlsplit

from torchserve_client.client import Client
from torchserve_client.errors import Closed, NoConnection
from torchserve_client.pytriton.exceptions import PyTritonClientInvalidUrlError
from torchserve_client.transport import Outgoing, PooledTransport


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says where a server is looked for.

    Attributes:
        ports: of an address without one: PyTriton's own default, which is the gateway's too, and TorchServe's.
        probe_s: seconds for finding out whether anything answers at one of them: TCP tries again after one and three.
    """

    ports: tuple[int, ...] = (8000, 8080)
    probe_s: float = 5.0


TUNING = Tuning()


def candidates(url: str, tuning: Tuning = TUNING) -> tuple[str, ...]:
    """List the addresses that are meant by one.

    Args:
        url: HOST, HOST:PORT, or either behind http:// or https://.
        tuning: has the ports of an http address without one; https's is 443.

    Raises:
        PyTritonClientInvalidUrlError: it is none of these, or one of gRPC.
    """
    if not isinstance(url, str):
        raise PyTritonClientInvalidUrlError(f"an address is a text, and not {type(url).__name__}")
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise PyTritonClientInvalidUrlError(f"{url!r} is no address: {error}") from error
    if parts.scheme in ("grpc", "grpcs"):
        raise PyTritonClientInvalidUrlError(
            f"{url!r}: this client speaks HTTP: name the gateway's or TorchServe's HTTP address, as in "
            f'"{parts.hostname or "localhost"}:8000". The gateway\'s gRPC is there for tritonclient.grpc.'
        )
    if parts.scheme not in ("http", "https"):
        raise PyTritonClientInvalidUrlError(f"{url!r}: http and https are spoken, and not {parts.scheme}")
    is_plain = parts.hostname and not (parts.username or parts.password or parts.query or parts.fragment)
    if not is_plain or any(character.isspace() or not character.isprintable() for character in url):
        raise PyTritonClientInvalidUrlError(f"{url!r} is no address: HOST or HOST:PORT is expected")
    path = parts.path.rstrip("/")
    if port is not None or parts.scheme == "https":
        return (f"{parts.scheme}://{parts.netloc}{path}",)
    return tuple(f"http://{parts.netloc.rstrip(':')}:{port}{path}" for port in tuning.ports)


class Server:
    """A client of whatever answers first, found when it is first needed; threads may share it."""

    def __init__(self, urls: tuple[str, ...], *, token: str | None, timeout_s: float, connections: int) -> None:
        """Send nothing yet.

        Args:
            urls: where it is looked for, in this order.
            token: the key of its API, where it asks for one.
            timeout_s: deadline of a call in seconds.
            connections: number of connections that are kept.
        """
        self.urls = urls
        self._token, self._timeout_s = token, timeout_s
        self._transport = PooledTransport(connections, hosts=len(urls))
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._is_closed = False

    def client(self) -> Client:
        """Find the server, once.

        Raises:
            NoConnection: nothing answers; the next call looks again.
            Closed: `close` was called.
        """
        with self._lock:
            if self._is_closed:
                raise Closed("the client is closed")
            if self._client is None:
                url = self.urls[0] if len(self.urls) == 1 else self._found()
                self._client = Client(url, token=self._token, timeout_s=self._timeout_s, transport=self._transport)
            return self._client

    def _found(self) -> str:
        for url in self.urls:
            try:
                self._transport.send(Outgoing("GET", f"{url}/v2/health/live"), TUNING.probe_s)
            except NoConnection:
                continue
            except TimeoutError:
                # Something listens, and is slow.
                pass
            return url
        raise NoConnection(f"nothing answers at {' or '.join(self.urls)}", was_sent=False)

    def close(self) -> None:
        """Let go of every connection; calls that are in flight raise Closed."""
        self._is_closed = True
        if self._client is not None:
            # Wakes who waits between two tries.
            self._client.close()
        self._transport.close()
