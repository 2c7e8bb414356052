"""TorchServe's side of its continuous-batching mode, in this process: one thread for the exchanges.

Each exchange sends the worker all requests without a response, in TorchServe's bytes; with none, it waits for one.
"""

import socket
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from struct import error as StructError  # noqa: N812
from struct import pack, unpack
from typing import Any, BinaryIO, NamedTuple

from ts.protocol.otf_message_handler import retrieve_msg
from ts.service import Service

from handlers.base import BatchHandler
from tests.handlers.serving import Answer, read
from tests.waiting import PATIENCE_S


class Field(NamedTuple):
    name: str
    content_type: str
    value: bytes


Body = bytes | Sequence[Field]


class Sent(NamedTuple):
    """A request in the frontend; its future raises at a second response."""

    body: Body
    headers: dict[str, Any]
    answer: "Future[Answer]"


class Frontend:
    def __init__(self, handler: BatchHandler[Any, Any], window: int = 64) -> None:
        self.exchanges, self._ids = 0, count()
        self._handler, self._window = handler, window
        self._queue, self._left = deque[Sent](), deque["Future[Answer]"]()
        self._in_flight: dict[str, Sent] = {}
        self._is_closed = self._is_abandoned = False
        self._is_something_there = threading.Condition()
        self._ours, self._theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="frontend", daemon=True)
        self._worker = threading.Thread(target=self._work, name="worker", daemon=True)

    def __enter__(self) -> "Frontend":
        self._worker.start()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._is_something_there:
            self._is_closed = True
            self._is_something_there.notify()
        for thread in (self._thread, self._worker):
            # A failed test may have left the worker waiting.
            thread.join(PATIENCE_S if kind is None else 1)
            assert kind is not None or not thread.is_alive()
        self._theirs.close()

    def abandon(self) -> None:
        """Close the connection while an answer is due, as TorchServe does when a worker is unregistered."""
        self._is_abandoned = True
        self._ours.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def end(self) -> None:
        """Wait for the worker, which ends once its core is closed."""
        self._worker.join(PATIENCE_S)
        assert not self._worker.is_alive()
        self._theirs.close()

    def submit(self, body: Body, **headers: str) -> "Future[Answer]":
        """Send one request; `x_priority="1"` is the header X-Priority."""
        return self.submit_together([(body, headers)])[0]

    def submit_together(self, requests: Sequence[bytes | tuple[Body, dict[str, str]]]) -> "list[Future[Answer]]":
        """Send several requests, with their headers if they have any: an idle worker receives them in one exchange."""
        pairs = [(each, {}) if isinstance(each, bytes) else each for each in requests]
        named = [(body, {name.replace("_", "-"): value for name, value in each.items()}) for body, each in pairs]
        sent = [Sent(body, headers, Future()) for body, headers in named]
        with self._is_something_there:
            self._queue.extend(sent)
            self._is_something_there.notify()
        return [each.answer for each in sent]

    def send_together(self, *requests: bytes | tuple[Body, dict[str, str]]) -> list[Answer]:
        return [answer.result(PATIENCE_S) for answer in self.submit_together(requests)]

    def leave(self, answer: "Future[Answer]") -> None:
        """Disconnect the client of a request: the next exchange lacks it."""
        self._left.append(answer)

    def send(self, body: Body, **headers: str) -> Answer:
        return self.submit(body, **headers).result(PATIENCE_S)

    def _work(self) -> None:
        """Run TorchServe's worker: its reader, then the handler; both end with SystemExit when the frontend is gone."""
        with suppress(SystemExit):
            _, batch = retrieve_msg(self._theirs)
            context = self._handler.worker_context
            context.request_processor, rows, context.request_ids = Service.retrieve_data_for_inference(batch)
            context.cl_socket = self._theirs
            self._handler.handle(rows, context)

    def _run(self) -> None:
        with self._ours, self._ours.makefile("rb") as answers:
            while self._wait():
                while self._queue and len(self._in_flight) < self._window:
                    self._in_flight[f"request-{next(self._ids)}"] = self._queue.popleft()
                try:
                    self._exchange(answers)
                except (OSError, StructError):
                    assert self._is_abandoned
                    return

    def _wait(self) -> bool:
        if self._in_flight:
            return True
        with self._is_something_there:
            self._is_something_there.wait_for(lambda: self._queue or self._is_closed)
        time.sleep(0.001)
        return bool(self._queue)

    def _exchange(self, answers: BinaryIO) -> None:
        self.exchanges += 1
        self._in_flight = {id_: sent for id_, sent in self._in_flight.items() if sent.answer not in self._left}
        self._ours.sendall(message({id_: (sent.headers, sent.body) for id_, sent in self._in_flight.items()}))
        for id_, received in read_answers(answers).items():
            assert received.phrase
            headers = {"content-type": received.content_type, **received.headers}
            # TorchServe's worker thread fails if no such request is in flight.
            sent = self._in_flight.pop(id_)
            # Over HTTP this header would start a stream; a request by gRPC has no headers.
            assert not (sent.headers and "ts_stream_next" in received.headers)
            sent.answer.set_result(Answer(received.status, read(received.body, received.content_type), headers))


def message(requests: Mapping[str, tuple[dict[str, str], Body]]) -> bytes:
    parts = [b"I"]
    for id_, (headers, body) in requests.items():
        parts += [field(id_), *(field(name) + field(value) for name, value in headers.items()), pack("!i", -1)]
        for each in [Field("body", "", body)] if isinstance(body, bytes) else body:
            parts += [field(each.name), field(each.content_type), field(each.value)]
        parts.append(pack("!i", -1))
    return b"".join([*parts, pack("!i", -1)])


def field(value: str | bytes) -> bytes:
    encoded = value.encode() if isinstance(value, str) else value
    return pack("!i", len(encoded)) + encoded


class Received(NamedTuple):
    content_type: str
    status: int
    phrase: str
    headers: dict[str, str]
    body: bytes


def read_answers(stream: BinaryIO) -> dict[str, Received]:
    assert integer(stream) == 200
    text(stream)
    answers = {}
    while (length := integer(stream)) != -1:
        id_ = stream.read(length).decode()
        content_type, status, phrase = text(stream), integer(stream), text(stream)
        headers = {text(stream): text(stream) for _ in range(integer(stream))}
        answers[id_] = Received(content_type, status, phrase, headers, stream.read(integer(stream)))
    return answers


def integer(stream: BinaryIO) -> int:
    return int(unpack("!i", stream.read(4))[0])


def text(stream: BinaryIO) -> str:
    return stream.read(integer(stream)).decode()
