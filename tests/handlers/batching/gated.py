"""A task whose micro-batches and decodings wait for a test, served in adaptive mode."""

import json
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock, patch

from handlers.base import BatchHandler
from handlers.engines import Arrangement, Arrays, Engine, Outputs
from handlers.pipeline.values import Inputs
from handlers.protocol.requests import Payload, Request
from tests.handlers.serving import ADAPTIVE, DoublingHandler, started
from tests.waiting import PATIENCE_S, until

RUN_S, TIMEOUT_S = 0.004, PATIENCE_S
SCHEDULING = {"mode": "adaptive", "latency_target_ms": 60_000, "priority_levels": 3, "queue_timeout_ms": 60_000}
wait_for = partial(until, every_s=0.002)
# Requests without a response, items that have not started, micro-batches, and items that ran and are not split yet.
State = namedtuple("State", "in_flight waiting_items running_batches unsplit_items")


def state(handler: BatchHandler[Any, Any]) -> State:
    core = handler.service.core
    with core._lock:
        running = len(core._scheduler.streams.running)
        return State(len(core._pending), core._scheduler.queue.items, running, len(core._unsplit))


def write_list(*values: Any) -> bytes:
    return json.dumps({"instances": [{"number": value} for value in values]}).encode()


class GatedHandler(DoublingHandler):
    """Doubles numbers, in micro-batches that take RUN_S and wait at a gate; decoding "slow" numbers waits, too."""

    inputs = Inputs(frozenset({"number"}), in_threads=False)

    def load(self) -> Engine:
        self.gate, self.slow_gate, self.decoding = threading.Event(), threading.Event(), set[int]()
        self.gate.set()
        self.slow_gate.set()
        return super().load()

    def unpack(self, row: Any, headers: Any) -> Request:
        if row["body"] == b"unpackable":
            raise LookupError("a bug")
        if row["body"] == b"unwritable":
            return Request((Payload(b"2"),), Mock(**{"pack.side_effect": LookupError("a bug")}))
        return super().unpack(row, headers)

    def decode(self, payload: Payload) -> float:
        value = payload.value["number"] if isinstance(payload.value, dict) else payload.value
        if isinstance(value, bytes | bytearray):
            value = value.decode()
        if not (isinstance(value, str) and value.startswith("slow")):
            return super().decode(payload)
        self.decoding.add(threading.get_ident())
        assert self.slow_gate.wait(TIMEOUT_S)
        self.decoding.discard(threading.get_ident())
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
    inputs = Inputs(frozenset({"number"}))


class Whole:
    """An engine with several streams; `ran` has each micro-batch's stream by its first number."""

    deals_out, name = False, "whole"
    stream_counts = (1, 2)

    def __init__(self, engine: Engine) -> None:
        self.description, self.input_names = engine.description, engine.input_names
        self.ran: dict[float, str] = {}
        self._engine = engine

    def run(self, inputs: Arrays) -> Outputs:
        self.ran[float(inputs["numbers"][0])] = self.name
        return self._engine.run(inputs)

    def divide(self, streams: int) -> Arrangement:
        parts = [copy(self) for _ in range(streams if streams > 1 else 0)]
        for number, part in enumerate(parts):
            part.name = f"stream {number}"
        return Arrangement(self, parts)


class StreamedHandler(GatedHandler):
    def load(self) -> Engine:
        self.whole = Whole(super().load())
        return self.whole


Start = Callable[..., Any]
Gated = TypeVar("Gated", bound=GatedHandler)
TOOK = ((1, RUN_S), (8, RUN_S))


def start_handler(
    kind: type[Gated], model_dir: Path, settings: Any = None, took: Any = TOOK, **scheduling: Any
) -> Gated:
    """Start a handler; `took` has the tokens and seconds of the micro-batches that it measured as it loaded."""
    settings = {"max_batch_items": 8, "max_request_items": 10, **(settings or {})}
    settings["scheduling"] = {**SCHEDULING, **scheduling}
    with patch("handlers.batching.trial.measure", lambda *_: list(took)):
        return started(kind(), model_dir, settings, **ADAPTIVE)
