"""The way of a request through a task, from TorchServe's row to its reply; each step is a method of `Pipeline`.

    unpack      row      -> Request: a payload for each item, and the form of the answer
    decode      payload  -> item, or the ItemError of its own mistake
    prepare     items    -> items with their costs, all in one call of the hook
    plan        items    -> micro-batches
    run         items    -> arrays -> outputs; a micro-batch that fails is halved, down to the item at fault
    split       outputs  -> results
    answer      results  -> Reply: status, headers, body

In classic mode `serve` takes all steps for the rows that TorchServe hands over together. Adaptive mode calls the same
steps on its threads, and `split_ended` for items that the engine ends before their micro-batch (handlers.batching).

Each item has a Slot, in which every step leaves its outcome. No step raises for an item: where a hook fails, that item
is answered with 500, and the log says where.
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
from handlers.errors import (
    INTERNAL_ERROR,
    OUT_OF_MEMORY,
    OUT_OF_TIME,
    InvalidInput,
    ItemError,
    OutOfMemory,
    OutOfTime,
    ResponseTooLarge,
    WrongOutput,
    where,
)
from handlers.metrics import (
    EXECUTION_SECONDS,
    FAILED,
    OUTPUT,
    SUCCEEDED,
    Happened,
    Recorder,
    execution_event,
    item_event,
)
from handlers.pipeline.limits import excess
from handlers.pipeline.micro_batches import micro_batches
from handlers.pipeline.task import Task
from handlers.protocol import retrieval
from handlers.protocol.headers import GRPC_HEADERS
from handlers.protocol.metadata import METADATA_HEADER
from handlers.protocol.requests import Allowance, Payload, Request, Slot
from handlers.protocol.responses import Form, OneItem, Reply
from handlers.protocol.rows import failed, read_headers
from handlers.protocol.terms import TERMS

logger = logging.getLogger(__name__)

# Imports protobuf, which takes a tenth of a second; a worker that gets no gRPC messages does without.
GRPC_MODULE = "handlers.protocol.grpc_inference"
PHRASES = {status.value: status.phrase for status in HTTPStatus}
# The version that answered, for clients and routers of several versions.
VERSION_HEADER = "X-Model-Version"
# TorchServe sets these for GET /models/M?customized=true and for /explanations/M.
DESCRIBE, EXPLAIN = "describe", "explain"
NO_EXPLANATION = ItemError(501, "NotImplemented", "This model does not compute explanations; call /predictions.")


# Called with a slot whose item the engine has ended before its micro-batch.
SlotListener = Callable[[Slot], None]


@dataclass(slots=True, eq=False)
class FinishedMicroBatch:
    """A micro-batch that went through the model, until it is split."""

    slots: list[Slot]  # those of its items that were not over before it, in order
    outputs: Outputs  # the engine's, for these: arrays of shape (B, ...)
    seconds: float  # that `collate` and `forward` took
    size: int  # how many items it had, with those that were over before
    collate_s: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_split: bool = False


class Pipeline:
    """The steps for one task on one engine. It records what the steps did and how long they took."""

    def __init__(self, task: Task, recorder: Recorder, *, decode_threads: int = 1) -> None:
        """Prepare the steps; more than one of `decode_threads` decode the items of `serve` side by side."""
        self._task = task
        self._recorder = recorder
        self._pool = ThreadPoolExecutor(decode_threads, "decode") if decode_threads > 1 else None

    def serve(self, rows: Sequence[Mapping[str, Any]], context: Any, limit_s: float = inf) -> list[bytes]:
        """Answer rows together, in classic mode: one body for each.

        TorchServe's context has request headers, and takes statuses and response headers. After `limit_s` seconds no
        item is decoded and no micro-batch begun.
        """
        ends_s = time.perf_counter() + limit_s
        requests = [self.unpack(row, context.get_all_request_header(index)) for index, row in enumerate(rows)]
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
        return [respond(context, index, self.answer(request)) for index, request in enumerate(requests)]

    # -- unpack ------------------------------------------------------------------------------------------------------

    def unpack(self, row: Mapping[str, Any], sent: Mapping[str, Any]) -> Request:
        """Take a row apart into slots; `sent` has its headers as TorchServe has them, see `read_headers`.

        A bug in the hook is this request's own error. A request for metadata has no items.
        """
        came_s = time.perf_counter()
        headers = read_headers(sent)
        explain = headers.get(EXPLAIN)
        # Predictions have EXPLAIN, so no client's header makes a description of one.
        if METADATA_HEADER in headers or (explain is None and headers.get(DESCRIBE) == "True"):
            _import_grpc()
            return Request((), self._task.metadata, came_s=came_s)
        try:
            request = failed(headers, NO_EXPLANATION) if explain == "True" else self._task.unpack(row, headers)
        except Exception as error:
            logger.error("A request failed: %s", where(error))
            request = failed(headers, INTERNAL_ERROR)
        request.came_s, request.is_grpc = came_s, not headers
        if terms := {each: headers[each] for each in TERMS if each in headers}:
            request.terms = {**request.terms, **terms}
        if len(request.payloads) > 1:
            allowance = Allowance()
            for payload in request.payloads:
                if isinstance(payload, Payload):
                    payload.allowance = allowance
        # Each payload lives until it is decoded, in its slot, and no longer.
        request.slots, request.payloads = [Slot(payload) for payload in request.payloads], ()
        return request

    # -- decode, prepare ---------------------------------------------------------------------------------------------

    def decode(self, slot: Slot, ends_s: float = inf) -> None:
        """Decode the payload in a slot; an error in it stays. This is the only place that catches InvalidInput.

        Any thread may call it. After `ends_s`, of `time.perf_counter`, the item is given up.
        """
        started_s = time.perf_counter()
        if not isinstance(slot.outcome, ItemError):
            try:
                slot.outcome = self._task.decode(slot.outcome) if started_s <= ends_s else OUT_OF_TIME
            except InvalidInput as error:
                slot.outcome = ItemError.of(error)
            except Exception as error:
                _give_up(slot, error)
        slot.decoded_at = time.perf_counter()
        slot.decode_s = slot.decoded_at - started_s

    def prepare(self, slots: Sequence[Slot]) -> None:
        """Prepare the items that are still good, in one call of the hook, and find what each costs."""
        _attempt([slot for slot in slots if not isinstance(slot.outcome, ItemError)], self._prepare, _give_up)
        for slot in slots:
            if not isinstance(slot.outcome, ItemError):
                try:
                    slot.cost = cost = self._task.cost(slot.outcome)
                    # A plan relies on both, and here the item that is at fault is still known.
                    if cost.length < 1:
                        raise ValueError(f"an item's length is {cost.length}; at least 1 is needed")
                    hash(cost.group)
                except Exception as error:
                    _give_up(slot, error)

    def _prepare(self, slots: list[Slot]) -> None:
        started_s = time.perf_counter()
        outcomes = list(zip(slots, self._task.prepare([slot.outcome for slot in slots]), strict=True))
        ended_s = time.perf_counter()
        for slot, outcome in outcomes:
            slot.outcome = outcome
            slot.decoded_at = ended_s
            slot.decode_s += ended_s - started_s

    # -- plan --------------------------------------------------------------------------------------------------------

    def _limit(self, requests: Sequence[Request]) -> None:
        """Fail all items of each request whose items are too much together."""
        for request in requests:
            if len(request.slots) > 1 and (error := excess(request.slots, self._task.config)):
                for slot in request.slots:
                    slot.outcome = error

    def plan(self, slots: Sequence[Slot]) -> list[list[Slot]]:
        """Put the items that are still good into micro-batches."""
        good = [slot for slot in slots if not isinstance(slot.outcome, ItemError)]
        if len(good) < 2:
            return [good] if good else []
        config = self._task.config
        plan = micro_batches(
            [slot.cost for slot in good], config.max_batch_items, config.max_batch_tokens, self._task.overhead
        )
        return [[good[index] for index in micro_batch] for micro_batch in plan]

    # -- run ---------------------------------------------------------------------------------------------------------

    def run(
        self, slots: list[Slot], ends_s: float = inf, listener: SlotListener | None = None
    ) -> list[FinishedMicroBatch]:
        """Run a micro-batch, halving it where it fails; return what ran, in parts, without the slots that failed alone.

        After `ends_s`, of `time.perf_counter`, no part is begun. `listener` is called for each item that the engine
        ends before the others, on the engine's threads.
        """
        finished: list[FinishedMicroBatch] = []

        def step(some: list[Slot]) -> None:
            if time.perf_counter() > ends_s:
                raise OutOfTime
            finished.append(self._run(some, listener))

        _attempt(slots, step, _give_up)
        return finished

    def _run(self, slots: list[Slot], listener: SlotListener | None) -> FinishedMicroBatch:
        items = [slot.outcome for slot in slots]
        started_s = time.perf_counter()
        inputs = self._task.collate(items)
        collated_s = time.perf_counter()
        outputs = self._forward(inputs, slots, items, started_s, listener)
        ended_s = time.perf_counter()
        # Requests of items that the engine ended before may be answered by now.
        left = [index for index, slot in enumerate(slots) if not slot.is_over]
        for index in left:
            _note(slots[index], started_s, ended_s, len(slots))
        if len(left) < len(slots):
            outputs = {name: array[left] for name, array in outputs.items()}
        seconds, collate_s = ended_s - started_s, collated_s - started_s
        return FinishedMicroBatch([slots[index] for index in left], outputs, seconds, len(slots), collate_s)

    def _forward(
        self, inputs: Arrays, slots: list[Slot], items: list[Any], started_s: float, listener: SlotListener | None
    ) -> Outputs:
        """Run the model once; with `listener`, report the items that the engine ends meanwhile."""
        if listener is None:
            return self._task.forward(inputs, items)

        def ended(index: int, outputs: Outputs) -> None:
            slot = slots[index]
            _note(slot, started_s, time.perf_counter(), len(slots))
            slot.outputs, slot.is_over = outputs, True
            listener(slot)

        return self._task.forward_reporting(inputs, items, ended)

    # -- split -------------------------------------------------------------------------------------------------------

    def split(self, micro_batch: FinishedMicroBatch) -> None:
        """Replace the items in the slots of a micro-batch by their results, and count it."""
        started_s = time.perf_counter()
        if micro_batch.slots:
            self._split(micro_batch.slots, micro_batch.outputs)
        output_s = time.perf_counter() - started_s
        phases = (micro_batch.collate_s, micro_batch.seconds - micro_batch.collate_s, output_s)
        values = (*phases, micro_batch.seconds, micro_batch.size)
        self._recorder.record(((execution_event(micro_batch.size), values),))

    def split_ended(self, slot: Slot) -> None:
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
                _give_up(slot, error)

    # -- answer ------------------------------------------------------------------------------------------------------

    def answer(self, request: Request) -> Reply:
        """Write the answer to a request, and count it and its items."""
        started_s, slots = time.perf_counter(), request.slots
        reply = self._pack(request, slots)
        ended_s = time.perf_counter()
        encode_s = ended_s - started_s
        if slots:
            # For each item, the time from its request's arrival to its micro-batch, but for decoding.
            starts_s = [slot.decoded_at + slot.wait_s - slot.decode_s for slot in slots if slot.batch_size]
            queue_s = sum([max(0.0, start_s - request.came_s) for start_s in starts_s])
            values = (encode_s, ended_s - request.came_s, queue_s)
            self._recorder.record([(SUCCEEDED if reply.status < 400 else FAILED, values), *map(_answered, slots)])
        headers = {**reply.headers, **self._version, "Server-Timing": server_timing(slots, encode_s)}
        if request.is_grpc:
            headers |= GRPC_HEADERS
        return Reply(reply.status, reply.body, reply.content_type, headers)

    @cached_property
    def _version(self) -> Mapping[str, str]:
        version = self._task.metadata.version
        return {} if version is None else {VERSION_HEADER: version}

    def _pack(self, request: Request, slots: Sequence[Slot]) -> Reply:
        form, limit = request.form, self._task.config.max_response_bytes
        if isinstance(form, retrieval.Answer):
            form = form.counted(sum(slot.tokens for slot in slots))
        # Results that JSON cannot represent, such as NaN, are a bug of the model or the task, and become errors. If the
        # form cannot write these either, the bug is ours.
        for _ in ("results", "errors"):
            try:
                reply = form.pack([slot.outcome for slot in slots])
                size = len(reply.body)
                if size <= limit:
                    return reply
                # TorchServe would end the worker.
                message = f"The answer has {size} bytes; max_response_bytes is {limit}. Ask for fewer items or less."
                return request.form.pack([ItemError.of(ResponseTooLarge(message))] * len(slots))
            except Exception as error:
                # Items whose result cannot be written fail; the others keep theirs.
                for slot in [slot for slot in slots if len(slots) > 1 and not _is_writable(form, slot)] or slots:
                    _give_up(slot, error)
        return OneItem().pack([INTERNAL_ERROR])


def _is_writable(form: Form, slot: Slot) -> bool:
    try:
        form.pack([slot.outcome])
    except Exception:
        return False
    return True


def _attempt(slots: list[Slot], step: Callable[[list[Slot]], None], give_up: Callable[[Slot, Exception], None]) -> None:
    """Run a step on slots together; where it fails, run it on halves of them, down to the slots that fail alone.

    Items that are over by then are left out. A step that raises must not have changed any other. Where time is up, all
    others are given up at once.
    """
    if not slots:
        return
    try:
        step(slots)
    except OutOfTime as error:
        # Halves would take longer still.
        for slot in slots:
            if not slot.is_over:
                give_up(slot, error)
    except Exception as error:
        left = [slot for slot in slots if not slot.is_over]
        if left and len(slots) == 1:
            give_up(left[0], error)
        else:
            middle = len(left) // 2
            _attempt(left[:middle], step, give_up)
            _attempt(left[middle:], step, give_up)


def _give_up(slot: Slot, error: Exception) -> None:
    """Fail an item that failed alone."""
    if isinstance(error, OutOfMemory | MemoryError):
        slot.outcome = OUT_OF_MEMORY
    elif isinstance(error, OutOfTime):
        slot.outcome = OUT_OF_TIME
    elif isinstance(error, InvalidInput):
        # Only the engine can tell that it cannot compute with the item.
        slot.outcome = ItemError.of(error)
    elif isinstance(error, WrongOutput):
        # Its message has names, datatypes and shapes, never a payload.
        logger.error("An item failed: %s", error)
        slot.outcome = ItemError(WrongOutput.code, WrongOutput.__name__, str(error))
    else:
        logger.error("An item failed: %s", where(error))
        slot.outcome = INTERNAL_ERROR


def _note(slot: Slot, started_s: float, ended_s: float, size: int) -> None:
    """Note in a slot when its micro-batch of so many items began and ended."""
    slot.wait_s, slot.forward_s, slot.batch_size = started_s - slot.decoded_at, ended_s - started_s, size


def _answered(slot: Slot) -> Happened:
    """Return the event of an answered item."""
    error_type = slot.outcome.type if isinstance(slot.outcome, ItemError) else None
    if slot.batch_size:
        return item_event(error_type, has_run=True), (slot.decode_s, slot.wait_s)
    return item_event(error_type, has_run=False), (slot.decode_s,)


def server_timing(slots: Sequence[Slot], encode_s: float) -> str:
    """Write the Server-Timing header (W3C): the durations of the request's slowest item, in milliseconds."""
    decode_s, wait_s, forward_s, batch_size = 0.0, 0.0, 0.0, 0
    for slot in slots:
        decode_s, wait_s = max(decode_s, slot.decode_s), max(wait_s, slot.wait_s)
        forward_s, batch_size = max(forward_s, slot.forward_s), max(batch_size, slot.batch_size)
    return (
        f"decode;dur={1000 * decode_s:.2f}, wait;dur={1000 * wait_s:.2f}, forward;dur={1000 * forward_s:.2f}, "
        f'encode;dur={1000 * encode_s:.2f}, batch;desc="{batch_size}"'
    )


def _import_grpc() -> None:
    """Import what reads gRPC messages, in a thread: a gateway asks for metadata, and it sends such messages."""
    if GRPC_MODULE not in sys.modules:
        threading.Thread(target=import_module, args=(GRPC_MODULE,), name="import", daemon=True).start()


def respond(context: Any, index: int, reply: Reply) -> bytes:
    """Set the status and headers of one row's answer in TorchServe's context, and return its body."""
    context.set_response_status(reply.status, PHRASES[reply.status], index)
    context.set_response_content_type(index, reply.content_type)
    for name, value in reply.headers.items():
        context.set_response_header(index, name, value)
    return reply.body
