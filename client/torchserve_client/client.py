"""Predictions, one at a time, from the payload to the answer.

    predict -> payloads.body -> Outgoing -> tries within one deadline -> Transport.send -> Incoming -> Body.answer

Each try carries `X-Timeout-Ms`, what is left of the deadline, so that a server does not work for a caller who has gone.
Threads may share a client. Several servers that serve the same models have a gateway in front of them.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar, cast
from urllib.parse import quote

from torchserve_client import payloads
from torchserve_client.errors import ClientError, Closed, DeadlineExceeded, raise_failed
from torchserve_client.management import Management
from torchserve_client.metadata import HEADER, IN_FLIGHT, Metadata, ask
from torchserve_client.payloads import Body, error_of, parsed
from torchserve_client.retry import RetryPolicy
from torchserve_client.transport import Cert, Incoming, Outgoing, Transport, Verify, address, authorization

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
            InvalidPayload: the address is not that of one server.
        """
        self._url = address(url)
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
        request = Outgoing("POST", _path(model, version), body.content, body.headers)
        return body.answer(self._send(request, timeout_s, body))

    def embed(
        self,
        model: str,
        texts: Sequence[str | bytes | Path],
        *,
        version: str | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> list[list[float]]:
        """Return the vector of each text, or of each image where the model takes them; arguments as of `predict`.

        Args:
            model, version, timeout_s: the model's task is sentence embedding, or image and text embedding.
            texts: as many as the model takes at once, 2048 by default; an image is the bytes of its file, or a path.
            options: `dimensions`, `input_type` ("query" or "document"), `prompt_name`.

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
        """Return documents with their scores by how well they answer a query, best first; arguments as of `predict`.

        Args:
            model, version, timeout_s: the model's task is reranking.
            query: what is searched for.
            documents: as many as the model takes at once, 2048 by default.
            top_n: how many to return; None for all.

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

        Raises:
            ServerFailed: the model does not say.
            ClientError: the same as of `predict`.
        """
        ends_s = self._clock() + (self._timeout_s if timeout_s is None else timeout_s)

        def get(path: str, headers: Mapping[str, str]) -> Any:
            return parsed(self._send(Outgoing("GET", path, headers=headers), ends_s - self._clock()).body)

        return ask(get, model, version)

    def in_flight(self, model: str, version: str, *, timeout_s: float | None = None) -> int | None:
        """Ask the worker of a version how many other requests it has, by a request that goes through its queue.

        Returns:
            The number; None where the worker does not count them, as in classic mode.

        Raises:
            ClientError: the same as of `predict`.
        """
        request = Outgoing("GET", _path(model, version), headers={HEADER: "1"})
        count = self._send(request, timeout_s).headers.get(IN_FLIGHT, "")
        return int(count) if count.isdecimal() else None

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

    def _send(self, request: Outgoing, timeout_s: float | None, body: Body | None = None) -> Incoming:
        """Send a request whose url is a path, and return its answer of 2xx or, to a list, one of each item's errors."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        ends_s, tries = self._clock() + timeout_s, 0
        while (left_s := ends_s - self._clock()) > 0:
            try:
                incoming = self._transport.send(self._completed(request, left_s), left_s)
                if incoming.is_ok or (body is not None and body.results(incoming) is not None):
                    return incoming
                raise error_of(incoming)
            except ClientError as error:
                tries += 1
                if tries >= self._policy.attempts or not self._policy.allows(error):
                    raise
                pause_s = error.retry_after_s + self._policy.longest_before(tries) * self._dice()
                if pause_s >= ends_s - self._clock():
                    # This error says more than one that the time would have run out.
                    raise
            self._sleep(pause_s)
        raise DeadlineExceeded(f"no answer within {timeout_s:g} s, after {tries} tries")

    def _completed(self, request: Outgoing, left_s: float) -> Outgoing:
        headers = {**self._headers, **request.headers, TIMEOUT_HEADER: str(max(1, int(left_s * 1000)))}
        return replace(request, url=self._url + request.url, headers=headers)

    def _wait(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise Closed("the client was closed between two tries")


def _path(model: str, version: str | None) -> str:
    return "/predictions/" + "/".join(quote(part, safe="") for part in (model, version) if part is not None)
