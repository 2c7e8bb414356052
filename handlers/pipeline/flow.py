"""The steps of a request through a task, from TorchServe's row to its reply; each step is a method of `Pipeline`.

    unpack      row      -> Request: a payload for each item, and the form of the reply
    decode      payload  -> item, or its ItemError
    prepare     items    -> items with their costs, all in one call of the hook
    plan        items    -> micro-batches
    run         items    -> arrays -> outputs; a micro-batch that fails is halved, down to the item at fault
    split       outputs  -> results
    pack        results  -> Reply: status, headers, body

In classic mode `serve` calls all steps for the rows of a batch. Adaptive mode calls them on its threads, and
`split_early` for items that the engine ends before their micro-batch (handlers.batching).

Each item has a Slot, which contains the outcome of its last step. No step raises for an item: if a hook fails, the
reply has 500 for that item, and the log has the place of the error.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from importlib import import_module
from itertools import repeat
from math import inf
from typing import Any

from handlers.engines import Arrays, Outputs
from handlers.errors import INTERNAL_ERROR, OUT_OF_TIME, InvalidInput, ItemError, OutOfTime, ResponseTooLarge, where
from handlers.metrics import EXECUTION_SECONDS, FAILED, OUTPUT, SUCCEEDED, Event, Recorder, execution_event, item_event
from handlers.pipeline.failures import fail, find_excess, isolate
from handlers.pipeline.micro_batches import plan_micro_batches
from handlers.pipeline.task import Task
from handlers.protocol.api_forms import Answer
from handlers.protocol.metadata import METADATA_HEADER
from handlers.protocol.requests import Allowance, Payload, Request, Slot
from handlers.protocol.responses import GRPC_HEADERS, Form, OneItem, Reply
from handlers.protocol.rows import fail_request, read_headers
from handlers.protocol.terms import TERMS_HEADERS

logger = logging.getLogger(__name__)

# Reads gRPC messages. It imports protobuf, which takes a tenth of a second, so a worker imports it when it needs it.
GRPC_MODULE = "handlers.protocol.grpc_inference"
PHRASES = {status.value: status.phrase for status in HTTPStatus}
VERSION_HEADER = "X-Model-Version"  # header with the model's version, for clients and routers of several versions
DESCRIBE = "describe"  # TorchServe sets this header for GET /models/M?customized=true
# TorchServe sets this header to "True" for /explanations/M, and to "False" for every prediction over HTTP.
EXPLAIN = "explain"
NO_EXPLANATION = ItemError(501, "NotImplemented", "This model does not compute explanations; call /predictions.")

# Called with the slot of an item that the engine has ended before its micro-batch.
SlotListener = Callable[[Slot], None]


@dataclass(slots=True, eq=False)
class FinishedMicroBatch:
    slots: list[Slot]  # of the items that were not over before it, in order
    outputs: Outputs  # for these items: arrays of shape (B, ...)
    seconds: float  # of `collate` and `forward`
    size: int  # number of all its items
    collate_s: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_split: bool = False


class Pipeline:
    """The steps for one task on one engine, and their metrics."""

    def __init__(self, task: Task, recorder: Recorder, *, decode_threads: int = 1) -> None:
        """`decode_threads` is for `serve`."""
        self._task = task
        self._recorder = recorder
        self._pool = ThreadPoolExecutor(decode_threads, "decode") if decode_threads > 1 else None

    def serve(self, rows: Sequence[Mapping[str, Any]], context: Any, limit_s: float = inf) -> list[bytes]:
        """Serve a batch in classic mode: return one body for each row, with statuses and headers in the context."""
        sent = [context.get_all_request_header(index) for index in range(len(rows))]
        replies = self.answer(list(zip(rows, sent, strict=True)), limit_s)
        return [respond(context, index, reply) for index, reply in enumerate(replies)]

    def answer(self, rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], limit_s: float = inf) -> list[Reply]:
        """Return the replies to a batch in classic mode; after `limit_s` seconds nothing more starts."""
        ends_s = time.perf_counter() + limit_s
        requests = [self.unpack(row, headers) for row, headers in rows]
        slots = [slot for request in requests for slot in request.slots]
        if self._pool is not None and len(slots) > 1:
            list(self._pool.map(self.decode, slots, repeat(ends_s)))
        else:
            for slot in slots:
                self.decode(slot, ends_s)
        self._limit(requests)
        self.prepare(slots)
        self._limit(requests)
        finished = [part for micro_batch in self.plan(slots) for part in self.run(micro_batch, ends_s)]
        for part in finished:
            self.split(part)
        return list(map(self.pack, requests))

    def unpack(self, row: Mapping[str, Any], sent: Mapping[str, Any]) -> Request:
        """Divide a row, with its headers in `sent`, into slots; a bug in the hook fails this request only."""
        arrived_s = time.perf_counter()
        headers = read_headers(sent)
        explain = headers.get(EXPLAIN)
        # TorchServe's predictions have EXPLAIN, so a client's header cannot turn one into a description.
        if METADATA_HEADER in headers or (explain is None and headers.get(DESCRIBE) == "True"):
            _import_grpc()
            return Request((), self._task.metadata, arrived_s=arrived_s)
        try:
            request = fail_request(headers, NO_EXPLANATION) if explain == "True" else self._task.unpack(row, headers)
        except Exception as error:
            logger.error("A request failed: %s", where(error))
            request = fail_request(headers, INTERNAL_ERROR)
        request.arrived_s, request.is_grpc = arrived_s, headers.is_grpc
        if terms := {each: headers[each] for each in TERMS_HEADERS if each in headers}:
            request.terms = {**request.terms, **terms}
        if len(request.payloads) > 1:
            allowance = Allowance()
            for payload in request.payloads:
                if isinstance(payload, Payload):
                    payload.allowance = allowance
        # Only its slot refers to a payload, until it is decoded.
        request.slots, request.payloads = [Slot(payload) for payload in request.payloads], ()
        return request

    def decode(self, slot: Slot, ends_s: float = inf) -> None:
        """Decode the payload in a slot on any thread; after `ends_s`, of `time.perf_counter`, the item fails."""
        started_s = time.perf_counter()
        if not isinstance(slot.outcome, ItemError):
            try:
                slot.outcome = self._task.decode(slot.outcome) if started_s <= ends_s else OUT_OF_TIME
            except InvalidInput as error:
                slot.outcome = ItemError.of(error)
            except Exception as error:
                fail(slot, error)
        slot.decoded_at = time.perf_counter()
        slot.decode_s = slot.decoded_at - started_s

    def prepare(self, slots: Sequence[Slot]) -> None:
        """Prepare the items without an error in one call of the hook, and set their costs."""
        if good := [slot for slot in slots if not isinstance(slot.outcome, ItemError)]:
            try:
                self._prepare(good)
            except Exception as error:
                isolate(good, self._prepare, error)
        for slot in slots:
            if not isinstance(slot.outcome, ItemError):
                try:
                    slot.cost = cost = self._task.cost(slot.outcome)
                    # The plan relies on both; here the item at fault is still known.
                    if cost.length < 1:
                        raise ValueError(f"an item's length is {cost.length}; at least 1 is needed")
                    hash(cost.group)
                except Exception as error:
                    fail(slot, error)

    def _prepare(self, slots: list[Slot]) -> None:
        started_s = time.perf_counter()
        outcomes = list(zip(slots, self._task.prepare([slot.outcome for slot in slots]), strict=True))
        ended_s = time.perf_counter()
        for slot, outcome in outcomes:
            slot.outcome = outcome
            slot.decoded_at = ended_s
            slot.decode_s += ended_s - started_s

    def _limit(self, requests: Sequence[Request]) -> None:
        """Fail the requests whose items are too much together."""
        for request in requests:
            if len(request.slots) > 1 and (error := find_excess(request.slots, self._task.config)):
                for slot in request.slots:
                    slot.outcome = error

    def plan(self, slots: Sequence[Slot]) -> list[list[Slot]]:
        good = [slot for slot in slots if not isinstance(slot.outcome, ItemError)]
        if len(good) < 2:
            return [good] if good else []
        config = self._task.config
        costs = [slot.cost for slot in good]
        plan = plan_micro_batches(costs, config.max_batch_items, config.max_batch_tokens, self._task.overhead)
        return [[good[index] for index in micro_batch] for micro_batch in plan]

    def run(
        self, slots: list[Slot], ends_s: float = inf, listener: SlotListener | None = None
    ) -> list[FinishedMicroBatch]:
        """Run a micro-batch, in halves if it fails, until `ends_s`; `listener` gets items that end before others."""
        finished: list[FinishedMicroBatch] = []

        def step(some: list[Slot]) -> None:
            if time.perf_counter() > ends_s:
                raise OutOfTime
            finished.append(self._run(some, listener))

        try:
            step(slots)
        except Exception as error:
            isolate(slots, step, error)
        return finished

    def _run(self, slots: list[Slot], listener: SlotListener | None) -> FinishedMicroBatch:
        items = [slot.outcome for slot in slots]
        started_s = time.perf_counter()
        inputs = self._task.collate(items)
        collated_s = time.perf_counter()
        outputs = self._forward(inputs, slots, items, started_s, listener)
        ended_s = time.perf_counter()
        # The replies of items that the engine ended before may be written by now.
        left = [index for index, slot in enumerate(slots) if not slot.is_over]
        for index in left:
            _set_times(slots[index], started_s, ended_s, len(slots))
        if len(left) < len(slots):
            outputs = {name: array[left] for name, array in outputs.items()}
        seconds, collate_s = ended_s - started_s, collated_s - started_s
        return FinishedMicroBatch([slots[index] for index in left], outputs, seconds, len(slots), collate_s)

    def _forward(
        self, inputs: Arrays, slots: list[Slot], items: list[Any], started_s: float, listener: SlotListener | None
    ) -> Outputs:
        """Run the model once; with `listener`, report items that the engine ends early."""
        if listener is None:
            return self._task.forward(inputs, items)

        def ended(index: int, outputs: Outputs) -> None:
            slot = slots[index]
            _set_times(slot, started_s, time.perf_counter(), len(slots))
            slot.outputs, slot.is_over = outputs, True
            listener(slot)

        return self._task.forward_reporting(inputs, items, ended)

    def split(self, micro_batch: FinishedMicroBatch) -> None:
        """Replace the items of a micro-batch by their results, and count it."""
        started_s = time.perf_counter()
        if micro_batch.slots:
            self._split(micro_batch.slots, micro_batch.outputs)
        output_s = time.perf_counter() - started_s
        phases = (micro_batch.collate_s, micro_batch.seconds - micro_batch.collate_s, output_s)
        values = (*phases, micro_batch.seconds, micro_batch.size)
        self._recorder.record(((execution_event(micro_batch.size), values),))

    def split_early(self, slot: Slot) -> None:
        """Replace an item that the engine ended before its micro-batch by its result, once."""
        outputs, slot.outputs = slot.outputs, None
        if outputs is not None:
            started_s = time.perf_counter()
            self._split([slot], outputs)
            self._recorder.add(EXECUTION_SECONDS, time.perf_counter() - started_s, str(slot.batch_size), OUTPUT)

    def _split(self, slots: Sequence[Slot], outputs: Outputs) -> None:
        items = [slot.outcome for slot in slots]
        try:
            for slot, result in list(zip(slots, self._task.split(outputs, items), strict=True)):
                slot.tokens = self._task.tokens(slot.outcome)
                slot.outcome = result
        except Exception as error:
            for slot in slots:
                fail(slot, error)

    def pack(self, request: Request) -> Reply:
        """Write the reply to a request, and count it and its items."""
        started_s, slots = time.perf_counter(), request.slots
        reply = self._write_body(request, slots)
        ended_s = time.perf_counter()
        encode_s = ended_s - started_s
        if slots:
            # For each item, the time from its request's arrival to its micro-batch, without decoding.
            starts_s = [slot.decoded_at + slot.wait_s - slot.decode_s for slot in slots if slot.batch_size]
            queue_s = sum([max(0.0, start_s - request.arrived_s) for start_s in starts_s])
            values = (encode_s, ended_s - request.arrived_s, queue_s)
            self._recorder.record([(SUCCEEDED if reply.status < 400 else FAILED, values), *map(_item_event, slots)])
        headers = {**reply.headers, **self._version, "Server-Timing": server_timing(slots, encode_s)}
        if request.is_grpc:
            headers |= GRPC_HEADERS
        return Reply(reply.status, reply.body, reply.content_type, headers)

    @cached_property
    def _version(self) -> Mapping[str, str]:
        version = self._task.metadata.version
        return {} if version is None else {VERSION_HEADER: version}

    def _write_body(self, request: Request, slots: Sequence[Slot]) -> Reply:
        form, limit = request.form, self._task.config.max_response_bytes
        if isinstance(form, Answer):
            form = form.with_tokens(sum(slot.tokens for slot in slots))
        # Results that JSON cannot represent, such as NaN, are a bug of the model or the task, and become errors. A form
        # that cannot write errors either has a bug itself.
        for _ in ("results", "errors"):
            try:
                reply = form.pack([slot.outcome for slot in slots])
                size = len(reply.body)
                if size <= limit:
                    return reply
                # TorchServe would end the worker.
                message = f"The response has {size} bytes; max_response_bytes is {limit}. Send fewer items per request."
                return request.form.pack([ItemError.of(ResponseTooLarge(message))] * len(slots))
            except Exception as error:
                # Items whose result cannot be written fail; the others keep their results.
                for slot in [slot for slot in slots if len(slots) > 1 and not _is_writable(form, slot)] or slots:
                    fail(slot, error)
        return OneItem().pack([INTERNAL_ERROR])


def _is_writable(form: Form, slot: Slot) -> bool:
    try:
        form.pack([slot.outcome])
    except Exception:
        return False
    return True


def _set_times(slot: Slot, started_s: float, ended_s: float, size: int) -> None:
    slot.wait_s, slot.forward_s, slot.batch_size = started_s - slot.decoded_at, ended_s - started_s, size


def _item_event(slot: Slot) -> Event:
    error_type = slot.outcome.type if isinstance(slot.outcome, ItemError) else None
    if slot.batch_size:
        return item_event(error_type, has_run=True), (slot.decode_s, slot.wait_s)
    return item_event(error_type, has_run=False), (slot.decode_s,)


def server_timing(slots: Sequence[Slot], encode_s: float) -> str:
    """Write the Server-Timing header (W3C) with the durations of the request's slowest item, in milliseconds."""
    decode_s, wait_s, forward_s, batch_size = 0.0, 0.0, 0.0, 0
    for slot in slots:
        decode_s, wait_s = max(decode_s, slot.decode_s), max(wait_s, slot.wait_s)
        forward_s, batch_size = max(forward_s, slot.forward_s), max(batch_size, slot.batch_size)
    return (
        f"decode;dur={1000 * decode_s:.2f}, wait;dur={1000 * wait_s:.2f}, forward;dur={1000 * forward_s:.2f}, "
        f'encode;dur={1000 * encode_s:.2f}, batch;desc="{batch_size}"'
    )


def _import_grpc() -> None:
    """Import GRPC_MODULE in a thread: a gateway, which asks for metadata, also sends gRPC messages."""
    if GRPC_MODULE not in sys.modules:
        threading.Thread(target=import_module, args=(GRPC_MODULE,), name="import", daemon=True).start()


def respond(context: Any, index: int, reply: Reply) -> bytes:
    """Set the status and headers of one row's reply in TorchServe's context, and return its body."""
    context.set_response_status(reply.status, PHRASES[reply.status], index)
    context.set_response_content_type(index, reply.content_type)
    for name, value in reply.headers.items():
        context.set_response_header(index, name, value)
    return reply.body
