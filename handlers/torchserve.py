"""The border to TorchServe: its base class and its metrics. The only importer of `ts`.

Recorder -> reporter -> lines on stdout, which the frontend parses
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from handlers.metrics import Recorder, Reporter, Sample

BASE_MODULE = "ts.torch_handler.base_handler"


@contextmanager
def blocked_imports(*modules: str, importer: str) -> Iterator[None]:
    """Let imports of modules fail at once, by None in sys.modules, and without the importer's warnings of it."""
    blocked = [module for module in modules if module not in sys.modules]
    logger = logging.getLogger(importer)
    level = logger.level
    logger.setLevel(logging.ERROR)
    sys.modules.update(dict.fromkeys(blocked))  # type: ignore[arg-type]
    try:
        yield
    finally:
        logger.setLevel(level)
        for module in blocked:
            del sys.modules[module]


# TorchServe's module tries both, and nothing here uses them. The first imports torch._dynamo and torch._inductor, which
# takes three seconds of every worker's start.
with blocked_imports("openvino.torch", "onnxruntime", importer=BASE_MODULE):
    from ts.metrics.metric_cache_errors import MetricsCacheKeyError
    from ts.metrics.metric_type_enum import MetricTypes
    from ts.torch_handler.base_handler import BaseHandler as BaseHandler  # noqa: PLC0414


def reporter(context: Any, version: str | None) -> Reporter:
    """Return what writes a model's metrics with TorchServe's metrics, once it is started."""
    # TorchServe reads no empty label.
    labels = (context.model_name, version or "unknown")
    return Reporter(Recorder(), partial(_emit, context.metrics, labels))


def _emit(cache: Any, model: tuple[str, str], sample: Sample) -> None:
    name = sample.counter.name
    try:
        counter = cache.get_metric(name, MetricTypes.COUNTER)
    except MetricsCacheKeyError:  # the server runs with a metrics file of its own
        names = ["ModelName", "ModelVersion", *sample.counter.labels]
        counter = cache.add_metric_to_cache(name, "count", names, MetricTypes.COUNTER)
    counter.add_or_update(sample.value, [*model, *sample.labels])


def device(gpu_id: int | None) -> torch.device:
    """Return the GPU that TorchServe assigned to this worker, or the CPU."""
    if gpu_id is not None and torch.cuda.is_available():
        return torch.device("cuda", int(gpu_id))
    return torch.device("cpu")
