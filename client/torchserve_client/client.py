"""Predictions, one at a time, from the payload to the answer.

    predict -> payloads.encode -> Request -> tries within one deadline -> Transport.send -> Response -> payloads.decode

Each try sends the rest of the deadline as `X-Timeout-Ms`, so that the server drops requests whose caller has given up.
Threads may share a client. Several servers that serve the same models need a gateway in front of them.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isnan
from pathlib import Path
from typing import Any, Self, cast

from torchserve_client import payloads
from torchserve_client.errors import ClientError, Closed, DeadlineExceeded, raise_failed
from torchserve_client.management import Management
from torchserve_client.metadata import FINGERPRINT, HEADER, IN_FLIGHT, Metadata, read_metadata
from torchserve_client.payloads import Form, parse_json, read_error, read_results
from torchserve_client.retry import RetryPolicy
from torchserve_client.transport import Cert, Request, Response, Transport, Verify, address, authorization, path_of

TIMEOUT_HEADER = "X-Timeout-Ms"


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """The index of a document in the request, and its score."""

    index: int
    score: float


class Client:
    """Requests predictions from one server, or from the gateway in front of several."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        management_url: str | None = None,
        token: str | None = None,
        timeout_s: float | None = 60.0,
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
        """Prepare requests to a server; the first call connects.

        Args:
            url: address of the inference API.
            management_url: address of the management API, where ChunkingClient reads a model's batch_size.
            token, management_token: key of each API, if the server requires tokens.
            timeout_s: deadline of a call in seconds, from its first try to the last byte of its response; None or
                infinity means no deadline.
            verify, cert: trusted certificates and client certificate, as in `Transport`.
            retry: which failures to retry; None means the default policy.
            transport, clock, sleep, dice: replacements for tests without sockets and time.

        Raises:
            InvalidPayload: not the address of one server.
            ValueError: the deadline is not a number of seconds.
        """
        self._url = address(url)
        self._headers = authorization(token)
        self._timeout_s = inf if timeout_s is None else _seconds(timeout_s)
        self._policy = retry or RetryPolicy()
        self._transport = transport or Transport(verify=verify, cert=cert)
        self._closed = threading.Event()
        self._clock, self._sleep, self._dice = clock, sleep or self._wait, dice
        self._management: Management | None = None
        if management_url is not None:
            self._management = Management(management_url, token=management_token or token, verify=verify, cert=cert)

    @property
    def management(self) -> Management:
        """The management API of this server.

        Raises:
            ValueError: the client was made without `management_url`.
        """
        if self._management is None:
            raise ValueError("this call reads a model's registration: pass Client(management_url=...)")
        return self._management

    def predict(
        self,
        model: str,
        payload: object,
        *,
        version: str | None = None,
        timeout_s: float | None = None,
        **options: object,
    ) -> Any:
        """Request one prediction.

        Args:
            model: the model's name.
            payload: bytes, a path, text, a dict, a list of them, an array or a dict of arrays; see the module payloads
                for the request that each type determines.
            version: the model's version; None means its default version.
            timeout_s: deadline of this call in seconds; None means the client's.
            options: the model's options, as in `top_k=3`.

        Returns:
            The parsed JSON of the response, or its bytes if they are not JSON. For a list, a list in its order; an
            ItemFailed replaces each failed item (`raise_failed` raises the first). For arrays, a dict of arrays.

        Raises:
            InvalidPayload: the payload cannot be sent; nothing was.
            OSError: a path cannot be read.
            Rejected, Unavailable, ServerFailed: the server responded with an error; the exception has its message.
            NoConnection, TLSFailed, DeadlineExceeded, Closed: there was no response.
        """
        body = payloads.encode(payload, options)
        request = Request("POST", path_of("predictions", model, version), body.content, body.headers)
        return payloads.decode(self._send(request, timeout_s, body.form), body.form)

    def embed(
        self,
        model: str,
        texts: Sequence[str | bytes | Path],
        *,
        version: str | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> list[list[float]]:
        """Return the vector of each text, or of each image if the model embeds images.

        Args:
            model: a model whose task is sentence embedding, or image and text embedding.
            texts: at most the model's max_request_items, 2048 by default; an image is the bytes of its file, or a path.
            version, timeout_s: as in `predict`.
            options: `dimensions`, `input_type` ("query" or "document"), `prompt_name`.

        Returns:
            A vector for each text, in order.

        Raises:
            ItemFailed: the error of the first failed text.
            ClientError, InvalidPayload: as in `predict`.
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
    ) -> list[RankedDocument]:
        """Sort documents by how well they answer a query.

        Args:
            model: a model whose task is reranking.
            query: the text to search for.
            documents: at most the model's max_request_items, 2048 by default.
            top_n: number of documents to return; None means all.
            version, timeout_s: as in `predict`.

        Returns:
            Indices and scores of the documents, best first.

        Raises:
            ItemFailed: the error of the first failed document.
            ClientError, InvalidPayload: as in `predict`.
        """
        pairs = [{"document": each} for each in documents]
        answers = self.predict(model, pairs, version=version, timeout_s=timeout_s, query=query)
        raise_failed(answers)
        ranked = (RankedDocument(index, answer["score"]) for index, answer in enumerate(answers))
        return sorted(ranked, key=lambda each: -each.score)[:top_n]

    def metadata(self, model: str, version: str | None = None, *, timeout_s: float | None = None) -> Metadata:
        """Read a model's metadata from the gateway if there is one, or else from the model itself.

        Args:
            model, version, timeout_s: as in `predict`.

        Returns:
            Inputs, outputs, precision and the most rows of a request.

        Raises:
            ServerFailed: the model does not report metadata.
            ClientError: as in `predict`.
        """
        ends_s = self._clock() + (self._timeout_s if timeout_s is None else timeout_s)

        def get(path: str, headers: Mapping[str, str]) -> Any:
            return parse_json(self._send(Request("GET", path, headers=headers), ends_s - self._clock()).body)

        return read_metadata(get, model, version)

    def in_flight(self, model: str, version: str, *, timeout_s: float | None = None) -> int | None:
        """Return how many other requests the worker of a version has in flight, by a request through its queue.

        Args:
            model, version, timeout_s: as in `predict`.

        Returns:
            The number; None if the worker does not count them, as in classic mode.

        Raises:
            ClientError: as in `predict`.
        """
        count = self._ask(model, version, timeout_s).headers.get(IN_FLIGHT, "")
        return int(count) if count.isdecimal() else None

    def fingerprint(self, model: str, version: str, *, timeout_s: float | None = None) -> str | None:
        """Return the fingerprint of the archive that serves a version; None from another project's handler.

        Args:
            model, version, timeout_s: as in `predict`.

        Raises:
            ClientError: as in `predict`.
        """
        return self._ask(model, version, timeout_s).headers.get(FINGERPRINT)

    def _ask(self, model: str, version: str, timeout_s: float | None) -> Response:
        """Send a request for metadata through the queue of a version."""
        request = Request("GET", path_of("predictions", model, version), headers={HEADER: "1"})
        return self._send(request, timeout_s)

    def close(self) -> None:
        """Close every connection; calls in flight raise Closed."""
        self._closed.set()
        self._transport.close()
        if self._management is not None:
            self._management.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _send(self, request: Request, timeout_s: float | None, form: Form = Form.ITEM) -> Response:
        """Send a request whose url is a path; return a 2xx response, or one with the results of a list."""
        timeout_s = self._timeout_s if timeout_s is None else _seconds(timeout_s)
        ends_s, tries = self._clock() + timeout_s, 0
        while (left_s := ends_s - self._clock()) > 0:
            try:
                response = self._transport.send(self._complete(request, left_s), left_s)
                if response.is_ok or read_results(response, form) is not None:
                    return response
                raise read_error(response)
            except ClientError as error:
                tries += 1
                if tries >= self._policy.attempts or not self._policy.allows(error):
                    raise
                pause_s = error.retry_after_s + self._policy.longest_before(tries) * self._dice()
                if pause_s >= ends_s - self._clock():
                    raise  # this error is more useful than DeadlineExceeded
            self._sleep(pause_s)
        raise DeadlineExceeded(f"no response within {timeout_s:g} s, after {tries} tries")

    def _complete(self, request: Request, left_s: float) -> Request:
        deadline = {TIMEOUT_HEADER: str(max(1, int(left_s * 1000)))} if left_s < inf else {}
        return replace(request, url=self._url + request.url, headers={**self._headers, **request.headers, **deadline})

    def _wait(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise Closed("the client was closed between two tries")


def _seconds(timeout_s: float) -> float:
    if isnan(timeout_s):
        raise ValueError("timeout_s must be a number of seconds, or None for no deadline; it is NaN")
    return timeout_s
