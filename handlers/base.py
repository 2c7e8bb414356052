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
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, NoReturn, Self, TypeVar, cast

import torch
from ts.metrics.metric_cache_errors import MetricsCacheKeyError
from ts.metrics.metric_type_enum import MetricTypes

from handlers.adaptive.in_flight import Place
from handlers.adaptive.response_timing import Exchanges
from handlers.adaptive.worker import AdaptiveWorker
from handlers.blocked_import import blocked_import
from handlers.config import HandlerConfig, NoOptions, parse
from handlers.engines import Arrays, Divisible, Engine, Outputs, available_threads
from handlers.errors import LOAD_FAILED, ItemError
from handlers.metrics import Recorder, Reporter, Sample
from handlers.pipeline.micro_batches import FORWARD_PASS, Cost, Overhead, micro_batches
from handlers.pipeline.runner import Steps, respond
from handlers.pipeline.slots import Batch, Slot
from handlers.pipeline.warm_up import Allowed, measure, meet
from handlers.protocol import requests
from handlers.protocol.open_inference import Model
from handlers.protocol.output_tensors import Documents, OutputTensors
from handlers.protocol.requests import Payload, Request, Shape
from handlers.protocol.responses import Reply
from handlers.scheduling.latency_model import LatencyModel
from handlers.scheduling.policy import Policy, check_mode
from handlers.scheduling.scheduler import PASS_SHARE, Scheduler
from handlers.scheduling.streams import Lanes

# TorchServe's module tries this backend of torch.compile, which brings torch._dynamo and torch._inductor with it: three
# seconds of every worker's start, and nothing here compiles with it.
with blocked_import("openvino.torch", importer="ts.torch_handler.base_handler"):
    from ts.torch_handler.base_handler import BaseHandler

logger = logging.getLogger(__name__)

Config = TypeVar("Config", bound=HandlerConfig)
Item = TypeVar("Item")

# Rows and TorchServe's context -> a body per row.
Exchange = Callable[[Sequence[Mapping[str, Any]], Any], list[bytes]]
# A size between one item and all that fit, where an adaptive worker's model starts from.
TYPICAL_PASS = 8


