"""A client makes one prediction, from its payload to its answer.

    payload + options -> payloads.body -> tries under one deadline -> answer, or one error of client.errors

Where several servers serve the same, requests go round, and a try that one of them does not answer goes on to another.

Threads may share a client. `X-Timeout-Ms` goes out with each try and says what is left of the deadline, so that a
server need not work for a caller who has gone.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar
from urllib.parse import quote

import orjson

from torchserve_client import tls
from torchserve_client.errors import ClientError, Closed, DeadlineExceeded, ItemFailed, NoConnection, of_status
from torchserve_client.management import Management
from torchserve_client.payloads import Body, body
from torchserve_client.retry import RetryPolicy, Runner
from torchserve_client.servers import TUNING as SERVERS
from torchserve_client.servers import Servers
from torchserve_client.streams import MEDIA_TYPE, Stream
from torchserve_client.transport import (
    Incoming,
    Opened,
    Outgoing,
    PooledTransport,
    StreamingTransport,
    Transport,
)

TIMEOUT_HEADER = "X-Timeout-Ms"
PREDICTIONS = "predictions"

Answer = TypeVar("Answer")


class Client:
    """Asks a server for predictions, or several that serve the same."""

    def __init__(
        self,
        url: str | Sequence[str] = "http://127.0.0.1:8080",
        management_url: str | None = None,
        token: str | None = None,
        timeout_s: float = 60.0,
        *,
        management_token: str | None = None,
        verify: tls.Verify = True,
        cert: tls.Cert | None = None,
        retry: RetryPolicy | None = None,
        transport: Transport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
        dice: Callable[[], float] = random.random,
    ) -> None:
        """Address a server; nothing is sent yet.

        Args:
            url: address of the inference API; or those of several servers or gateways that serve the same models, which
                are asked in turn. One that is gone, or has no such model, is left out for a while, and what it was
                asked is asked of another.
            management_url: address of the management API, for those who ask how a model is registered.
            token, management_token: keys of each API, where token authorization is on.
            timeout_s: deadline of a call in seconds, from its first try to the last byte of its answer.
            verify: whether the certificates of https servers are checked, or what they are checked against: the file or
                folder of a CA bundle. True takes the bundle that REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE names, or else
                certifi's.
            cert: the client's own certificate: a file with certificate and key, or (certificate, key).
            retry: says what is tried again; None takes the default policy.
            transport, clock, sleep, dice: stand-ins for tests that use no sockets and no time.
        """
        self._servers = Servers([url] if isinstance(url, str) else url, clock=clock)
        self._clock = clock
        self._timeout_s = timeout_s
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        count = len(self._servers.urls)
        self._transport = transport or PooledTransport(
            verify=verify, cert=cert, hosts=count, connect_s=SERVERS.connect_s if count > 1 else None
        )
        self._closed = threading.Event()
        self._policy = retry or RetryPolicy()
        self._runner = Runner(self._policy, clock, sleep or self._sleep, dice)
        self._management = (
            None
            if management_url is None
            else Management(management_url, token=management_token or token, verify=verify, cert=cert)
        )

    @property
    def management(self) -> Management:
        """The management API of the same server.

        Raises:
            ValueError: no `management_url` was given.
        """
        if self._management is None:
            raise ValueError("Client(management_url=...) is needed to ask how a model is registered")
        return self._management

    def predict(
        self, model: str, payload: Any, *, version: str | None = None, timeout_s: float | None = None, **options: Any
    ) -> Any:
        """Ask for one answer.

        Args:
            model: the model's name.
            payload: bytes, a path, text, a dict, a list of them, an array or a dict of arrays; the module payloads says
                how each is sent.
            version: the model's version; None asks its default version.
            timeout_s: deadline of this call in seconds; None takes the client's.
            options: what the model is told beside the input, as in `top_k=3`.

        Returns:
            The answer's JSON, parsed, or its bytes where it is no JSON. A list is answered by a list in its order, with
            an ItemFailed in the place of each item that failed (`raise_failed` raises the first). Arrays are answered
            by a dict of arrays by name.

        Raises:
            InvalidPayload: the payload cannot be sent; nothing was.
            OSError: a path cannot be read.
            Rejected, Unavailable, ServerFailed: the server answered with an error, whose words it holds.
            NoConnection, TLSFailed, DeadlineExceeded, Closed: there was no answer.
        """
        request = body(payload, options)
        send = partial(self._send, _path(model, version), request)
        incoming = self._runner.run(partial(self._try, send), self._timeout_s if timeout_s is None else timeout_s)
        return _answer(incoming, request)

    def stream(
        self, model: str, text: str, *, version: str | None = None, timeout_s: float | None = None, **options: Any
    ) -> Stream:
        """Ask for one answer in pieces, as the model generates it.

        Args:
            model: the model's name; it is served in adaptive mode, and generates text.
            text: the input.
            version: the model's version; None asks its default version.
            timeout_s: deadline of the whole answer in seconds; None takes the client's.
            options: what the model is told beside the input, as in `tgt_lang="fr"`.

        Returns:
            An iterator of pieces of text, at the latest when the first of them is there; then its `answer` is the whole
            one. What fails before is tried again as with `predict`; nothing is after it.

        Raises:
            As `predict`; and ValueError where the client has a transport of its own that lacks `open`.
        """
        request = body(text, {**options, "stream": True})
        send = partial(self._open, _path(model, version), request)
        return Stream(self._runner.run(partial(self._try, send), self._timeout_s if timeout_s is None else timeout_s))

    def close(self) -> None:
        """Let go of every connection; calls that are in flight raise Closed."""
        self._closed.set()
        self._transport.close()
        if self._management is not None:
            self._management.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _try(self, send: Callable[[str, float], Answer], left_s: float) -> Answer:
        """Ask one server; where it is of no use, another one at once, until each was asked."""
        ends_s = self._clock() + left_s
        tried: list[str] = []
        while True:
            url = self._servers.next_url(tried)
            tried.append(url)
            try:
                answer = send(url, left_s)
            except ClientError as error:
                if not _is_of_server(error):
                    raise
                self._servers.failed(url)
                is_last = len(tried) >= len(self._servers.urls)
                left_s = ends_s - self._clock()
                if is_last or left_s <= 0 or not self._may_ask_another(error):
                    raise
            else:
                self._servers.settled(url)
                return answer

    def _may_ask_another(self, error: ClientError) -> bool:
        """Return whether another server may answer at once: one that is full is waited for, one that is gone is not."""
        return error.status == 404 or (isinstance(error, NoConnection) and self._policy.is_worth_it(error))

    def _outgoing(self, url: str, request: Body, left_s: float, headers: Mapping[str, str]) -> Outgoing:
        timeout = {TIMEOUT_HEADER: str(max(1, int(left_s * 1000)))}
        return Outgoing("POST", url, request.content, {**self._headers, **request.headers, **timeout, **headers})

    def _open(self, path: str, request: Body, url: str, left_s: float) -> Opened:
        if not isinstance(self._transport, StreamingTransport):
            raise ValueError("this client's transport has no `open`, which an answer in pieces needs")
        opened = self._transport.open(self._outgoing(url + path, request, left_s, {"Accept": MEDIA_TYPE}), left_s)
        if not 200 <= opened.status < 300:
            try:
                raise error_of(Incoming(opened.status, b"".join(opened.chunks), opened.headers, opened.reason))
            finally:
                opened.close()
        return opened

    def _send(self, path: str, request: Body, url: str, left_s: float) -> Incoming:
        incoming = self._transport.send(self._outgoing(url + path, request, left_s, {}), left_s)
        if not 200 <= incoming.status < 300 and not _is_list(incoming, request):
            raise error_of(incoming)
        return incoming

    def _sleep(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise Closed("the client was closed between two tries")


def _path(model: str, version: str | None) -> str:
    return "/predictions/" + "/".join(quote(part, safe="") for part in (model, version) if part is not None)


def _is_of_server(error: ClientError) -> bool:
    """Return whether an error says something about the server, and not about what it was asked."""
    return isinstance(error, NoConnection | DeadlineExceeded) or error.status in (404, 429, 503)


def error_of(incoming: Incoming) -> ClientError:
    """Make the error of what the server says: {"code", "type", "message"}, or {"error": ...} with such a value."""
    parsed = _json(incoming.body)
    said: Any = parsed.get("error", parsed) if isinstance(parsed, dict) else None
    if isinstance(said, str):
        said = {"message": said}
    if not isinstance(said, dict):
        said = {}
    message = said.get("message") or said.get("status") or incoming.reason or f"HTTP {incoming.status}"
    error = of_status(incoming.status, str(said.get("type", "")), str(message))
    error.retry_after = incoming.headers.get("Retry-After", "")
    return error


def _answer(incoming: Incoming, request: Body) -> Any:
    if request.is_tensors:
        # Imported here, like numpy in payloads, for those who send no arrays.
        from torchserve_client import protocol  # noqa: PLC0415

        length = incoming.headers.get(protocol.HEADER)
        message = protocol.Message(incoming.body, None if length is None else int(length))
        return dict(protocol.decode(message).arrays)
    parsed = _json(incoming.body)
    if parsed is None and incoming.body != b"null":
        return incoming.body
    if request.is_list and isinstance(parsed, Mapping) and isinstance(parsed.get(PREDICTIONS), list):
        return [_item(item, incoming.status) for item in parsed[PREDICTIONS]]
    return parsed


def _is_list(incoming: Incoming, request: Body) -> bool:
    """Return whether an answer has a result for each item, though all of them may be errors."""
    parsed = _json(incoming.body) if request.is_list else None
    return isinstance(parsed, dict) and isinstance(parsed.get(PREDICTIONS), list)


def _item(item: Any, status: int) -> Any:
    if not (isinstance(item, dict) and item.keys() == {"error"}):
        return item
    error = item["error"]
    if not isinstance(error, dict):
        return ItemFailed(str(error), status)
    return ItemFailed(str(error.get("message", "")), int(error.get("code", status)), str(error.get("type", "")))


def _json(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
