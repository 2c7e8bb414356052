"""Take the slots of a batch through the hooks of a task, safely, whoever decides when.

    decode, prepare, price      a payload becomes a priced item, or the ItemError of its own mistake
    run                         collate -> forward; what fails is halved and tried again, down to the item at fault
    end                         what was generated for an item that has ended becomes its result, while others go on
    split, answer               outputs become results, results become a Reply

Every step leaves its outcome in the slots and never raises for an item: where a hook fails, that item is answered with
500 and the log says where.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from http import HTTPStatus
from importlib import import_module
from math import inf
from typing import Any, Protocol

from handlers.config import HandlerConfig
from handlers.engines import Arrays, Listener, Outputs, Progress
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
from handlers.pipeline.budget import excess
from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.slots import FinishedMicroBatch, Generated, Pieces, Slot, attempt, server_timing
from handlers.protocol import retrieval
from handlers.protocol.headers import GRPC_HEADERS, is_grpc
from handlers.protocol.metadata import Metadata, asks_for_metadata
from handlers.protocol.requests import Allowance, Payload, Request, failed
from handlers.protocol.responses import OneItem, Reply

logger = logging.getLogger(__name__)

# Imports protobuf, for a tenth of a second; a worker that gets no gRPC messages does without.
GRPC_MODULE = "handlers.protocol.grpc_inference"
PHRASES = {status.value: status.phrase for status in HTTPStatus}
# Names the version that answered, for whoever routes between several.
VERSION_HEADER = "X-Model-Version"


class Task(Protocol):
    """The hooks of a task, and its settings; handlers.base.BatchHandler says what each must do."""

    @property
    def config(self) -> HandlerConfig: ...
    @property
    def metadata(self) -> Metadata: ...

    def unpack(self, row: Mapping[str, Any], headers: Mapping[str, Any]) -> Request: ...
    def decode(self, payload: Payload) -> Any: ...
    def prepare(self, items: Sequence[Any]) -> Sequence[Any]: ...
    def cost(self, item: Any) -> Cost: ...
    def tokens(self, item: Any) -> int: ...
    def collate(self, items: Sequence[Any]) -> Arrays: ...
    def forward(self, inputs: Arrays, items: Sequence[Any]) -> Outputs: ...
    def pieces(self, item: Any) -> Pieces | None: ...
    def forward_progressively(self, inputs: Arrays, items: Sequence[Any], progress: Listener) -> Outputs: ...
    def split(self, outputs: Outputs, items: Sequence[Any]) -> Sequence[Any]: ...


# Told of a slot whose item's generation went on, with the new tokens and whether they are the last; True ends it.
Heard = Callable[[Slot, Sequence[int], bool], bool]


class Runner:
    """Calls the hooks of one task, and records what they did and how long they took."""

    def __init__(self, task: Task, recorder: Recorder) -> None:
        self._task = task
        self._recorder = recorder

    def read(self, row: Mapping[str, Any], headers: Mapping[str, Any]) -> Request:
        """Unpack what a client sent; a bug in that is this request's own error.

        Where it asks for the model's metadata, there is nothing to unpack: such a request has no items.
        """
        came_s = time.perf_counter()
        if asks_for_metadata(headers):
            _expect_grpc()
            return Request((), self._task.metadata)
        try:
            request = self._task.unpack(row, headers)
        except Exception as error:
            logger.error("A request failed: %s", where(error))
            request = failed(headers, INTERNAL_ERROR)
        return Request(
            _sharing(request.payloads), request.form, is_grpc(headers), request.terms, came_s, request.is_streamed
        )

    def decode(self, slot: Slot, ends_s: float = inf) -> None:
        """Decode the payload in a slot. This is the only place that catches InvalidInput; any thread may call it.

        Args:
            slot: holds a payload, or an error, which stays.
            ends_s: from when on nothing is decoded, in seconds of `time.perf_counter`.
        """
        started = time.perf_counter()
        if started > ends_s and not slot.is_failed:
            slot.outcome = OUT_OF_TIME
        if not slot.is_failed:
            try:
                slot.outcome = self._task.decode(slot.outcome)
            except InvalidInput as error:
                slot.outcome = ItemError.of(error)
            except Exception as error:
                self._give_up(slot, error)
        slot.decoded_at = time.perf_counter()
        slot.decode_s = slot.decoded_at - started

    def prepare(self, slots: Sequence[Slot]) -> None:
        """Prepare the items that are still good, all in one call of the hook."""
        attempt([slot for slot in slots if not slot.is_failed], self._prepare, self._give_up)

    def price(self, slots: Sequence[Slot]) -> list[tuple[Slot, Cost]]:
        """Find the slots that are still good, and what each of their items asks of a micro-batch."""
        return [(slot, cost) for slot in slots if (cost := self._cost(slot)) is not None]

    def budget(self, slots: Sequence[Slot], costs: Mapping[int, Cost] | None = None) -> None:
        """Fail all items of a request with one error, where they are too much together.

        Args:
            slots: those of one request.
            costs: what they ask of micro-batches, by `id` of the slot, as far as that is known.
        """
        if len(slots) > 1:
            known = [cost for slot in slots if (cost := (costs or {}).get(id(slot))) is not None]
            if error := excess((slot.outcome for slot in slots), known, self._task.config):
                for slot in slots:
                    slot.outcome = error

    def run(self, slots: list[Slot], ends_s: float = inf, heard: Heard | None = None) -> list[FinishedMicroBatch]:
        """Run a micro-batch, halving it where it fails.

        Args:
            slots: those of the micro-batch, all good.
            ends_s: from when on none is begun, in seconds of `time.perf_counter`; what is left is given up.
            heard: is told what the engine generates for the items while it runs, where it tells; on its threads.

        Returns:
            What ran: the whole micro-batch, or parts of it where it failed, without the slots that failed alone.
        """
        finished: list[FinishedMicroBatch] = []

        def step(some: list[Slot]) -> None:
            if time.perf_counter() > ends_s:
                raise OutOfTime
            finished.append(self._run(some, heard))

        attempt(slots, step, self._give_up)
        return finished

    def end(self, slot: Slot) -> str:
        """Replace an item that the engine has ended by its result; give the rest of its text. Once for a slot."""
        generated = slot.generated
        if generated is None or not generated.is_ended or generated.is_split:
            return ""
        generated.is_split = True
        started = time.perf_counter()
        try:
            text = generated.pieces.add(generated.take())
            rest, slot.outcome = generated.pieces.end()
        except Exception as error:
            self._give_up(slot, error)
            return ""
        self._recorder.add(EXECUTION_SECONDS, time.perf_counter() - started, str(slot.batch_size), OUTPUT)
        return text + rest

    def split(self, micro_batch: FinishedMicroBatch) -> None:
        """Replace the items in the slots of a micro-batch by the results that its outputs hold, and count it."""
        started = time.perf_counter()
        if micro_batch.slots:
            self._split(micro_batch)
        output_s = time.perf_counter() - started
        phases = (micro_batch.collate_s, micro_batch.seconds - micro_batch.collate_s, output_s)
        values = (*phases, micro_batch.seconds, micro_batch.size)
        self._recorder.record(((execution_event(micro_batch.size), values),))

    def _split(self, micro_batch: FinishedMicroBatch) -> None:
        items = [slot.outcome for slot in micro_batch.slots]
        try:
            results = list(zip(micro_batch.slots, self._task.split(micro_batch.outputs, items), strict=True))
        except Exception as error:
            results = []
            for slot in micro_batch.slots:
                self._give_up(slot, error)
        for slot, result in results:
            slot.tokens = self._task.tokens(slot.outcome)
            slot.outcome = result

    def answer(self, request: Request, slots: Sequence[Slot]) -> Reply:
        """Write the answer to a request, with the headers of every answer, and count it, its results and its errors.

        Args:
            request: what was asked, with the form of its answer.
            slots: one per payload of the request, in order.
        """
        started = time.perf_counter()
        reply = self._pack(request, slots)
        ended = time.perf_counter()
        if slots:
            self._count(request, slots, reply, ended - started, ended)
        own = GRPC_HEADERS if request.is_grpc else {}
        return reply.with_headers({**self.headers(slots, ended - started), **own})

    def headers(self, slots: Sequence[Slot], encode_s: float = 0.0) -> Mapping[str, str]:
        """Give the headers of every answer; of one that is streamed they say what is known with its first piece."""
        return {**self._version, "Server-Timing": server_timing(slots, encode_s)}

    @cached_property
    def _version(self) -> Mapping[str, str]:
        """Say in every answer which version it is from; nothing where the archive has none."""
        version = self._task.metadata.version
        return {} if version is None else {VERSION_HEADER: version}

    def _count(self, request: Request, slots: Sequence[Slot], reply: Reply, encode_s: float, ended_s: float) -> None:
        queue_s = sum([slot.queue_s(request.came_s) for slot in slots if slot.batch_size])
        values = (encode_s, ended_s - request.came_s, queue_s)
        happened = [(SUCCEEDED if reply.status < 400 else FAILED, values), *map(_answered, slots)]
        self._recorder.record(happened)

    def _pack(self, request: Request, slots: Sequence[Slot]) -> Reply:
        # Results that cannot be written (not a number, a type that JSON lacks) are a bug of the model or the task and
        # become errors; where the form cannot write even these, the bug is ours.
        form = request.form
        if isinstance(form, retrieval.Answer):
            form = form.counted(sum(slot.tokens for slot in slots))
        for _ in ("results", "errors"):
            try:
                return self._checked(request, form.pack([slot.outcome for slot in slots]), len(slots))
            except Exception as error:
                for slot in slots:
                    self._give_up(slot, error)
        return OneItem().pack([INTERNAL_ERROR])

    def _checked(self, request: Request, reply: Reply, count: int) -> Reply:
        """Answer with an error for each item where the answer is too large; TorchServe would cut the worker off."""
        limit = self._task.config.max_response_bytes
        if len(reply.body) <= limit:
            return reply
        message = f"The answer has {len(reply.body)} bytes; max_response_bytes is {limit}. Ask for fewer items or less."
        return request.form.pack([ItemError.of(ResponseTooLarge(message))] * count)

    def _prepare(self, slots: list[Slot]) -> None:
        started = time.perf_counter()
        outcomes = list(zip(slots, self._task.prepare([slot.outcome for slot in slots]), strict=True))
        ended = time.perf_counter()
        for slot, outcome in outcomes:
            slot.outcome = outcome
            slot.decoded_at = ended
            slot.decode_s += ended - started

    def _cost(self, slot: Slot) -> Cost | None:
        """What the item asks of a micro-batch; None where it has failed, be it here."""
        if slot.is_failed:
            return None
        try:
            return self._task.cost(slot.outcome)
        except Exception as error:
            self._give_up(slot, error)
            return None

    def _run(self, slots: list[Slot], heard: Heard | None) -> FinishedMicroBatch:
        items = [slot.outcome for slot in slots]
        started = time.perf_counter()
        inputs = self._task.collate(items)
        collated = time.perf_counter()
        outputs = self._forward(inputs, slots, items, started, heard)
        ended = time.perf_counter()
        seconds = ended - started
        # What has ended is its request's business; that may be answered by now.
        left = [index for index, slot in enumerate(slots) if not slot.is_ended]
        for index in left:
            _note(slots[index], started, ended, len(slots))
        if len(left) < len(slots):
            outputs = {name: array[left] for name, array in outputs.items()}
        return FinishedMicroBatch([slots[index] for index in left], outputs, seconds, len(slots), collated - started)

    def _forward(
        self, inputs: Arrays, slots: list[Slot], items: list[Any], started_s: float, heard: Heard | None
    ) -> Outputs:
        """Run the model once; where the engine tells what it generates, and somebody listens, pass that on."""
        pieces = [self._task.pieces(item) for item in items] if heard else []
        if heard is None or None in pieces:
            return self._task.forward(inputs, items)
        for slot, each in zip(slots, pieces, strict=True):
            slot.generated = None if each is None else Generated(each)

        def progress(told: Progress) -> bool:
            slot = slots[told.index]
            # A request that streams says with its first piece how long it waited.
            if told.is_last or not slot.batch_size:
                _note(slot, started_s, time.perf_counter(), len(slots))
            return heard(slot, told.tokens, told.is_last)

        return self._task.forward_progressively(inputs, items, progress)

    def _give_up(self, slot: Slot, error: Exception) -> None:
        """Give up an item that failed alone: it is too large for the engine, or met a bug, which the log places."""
        if isinstance(error, OutOfMemory):
            slot.outcome = OUT_OF_MEMORY
        elif isinstance(error, OutOfTime):
            slot.outcome = OUT_OF_TIME
        elif isinstance(error, WrongOutput):
            # It speaks of names, datatypes and shapes: the log may hold it, and who asks can tell it to the owner.
            logger.error("An item failed: %s", error)
            slot.outcome = ItemError(WrongOutput.code, WrongOutput.__name__, str(error))
        else:
            logger.error("An item failed: %s", where(error))
            slot.outcome = INTERNAL_ERROR


def _answered(slot: Slot) -> Happened:
    """Give the event of an item that is answered, a result or an error."""
    error_type = slot.outcome.type if isinstance(slot.outcome, ItemError) else None
    if slot.batch_size:
        return item_event(error_type, has_run=True), (slot.decode_s, slot.wait_s)
    return item_event(error_type, has_run=False), (slot.decode_s,)


def _note(slot: Slot, started_s: float, ended_s: float, size: int) -> None:
    """Note in a slot when its item's run, with so many others, began and ended."""
    slot.wait_s, slot.forward_s, slot.batch_size = started_s - slot.decoded_at, ended_s - started_s, size


def _expect_grpc() -> None:
    """Import what reads gRPC messages beside the work: who asks for metadata is a gateway, through which they come."""
    if GRPC_MODULE not in sys.modules:
        threading.Thread(target=import_module, args=(GRPC_MODULE,), name="import", daemon=True).start()


def _sharing(payloads: tuple[Payload | ItemError, ...]) -> tuple[Payload | ItemError, ...]:
    """Give the items of a request one allowance, where there are several."""
    if len(payloads) < 2:
        return payloads
    allowance = Allowance()
    return tuple(
        replace(payload, allowance=allowance) if isinstance(payload, Payload) else payload for payload in payloads
    )


def respond(context: Any, index: int, reply: Reply) -> bytes:
    """Set the status and headers of one row's answer in TorchServe's context.

    Args:
        context: TorchServe's.
        index: of the row in its batch.
        reply: the row's answer.

    Returns:
        The answer's body.
    """
    context.set_response_status(reply.status, PHRASES[reply.status], index)
    context.set_response_content_type(index, reply.content_type)
    for name, value in reply.headers.items():
        context.set_response_header(index, name, value)
    return reply.body
