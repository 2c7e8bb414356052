"""Predictions, one at a time, from the payload to the answer.

    payload + options -> payloads.body -> tries within one deadline -> answer, or one error of client.errors
    model             -> GET from the gateway or the model          -> Metadata

Each try carries `X-Timeout-Ms`, what is left of the deadline, so that a server does not work for a caller who has gone.
Threads may share a client. Several servers that serve the same models have a gateway in front of them.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, cast
from urllib.parse import quote

from torchserve_client import payloads
from torchserve_client.errors import Closed, DeadlineExceeded, raise_failed
from torchserve_client.management import Management
from torchserve_client.metadata import HEADER, IN_FLIGHT, Get, Metadata, asked
from torchserve_client.payloads import Body
from torchserve_client.replies import answered, error_of, is_list, parsed
from torchserve_client.retry import RetryPolicy, retried
from torchserve_client.streams import MEDIA_TYPE, Stream
from torchserve_client.transport import Cert, Incoming, Opened, Outgoing, Transport, Verify, authorization

TIMEOUT_HEADER = "X-Timeout-Ms"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document's index in the list that was sent, and its score."""

    index: int
    score: float


class Client:
    """Asks one server, or the gateway in front of several, for predictions."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        management_url: str | None = None,
        token: str | None = None,
        timeout_s: float = 60.0,
        *,
        management_token: str | None = None,
        verify: Verify = True,
        cert: Cert | None = None,
        retry: RetryPolicy | None = None,
        transport: Transport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
        dice: Callable[[], float] = random.random,
    ) -> None:
        """Address a server; nothing is sent yet.

        Args:
            url: address of the inference API.
            management_url: address of the management API, which ChunkingClient asks for a model's batch_size.
            token, management_token: keys of each API, where token authorization is on.
            timeout_s: deadline of a call in seconds, from its first try to the last byte of its answer.
            verify, cert: the certificates that are trusted and the client's own, as in `Transport`.
            retry: what is tried again; None means the default policy.
            transport, clock, sleep, dice: replacements for tests that use no sockets and no time.

        Raises:
            ValueError: several addresses were given.
        """
        if not isinstance(url, str):
            raise ValueError("a client has one address: put the gateway in front of several servers (docs/gateway.md)")
        self._url = url.rstrip("/")
        self._headers = authorization(token)
        self._timeout_s = timeout_s
        self._policy = retry or RetryPolicy()
        self._transport = transport or Transport(verify=verify, cert=cert)
        self._closed = threading.Event()
        self._clock, self._sleep, self._dice = clock, sleep or self._wait, dice
        self._management: Management | None = None
        if management_url is not None:
            self._management = Management(management_url, token=management_token or token, verify=verify, cert=cert)

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
            options: the model's options, as in `top_k=3`.

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
        body = payloads.body(payload, options)
        call = Outgoing("POST", _path(model, version), body.content, body.headers)
        return answered(self._run(partial(self._send, call, body), timeout_s), body)

    def embed(
        self,
        model: str,
        texts: Sequence[str | bytes | Path],
        *,
        version: str | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> list[list[float]]:
        """Ask for the vectors of texts, or of images where the model takes them.

        Args:
            model, version, timeout_s: see `predict`; the model's task is sentence embedding, or image and text
                embedding.
            texts: as many as the model takes at once, 2048 by default; an image is the bytes of its file, or a path.
            options: `dimensions`, `input_type` ("query" or "document"), `prompt_name`.

        Returns:
            A vector for each of them, in order.

        Raises:
            ItemFailed: of the first that failed.
            ClientError, InvalidPayload: the same as of `predict`.
        """
        vectors = self.predict(model, [*texts], version=version, timeout_s=timeout_s, **options)
        raise_failed(vectors)
        return cast(list[list[float]], vectors)

    def rerank(
        self,
        model: str,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        version: str | None = None,
        timeout_s: float | None = None,
    ) -> list[Ranked]:
        """Ask how well documents answer a query.

        Args:
            model, version, timeout_s: see `predict`; the model's task is reranking.
            query: what is searched for.
            documents: as many as the model takes at once, 2048 by default.
            top_n: how many to return; None for all.

        Returns:
            The documents' indices with their scores, best first.

        Raises:
            ItemFailed: of the first document that failed.
            ClientError, InvalidPayload: the same as of `predict`.
        """
        pairs = [{"document": each} for each in documents]
        answers = self.predict(model, pairs, version=version, timeout_s=timeout_s, query=query)
        raise_failed(answers)
        ranked = (Ranked(index, answer["score"]) for index, answer in enumerate(answers))
        return sorted(ranked, key=lambda each: -each.score)[:top_n]

    def metadata(self, model: str, version: str | None = None, *, timeout_s: float | None = None) -> Metadata:
        """Ask the gateway, where there is one, or else the model itself for the model's metadata.

        Args:
            model, version, timeout_s: see `predict`.

        Raises:
            ServerFailed: the model does not say.
            ClientError: the same as of `predict`.
        """
        return self._run(lambda left_s: asked(self._get(left_s), model, version), timeout_s)

    def in_flight(self, model: str, version: str, *, timeout_s: float | None = None) -> int | None:
        """Ask the worker of a version how many other requests it has, by a request that goes through its queue.

        Args:
            model, version, timeout_s: see `predict`.

        Returns:
            The number; None where the worker does not count them, as in classic mode.

        Raises:
            ClientError: the same as of `predict`.
        """
        call = Outgoing("GET", _path(model, version), headers={HEADER: "1"})
        count = self._run(partial(self._send, call, None), timeout_s).headers.get(IN_FLIGHT, "")
        return int(count) if count.isdecimal() else None

    def stream(
        self, model: str, text: str, *, version: str | None = None, timeout_s: float | None = None, **options: Any
    ) -> Stream:
        """Ask for one answer in pieces, as the model generates it.

        Args:
            model: the model's name; it is served in adaptive mode, and generates text.
            text: the input.
            version: the model's version; None asks its default version.
            timeout_s: deadline of the whole answer in seconds; None takes the client's.
            options: the model's options, as in `tgt_lang="fr"`.

        Returns:
            An iterator of pieces of text, at the latest when the first of them is there; then its `answer` is the whole
            one. What fails before is tried again as with `predict`; nothing is after it.

        Raises:
            ClientError, OSError: the same as of `predict`.
        """
        body = payloads.body(text, {**options, "stream": True})
        call = Outgoing("POST", _path(model, version), body.content, {**body.headers, "Accept": MEDIA_TYPE})
        return Stream(self._run(partial(self._open, call), timeout_s))

    def close(self) -> None:
        """Release every connection; calls that are in flight raise Closed."""
        self._closed.set()
        self._transport.close()
        if self._management is not None:
            self._management.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self, attempt: Callable[[float], T], timeout_s: float | None) -> T:
        """Make tries within one deadline.

        Args:
            attempt: asks the server once; takes the seconds that are left.
            timeout_s: deadline of all tries; None means the client's.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        return retried(attempt, timeout_s, self._policy, clock=self._clock, sleep=self._sleep, dice=self._dice)

    def _open(self, call: Outgoing, left_s: float) -> Opened:
        opened = self._transport.open(self._addressed(call, left_s), left_s)
        if not 200 <= opened.status < 300:
            try:
                raise error_of(Incoming(opened.status, b"".join(opened.chunks), opened.headers, opened.reason))
            finally:
                opened.close()
        return opened

    def _send(self, call: Outgoing, body: Body | None, left_s: float) -> Incoming:
        incoming = self._transport.send(self._addressed(call, left_s), left_s)
        if not 200 <= incoming.status < 300 and not (body and is_list(incoming, body)):
            raise error_of(incoming)
        return incoming

    def _addressed(self, call: Outgoing, left_s: float) -> Outgoing:
        """Complete a call whose url is a path."""
        headers = {**self._headers, **call.headers, TIMEOUT_HEADER: str(max(1, int(left_s * 1000)))}
        return replace(call, url=self._url + call.url, headers=headers)

    def _get(self, left_s: float) -> Get:
        """Return a function that gets the JSON of paths, all of them within so many seconds."""
        ends_s = self._clock() + left_s

        def get(path: str, headers: Mapping[str, str] | None = None) -> Any:
            if (rest_s := ends_s - self._clock()) <= 0:
                raise DeadlineExceeded(f"{self._url}: no answer within {left_s:.3g} s")
            return parsed(self._send(Outgoing("GET", path, headers=headers or {}), None, rest_s).body)

        return get

    def _wait(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise Closed("the client was closed between two tries")


def _path(model: str, version: str | None) -> str:
    return "/predictions/" + "/".join(quote(part, safe="") for part in (model, version) if part is not None)
