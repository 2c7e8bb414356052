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
from handlers.config import HandlerConfig, check_names, parse
from handlers.connection_keeper import ConnectionKeeper, frontend_connection
from handlers.continuous.exchanges import Exchanges
from handlers.continuous.frontend import NewRequest, serve_batches
from handlers.continuous.mode import check_mode, claim_worker, resolve_mode
from handlers.description import describe, precision_of
from handlers.engines import CPU, Budget, Device, Recordable, available_threads
from handlers.engines.compilation import attempt
from handlers.errors import LOAD_FAILED, InvalidConfig, reason, where
from handlers.metrics import REQUEST
from handlers.pipeline.flow import Pipeline
from handlers.pipeline.task import Config, Hooks, Item, Shaped, Task, default_options, inputs_of, samples_of
from handlers.pipeline.values import Archive
from handlers.protocol.responses import Response
from handlers.torchserve import BaseHandler, make_reporter
from handlers.warm_up import decode_items, free_memory, measure_change, prepare

logger = logging.getLogger(__name__)

RESPONSE_TIMEOUT_S = 120  # TorchServe's default of `responseTimeout`, in seconds
# The share of it after which a batch starts nothing: a run that starts by then may take the other half.
BATCH_SHARE = 0.5
RUN_SHARE = 0.4  # the share of it after which generate() is stopped


class Service:
    """Answers the batches of a loaded task: with a core in adaptive mode, with a pipeline in classic mode."""

    core: Core
    pipeline: Pipeline

    def __init__(self, context: object, version: str | None, settings: Mapping[str, Any]) -> None:
        self.timeout_s: float = settings.get("responseTimeout") or RESPONSE_TIMEOUT_S
        self.reporter = make_reporter(context, version)
        self._exchanges: Exchanges | None = None
        self._keeper: ConnectionKeeper | None = None

    def start(self, task: Task, trial: Trial, window: int) -> None:
        """Begin to serve, in the task's mode; `window` is the registration's batch_size."""
        recorder, config = self.reporter.recorder, task.config
        if (target_ms := config.scheduling.latency_target_ms) is not None:
            recorder.add_bound(REQUEST, target_ms / 1000)
        if config.scheduling.mode == "adaptive":
            self.core = Core(task, trial.choose(), recorder, self.timeout_s)
            self._exchanges = Exchanges(self.core, window, recorder, has_target=target_ms is not None)
            return
        (task.engine, _), (whole, _) = trial.choose()
        if config.cache_mib:
            logger.warning("cache_mib: no effect in classic mode")
        if task.archive.device.type != "cpu" and whole:
            line = LatencyModel(whole).line
            overhead = inputs_of(task).overhead.measured(line.fixed_s, line.token_s)
            task.inputs = replace(inputs_of(task), overhead=overhead)
        prepare(task, min(window, config.max_batch_items))
        threads = available_threads(config.decode_threads) if inputs_of(task).in_threads else 1
        self.pipeline = Pipeline(task, recorder, decode_threads=threads)
        connection = frontend_connection()
        self._keeper = None if connection is None else ConnectionKeeper(connection)

    def answer(self, data: list[dict[str, Any]], context: Any) -> list[bytes]:
        """See `BatchHandler.handle`."""
        if self._exchanges is not None:
            self._exchanges.serve(context.cl_socket)
        if self._keeper is None:
            return self.pipeline.serve(data, context, BATCH_SHARE * self.timeout_s)
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
            responses = self.pipeline.answer(rows, BATCH_SHARE * self.timeout_s)
        metrics.request_ids = dict(enumerate(batch))
        metrics.add_time("PredictionTime", round(1000 * (time.perf_counter() - started_s), 2))
        return dict(zip(batch, responses, strict=True))


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
    attributes that depend on the model. `archive.checkpoint_dir` contains the weights that the archive's list or
    `--weights` names, and `archive.model_dir` the staged files.
    """

    service: Service

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
        self.service = Service(context, version, settings)
        longest_run_s = RUN_SHARE * self.service.timeout_s
        self.archive = Archive(Path(properties["model_dir"]), _device(properties.get("gpu_id")), longest_run_s)
        try:
            self.config = cast(Config, _read_config(self, settings))
            is_torch_unread = not self.archive.uses_torch(self.config)
            fingerprint = archive_files.check(self.archive.model_dir, is_torch_unread=is_torch_unread)
            self.archive = replace(self.archive, fingerprint=fingerprint)
            self.engine, self.inputs = self.load(), inputs_of(self)
            trial = Trial(self, window)
            self.engine = trial.engine
            _record_graphs(self)
            described = describe(self, name, version)
            self.archive = replace(self.archive, described=described, defaults=default_options(self))
            if self.config.scheduling.mode == "adaptive":
                claim_worker(name, version)
                check_mode(settings)
            self.service.start(self, trial, window)
            _describe_engine(self, trial)
            if self.archive.device.type != "cpu" and self.config.precision == "auto":
                _log_change(self)
        except Exception as error:
            is_known = isinstance(error, InvalidConfig)
            cause = f"InvalidConfig: {error}" if is_known else f"{reason(error)}; raised in {where(error)}"
            logger.error("%s %s: %s", LOAD_FAILED, name, cause)
            # TorchServe logs the exception; the line above has everything that its traceback has.
            sys.tracebacklimit = 0
            raise error from None
        self.service.reporter.start()
        logger.info("Loaded %s: %s", name, self.engine.description)

    def handle(self, data: list[dict[str, object]], context: object) -> list[bytes]:
        """Return one body for each row of TorchServe's, with statuses and headers in its context."""
        return self.service.answer(data, context)


