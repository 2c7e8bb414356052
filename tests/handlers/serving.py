"""Runs a handler like a TorchServe worker: real Context, RequestProcessor and metrics cache, without a server."""

import copy
import functools
import json
import operator
import random
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest
import torch
from ts.context import Context, RequestProcessor
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

from deploy.models import ROOT
from handlers.archive_files import Build, hash_files
from handlers.base import BatchHandler
from handlers.config import HandlerConfig
from handlers.engines import Arrays, Engine, Outputs
from handlers.engines.torch import TorchEngine
from handlers.errors import CorruptInput, OutOfMemory
from handlers.pipeline.micro_batches import Cost
from handlers.protocol.requests import Payload

# OpenVINO's graph is exported, and torch needs no export.
ENGINES = [pytest.param("openvino", marks=pytest.mark.builds), "torch"]
Patch = pytest.MonkeyPatch
Log = pytest.LogCaptureFixture
Temp = pytest.TempPathFactory
Made = Callable[..., Path]
Handler = TypeVar("Handler", bound=BatchHandler[Any, Any])


class Answer(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


@functools.cache
def read_metrics() -> MetricsCacheYamlImpl:
    """Read TorchServe's metrics, which takes longer than loading a small model; each worker has a copy."""
    return MetricsCacheYamlImpl(str(ROOT / "deploy" / "metrics.yaml"))


def context(model_dir: Path, settings: dict[str, Any], batch_size: int = 4, **config: Any) -> Context:
    metrics = copy.deepcopy(read_metrics())
    metrics.initialize_cache()
    metrics.model_name = "model"
    config = {"handler": settings, **config}
    return Context("model", str(model_dir), {}, batch_size, None, "0.12.0", True, metrics, config)


def serve(handler: BatchHandler[Any, Any], rows: list[Any], headers: Any = None) -> list[Answer]:
    """Run one batch through `handle`; a row that is not a dict is a body."""
    ctx = handler.worker_context
    ctx.request_ids = {index: f"request-{index}" for index in range(len(rows))}
    ctx.request_processor = [RequestProcessor(h) for h in headers or [{} for _ in rows]]
    bodies = handler.handle([row if isinstance(row, dict) else {"body": row} for row in rows], ctx)
    assert len(bodies) == len(rows)
    answers = []
    for index, body in enumerate(bodies):
        (status, phrase), sent = ctx.get_response_status(index), ctx.get_response_headers(index)
        assert phrase
        answers.append(Answer(status, read(body, sent["content-type"]), sent))
    return answers


def read(body: bytes, content_type: str) -> Any:
    return json.loads(body) if content_type == "application/json" else body


# The text of bad rows: no answer may contain it, except to a good row that does, and no log.
CANARY = "qzqz"
# A row, and the status, the type and a pattern of the message of its error.
Bad = tuple[Any, int, str, str]


def assert_own_answers(handler: Any, good: Iterable[Any], bad: Sequence[Bad] = (), same: Any = operator.eq) -> None:
    """Serve rows in one batch, twice, in any order: good ones get what an oracle wants, bad ones their own error."""
    pairs = [*good]
    rows = [*(row for row, _ in pairs), *(row for row, *_ in bad)]
    for seed in range(2):
        order = random.Random(seed).sample(range(len(rows)), len(rows))
        answers = dict(zip(order, serve(handler, [rows[place] for place in order]), strict=True))
        for place, (_, wanted) in enumerate(pairs):
            answer = answers[place]
            assert answer.status == 200 and same(answer.body, wanted), (answer, wanted)
        for place, (row, status, type_, words) in enumerate(bad, len(pairs)):
            body = answers[place].body
            assert answers[place].status == status and body["type"] == type_, (row, body)
            assert re.search(words, body["message"]), body["message"]
            assert CANARY not in json.dumps(body)


# A worker's context in adaptive mode, as its archive's model-config.yaml makes it.
ADAPTIVE: dict[str, Any] = {"batch_size": 64, "continuousBatching": True}


# The handlers that tests have started and tests/handlers/conftest.py has not ended.
STARTED: list[BatchHandler[Any, Any]] = []


def started(handler: Handler, model_dir: Path, settings: dict[str, Any], **config: Any) -> Handler:
    STARTED.append(handler)
    handler.worker_context = context(model_dir, settings, **config)
    handler.initialize(handler.worker_context)
    return handler


def write_build(folder: Path, names: Iterable[str] = (), fingerprint: str = "f1", *, is_folder: bool = False) -> None:
    build = Build(fingerprint, "no weights", is_folder, hash_files({name: folder / name for name in names}))
    (folder / "build.json").write_text(build.to_json())


class Doubler(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(2.0))
        self.capacity, self.batches = 1000, list[list[float]]()

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        self.batches.append(numbers.tolist())
        if 666.0 in numbers:
            raise ValueError(f"a bug that quotes its input {numbers.tolist()}")
        if 555.0 in numbers or len(numbers) > self.capacity:
            raise OutOfMemory
        return numbers * self.factor


class DoublingHandler(BatchHandler[HandlerConfig, float]):
    """Doubles a number; odd and even ones are different groups."""

    config_class = HandlerConfig
    inputs: Any = frozenset({"number"})

    def load(self) -> Engine:
        self.module = Doubler()
        return TorchEngine(self.module, self.archive.device, ["numbers"], ["doubles"])

    def sample(self) -> Payload:
        return Payload(b"1")

    def decode(self, payload: Payload) -> float:
        value = payload.value["number"] if isinstance(payload.value, dict) else payload.value
        if value == b"bug":
            raise RuntimeError(f"cannot decode {value!r}")
        try:
            return float(value)  # type: ignore[arg-type]
        except (ValueError, TypeError):
            raise CorruptInput("Not a number.") from None

    def cost(self, item: float) -> Cost:
        if item == 444:
            raise LookupError("no cost for it")
        return Cost(group=item % 2)

    def collate(self, items: Any) -> Arrays:
        if 777 in items:
            return {"numbers": np.empty(2**60, np.int8)}
        return {"numbers": torch.tensor(list(items), dtype=torch.float32).numpy()}

    def split(self, outputs: Outputs, items: Any) -> list[Any]:
        return [float(number) for number in outputs["doubles"]]
