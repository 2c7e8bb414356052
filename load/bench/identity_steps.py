"""Says where the worker's time goes, in one process and without a server: python -m load.bench.identity_steps

    the identity's handler, a worker's own Context -> handle(64 rows), handle(1 row) -> microseconds a request, by step

Steps are timed by functions around the hooks that they consist of; what is in none of them is `rest`. The functions
take about 1 us a call themselves. Time is the processor time of one thread: metrics are added up in these steps, and
written once a second by another thread.
"""

import contextlib
import logging
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ts.context import Context, RequestProcessor
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

from deploy.models import ROOT
from handlers.tasks.tensors import TensorsHandler
from handlers.tensor_models.function import FILE, FOLDER
from load.bench.identity import INFER, TUNING, Body, bodies

# Batches of a measurement, and those before it.
BATCHES, WARM_UP = 1000, 100
# Step -> (what has the hook, its name); a step that is called within another one is taken out of it.
Steps = dict[str, tuple[Any, str]]


class Clock:
    """Adds up what each step takes, without the steps inside it."""

    def __init__(self) -> None:
        self.own_s: dict[str, float] = defaultdict(float)
        self._inner_s = [0.0]

    def timed(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function."""

        def call(*arguments: Any, **named: Any) -> Any:
            self._inner_s.append(0.0)
            started_s = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                took_s = time.thread_time() - started_s
                self.own_s[step] += took_s - self._inner_s.pop()
                self._inner_s[-1] += took_s

        return call


def measure(handler: TensorsHandler, context: Context, body: Body, requests: int) -> dict[str, float]:
    """Return microseconds a request by step, of batches of so many requests."""
    steps: Steps = {
        "unpack": (handler, "unpack"),
        "decode": (handler, "decode"),
        "plan": (handler, "preprocess"),
        "run": (handler, "inference"),
        "collate": (handler, "collate"),
        "forward": (handler, "forward"),
        "pack": (handler, "postprocess"),
        "split": (handler, "split"),
        "rest": (handler, "handle"),
    }
    clock = Clock()
    for batch in range(WARM_UP + BATCHES):
        if batch == WARM_UP:
            for step, (owner, name) in steps.items():
                setattr(owner, name, clock.timed(step, getattr(owner, name)))
        context.request_ids = {index: f"request-{index}" for index in range(requests)}
        sent = {"content-type": body.content_type, "host": "localhost:8080", "content-length": str(len(body.body))}
        headers = sent | {name.lower(): value for name, value in body.headers.items()}
        context.request_processor = [RequestProcessor(dict(headers)) for _ in range(requests)]
        handler.handle([{"body": bytearray(body.body)} for _ in range(requests)], context)
    for owner, name in steps.values():
        delattr(owner, name)
    return {step: 1e6 * clock.own_s[step] / (BATCHES * requests) for step in steps}


def main() -> None:
    """Print a line for each kind of body and each size of a batch."""
    logging.disable()
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        (Path(folder) / FOLDER).mkdir()
        (Path(folder) / FOLDER / FILE).write_text(INFER, encoding="utf-8")
        metrics = MetricsCacheYamlImpl(str(ROOT / "deploy" / "metrics.yaml"))
        metrics.initialize_cache()
        metrics.model_name = "identity"
        size = TUNING.batch_size
        context = Context("identity", folder, {}, size, None, "0.12.0", True, metrics, {})
        handler = TensorsHandler()
        with contextlib.redirect_stdout(nowhere):
            handler.initialize(context)
        for body in bodies():
            for requests in (size, 1):
                with contextlib.redirect_stdout(nowhere):
                    took_us = measure(handler, context, body, requests)
                steps = ", ".join(f"{step} {us:.1f}" for step, us in took_us.items())
                print(f"{body.name}, {requests} a batch: {sum(took_us.values()):.1f} us a request: {steps}")


if __name__ == "__main__":
    main()