class BatchHandler(BaseHandler, abc.ABC, Generic[Config, Item]):  # type: ignore[misc]
    """What every task has in common.

    Class attributes of a task:
        config_class: its settings, a dataclass of handlers.config.
        options_class: options of one item, a dataclass of handlers.config.
        inputs: names of the JSON fields that hold its input.
        item_dimensions: of one item where it comes as a tensor of numbers.
        output_tensors: its results as tensors, for the Open Inference Protocol.
        decodes_in_threads: whether decoding an item is worth handing it to another thread.
    """

    config_class: ClassVar[type[HandlerConfig]]
    options_class: ClassVar[Any] = NoOptions
    inputs: ClassVar[frozenset[str]]
    item_dimensions: ClassVar[int] = 0
    output_tensors: ClassVar[OutputTensors] = Documents()
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

    def samples(self) -> Iterable[Payload]:
        """What clients might send, one of each size that the engine has to prepare itself for."""
        return (self.sample(),)

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
        self._recorder = Recorder()
        self._reporter = Reporter(self._recorder, partial(_emit, context.metrics, context.model_name))
        self.steps = Steps(self, self._recorder)
        window = properties.get("batch_size") or 1
        try:
            settings = context.model_yaml_config or {}
            self.config = cast(Config, parse(self.config_class, settings.get("handler")))
            self.device = _device(properties.get("gpu_id"))
            self.engine = self.load()
            self._shape = self._accepted(context)
            start = self._start_adaptive if self.config.scheduling.mode == "adaptive" else self._start_classic
            self._exchange = start(window, settings)
        except Exception as error:
            # TorchServe buries the reason under a traceback or two: this is the line to read.
            logger.error("%s %s: %s: %s", LOAD_FAILED, context.model_name, type(error).__name__, error)
            raise
        self._reporter.start()
        self.initialized = True
        logger.warning("Loaded %s: %s", context.model_name, self.engine.description)

    def _accepted(self, context: Any) -> Shape:
        version = context.manifest.get("model", {}).get("modelVersion")
        return Shape(
            self.inputs,
            self.config.max_instances,
            self.config.max_body_bytes,
            options=frozenset(field.name for field in fields(self.options_class)),
            item_dimensions=self.item_dimensions,
            model=Model(context.model_name, version, self.output_tensors),
        )

    @property
    def uses_torch(self) -> bool:
        """Whether `load` is to build a torch engine: asked for, or `auto` on a device other than the CPU."""
        return self.config.engine == "torch" or (self.config.engine == "auto" and self.device.type != "cpu")

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[bytes]:
        """Answer TorchServe.

        Args:
            data: one row per request.
            context: TorchServe's: request headers in, statuses, response headers and metrics out.

        Returns:
            One body per row.
        """
        self.context = context
        return self._exchange(data, context)

    def unpack(self, row: Mapping[str, Any], headers: Mapping[str, Any]) -> Request:
        """One row to its payloads; see `handlers.protocol.requests.unpack`."""
        return requests.unpack(row, headers, self._shape)

    # -- adaptive mode: the worker forms the batches ---------------------------------------------------------------

    def _start_adaptive(self, window: int, settings: Mapping[str, Any]) -> Exchange:
        check_mode(settings)
        policy = Policy.of(self.config, self.overhead)
        streams, warm_up_s = self.config.scheduling.streams, self.config.scheduling.warm_up_s
        parts = self.engine.divide(streams) if isinstance(self.engine, Divisible) else ()
        tasks: list[Self] = [self, *map(self._on, parts)]
        sizes = {1, min(TYPICAL_PASS, policy.max_items), min(window, policy.max_items)}
        measured = [LatencyModel(measure(task, self.sample(), sizes)) for task in tasks[:2]]
        scheduler: Scheduler[Place] = Scheduler(policy, Lanes(measured[0], measured[-1], max(1, len(parts))))
        limits = scheduler.limits(measured[-1].line, measured[-1].margin)
        lanes = [Allowed(task, limits.max_items, limits.max_tokens) for task in tasks[1:] or tasks]
        meet(lanes, self.samples(), warm_up_s)
        if parts:
            meet([Allowed(self, 1, limits.max_tokens)], self.samples(), warm_up_s)
        self._adaptive = AdaptiveWorker(
            [Steps(task, self._recorder) for task in tasks],
            scheduler,
            Exchanges(window, enough_s=PASS_SHARE * policy.max_latency_s),
            self._recorder,
            self.unpack,
            decode_threads=available_threads(self.config.decode_threads),
            decodes_in_threads=self.decodes_in_threads,
            overload_status=self.config.scheduling.overload_status,
            wake=self._reporter.wake,
        )
        return self._hand_over

    def _hand_over(self, data: Sequence[Mapping[str, Any]], context: Any) -> NoReturn:  # noqa: ARG002
        """The connection is the worker's from the first batch on."""
        self._adaptive.serve(context.cl_socket)

    def _on(self, engine: Engine) -> Self:
        """This task on another engine; all else is shared."""
        other = copy(self)
        other.engine = engine
        return other

    # -- classic mode: the batch that TorchServe formed -----------------------------------------------------------

    def _start_classic(self, window: int, settings: Mapping[str, Any]) -> Exchange:  # noqa: ARG002
        measure(self, self.sample(), (1, min(window, self.config.max_items)))
        threads = available_threads(self.config.decode_threads)
        self._pool = ThreadPoolExecutor(threads, "decode") if threads > 1 else None
        return self._classic

    def _classic(self, data: Sequence[Mapping[str, Any]], context: Any) -> list[bytes]:
        batch = self.preprocess(data)
        self.inference(batch)
        bodies = [respond(context, index, reply) for index, reply in enumerate(self.postprocess(batch))]
        self._reporter.wake()
        return bodies

    def preprocess(self, data: Sequence[Mapping[str, Any]]) -> Batch:
        """Rows to a planned batch: unpack, decode, plan."""
        headers = map(self.context.get_all_request_header, range(len(data)))
        requests = [self.unpack(row, sent) for row, sent in zip(data, headers, strict=True)]
        slots = [Slot(payload) for request in requests for payload in request.payloads]
        if self.decodes_in_threads and self._pool is not None and len(slots) > 1:
            list(self._pool.map(self.steps.decode, slots))
        else:
            for slot in slots:
                self.steps.decode(slot)
        self.steps.prepare(slots)
        priced = self.steps.price(slots)
        costs = [cost for _, cost in priced]
        indices = micro_batches(costs, self.config.max_items, self.config.max_tokens, self.overhead)
        return Batch(requests, slots, [[priced[i][0] for i in micro_batch] for micro_batch in indices])

    def inference(self, batch: Batch) -> None:
        """Every micro-batch through the model; fills `batch.forwards`."""
        for micro_batch in batch.plan:
            batch.forwards += self.steps.run(micro_batch)

    def postprocess(self, batch: Batch) -> list[Reply]:
        """Results to replies: split, pack, and what the headers and metrics say of it."""
        for forward in batch.forwards:
            self.steps.split(forward)
        remaining = iter(batch.slots)
        return [
            self.steps.answer(request, list(islice(remaining, len(request.payloads)))) for request in batch.requests
        ]


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
