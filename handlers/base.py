"""BatchHandler: the one lifecycle of a batch.

    rows (list of dict from TorchServe)
      preprocess     unpack -> decode -> prepare -> plan          every item an Item or an ItemError in its slot
      inference      collate -> forward, once per micro-batch     halved and tried again where it fails
      postprocess    split -> pack, one reply per row             status, headers and body of its own

Requests that TorchServe hands over together go through the model together, each with its own answer, its own error
and nobody else's data. A task overrides `load, sample` and the hooks `decode, prepare, cost, collate, forward, split`.
"""

import abc
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, NoReturn, TypeVar, cast

import torch

from handlers import archive_files
from handlers.batching import worker as adaptive
from handlers.batching.policy import settled
from handlers.batching.trial import Trial
from handlers.config import HandlerConfig, NoOptions, parse
from handlers.engines import Arrays, Engine, Listener, Outputs, available_threads
from handlers.errors import LOAD_FAILED, InvalidConfig, ItemError
from handlers.metrics import Recorder, Reporter
from handlers.pipeline.description import described, precision_of
from handlers.pipeline.micro_batches import OVERHEAD, Cost, Overhead
from handlers.pipeline.planning import planned
from handlers.pipeline.runner import Runner, respond
from handlers.pipeline.slots import Batch, Pieces
from handlers.pipeline.warm_up import prepare
from handlers.protocol import requests, retrieval, streaming
from handlers.protocol.fields import Fields
from handlers.protocol.metadata import Metadata, TensorMetadata
from handlers.protocol.output_tensors import Documents, Model, OutputTensors
from handlers.protocol.requests import Items, Payload, Request
from handlers.protocol.responses import Reply
from handlers.torchserve import BaseHandler, HeapFile, emit, emit_heap

logger = logging.getLogger(__name__)

# TorchServe's default, in seconds, where model-config.yaml does not say.
RESPONSE_TIMEOUT_S = 120
# Shares of it. A batch begins nothing after a half: what runs by then has as long again before the worker is ended. And
# generate(), whose length nobody knows, is ended before that.
BATCH_SHARE, RUN_SHARE = 0.5, 0.4

Config = TypeVar("Config", bound=HandlerConfig)
Item = TypeVar("Item")

# The label ModelVersion where the archive's manifest has none: TorchServe reads no empty label.
UNKNOWN_VERSION = "unknown"

# Rows and TorchServe's context -> a body per row.
Answer = Callable[[Sequence[Mapping[str, Any]], Any], list[bytes]]


