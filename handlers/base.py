"""BatchHandler: the lifecycle of a task in TorchServe's worker. handlers.pipeline.task has its hooks.

initialize: settings, files, engine, warm-up
handle: the connection -> handlers.continuous -> handlers.pipeline.flow in classic mode, handlers.batching in adaptive
"""

import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from handlers import archive_files
from handlers.batching import guard, measurements
from handlers.batching.core import Core
from handlers.batching.engine import LatencyModel
from handlers.batching.trial import Trial
from handlers.config import check_names, parse
from handlers.connection_keeper import ConnectionKeeper, frontend_connection
from handlers.continuous.exchanges import Exchanges
from handlers.continuous.frontend import NewRequest, serve_batches
from handlers.continuous.mode import check_mode, resolve_mode
from handlers.continuous.only_worker import claim_worker
from handlers.description import describe, precision_of
from handlers.engines import CPU, Budget, Device, Recordable, available_threads
from handlers.engines.compilation import attempt
from handlers.errors import LOAD_FAILED, InvalidConfig, reason, where
from handlers.metrics import REQUEST
from handlers.pipeline.flow import Pipeline
from handlers.pipeline.task import Config, Hooks, Item, Shaped, inputs_of, samples_of
from handlers.protocol.responses import Response
from handlers.torchserve import BaseHandler, make_reporter
from handlers.warm_up import decode_items, free_memory, measure_change, prepare

logger = logging.getLogger(__name__)

RESPONSE_TIMEOUT_S = 120  # TorchServe's default of `responseTimeout`, in seconds
# The share of it after which a batch starts nothing: a run that starts by then may take the other half.
BATCH_SHARE = 0.5
RUN_SHARE = 0.4  # the share of it after which generate() is stopped


