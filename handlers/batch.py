"""BatchHandler: the one lifecycle of a batch. The only importer of `ts`.

    rows (list of dict from TorchServe)
      preprocess     unpack -> decode -> prepare -> plan          every item an Item or an ItemError in its slot
      inference      collate -> forward, once per micro-batch     halved and tried again where it fails
      postprocess    split -> pack, one reply per row             status, headers and body of its own

Requests that TorchServe hands over together go through the model together, each with its own answer, its own error
and nobody else's data. A task overrides `load, sample` and the hooks `decode, prepare, cost, collate, forward, split`.
"""

import abc
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

import torch
from ts.metrics.metric_cache_errors import MetricsCacheKeyError
from ts.metrics.metric_type_enum import MetricTypes
from ts.torch_handler.base_handler import BaseHandler

from handlers import rows
from handlers.config import HandlerConfig, parse
from handlers.engines import Arrays, Engine, Outputs, available_threads
from handlers.errors import INTERNAL_ERROR, LOAD_FAILED, OUT_OF_MEMORY, InvalidInput, ItemError, OutOfMemory, where
from handlers.metrics import (
    BATCH_SIZE,
    DECODE,
    ENCODE,
    FORWARD,
    ITEM_ERRORS,
    ITEMS,
    WAIT,
    Recorder,
    Reporter,
    Sample,
)
from handlers.plan import FORWARD_PASS, Cost, Overhead, micro_batches
from handlers.rows import Payload, Reply, Request, Shape
from handlers.slots import Batch, Slot, attempt, server_timing

logger = logging.getLogger(__name__)

Config = TypeVar("Config", bound=HandlerConfig)
Item = TypeVar("Item")


