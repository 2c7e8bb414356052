"""TorchServe's base class and its metrics. Only original_archive.py, for stock handlers, imports `ts` as well.

Recorder -> make_reporter -> lines on stdout, which the frontend parses
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from handlers.metrics import Recorder, Reporter, Sample

BASE_MODULE = "ts.torch_handler.base_handler"


@contextmanager
def blocked_imports(*modules: str, importer: str) -> Iterator[None]:
    """Make imports of modules fail at once, by None in sys.modules, without the importer's warnings."""
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


# TorchServe's worker has imported `ts`. Another process needs neither it nor torch, which its module imports.
if "ts" in sys.modules:
    # The module tries to import both for features that are not used here. The first one imports torch._dynamo and
    # torch._inductor, three seconds of every worker's start.
    with blocked_imports("openvino.torch", "onnxruntime", importer=BASE_MODULE):
        from ts.torch_handler.base_handler import BaseHandler as BaseHandler  # noqa: PLC0414

    import torch

    # On a GPU that has TF32, that module chooses it for products of matrices in fp32. Only stock handlers keep it.
    STOCK_PRECISION = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
else:
    STOCK_PRECISION = "highest"

    class BaseHandler:  # type: ignore[no-redef]
        """The base of a task outside TorchServe's worker."""


def make_reporter(context: Any, version: str | None) -> Reporter:
    """Return the reporter of a model, which is not started yet."""
    labels = (context.model_name, version or "unknown")  # TorchServe does not accept an empty label
    kind: Any = None
    undeclared: type[Exception] = LookupError
    if "ts" in sys.modules:
        from ts.metrics.metric_cache_errors import MetricsCacheKeyError  # noqa: PLC0415
        from ts.metrics.metric_type_enum import MetricTypes  # noqa: PLC0415

        kind, undeclared = MetricTypes.COUNTER, MetricsCacheKeyError
    return Reporter(Recorder(), partial(_emit, context.metrics, labels, kind, undeclared))


def _emit(cache: Any, model: tuple[str, str], kind: Any, undeclared: type[Exception], sample: Sample) -> None:
    name = sample.counter.name
    try:
        counter = cache.get_metric(name, kind)
    except undeclared:  # the server's metrics file does not declare it
        names = ["ModelName", "ModelVersion", *sample.counter.labels]
        counter = cache.add_metric_to_cache(name, "count", names, kind)
    counter.add_or_update(sample.value, [*model, *sample.labels])
