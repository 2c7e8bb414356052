"""BatchHandler: the hooks of a task, and its lifecycle in TorchServe's worker.

initialize: settings, files, engine, warm-up
handle: rows -> handlers.pipeline.flow, in classic mode; the connection -> handlers.batching, in adaptive mode
"""

import abc
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from handlers import archive_files
from handlers.batching import worker as adaptive
from handlers.batching.policy import with_mode
from handlers.batching.trial import Trial
from handlers.config import HandlerConfig, NoOptions, parse
from handlers.description import described, precision_of
from handlers.engines import Arrays, Engine, Listener, Outputs, available_threads
from handlers.errors import LOAD_FAILED, InvalidConfig, ItemError
from handlers.pipeline.flow import Pipeline
from handlers.pipeline.micro_batches import OVERHEAD, Cost, Overhead
from handlers.pipeline.slots import Pieces
from handlers.protocol import requests, retrieval, streaming
from handlers.protocol.fields import Fields
from handlers.protocol.metadata import Metadata, TensorMetadata
from handlers.protocol.output_tensors import Documents, Model, OutputTensors
from handlers.protocol.requests import Items, Payload, Request
from handlers.torchserve import BaseHandler, device, reporter
from handlers.warm_up import prepare

logger = logging.getLogger(__name__)

# TorchServe's default of `responseTimeout`, in seconds, and shares of it: a batch begins nothing after a half, since a
# run that begins by then may take as long again before TorchServe ends the worker; generate() is ended earlier.
RESPONSE_TIMEOUT_S, BATCH_SHARE, RUN_SHARE = 120, 0.5, 0.4

Config = TypeVar("Config", bound=HandlerConfig)
Item = TypeVar("Item")