class BatchHandler(BaseHandler, Hooks[Config, Item]):  # type: ignore[misc]
    """The base class of tasks. A task is one subclass in its own file; this one doubles numbers:

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

    Both modes call the same hooks. In adaptive mode several threads call them, on copies of the task with an engine
    each (`streams`), and `prepare` gets the items that one thread decodes together, not all of a batch. `load` may set
    attributes that depend on the model. `checkpoint_dir` contains the weights that the archive's list or `--weights`
    names, and `model_dir` the staged files.
    """

    def initialize(self, context: Any) -> None:
        """Load the model and run it at its likely sizes, so that no request waits for a first run.

        Args:
            context: TorchServe's, with the model's name, settings and `system_properties`.

        Raises:
            InvalidConfig: the archive cannot be served; the log has the reason in one line.
        """
        # TorchServe logs two lines for each batch on the root logger. It reads metrics and our own lines at INFO.
        logging.getLogger().setLevel(logging.WARNING)
        for name in ("ts.metrics", "handlers"):
            logging.getLogger(name).setLevel(logging.INFO)
        name, version = context.model_name, context.manifest.get("model", {}).get("modelVersion")
        settings, properties = context.model_yaml_config or {}, context.system_properties
        window = properties.get("batch_size") or 1
        self.model_dir, self.device = Path(properties["model_dir"]), _device(properties.get("gpu_id"))
        self._timeout_s = settings.get("responseTimeout") or RESPONSE_TIMEOUT_S
        self.longest_run_s = RUN_SHARE * self._timeout_s
        self.reporter = make_reporter(context, version)
        try:
            self.config = self._read_config(settings)
            if (target_ms := self.config.scheduling.latency_target_ms) is not None:
                self.reporter.recorder.add_bound(REQUEST, target_ms / 1000)
            self.fingerprint = archive_files.check(self.model_dir, is_torch_unread=not self.uses_torch)
            self.engine = self.load()
            trial = Trial(self, window)
            self.engine = trial.engine
            self._record_graphs()
            self.shape, self.metadata = describe(self, name, version)
            if self.config.scheduling.mode == "adaptive":
                claim_worker(name, version)
                check_mode(settings)
                recorder = self.reporter.recorder
                self.core = Core(self, trial.choose(), recorder, self._timeout_s)
                self._exchanges = Exchanges(self.core, window, recorder, has_target=target_ms is not None)
            else:
                self._start_classic(window, trial)
            proofs = {**self.metadata.proofs, **{name: proof.to_json() for name, proof in trial.proofs.items()}}
            precision = precision_of(self.engine)
            space = archive_files.read_vector_space(self.model_dir)
            space = f"{space}-{precision}" if space else ""
            self.shape = replace(self.shape, vector_space=space)
            self.metadata = replace(self.metadata, precision=precision, proofs=proofs, vector_space=space or None)
            if self.device.type != "cpu" and self.config.precision == "auto":
                self._log_change()
        except Exception as error:
            is_known = isinstance(error, InvalidConfig)
            cause = f"InvalidConfig: {error}" if is_known else f"{reason(error)}; raised in {where(error)}"
            logger.error("%s %s: %s", LOAD_FAILED, name, cause)
            # TorchServe logs the exception; the line above has everything that its traceback has.
            sys.tracebacklimit = 0
            raise error from None
        self.reporter.start()
        self.initialized = True
        logger.info("Loaded %s: %s", name, self.engine.description)

    def _read_config(self, settings: Mapping[str, object]) -> Config:
        try:
            check_names(settings)
            config = cast(Config, parse(self.config_class, settings.get("handler")))
        except InvalidConfig:
            archive_files.check(self.model_dir)  # if the archive was altered, report that instead
            raise
        return resolve_mode(config, settings)

    def _start_classic(self, window: int, trial: Trial) -> None:
        (self.engine, _), (whole, _) = trial.choose()
        if self.config.cache_mib:
            logger.warning("cache_mib: no effect in classic mode")
        if self.device.type != "cpu" and whole:
            line = LatencyModel(whole).line
            self.overhead = self.overhead.measured(line.fixed_s, line.token_s)
        prepare(self, min(window, self.config.max_batch_items))
        threads = available_threads(self.config.decode_threads) if inputs_of(self).in_threads else 1
        self.pipeline = Pipeline(self, self.reporter.recorder, decode_threads=threads)
        connection = frontend_connection()
        self._keeper = None if connection is None else ConnectionKeeper(connection)

    def _record_graphs(self) -> None:
        """Let a GPU's engine record CUDA graphs; without them, as after any failure, the model runs eagerly."""
        config = self.config
        if config.cuda_graphs == "off" or self.device.type == "cpu" or not isinstance(self.engine, Recordable):
            return
        try:
            note = measurements.path_for(self, "graphs").with_suffix(".recording")
            with attempt(note) as has_ended:
                if has_ended:
                    raise RuntimeError("the last worker ended while it recorded")
                limits = config.max_batch_items, config.max_batch_tokens
                budget = Budget(config.cuda_graph_seconds, config.cuda_graph_gib * 2**30, *limits)
                items = decode_items(self, samples_of(self))
                shapes = self.examples(items) if isinstance(self, Shaped) else [self.collate([each]) for each in items]
                recorded = self.engine.record(shapes, budget)
        except Exception as error:
            logger.warning("CUDA graphs: none, %s", reason(error))
            return
        sizes, lengths = {shape[0] for shape in recorded}, {shape[1] for shape in recorded if len(shape) == 2}
        self.overhead = replace(self.overhead, sizes=tuple(sorted(sizes)), lengths=tuple(sorted(lengths)))

    def _log_change(self) -> None:
        """Log how much a GPU's default precision changes the samples' outputs; the first load measures it."""
        if not self.engine.description.startswith("torch"):
            return
        path = measurements.path_for(self, f"change {self.engine.description}") if self.fingerprint else None
        with measurements.lock(path):
            if (change := measurements.load(path)) is None:
                try:
                    change = measure_change(self)
                except Exception as error:
                    logger.warning("Change by %s not measured: %s", self.engine.description, reason(error))
                free_memory(self.device)
                if path and change is not None:
                    measurements.write(path, change)
        if change is not None:
            advice = "precision: fp32 in model-config.yaml avoids the change"
            words = "%s changes outputs by up to %.1e of their largest; %s"
            logger.info(words, self.engine.description, change, advice)

    @property
    def checkpoint_dir(self) -> Path:
        """The folder of the checkpoint, or of other weights that the list or `--weights` names."""
        return archive_files.find_checkpoint(self.model_dir)

    @property
    def uses_torch(self) -> bool:
        """Whether `load` must return a torch engine: with `engine: torch`, or `auto` on a GPU."""
        return self.config.engine == "torch" or (self.config.engine == "auto" and self.device.type != "cpu")

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[bytes]:
        """Return one body for each row of TorchServe's, with statuses and headers in its context."""
        if self.config.scheduling.mode == "adaptive":
            self._exchanges.serve(context.cl_socket)
        if self._keeper is None:
            return self.pipeline.serve(data, context, BATCH_SHARE * self._timeout_s)
        sent = map(context.get_all_request_header, context.request_ids)
        batch = dict(zip(context.request_ids.values(), map(NewRequest, data, sent), strict=True))
        with guard.watch():
            serve_batches(context.cl_socket, batch, partial(self._answer_batch, context.metrics, self._keeper))
        logger.warning("Frontend disconnected.")
        sys.exit(0)

    def _answer_batch(
        self, metrics: Any, keeper: ConnectionKeeper, batch: Mapping[str, NewRequest]
    ) -> Mapping[str, Response]:
        """Answer a batch of classic mode, and report the metric that TorchServe's own loop reports."""
        started_s = time.perf_counter()
        with keeper:
            rows = [(each.row, each.headers) for each in batch.values()]
            responses = self.pipeline.answer(rows, BATCH_SHARE * self._timeout_s)
        metrics.request_ids = dict(enumerate(batch))
        metrics.add_time("PredictionTime", round(1000 * (time.perf_counter() - started_s), 2))
        return dict(zip(batch, responses, strict=True))


def _device(gpu_id: int | None) -> Device:
    """Return the GPU that TorchServe assigned to this worker, or the CPU."""
    if gpu_id is not None:
        import torch  # noqa: PLC0415

        if torch.cuda.is_available():
            return torch.device("cuda", int(gpu_id))
    return CPU