class BatchHandler(BaseHandler, abc.ABC, Generic[Config, Item]):  # type: ignore[misc]
    """What every task has in common.

    Class attributes of a task:
        config_class: its settings, a dataclass of handlers.config.
        inputs: names of the JSON fields that hold its input.
        decodes_in_threads: whether decoding an item is worth handing it to another thread.
    """

    config_class: ClassVar[type[HandlerConfig]]
    inputs: ClassVar[frozenset[str]]
    decodes_in_threads: ClassVar[bool] = True

    config: Config
    engine: Engine
    model_dir: Path
    # What one more forward pass costs; `load` may know better.
    overhead: Overhead = FORWARD_PASS

    # -- what a task overrides -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def load(self) -> Engine:
        """Load what `model_dir` holds and `config` asks for.

        Raises:
            InvalidConfig: the archive cannot be served; the message is what its owner reads.
        """

    @abc.abstractmethod
    def sample(self) -> Payload:
        """What a client might send, for the runs that warm everything up."""

    @abc.abstractmethod
    def decode(self, payload: Payload) -> Item:
        """Check and decode one item. Runs in several threads at once.

        Raises:
            InvalidInput: this item cannot be served.
        """

    def prepare(self, items: Sequence[Item]) -> Sequence[Item | ItemError]:
        """What is cheaper for all items of a batch at once than for each: tokenisation. One outcome per item."""
        return items

    def cost(self, item: Item) -> Cost:  # noqa: ARG002
        """What the item asks of a micro-batch: its length, and what it may share a forward pass with."""
        return Cost()

    @abc.abstractmethod
    def collate(self, items: Sequence[Item]) -> Arrays:
        """Stack the items of one micro-batch: arrays of shape (B, ...), named as the model's inputs."""

    def forward(self, inputs: Arrays, items: Sequence[Item]) -> Outputs:  # noqa: ARG002
        """Run the model once: arrays of shape (B, ...), named as the model's outputs."""
        return self.engine.run(inputs)

    @abc.abstractmethod
    def split(self, outputs: Outputs, items: Sequence[Item]) -> Sequence[Any]:
        """One result per item, in order, each a value that JSON can hold."""

    # -- lifecycle -----------------------------------------------------------------------------------------------

    def initialize(self, context: Any) -> None:
        """Load the model and run it at the sizes that matter, so that no request pays for a first time.

        Raises:
            InvalidConfig: the archive cannot be served.
        """
        # The worker logs two lines per batch on the root logger; metrics, on a logger of their own, must pass.
        logging.getLogger().setLevel(logging.WARNING)
        logging.getLogger("ts.metrics").setLevel(logging.INFO)

        properties = context.system_properties
        self.model_dir = Path(properties["model_dir"])
        try:
            settings = (context.model_yaml_config or {}).get("handler")
            self.config = cast(Config, parse(self.config_class, settings))
            self.device = _device(properties.get("gpu_id"))
            self.engine = self.load()
            self._warm_up(min(properties.get("batch_size") or 1, self.config.max_items))
        except Exception as error:
            # TorchServe buries the reason under a traceback or two: this is the line to read.
            logger.error("%s %s: %s: %s", LOAD_FAILED, context.model_name, type(error).__name__, error)
            raise
        self._shape = Shape(self.inputs, self.config.max_instances, self.config.max_body_bytes)
        threads = available_threads(self.config.decode_threads)
        self._pool = ThreadPoolExecutor(threads, "decode") if threads > 1 else None
        self._recorder = Recorder()
        self._reporter = Reporter(self._recorder, partial(_emit, context.metrics, context.model_name))
        self._reporter.start()
        self.initialized = True
        logger.warning("Loaded %s: %s", context.model_name, self.engine.description)

    def _warm_up(self, batch_size: int) -> None:
        (sample,) = self.prepare([self.decode(self.sample())])
        for size in sorted({1, batch_size}):
            items = [cast(Item, sample)] * size
            self.split(self.forward(self.collate(items), items), items)

    @property
    def uses_torch(self) -> bool:
        """Whether `load` is to build a torch engine: asked for, or `auto` on a device other than the CPU."""
        return self.config.engine == "torch" or (self.config.engine == "auto" and self.device.type != "cpu")

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[bytes]:
        """Answer one batch.

        Args:
            data: one row per request.
            context: TorchServe's: request headers in, statuses, response headers and metrics out.

        Returns:
            One body per row.
        """
        self.context = context
        batch = self.preprocess(data)
        self.inference(batch)
        replies = self.postprocess(batch)
        self._reporter.wake()
        return [reply.body for reply in replies]

    def preprocess(self, data: list[dict[str, Any]]) -> Batch:
        """Rows to a planned batch: unpack, decode, plan."""
        requests = [rows.unpack(row, self._content_types(i), self._shape) for i, row in enumerate(data)]
        slots = [Slot(payload) for request in requests for payload in request.payloads]
        if self.decodes_in_threads and self._pool is not None and len(slots) > 1:
            list(self._pool.map(self._decode, slots))
        else:
            for slot in slots:
                self._decode(slot)
        attempt([slot for slot in slots if not slot.is_failed], self._prepare, self._give_up)
        priced = [(slot, cost) for slot in slots if (cost := self._cost(slot)) is not None]
        good, costs = [slot for slot, _ in priced], [cost for _, cost in priced]
        indices = micro_batches(costs, self.config.max_items, self.config.max_tokens, self.overhead)
        return Batch(requests, slots, [[good[i] for i in micro_batch] for micro_batch in indices])

    def inference(self, batch: Batch) -> None:
        """Every micro-batch through the model; fills `batch.forwards`."""
        for micro_batch in batch.plan:
            attempt(micro_batch, partial(self._forward, batch=batch), self._give_up)

    def postprocess(self, batch: Batch) -> list[Reply]:
        """Results to replies: split, pack, and what the headers and metrics say of it."""
        for slots, outputs in batch.forwards:
            self._split(slots, outputs)
        remaining = iter(batch.slots)
        replies = [
            self._reply(index, request, list(islice(remaining, len(request.payloads))))
            for index, request in enumerate(batch.requests)
        ]
        for slot in batch.slots:
            self._record(slot)
        return replies

    # -- steps ---------------------------------------------------------------------------------------------------

    def _content_types(self, index: int) -> dict[str, str]:
        """Field name -> content type of one row; TorchServe keeps them among the request's headers."""
        headers = self.context.get_all_request_header(index)
        return {name: value["content-type"] for name, value in headers.items() if isinstance(value, dict)}

    def _decode(self, slot: Slot) -> None:
        """The only place that catches InvalidInput."""
        started = time.perf_counter()
        if not slot.is_failed:
            try:
                slot.outcome = self.decode(slot.outcome)
            except InvalidInput as error:
                slot.outcome = ItemError.of(error)
            except Exception as error:
                self._give_up(slot, error)
        slot.decoded_at = time.perf_counter()
        slot.decode_s = slot.decoded_at - started

    def _prepare(self, slots: list[Slot]) -> None:
        started = time.perf_counter()
        outcomes = list(zip(slots, self.prepare([slot.outcome for slot in slots]), strict=True))
        ended = time.perf_counter()
        for slot, outcome in outcomes:
            slot.outcome = outcome
            slot.decoded_at = ended
            slot.decode_s += ended - started

    def _cost(self, slot: Slot) -> Cost | None:
        """Its cost, or None where the item has failed, be it here."""
        if slot.is_failed:
            return None
        try:
            return self.cost(slot.outcome)
        except Exception as error:
            self._give_up(slot, error)
            return None

    def _forward(self, slots: list[Slot], batch: Batch) -> None:
        items = [slot.outcome for slot in slots]
        started = time.perf_counter()
        outputs = self.forward(self.collate(items), items)
        forward_s = time.perf_counter() - started
        for slot in slots:
            slot.wait_s = started - slot.decoded_at
            slot.forward_s = forward_s
            slot.batch_size = len(slots)
        batch.forwards.append((slots, outputs))
        self._recorder.observe(BATCH_SIZE, len(slots))
        self._recorder.observe(FORWARD, forward_s)

    def _split(self, slots: list[Slot], outputs: Outputs) -> None:
        items = [slot.outcome for slot in slots]
        try:
            results = list(zip(slots, self.split(outputs, items), strict=True))
        except Exception as error:
            results = []
            for slot in slots:
                self._give_up(slot, error)
        for slot, result in results:
            slot.outcome = result

    def _give_up(self, slot: Slot, error: Exception) -> None:
        """An item that fails by itself: too large for the engine, or a bug, whose place the log names."""
        if isinstance(error, OutOfMemory):
            slot.outcome = OUT_OF_MEMORY
        else:
            logger.error("An item failed: %s", where(error))
            slot.outcome = INTERNAL_ERROR

    def _reply(self, index: int, request: Request, slots: list[Slot]) -> Reply:
        """Pack one row and set its status and headers."""
        started = time.perf_counter()
        try:
            reply = rows.pack(request, [slot.outcome for slot in slots])
        except (ValueError, TypeError) as error:
            # Not a number, or nothing JSON knows: a bug of the model or the task.
            for slot in slots:
                self._give_up(slot, error)
            reply = rows.pack(request, [slot.outcome for slot in slots])
        encode_s = time.perf_counter() - started
        self._recorder.observe(ENCODE, encode_s)
        self.context.set_response_status(reply.status, HTTPStatus(reply.status).phrase, index)
        self.context.set_response_content_type(index, "application/json")
        self.context.set_response_header(index, "Server-Timing", server_timing(slots, encode_s))
        return reply

    def _record(self, slot: Slot) -> None:
        self._recorder.observe(DECODE, slot.decode_s)
        if slot.batch_size:
            self._recorder.observe(WAIT, slot.wait_s)
        if isinstance(slot.outcome, ItemError):
            self._recorder.add(ITEM_ERRORS, 1, slot.outcome.type)
        else:
            self._recorder.add(ITEMS, 1)


def _emit(cache: Any, model_name: str, sample: Sample) -> None:
    """Hand one sample to TorchServe's metrics, which write it as a line on stdout."""
    name = sample.counter.name
    try:
        counter = cache.get_metric(name, MetricTypes.COUNTER)
    except MetricsCacheKeyError:  # the server runs with a metrics file of its own
        names = ["ModelName", *sample.counter.labels]
        counter = cache.add_metric_to_cache(name, "count", names, MetricTypes.COUNTER)
    counter.add_or_update(sample.value, [model_name, *sample.labels])


def _device(gpu_id: int | None) -> torch.device:
    """The GPU that TorchServe gave this worker, or the CPU."""
    if gpu_id is not None and torch.cuda.is_available():
        return torch.device("cuda", int(gpu_id))
    return torch.device("cpu")