class BatchHandler(BaseHandler, abc.ABC, Generic[Config, Item]):  # type: ignore[misc]
    """What every task has in common. A task is one class on it, alone in its file; this one doubles numbers:

        import numpy as np

        from handlers.base import BatchHandler
        from handlers.config import HandlerConfig
        from handlers.engines.function import FunctionEngine
        from handlers.errors import CorruptInput
        from handlers.protocol.requests import Payload


        class Doubling(BatchHandler[HandlerConfig, float]):
            config_class = HandlerConfig
            inputs = frozenset({"number"})

            def load(self):
                return FunctionEngine(lambda numbers: {"doubles": 2 * numbers}, ["numbers"])

            def sample(self):
                return Payload({"number": 1})

            def decode(self, payload):
                value = payload.value["number"] if isinstance(payload.value, dict) else payload.value
                try:
                    return float(value)
                except (TypeError, ValueError):
                    raise CorruptInput("number: must be a number.") from None

            def collate(self, items):
                return {"numbers": np.array(items, np.float32)}

            def split(self, outputs, items):
                return outputs["doubles"].tolist()

    Hooks, in the order of their calls; classic and adaptive mode call the same ones:
        load, sample, samples: once, before the first request; the samples are sent through the hooks below, to warm up.
            Classic mode warms up with `sample` alone.
        unpack: once a request. A task hardly ever overrides it.
        items: once; how what a request holds becomes items. Likewise.
        decode: once an item, in several threads at once where `decodes_in_threads`.
        prepare: in classic mode once a batch, with all items that were decoded; in adaptive mode with those that were
            decoded together, one of them maybe, and in several threads at once.
        cost: once an item.
        collate, forward: once a micro-batch; again for each half of one that failed. In adaptive mode several threads
            call them at once, each on a copy of the task with an engine of its own (`streams`).
        pieces, forward_progressively: in adaptive mode, instead of `forward`, where the engine tells what it generates
            while it runs (handlers.engines.Progressive). Each item is answered when it has ended, and its text can be
            streamed. Most tasks leave both alone.
        split: once a micro-batch.

    `preprocess`, `inference` and `postprocess` are what these hooks make up in classic mode; adaptive mode calls none
    of the three, so a task overrides the hooks.

    Class attributes of a task:
        config_class: the dataclass of its settings, on handlers.config.HandlerConfig.
        options_class: the dataclass of the options of one item.
        inputs: names of the JSON fields that hold its input; what other fields hold are options.
        item_dimensions: how many dimensions one item has where it comes as a tensor of numbers.
        input_tensors: the tensor of an input, by the input's name; one that is not here is BYTES [B] or, where an item
            has dimensions, FP32 of so many, under the input's own name.
        output_tensors: how its results become tensors, for the Open Inference Protocol. `load` may set it, where that
            takes a loaded model; `inputs` and `input_tensors` likewise.
        batch_dims: the dimension of an output tensor that counts rows, where it is not the first, by name.
        media_types: what a body may be beside JSON; the model's metadata tells.
        decodes_in_threads: whether decoding an item is worth handing it to another thread.
        is_streamable: whether `pieces` makes text of what the engine generates, so that answers can be sent in pieces;
            then `stream` is one of its options.
        api: which API of handlers.protocol.retrieval its results are answers of, if any.
        staged_files: names or patterns of files beside the model's configuration; the archive takes them along, under
            the same paths in `model_dir`. What the list or `--weights` names lies in `checkpoint_dir`.
    """

    config_class: ClassVar[type[HandlerConfig]]
    options_class: ClassVar[Any] = NoOptions
    inputs: frozenset[str]
    item_dimensions: ClassVar[int] = 0
    input_tensors: Mapping[str, TensorMetadata] = {}
    output_tensors: OutputTensors = Documents()
    batch_dims: Mapping[str, int] = {}
    media_types: ClassVar[tuple[str, ...]] = ()
    decodes_in_threads: ClassVar[bool] = True
    is_streamable: ClassVar[bool] = False
    api: ClassVar[retrieval.Api | None] = None
    staged_files: ClassVar[tuple[str, ...]] = ()

    config: Config
    engine: Engine
    model_dir: Path
    # Seconds that one run of the engine may take, where it can be ended.
    longest_run_s: float
    # Hash of everything that the archive was made from; None where that is not known.
    fingerprint: str | None
    # What the model says of itself, to whoever asks.
    metadata: Metadata
    # Answers everything in adaptive mode, once `initialize` is done.
    worker: adaptive.AdaptiveWorker
    # What one more micro-batch costs; `load` may know better.
    overhead: Overhead = OVERHEAD

    # -- what a task overrides -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def load(self) -> Engine:
        """Load what `model_dir` and `checkpoint_dir` hold and `config` asks for.

        Raises:
            InvalidConfig: the archive cannot be served; the message is what its owner reads.
        """

    @abc.abstractmethod
    def sample(self) -> Payload | None:
        """Give what a client might send, for the runs that warm everything up; None where nobody can say."""

    def samples(self) -> Iterable[Payload]:
        """Give what clients might send, one of each size that the engine has to prepare itself for."""
        sample = self.sample()
        return () if sample is None else (sample,)

    @abc.abstractmethod
    def decode(self, payload: Payload) -> Item:
        """Check and decode one item. Runs in several threads at once.

        Raises:
            InvalidInput: this item cannot be served.
        """

    def prepare(self, items: Sequence[Item]) -> Sequence[Item | ItemError]:
        """Do what is cheaper for all items of a batch at once than for each: tokenisation. One outcome per item."""
        return items

    def cost(self, item: Item) -> Cost:  # noqa: ARG002
        """Say what the item asks of a micro-batch: its length, and with what it may share one."""
        return Cost()

    def tokens(self, item: Item) -> int:  # noqa: ARG002
        """Count the tokens of an item, for answers that say how many a request had."""
        return 0

    @abc.abstractmethod
    def collate(self, items: Sequence[Item]) -> Arrays:
        """Stack the items of one micro-batch: arrays of shape (B, ...), named as the model's inputs."""

    def forward(self, inputs: Arrays, items: Sequence[Item]) -> Outputs:  # noqa: ARG002
        """Run the model once: arrays of shape (B, ...), named as the model's outputs."""
        return self.engine.run(inputs)

    def pieces(self, item: Item) -> Pieces | None:  # noqa: ARG002
        """Give what makes text, and in the end the result, of the tokens of one item.

        Returns:
            None where the engine tells nothing of this item while it runs; items that share a micro-batch agree in it.
        """
        return None

    def forward_progressively(self, inputs: Arrays, items: Sequence[Item], progress: Listener) -> Outputs:
        """Run the model once, as `forward`, and pass on what the engine generates meanwhile."""
        raise NotImplementedError

    @abc.abstractmethod
    def split(self, outputs: Outputs, items: Sequence[Item]) -> Sequence[Any]:
        """Take the outputs apart: one result per item, in order, each a value that JSON can hold."""

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
        version = context.manifest.get("model", {}).get("modelVersion")
        labels = (context.model_name, version or UNKNOWN_VERSION)
        self.reporter = Reporter(
            self._recorder,
            partial(emit, context.metrics, labels),
            beside=partial(emit_heap, context.metrics, HeapFile(os.getppid())),
        )
        self.runner = Runner(self, self._recorder)
        # Seconds after which TorchServe takes the worker for dead; its own default where the archive does not say.
        self._response_timeout_s = (context.model_yaml_config or {}).get("responseTimeout") or RESPONSE_TIMEOUT_S
        self.longest_run_s = RUN_SHARE * self._response_timeout_s
        window = properties.get("batch_size") or 1
        try:
            settings = context.model_yaml_config or {}
            self.config = self._read_config(settings)
            self.device = _device(properties.get("gpu_id"))
            self.fingerprint = archive_files.check(self.model_dir, is_torch_unread=not self.uses_torch)
            self.engine = self.load()
            trial = Trial(self, window)
            self.engine = trial.engine
            self._shape, self.metadata = described(self, context.model_name, version)
            start = self._start_adaptive if self.config.scheduling.mode == "adaptive" else self._start_classic
            self._answer = start(window, settings, trial)
            proofs = {name: proof.to_json() for name, proof in archive_files.proofs(self.model_dir).items()}
            self.metadata = replace(
                self.metadata, precision=precision_of(self.engine), proofs=proofs, device=self.device.type
            )
        except Exception as error:
            # TorchServe buries the reason under a traceback or two: this is the line to read.
            logger.error("%s %s: %s: %s", LOAD_FAILED, context.model_name, type(error).__name__, error)
            raise
        self.reporter.start()
        self.initialized = True
        logger.warning("Loaded %s: %s", context.model_name, self.engine.description)

    def _read_config(self, settings: Mapping[str, Any]) -> Config:
        try:
            config = cast(Config, parse(self.config_class, settings.get("handler")))
        except InvalidConfig:
            # Settings that are none may be those of an archive that was altered, which is said first.
            archive_files.check(self.model_dir)
            raise
        return settled(config, settings)

    @property
    def checkpoint_dir(self) -> Path:
        """The folder of the checkpoint, or of whatever weights the list or `--weights` names.

        Raises:
            InvalidConfig: the archive has none.
        """
        folder = self.model_dir / archive_files.CHECKPOINT
        if not folder.is_dir():
            raise InvalidConfig(f"this archive has no {folder.name}/, where weights lie; name some, and build it again")
        return folder

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
        return self._answer(data, context)

    def items(self, fields: Fields, model: Model) -> Items:  # noqa: ARG002
        """Say how what a request holds becomes items.

        Args:
            fields: does it by the task's `inputs`.
            model: what answers say of the model.
        """
        return fields

    def unpack(self, row: Mapping[str, Any], headers: Mapping[str, Any]) -> Request:
        """Take one row apart; see `handlers.protocol.requests.unpack`, and `handlers.protocol.streaming.asked`."""
        model, config = self.metadata.name, self.config
        served = retrieval.Served(self.api, model, config.max_instances, config.max_body_bytes)
        request = retrieval.unpack(row, headers, served) or requests.unpack(row, headers, self._shape)
        if not self.is_streamable:
            return request
        return streaming.asked(request, headers, is_adaptive=self.config.scheduling.mode == "adaptive")

    # -- adaptive mode: the worker forms the batches ---------------------------------------------------------------

    def _start_adaptive(self, window: int, settings: Mapping[str, Any], trial: Trial) -> Answer:
        adaptive.claim_worker(self.metadata.name, self.metadata.version)
        self.worker = adaptive.AdaptiveWorker(
            self,
            window,
            settings,
            self._recorder,
            trial=trial,
            longest_run_s=self._response_timeout_s,
        )
        return self._hand_over

    def _hand_over(self, data: Sequence[Mapping[str, Any]], context: Any) -> NoReturn:  # noqa: ARG002
        """Give the connection to the worker, whose it is from the first batch on."""
        self.worker.serve(context.cl_socket)

    # -- classic mode: the batch that TorchServe formed -----------------------------------------------------------

    def _start_classic(self, window: int, settings: Mapping[str, Any], trial: Trial) -> Answer:  # noqa: ARG002
        self.engine = trial.choose().arrangement.whole
        prepare(self, self.sample(), min(window, self.config.max_items))
        threads = available_threads(self.config.decode_threads)
        self._pool = ThreadPoolExecutor(threads, "decode") if threads > 1 else None
        return self._classic

    def _classic(self, data: Sequence[Mapping[str, Any]], context: Any) -> list[bytes]:
        batch = self.preprocess(data)
        self.inference(batch)
        return [respond(context, index, reply) for index, reply in enumerate(self.postprocess(batch))]

    def preprocess(self, data: Sequence[Mapping[str, Any]]) -> Batch:
        """Make a planned batch of rows: unpack, decode, plan."""
        self._ends_s = time.perf_counter() + BATCH_SHARE * self._response_timeout_s
        headers = map(self.context.get_all_request_header, range(len(data)))
        unpacked = [self.runner.read(row, sent) for row, sent in zip(data, headers, strict=True)]
        pool = self._pool if self.decodes_in_threads else None
        return planned(
            self.runner, unpacked, pool=pool, config=self.config, overhead=self.overhead, ends_s=self._ends_s
        )

    def inference(self, batch: Batch) -> None:
        """Put every micro-batch through the model; fill `batch.finished`."""
        for micro_batch in batch.plan:
            batch.finished += self.runner.run(micro_batch, self._ends_s)

    def postprocess(self, batch: Batch) -> list[Reply]:
        """Make replies of results: split, pack, and say of it what headers and metrics do."""
        for micro_batch in batch.finished:
            self.runner.split(micro_batch)
        remaining = iter(batch.slots)
        return [
            self.runner.answer(request, list(islice(remaining, len(request.payloads)))) for request in batch.requests
        ]


def _device(gpu_id: int | None) -> torch.device:
    """The GPU that TorchServe gave this worker, or the CPU."""
    if gpu_id is not None and torch.cuda.is_available():
        return torch.device("cuda", int(gpu_id))
    return torch.device("cpu")
