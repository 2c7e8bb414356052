"""A task whose micro-batches and decodings wait for a test, served in adaptive mode."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from handlers.base import BatchHandler
from handlers.engines import Arrangement, Arrays, Engine, Outputs
from handlers.protocol.requests import Payload, Request
from handlers.protocol.responses import Reply
from tests.handlers.serving import DoublingHandler, adaptive_context
from tests.waiting import PATIENCE_S, until

RUN_S = 0.004
# Longer than a machine stalls.
TIMEOUT_S = PATIENCE_S
SCHEDULING = {
    "mode": "adaptive",
    "latency_target_ms": 60_000,
    "priority_levels": 3,
    "queue_timeout_ms": 60_000,
}

wait_for = partial(until, every_s=0.002)


class State(NamedTuple):
    in_flight: int  # requests without a reply
    waiting_items: int  # that have not started
    running_batches: int
    unsplit_items: int  # that ran and are not split into results yet


def state(handler: BatchHandler[Any, Any]) -> State:
    core = handler.core
    with core.lock:
        running = len(core.scheduler.streams.running)
        return State(len(core.pending), core.scheduler.queue.items, running, len(core.unsplit))


def write_list(*values: Any) -> bytes:
    return json.dumps({"instances": [{"number": value} for value in values]}).encode()


class Unwritable:
    """A form of answers with a bug."""

    def pack(self, results: Any) -> Reply:
        raise LookupError("a bug")


class GatedHandler(DoublingHandler):
    """Doubles numbers, in micro-batches that take RUN_S and wait at a gate; decoding "slow" numbers waits, too."""

    decodes_in_threads = False
    decoding = 0  # slow numbers that wait at their gate

    def load(self) -> Engine:
        self.gate, self.slow_gate, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self.gate.set()
        self.slow_gate.set()
        return super().load()

    def unpack(self, row: Any, headers: Any) -> Request:
        if row["body"] == b"unpackable":
            raise LookupError("a bug")
        if row["body"] == b"unwritable":
            return Request((Payload(b"2"),), Unwritable())
        return super().unpack(row, headers)

    def decode(self, payload: Payload) -> float:
        value = payload.value["number"] if isinstance(payload.value, dict) else payload.value
        if isinstance(value, bytes | bytearray):
            value = value.decode()
        if not (isinstance(value, str) and value.startswith("slow")):
            return super().decode(payload)
        with self._lock:
            self.decoding += 1
        assert self.slow_gate.wait(TIMEOUT_S)
        with self._lock:
            self.decoding -= 1
        return float(value.removeprefix("slow"))

    def forward(self, inputs: Arrays, items: Any) -> Outputs:
        time.sleep(RUN_S)
        assert self.gate.wait(TIMEOUT_S)
        return super().forward(inputs, items)

    def forgets(self) -> bool:
        return state(self) == State(0, 0, 0, 0)

    def wait(self, *, running: int = 1, waiting: int = 0) -> None:
        """Wait until so many micro-batches run, and so many items wait at least."""
        wait_for(lambda: state(self)[2] == running and state(self)[1] >= waiting)


class ThreadedHandler(GatedHandler):
    decodes_in_threads = True


class Whole:
    """An engine with several streams; `ran` has each micro-batch's stream by its first number."""

    deals_out = False
    stream_counts = (1, 2)

    def __init__(self, engine: Engine) -> None:
        self.description, self.input_names = engine.description, engine.input_names
        self.ran: dict[float, str] = {}
        self._engine = engine

    def run(self, inputs: Arrays, stream: str = "whole") -> Outputs:
        self.ran[float(inputs["numbers"][0])] = stream
        return self._engine.run(inputs)

    def divide(self, streams: int) -> Arrangement:
        parts = [Stream(self, f"stream {number}") for number in range(streams)]
        return Arrangement(self, parts if streams > 1 else ())


class Stream:
    def __init__(self, whole: Whole, name: str) -> None:
        self.description, self.input_names = whole.description, whole.input_names
        self._whole, self._name = whole, name

    def run(self, inputs: Arrays) -> Outputs:
        return self._whole.run(inputs, self._name)


class StreamedHandler(GatedHandler):
    def load(self) -> Engine:
        self.whole = Whole(super().load())
        return self.whole


# `start_handler`, with the folder of the test.
Start = Callable[..., GatedHandler]


def start_handler(
    kind: type[GatedHandler],
    model_dir: Path,
    settings: dict[str, Any] | None = None,
    *,
    took: Sequence[tuple[int, float]] = ((1, RUN_S), (8, RUN_S)),
    **scheduling: Any,
) -> GatedHandler:
    """Start a handler; `took` has the tokens and seconds of the micro-batches that it measured as it loaded."""
    handler = kind()
    settings = {
        "max_batch_items": 8,
        "max_request_items": 10,
        "scheduling": {**SCHEDULING, **scheduling},
        **(settings or {}),
    }
    handler.worker_context = adaptive_context(model_dir, settings)
    with patch("handlers.batching.trial.measure", lambda *_: list(took)):
        handler.initialize(handler.worker_context)
    return handler
