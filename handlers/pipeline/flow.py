"""The steps of a request through a task, from TorchServe's row to its response; each step is a method of `Pipeline`.

    unpack      row      -> Request: a payload for each item, and the form of the response
    decode      payload  -> item, or its ItemError
    prepare     items    -> items with their costs, all in one call of the hook
    plan        items    -> micro-batches
    run         items    -> arrays -> outputs; a micro-batch that fails is halved, down to the item at fault
    split       outputs  -> results
    pack        results  -> Response: status, headers, body

In classic mode `serve` calls all steps for the rows of a batch. Adaptive mode calls them on its threads, and
`split_early` for items that the engine ends before their micro-batch (handlers.batching).

Each item has a Slot, which contains what its last step made. No step raises for an item: if a hook fails, the
response has 500 for that item, and the log has the place of the error.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from importlib import import_module
from itertools import repeat
from math import inf
from typing import Any, Generic

from handlers.engines import Outputs
from handlers.errors import INTERNAL_ERROR, InvalidInput, ItemError, OutOfTime, ResponseTooLarge, where
from handlers.metrics import EXECUTION_SECONDS, FAILED, OUTPUT, SUCCEEDED, Event, Recorder, execution_event, item_event
from handlers.pipeline.failures import fail, find_excess, isolate
from handlers.pipeline.jobs import AnySlot, Job, Slot, fold, make_job
from handlers.pipeline.micro_batches import plan_micro_batches
from handlers.pipeline.response_headers import headers_of
from handlers.pipeline.task import Reporting, Task, decode, inputs_of, samples_of
from handlers.protocol.api_forms import Answer
from handlers.protocol.metadata import METADATA_HEADER
from handlers.protocol.requests import TERMS_HEADERS, Allowance, Payload, Request
from handlers.protocol.responses import Form, OneItem, Response
from handlers.protocol.rows import fail_request, read_headers
from handlers.protocol.wire import SAMPLE

logger = logging.getLogger(__name__)

# Reads gRPC messages. It imports protobuf, which takes a tenth of a second, so a worker imports it when it needs it.
GRPC_MODULE = "handlers.protocol.grpc_inference"
PHRASES = {status.value: status.phrase for status in HTTPStatus}
DESCRIBE = "describe"  # TorchServe sets this header for GET /models/M?customized=true
# TorchServe sets this header to "True" for /explanations/M, and to "False" for every prediction over HTTP.
EXPLAIN = "explain"
NO_EXPLANATION = ItemError(501, "NotImplemented", "This model does not compute explanations; call /predictions.")


@dataclass(slots=True, eq=False)
class FinishedMicroBatch(Generic[AnySlot]):
    groups: list[list[AnySlot]]  # of the items that were not over before it, in order; equal ones are a group
    outputs: Outputs  # for these groups: arrays of shape (B, ...)
    seconds: float  # of `collate` and `forward`
    size: int  # number of all its items that differ
    collate_s: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_split: bool = False

    @property
    def slots(self) -> list[AnySlot]:
        return [slot for group in self.groups for slot in group]


class Pipeline:
    """The steps for one task on one engine, and their metrics."""

    def __init__(self, task: Task, recorder: Recorder, *, decode_threads: int = 1) -> None:
        """`decode_threads` is for `serve`."""
        self._task, self._recorder = task, recorder
        self._reporting = task if isinstance(task, Reporting) else None
        self._pool = ThreadPoolExecutor(decode_threads, "decode") if decode_threads > 1 else None

    def serve(self, rows: Sequence[Mapping[str, object]], context: Any, limit_s: float = inf) -> list[bytes]:
        """Serve a batch in classic mode: return one body for each row, with statuses and headers in the context."""
        sent = [context.get_all_request_header(index) for index in range(len(rows))]
        responses = self.answer(list(zip(rows, sent, strict=True)), limit_s)
        return [respond(context, index, response) for index, response in enumerate(responses)]

    def answer(
        self, rows: Sequence[tuple[Mapping[str, object], Mapping[str, object]]], limit_s: float = inf
    ) -> list[Response]:
        """Return the responses to a batch in classic mode; after `limit_s` seconds nothing more starts."""
        ends_s = time.perf_counter() + limit_s
        jobs = [make_job(time.perf_counter(), self.unpack(*row)) for row in rows]
        slots = [slot for job in jobs for slot in job.slots]
        if self._pool is not None and len(slots) > 1:
            list(self._pool.map(self.decode, slots, repeat(ends_s)))
        else:
            for slot in slots:
                self.decode(slot, ends_s)
        self._limit(jobs)
        self.prepare(slots)
        self._limit(jobs)
        finished = [part for micro_batch in self.plan(slots) for part in self.run(micro_batch, ends_s)]
        for part in finished:
            self.split(part)
        return list(map(self.pack, jobs))

    def unpack(self, row: Mapping[str, object], sent: Mapping[str, object]) -> Request:
        """Divide a row, with its headers in `sent`, into payloads; a bug in the hook fails this request only."""
        headers = read_headers(sent)
        explain = headers.get(EXPLAIN)
        # TorchServe's predictions have EXPLAIN, so a client's header cannot turn one into a description.
        if METADATA_HEADER in headers or (explain is None and headers.get(DESCRIBE) == "True"):
            _import_grpc()
            samples = samples_of(self._task) if headers.get(METADATA_HEADER) == SAMPLE else []
            return Request((samples[0],), is_check=True) if samples else Request((), self._task.archive.metadata)
        try:
            request = fail_request(headers, NO_EXPLANATION) if explain == "True" else self._task.unpack(row, headers)
        except Exception as error:
            logger.error("A request failed: %s", where(error))
            request = fail_request(headers, INTERNAL_ERROR)
        terms = {each: headers[each] for each in TERMS_HEADERS if each in headers}
        if terms or headers.is_grpc:
            request = replace(request, terms={**request.terms, **terms}, is_grpc=headers.is_grpc)
        if len(request.payloads) > 1:
            allowance = Allowance()
            for payload in request.payloads:
                if isinstance(payload, Payload):
                    payload.allowance = allowance
        return request

    def decode(self, slot: Slot, ends_s: float = inf) -> None:
        """Decode the payload in a slot on any thread; after `ends_s`, of `time.perf_counter`, the item fails."""
        started_s = time.perf_counter()
        # Only its slot refers to a payload, until it is decoded.
        payload, slot.payload = slot.payload, None
        if payload is not None:
            try:
                if started_s > ends_s:
                    raise OutOfTime
                slot.item = decode(self._task, payload)
            except InvalidInput as error:
                slot.fail(ItemError.of(error))
            except Exception as error:
                fail(slot, error)
        slot.decoded_at = time.perf_counter()
        slot.decode_s = slot.decoded_at - started_s

    def prepare(self, slots: Sequence[Slot]) -> None:
        """Prepare the items without an error in one call of the hook, and set their costs."""
        if good := [slot for slot in slots if slot.error is None]:
            try:
                self._prepare(good)
            except Exception as error:
                isolate(good, self._prepare, error)
        for slot in slots:
            if slot.error is None:
                try:
                    slot.cost = cost = self._task.cost(slot.item)
                    # The plan relies on both; here the item at fault is still known.
                    if cost.length < 1:
                        raise ValueError(f"an item's length is {cost.length}; at least 1 is needed")
                    hash(cost.group)
                except Exception as error:
                    fail(slot, error)

    def _prepare(self, slots: Sequence[Slot]) -> None:
        started_s = time.perf_counter()
        outcomes = list(zip(slots, self._task.prepare([slot.item for slot in slots]), strict=True))
        ended_s = time.perf_counter()
        for slot, outcome in outcomes:
            if isinstance(outcome, ItemError):
                slot.fail(outcome)
            else:
                slot.item = outcome
            slot.decoded_at = ended_s
            slot.decode_s += ended_s - started_s

    def _limit(self, jobs: Sequence[Job[Slot]]) -> None:
        """Fail the requests whose items are too much together."""
        for job in jobs:
            if len(job.slots) > 1 and (error := find_excess(job.slots, self._task.config)):
                for slot in job.slots:
                    slot.fail(error)

    def plan(self, slots: Sequence[Slot]) -> list[list[Slot]]:
        good = [slot for slot in slots if slot.error is None]
        if len(good) < 2:
            return [good] if good else []
        config = self._task.config
        costs = [slot.cost for slot in good]
        plan = plan_micro_batches(
            costs, config.max_batch_items, config.max_batch_tokens, inputs_of(self._task).overhead
        )
        return [[good[index] for index in micro_batch] for micro_batch in plan]

    def run(
        self, slots: Sequence[AnySlot], ends_s: float = inf, listener: Callable[[AnySlot], None] | None = None
    ) -> list[FinishedMicroBatch[AnySlot]]:
        """Run a micro-batch, in halves if it fails, until `ends_s`; `listener` gets items that end before others."""
        finished: list[FinishedMicroBatch[AnySlot]] = []

        def step(some: Sequence[AnySlot]) -> None:
            if time.perf_counter() > ends_s:
                raise OutOfTime
            finished.append(self._run(some, listener))

        try:
            step(slots)
        except Exception as error:
            isolate(slots, step, error)
        return finished

    def _run(self, slots: Sequence[AnySlot], listener: Callable[[AnySlot], None] | None) -> FinishedMicroBatch[AnySlot]:
        groups, task = fold(slots), self._reporting
        items, size = [group[0].item for group in groups], len(groups)
        started_s = time.perf_counter()
        inputs = self._task.collate(items)
        collated_s = time.perf_counter()
        if listener is None or task is None:
            outputs = self._task.forward(inputs, items)
        else:

            def ended(index: int, outputs: Outputs) -> None:
                for slot in groups[index]:
                    _set_times(slot, started_s, time.perf_counter(), size)
                    slot.outputs, slot.is_over = outputs, True
                    listener(slot)

            outputs = task.forward_reporting(inputs, items, ended)
        ended_s = time.perf_counter()
        # The responses of items that the engine ended before may be written by now.
        over = {slot for slot in slots if slot.is_over}
        for slot in slots:
            if slot not in over:
                _set_times(slot, started_s, ended_s, size)
        if over:
            open_ = [[slot for slot in group if slot not in over] for group in groups]
            left = [index for index, group in enumerate(open_) if group]
            groups = [open_[index] for index in left]
            outputs = {name: array[left] for name, array in outputs.items()}
        return FinishedMicroBatch(groups, outputs, ended_s - started_s, size, collated_s - started_s)

    def split(self, micro_batch: FinishedMicroBatch[AnySlot]) -> None:
        """Replace the items of a micro-batch by their results, and count it."""
        started_s = time.perf_counter()
        if micro_batch.groups:
            self._split(micro_batch.groups, micro_batch.outputs)
        output_s = time.perf_counter() - started_s
        phases = (micro_batch.collate_s, micro_batch.seconds - micro_batch.collate_s, output_s)
        values = (*phases, micro_batch.seconds, micro_batch.size)
        self._recorder.record(((execution_event(micro_batch.size), values),))

    def split_early(self, slot: Slot) -> None:
        """Replace an item that the engine ended before its micro-batch by its result, once."""
        outputs, slot.outputs = slot.outputs, None
        if outputs is not None:
            started_s = time.perf_counter()
            self._split([[slot]], outputs)
            self._recorder.add(EXECUTION_SECONDS, time.perf_counter() - started_s, str(slot.batch_size), OUTPUT)

    def _split(self, groups: Sequence[Sequence[Slot]], outputs: Outputs) -> None:
        items = [group[0].item for group in groups]
        try:
            for group, result in list(zip(groups, self._task.split(outputs, items), strict=True)):
                for slot in group:
                    if isinstance(result, ItemError):
                        slot.fail(result)
                    else:
                        slot.item, slot.result = None, result
        except Exception as error:
            for group in groups:
                for slot in group:
                    fail(slot, error)

    def pack(self, job: Job[AnySlot], others: int | None = None) -> Response:
        """Write the response to a request, and count it and its items; `others` are requests beside it in a worker."""
        started_s, slots = time.perf_counter(), job.slots
        response = self._write_body(job.form, slots)
        ended_s = time.perf_counter()
        if slots:
            # For each item, the time from its request's arrival to its micro-batch, without decoding.
            starts_s = [slot.decoded_at + slot.wait_s - slot.decode_s for slot in slots if slot.batch_size]
            queue_s = sum([max(0.0, start_s - job.arrived_s) for start_s in starts_s])
            values = (ended_s - started_s, ended_s - job.arrived_s, queue_s)
            self._recorder.record([(SUCCEEDED if response.status < 400 else FAILED, values), *map(_item_event, slots)])
        own = headers_of(job, self._task.archive.metadata, others, started_s, ended_s)
        return Response(response.status, response.body, response.content_type, {**response.headers, **own})

    def _write_body(self, asked: Form, slots: Sequence[Slot]) -> Response:
        form, limit = asked, self._task.config.max_response_bytes
        if isinstance(form, Answer):
            form = form.with_tokens(sum(slot.cost.sent for slot in slots if slot.error is None))
        # Results that JSON cannot represent, such as NaN, are a bug of the model or the task, and become errors. A form
        # that cannot write errors either has a bug itself.
        for _ in ("results", "errors"):
            try:
                response = form.pack([slot.error or slot.result for slot in slots])
                size = len(response.body)
                if size <= limit:
                    return response
                # TorchServe would end the worker.
                message = f"The response has {size} bytes; max_response_bytes is {limit}. Send fewer items per request."
                return asked.pack([ItemError.of(ResponseTooLarge(message))] * len(slots))
            except Exception as error:
                # Items whose result cannot be written fail; the others keep their results.
                for slot in [slot for slot in slots if len(slots) > 1 and not _is_writable(form, slot)] or slots:
                    fail(slot, error)
        return OneItem().pack([INTERNAL_ERROR])


def _is_writable(form: Form, slot: Slot) -> bool:
    try:
        form.pack([slot.error or slot.result])
    except Exception:
        return False
    return True


def _set_times(slot: Slot, started_s: float, ended_s: float, size: int) -> None:
    slot.wait_s, slot.forward_s, slot.batch_size = started_s - slot.decoded_at, ended_s - started_s, size


def _item_event(slot: Slot) -> Event:
    error_type = None if slot.error is None else slot.error.type
    if slot.batch_size:
        return item_event(error_type, has_run=True), (slot.decode_s, slot.wait_s)
    return item_event(error_type, has_run=False), (slot.decode_s,)


def _import_grpc() -> None:
    """Import GRPC_MODULE in a thread: a gateway, which asks for metadata, also sends gRPC messages."""
    if GRPC_MODULE not in sys.modules:
        threading.Thread(target=import_module, args=(GRPC_MODULE,), name="import", daemon=True).start()


def respond(context: Any, index: int, response: Response) -> bytes:
    """Set the status and headers of one row's response in TorchServe's context, and return its body."""
    context.set_response_status(response.status, PHRASES[response.status], index)
    context.set_response_content_type(index, response.content_type)
    for name, value in response.headers.items():
        context.set_response_header(index, name, value)
    return response.body
