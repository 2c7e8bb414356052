"""Sends many inputs to a model and writes each answer as it comes: the work of `torchserve-client predict`.

    inputs without an answer -> requests -> FuturesClient -> outcomes -> Answers, Tally

An input is read when its turn comes, and let go when its outcome is written: in memory are as many requests as are in
flight.

A failure of one request is written as an error, and the next run asks again. One that would befall all (no server, no
such model) ends the run; the answers until then stay.
"""

import queue
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchserve_client.answers import Answers
from torchserve_client.errors import ClientError, InvalidPayload, NoConnection, ServerFailed, TLSFailed
from torchserve_client.futures import FuturesClient
from torchserve_client.inputs import Input, Keys
from torchserve_client.payloads import OCTETS, Typed, media_type

# Requests that stand ready beside those at the server, so that no worker waits for this thread: one, and one to spare.
READY = 2
# TorchServe's name for a missing or wrong token, which it answers with 400.
NO_TOKEN = "InvalidKeyException"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Request:
    """One request that is still to be sent.

    Attributes:
        names, keys: those of its inputs.
        payload: what is sent: a file's bytes, or a list of lines; the path of a file that cannot be read. A file of
            arrays may hold several rows, and is one request all the same.
    """

    names: tuple[str, ...]
    keys: tuple[str, ...]
    payload: bytes | Typed | Path | list[str]


@dataclass(slots=True)
class Tally:
    """Counts inputs by what became of them."""

    answered: int = 0
    failed: int = 0


def requests(inputs: Iterable[Input], keys: Keys, answers: Answers, lines: int) -> Iterator[Request]:
    """Yield the requests that are still to be sent, in order.

    Args:
        inputs: what is asked about.
        keys: makes the inputs' keys.
        answers: those that were given before.
        lines: most lines that one request holds; a file is a request of its own.
    """
    group: list[tuple[str, str, str]] = []
    for each in inputs:
        try:
            content = each.content()
        except OSError:
            # The client will fail to read it likewise, and that is its outcome.
            yield Request((each.name,), ("",), Path(each.value))
            continue
        key = keys.of(content)
        if answers.has(key):
            continue
        if isinstance(each.value, Path):
            media = media_type(each.value)
            yield Request((each.name,), (key,), content if media == OCTETS else Typed(content, media))
            continue
        group.append((each.name, key, each.value))
        if len(group) == lines:
            yield _of_lines(group)
            group = []
    if group:
        yield _of_lines(group)


def _of_lines(group: list[tuple[str, str, str]]) -> Request:
    names, keys, texts = zip(*group, strict=True)
    return Request(names, keys, list(texts))


def run(
    client: FuturesClient,
    model: str,
    requests: Iterable[Request],
    answers: Answers,
    *,
    options: Mapping[str, Any],
    advance: Callable[[Tally, int], None],
) -> Tally:
    """Send every request and write its outcome.

    Args:
        client: sends; `max_workers` of its requests are at the server at a time.
        model: the model's name.
        requests: what is sent, in this order; the next one is taken when there is a place for it.
        answers: the file to which outcomes are written, in the order in which they come.
        options: what the model is told with every request.
        advance: called after each request with the tally so far and the number of inputs that the request had.

    Returns:
        The tally of all inputs.

    Raises:
        NoConnection: the server went away and did not come back within the deadline of a request.
        TLSFailed: the server is not trusted, or does not trust.
        Rejected: there is no such model, or the token is wrong.
    """
    tally = Tally()
    done: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
    in_flight: dict[Future[Any], Request] = {}

    def settle() -> None:
        future = done.get()
        request = in_flight.pop(future)
        outcomes = _outcomes(future, request)
        answers.write(request.names, request.keys, outcomes)
        failed = sum(isinstance(outcome, ClientError) for outcome in outcomes)
        tally.failed += failed
        tally.answered += len(outcomes) - failed
        advance(tally, len(outcomes))

    for request in requests:
        while len(in_flight) >= client.max_workers + READY:
            settle()
        future = client.submit(model, request.payload, **options)
        in_flight[future] = request
        future.add_done_callback(done.put)
    while in_flight:
        settle()
    return tally


def _outcomes(future: "Future[Any]", request: Request) -> list[Any]:
    """Return the outcome of each input of a request: a value or a ClientError."""
    error = future.exception()
    count = len(request.names)
    if error is None:
        answer = future.result()
        if not isinstance(request.payload, list):
            return [answer.decode(errors="replace") if isinstance(answer, bytes) else answer]
        if isinstance(answer, list) and len(answer) == count:
            return answer
        return [ServerFailed(f"the answer to {count} inputs is not a list of {count}", 200, "UnknownAnswer")] * count
    if isinstance(error, OSError) and not isinstance(error, ClientError):
        error = InvalidPayload(f"cannot be read: {error.strerror}")
    if not isinstance(error, ClientError) or isinstance(error, NoConnection | TLSFailed) or _is_for_all(error):
        raise error
    return [error] * count


def _is_for_all(error: ClientError) -> bool:
    return error.status == 404 or error.type == NO_TOKEN
