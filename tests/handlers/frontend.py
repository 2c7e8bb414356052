"""TorchServe's side of its continuous-batching mode, in this process: one thread that exchanges, clients that wait.

    submit -> queue -> exchange with everything in flight and what is new -> answers of some -> their futures

Every exchange sends the worker all requests that it has not answered, payloads included. Its answer covers those whose
index it left in `context.request_ids`; where it raises, they are all answered 503. With nothing in flight the thread
waits for a first request, and a millisecond more for others.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import count
from types import TracebackType
from typing import Any, NamedTuple

from ts.context import RequestProcessor

from handlers.batch import BatchHandler
from tests.handlers.serving import Answer

MAX_BATCH_DELAY_S = 0.001
ANSWER_TIMEOUT_S = 20


class Sent(NamedTuple):
    """A request in the frontend; a future takes one result and raises at a second."""

    body: bytes
    headers: dict[str, Any]
    answer: "Future[Answer]"


class Frontend:
    """Exchanges with a handler from `with` to its end."""

    def __init__(self, handler: BatchHandler[Any, Any], window: int = 64) -> None:
        self.exchanges = 0
        self._handler = handler
        self._window = window
        self._ids = count()
        self._queue: deque[Sent] = deque()
        self._in_flight: dict[str, Sent] = {}
        self._is_closed = False
        self._is_something_there = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="frontend", daemon=True)

    def __enter__(self) -> "Frontend":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._is_something_there:
            self._is_closed = True
            self._is_something_there.notify()
        self._thread.join(ANSWER_TIMEOUT_S)
        assert kind is not None or not self._thread.is_alive()

    def submit(self, body: bytes, **headers: str) -> "Future[Answer]":
        """One request; `x_priority="1"` is the header X-Priority."""
        return self.submit_together([(body, headers)])[0]

    def submit_together(self, requests: Sequence[tuple[bytes, dict[str, str]]]) -> "list[Future[Answer]]":
        """Several that an idle worker sees in one exchange."""
        sent = [
            Sent(body, {name.replace("_", "-"): value for name, value in headers.items()}, Future())
            for body, headers in requests
        ]
        with self._is_something_there:
            self._queue.extend(sent)
            self._is_something_there.notify()
        return [each.answer for each in sent]

    def send(self, body: bytes, **headers: str) -> Answer:
        """One request and its answer."""
        return self.submit(body, **headers).result(ANSWER_TIMEOUT_S)

    def _run(self) -> None:
        while self._wait():
            while self._queue and len(self._in_flight) < self._window:
                self._in_flight[f"request-{next(self._ids)}"] = self._queue.popleft()
            self._exchange()

    def _wait(self) -> bool:
        if self._in_flight:
            return True
        with self._is_something_there:
            self._is_something_there.wait_for(lambda: self._queue or self._is_closed)
        time.sleep(MAX_BATCH_DELAY_S)
        return bool(self._queue)

    def _exchange(self) -> None:
        self.exchanges += 1
        context = self._handler.worker_context
        # The reply is encoded from this very dict.
        ids = context.request_ids = dict(enumerate(self._in_flight))
        context.request_processor = [RequestProcessor(dict(sent.headers)) for sent in self._in_flight.values()]
        rows = [{"body": bytearray(sent.body)} for sent in self._in_flight.values()]
        try:
            bodies = self._handler.handle(rows, context)
            assert len(bodies) == len(rows)
        except Exception as error:
            for id_ in ids.values():
                self._in_flight.pop(id_).answer.set_result(Answer(503, repr(error), {}))
            return
        assert all(not body for index, body in enumerate(bodies) if index not in ids)
        for index, id_ in ids.items():
            status, _ = context.get_response_status(index)
            answer = Answer(status, json.loads(bodies[index]), context.get_response_headers(index))
            self._in_flight.pop(id_).answer.set_result(answer)
