"""The real handlers in this process, behind the bytes that TorchServe's frontend sends them.

archive -> Classic or Adaptive, both a Target -> answers(batch) -> one Received for each, in order
"""

import ctypes
import gc
import io
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from ts.protocol.otf_message_handler import create_predict_response, retrieve_msg
from ts.service import Service

from handlers.base import BatchHandler
from tests.fuzz.archives import ARCHIVES
from tests.fuzz.checks import Received
from tests.fuzz.outcome import Usage
from tests.fuzz.run import Target
from tests.fuzz.sent import Sent
from tests.handlers.adaptive import frontend
from tests.handlers.adaptive.frontend import Field, Frontend, message, read_answers
from tests.handlers.serving import Answer, context

MODES = ("classic", "adaptive")
WINDOW = 16
# A queue that nobody waits in for long: what is refused is refused for what its client asked.
SCHEDULING = {
    "mode": "adaptive",
    "max_latency_ms": 60_000,
    "priority_levels": 3,
    "queue_timeout_ms": 60_000,
    "warm_up_s": 0.0,
}
ANSWER_TIMEOUT_S = 120


def own_usage() -> Usage:
    """What this process holds, after everything that is free has been given back."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return Usage.of(psutil.Process())


class Socket:
    """A connection that has all its bytes."""

    def __init__(self, content: bytes) -> None:
        self._content = io.BytesIO(content)

    def recv(self, size: int) -> bytes:
        """Take some."""
        return self._content.read(size)


def _fields(sent: Sent) -> list[Field]:
    return [Field(part.name, part.content_type, part.value) for part in sent.parts]


class Classic:
    """TorchServe's worker in classic mode, without its socket: what is raised, is raised here."""

    is_adaptive = is_served = False

    def __init__(self, handler: BatchHandler[Any, Any]) -> None:
        self._handler = handler

    def answers(self, batch: Sequence[Sent], *, decodes: bool) -> list[Received]:
        """See `Target`."""
        os.environ["TS_DECODE_INPUT_REQUEST"] = "true" if decodes else "false"
        requests = {str(index): (dict(sent.headers), _fields(sent)) for index, sent in enumerate(batch)}
        _, received = retrieve_msg(Socket(message(requests)))
        worker_context = self._handler.worker_context
        started = time.perf_counter()
        worker_context.request_processor, rows, ids = Service.retrieve_data_for_inference(received)
        worker_context.request_ids = ids
        bodies = self._handler.handle(rows, worker_context)
        reply = create_predict_response(bodies, ids, "Prediction success", 200, context=worker_context)
        seconds = time.perf_counter() - started
        answers = read_answers(io.BytesIO(reply))
        return [
            Received(each.status, each.content_type, each.headers, each.body, seconds)
            for each in (answers[str(index)] for index in range(len(batch)))
        ]

    def usage(self) -> Usage:
        """See `Target`."""
        return own_usage()


class RawFrontend(Frontend):
    """A frontend that hands over an answer's bytes."""

    def read(self, received: frontend.Received) -> bytes:
        """See `Frontend`."""
        return received.body


class Adaptive:
    """The worker's own loop, threads and scheduler, on a socket."""

    is_adaptive, is_served = True, False

    def __init__(self, connected: RawFrontend) -> None:
        self._frontend = connected

    def answers(self, batch: Sequence[Sent], *, decodes: bool) -> list[Received]:
        """See `Target`."""
        started = time.perf_counter()
        futures = self._frontend.submit_together([(_fields(sent), dict(sent.headers)) for sent in batch])
        ended: dict[Future[Answer], float] = {}
        for future in futures:
            future.add_done_callback(lambda done: ended.setdefault(done, time.perf_counter()))
        answers = [future.result(ANSWER_TIMEOUT_S) for future in futures]
        return [
            Received(
                answer.status,
                answer.headers.get("content-type", ""),
                answer.headers,
                answer.body,
                ended[future] - started,
            )
            for answer, future in zip(answers, futures, strict=True)
        ]

    def usage(self) -> Usage:
        """See `Target`."""
        return own_usage()


@contextmanager
def started(name: str, mode: str) -> Iterator[Target]:
    """A task's handler that answers.

    Args:
        name: of the task.
        mode: one of MODES.
    """
    archive = ARCHIVES[name]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        staged = archive.stage(Path(folder))
        settings = {**archive.settings, **({"scheduling": SCHEDULING} if mode == "adaptive" else {})}
        handler = archive.handler()
        handler.worker_context = context(staged, settings, batch_size=WINDOW)
        handler.worker_context.model_yaml_config["continuousBatching"] = mode == "adaptive"
        handler.initialize(handler.worker_context)
        if mode == "classic":
            yield Classic(handler)
            return
        connected = RawFrontend(handler, window=WINDOW)
        with connected:
            yield Adaptive(connected)