class BatchHandler(BaseHandler, abc.ABC, Generic[Config, Item]):  # type: ignore[misc]
    """The base class of tasks. A task is one class on it, alone in its file; this one doubles numbers:

        from handlers.base import BatchHandler
        from handlers.config import HandlerConfig
        from handlers.engines.function import FunctionEngine
        from handlers.errors import CorruptInput
        from handlers.protocol.requests import Payload
        import numpy as np

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

    Both modes call the same hooks. In adaptive mode several threads do, on copies of the task with an engine of their
    own (`streams`); `prepare` then gets the items that one thread decodes together, and not all of a batch.
    `load` may set attributes that depend on the model. What the archive's list or `--weights` names lies in
    `checkpoint_dir`, and staged files lie in `model_dir`.
    """

    config_class: ClassVar[type[HandlerConfig]]  # its settings
    options_class: ClassVar[Any] = NoOptions  # the options of one item
    inputs: frozenset[str]  # the JSON fields that hold its input; other fields are options
    item_dimensions: ClassVar[int] = 0  # of one item that comes as a tensor of numbers
    # The tensor of an input, by the input's name, where it is not BYTES [B], or FP32 of so many dimensions.
    input_tensors: Mapping[str, TensorMetadata] = {}
    output_tensors: OutputTensors = Documents()  # how results become tensors of the Open Inference Protocol
    batch_dims: Mapping[str, int] = {}  # of an output tensor, by name: the dimension of rows, where it is not the first
    media_types: tuple[str, ...] = ()  # of bodies other than JSON, for the metadata
    decodes_in_threads: ClassVar[bool] = True  # whether decoding one item takes longer than handing it to a thread
    is_streamable: ClassVar[bool] = False  # whether answers can be sent in pieces; then `stream` is an option
    api: ClassVar[retrieval.Api | None] = None  # the API that its results are answers of
    staged_files: ClassVar[tuple[str, ...]] = ()  # names or patterns of files beside the model's configuration
    overhead: Overhead = OVERHEAD  # what one more micro-batch costs

    config: Config
    engine: Engine
    model_dir: Path
    longest_run_s: float  # the most seconds of one run of the engine, where it can be ended
    fingerprint: str | None  # hash of everything that the archive was made from, where it is known
    metadata: Metadata

    # -- the hooks of a task, in the order of their calls ------------------------------------------------------------

    @abc.abstractmethod
    def load(self) -> Engine:
        """Load what `model_dir` and `checkpoint_dir` hold and `config` asks for.

        Raises:
            InvalidConfig: the archive cannot be served; its owner reads the message.
        """

    @abc.abstractmethod
    def sample(self) -> Payload | None:
        """Return what a client might send, for warm-up; None where that is not known."""

    def samples(self) -> Iterable[Payload]:
        """Return payloads of each size that the engine has to prepare itself for, for warm-up in adaptive mode."""
        sample = self.sample()
        return () if sample is None else (sample,)

    def items(self, fields: Fields, model: Model) -> Items:  # noqa: ARG002
        """Return what makes items of the contents of a request, once; `fields` does it by `inputs`."""
        return fields

    def unpack(self, row: Mapping[str, Any], headers: Mapping[str, Any]) -> Request:
        """Take one row apart, which is a request; few tasks override it."""
        names_api = retrieval.HEADER.lower() in map(str.lower, headers)
        request = retrieval.unpack(row, headers, self._retrieval) if names_api else None
        request = request or requests.unpack(row, headers, self._shape)
        is_adaptive = self.config.scheduling.mode == "adaptive"
        return streaming.asked(request, headers, is_adaptive=is_adaptive) if self.is_streamable else request

    @abc.abstractmethod
    def decode(self, payload: Payload) -> Item:
        """Check and decode one item. Several threads may call it.

        Raises:
            InvalidInput: this item cannot be served.
        """

    def prepare(self, items: Sequence[Item]) -> Sequence[Item | ItemError]:
        """Do what is cheaper for several items at once: tokenisation. Return one outcome for each."""
        return items

    def cost(self, item: Item) -> Cost:  # noqa: ARG002
        """Return what the item asks of a micro-batch: its length, and the group that it may share one with."""
        return Cost()

    @abc.abstractmethod
    def collate(self, items: Sequence[Item]) -> Arrays:
        """Stack the items of one micro-batch: arrays of shape (B, ...), named as the model's inputs."""

    def forward(self, inputs: Arrays, items: Sequence[Item]) -> Outputs:  # noqa: ARG002
        """Run the model once, again for each half of a micro-batch that failed: arrays of shape (B, ...)."""
        return self.engine.run(inputs)

    def pieces(self, item: Item) -> Pieces | None:  # noqa: ARG002
        """Return what makes text, and in the end the result, of the tokens of one item, in adaptive mode.

        None where the engine reports no tokens of this item while it runs; items that share a micro-batch agree in it.
        """
        return None

    def forward_progressively(self, inputs: Arrays, items: Sequence[Item], progress: Listener) -> Outputs:
        """Run the model once, as `forward`, and pass on what the engine generates meanwhile."""
        raise NotImplementedError

    @abc.abstractmethod
    def split(self, outputs: Outputs, items: Sequence[Item]) -> Sequence[Any]:
        """Take the outputs of a micro-batch apart: one result for each item, in order, that JSON can hold."""

    def tokens(self, item: Item) -> int:  # noqa: ARG002
        """Count the tokens of an item, for answers that say how many a request had."""
        return 0

    # -- lifecycle ---------------------------------------------------------------------------------------------------

    def initialize(self, context: Any) -> None:
        """Load the model and run it at the sizes that matter, so that no request pays for a first time.

        Raises:
            InvalidConfig: the archive cannot be served.
        """
        # TorchServe logs two lines for each batch on the root logger; metrics have a logger of their own.
        logging.getLogger().setLevel(logging.WARNING)
        logging.getLogger("ts.metrics").setLevel(logging.INFO)
        name, version = context.model_name, context.manifest.get("model", {}).get("modelVersion")
        settings, properties = context.model_yaml_config or {}, context.system_properties
        window = properties.get("batch_size") or 1
        self.model_dir, self.device = Path(properties["model_dir"]), device(properties.get("gpu_id"))
        self._timeout_s = settings.get("responseTimeout") or RESPONSE_TIMEOUT_S
        self.longest_run_s = RUN_SHARE * self._timeout_s
        self.reporter = reporter(context, version)
        try:
            self.config = self._read_config(settings)
            self.fingerprint = archive_files.check(self.model_dir, is_torch_unread=not self.uses_torch)
            self.engine = self.load()
            trial = Trial(self, window)
            self.engine = trial.engine
            self._shape, self.metadata = described(self, name, version)
            limits = self.config.max_instances, self.config.max_body_bytes
            self._retrieval = retrieval.Served(self.api, name, *limits, self.inputs)
            if self.config.scheduling.mode == "adaptive":
                adaptive.claim_worker(name, version)
                self.worker = adaptive.AdaptiveWorker(
                    self, window, settings, self.reporter.recorder, trial=trial, longest_run_s=self._timeout_s
                )
            else:
                self._start_classic(window, trial)
            self.metadata = replace(self.metadata, precision=precision_of(self.engine))
        except Exception as error:
            # TorchServe logs the cause below several tracebacks; log it once on a line of its own.
            logger.error("%s %s: %s: %s", LOAD_FAILED, name, type(error).__name__, error)
            raise
        self.reporter.start()
        self.initialized = True
        logger.warning("Loaded %s: %s", name, self.engine.description)

    def _read_config(self, settings: Mapping[str, Any]) -> Config:
        try:
            config = cast(Config, parse(self.config_class, settings.get("handler")))
        except InvalidConfig:
            # In an archive that was altered, that is the first problem.
            archive_files.check(self.model_dir)
            raise
        return with_mode(config, settings)

    def _start_classic(self, window: int, trial: Trial) -> None:
        self.engine = trial.choose().arrangement.whole
        prepare(self, self.sample(), min(window, self.config.max_items))
        threads = available_threads(self.config.decode_threads) if self.decodes_in_threads else 1
        self.pipeline = Pipeline(self, self.reporter.recorder, decode_threads=threads)

    @property
    def checkpoint_dir(self) -> Path:
        """The folder of the checkpoint, or of other weights that the list or `--weights` names."""
        return archive_files.checkpoint(self.model_dir)

    @property
    def uses_torch(self) -> bool:
        """Whether `load` is to build a torch engine: asked for, or `auto` on a device other than the CPU."""
        return self.config.engine == "torch" or (self.config.engine == "auto" and self.device.type != "cpu")

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[bytes]:
        """Answer TorchServe: return one body for each row, with statuses and headers in its context."""
        if self.config.scheduling.mode == "adaptive":
            self.worker.serve(context.cl_socket)
        return self.pipeline.serve(data, context, limit_s=BATCH_SHARE * self._timeout_s)