def _read_config(task: Task, settings: Mapping[str, object]) -> HandlerConfig:
    try:
        check_names(settings)
        config: HandlerConfig = parse(task.config_class, settings.get("handler"))
    except InvalidConfig:
        archive_files.check(task.archive.model_dir)  # if the archive was altered, report that instead
        raise
    return resolve_mode(config, settings)


def _record_graphs(task: Task) -> None:
    """Let a GPU's engine record CUDA graphs; without them, as after any failure, the model runs eagerly."""
    config = task.config
    if config.cuda_graphs == "off" or task.archive.device.type == "cpu" or not isinstance(task.engine, Recordable):
        return
    try:
        note = measurements.path_for(task, "graphs").with_suffix(".recording")
        with attempt(note) as has_ended:
            if has_ended:
                raise RuntimeError("the last worker ended while it recorded")
            limits = config.max_batch_items, config.max_batch_tokens
            budget = Budget(config.cuda_graph_seconds, config.cuda_graph_gib * 2**30, *limits)
            items = decode_items(task, samples_of(task))
            shapes = task.examples(items) if isinstance(task, Shaped) else [task.collate([each]) for each in items]
            recorded = task.engine.record(shapes, budget)
    except Exception as error:
        logger.warning("CUDA graphs: none, %s", reason(error))
        return
    sizes, lengths = {shape[0] for shape in recorded}, {shape[1] for shape in recorded if len(shape) == 2}
    inputs = inputs_of(task)
    overhead = replace(inputs.overhead, sizes=tuple(sorted(sizes)), lengths=tuple(sorted(lengths)))
    task.inputs = replace(inputs, overhead=overhead)


def _describe_engine(task: Task, trial: Trial) -> None:
    """Complete the archive's description with the precision that the trial has chosen, and its proofs."""
    archive, precision = task.archive, precision_of(task.engine)
    proofs = {**archive.metadata.proofs, **{name: proof.to_json() for name, proof in trial.proofs.items()}}
    space = archive_files.read_vector_space(archive.model_dir)
    space = f"{space}-{precision}" if space else ""
    metadata = replace(archive.metadata, precision=precision, proofs=proofs, vector_space=space or None)
    task.archive = replace(archive, described=(replace(archive.shape, vector_space=space), metadata))


def _log_change(task: Task) -> None:
    """Log how much a GPU's default precision changes the samples' outputs; the first load measures it."""
    description = task.engine.description
    if not description.startswith("torch"):
        return
    path = measurements.path_for(task, f"change {description}") if task.archive.fingerprint else None
    with measurements.lock(path):
        if (change := measurements.load(path)) is None:
            try:
                change = measure_change(task)
            except Exception as error:
                logger.warning("Change by %s not measured: %s", description, reason(error))
            free_memory(task.archive.device)
            if path and change is not None:
                measurements.write(path, change)
    if change is not None:
        advice = "precision: fp32 in model-config.yaml avoids the change"
        words = "%s changes outputs by up to %.1e of their largest; %s"
        logger.info(words, description, change, advice)


def _device(gpu_id: int | None) -> Device:
    """Return the GPU that TorchServe assigned to this worker, or the CPU."""
    if gpu_id is not None:
        import torch  # noqa: PLC0415

        if torch.cuda.is_available():
            return torch.device("cuda", int(gpu_id))
    return CPU
