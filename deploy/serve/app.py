"""The application of one archive: the routes of deploy.frontend, and those by which a gateway knows a node.

GET /models, /models/M, /models/M/V, /models/M/all, /metrics -> this module
every other                                                  -> deploy.frontend.routes -> Replica
"""

import asyncio
import json
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deploy.frontend.http import Answer, Message, Receive, document, no_version, refuse
from deploy.frontend.replica import Replica
from deploy.frontend.routes import Models, Routes
from deploy.protocol.refusals import BUSY, DRAINING, Refusal
from deploy.serve.connection import RUNNING
from deploy.serve.limits import HostLimits
from deploy.serve.totals import Counters, Totals
from handlers.protocol.wire import METADATA_HEADER

SAMPLES = 21  # runs of the model's own sample that are timed
HTTP_S = 0.00015  # seconds of Python around a model: a connection's parser, routes, and the writing of an answer


class Host(Routes):
    def __init__(self, replica: Replica, archive: Path, totals: Totals, limits: HostLimits) -> None:
        self._replica, self._archive, self.totals = replica, archive, totals
        self._most, self.most_head_bytes, self.body_s = limits.requests, limits.head_bytes, limits.body_s
        self.origins = frozenset(limits.cors)
        self._started = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._running = 0  # the requests that run or wait
        self.calls: asyncio.Future[Any] | None = None  # the end of gRPC's
        models = Models({replica.name: self._predict}, None, replica.max_body_bytes, memory_bytes=limits.memory_bytes)
        super().__init__(models, replica.close)

    async def close(self) -> None:
        """End the model after the last call, which needs it."""
        if self.calls is not None:
            await self.calls
        await super().close()

    async def answer(self, scope: Message, receive: Receive) -> Answer:
        path = scope["path"].rstrip("/")
        if path == "/metrics":
            return Answer(200, _text(self.totals.read()).encode(), "text/plain; version=0.0.4; charset=utf-8")
        if path == "/models" or path.startswith("/models/"):
            return self._described_model(scope["method"], path.split("/")[2:])
        # A client that leaves cancels the task, and so its waiting items.
        own, task = scope.get(RUNNING, set()), asyncio.current_task()
        own.add(task)
        try:
            return await super().answer(scope, receive)
        finally:
            own.discard(task)

    async def _predict(self, version: str, headers: Mapping[str, str], body: bytes, path: str) -> Answer | None:
        if self._running >= self._most and METADATA_HEADER not in headers:
            return refuse(BUSY.saying("The server has too many requests."))
        self._running += 1
        try:
            return await self._replica.answer(version, headers, body, path)
        finally:
            self._running -= 1

    def _described_model(self, method: str, names: list[str]) -> Answer:
        """Answer TorchServe's read-only management API."""
        name, version = self._replica.name, str(self._replica.version)
        if self.models.is_draining:
            return refuse(DRAINING)
        if method != "GET":
            words = "This host serves one archive; start another for another."
            return refuse(Refusal(405, "MethodNotAllowedException", words))
        if not names:
            return document({"models": [{"modelName": name, "modelUrl": self._archive.name}]})
        if names[0] != name:
            return refuse(Refusal(404, "ModelNotFoundException", f"Model not found: {names[0]}"))
        if len(names) > 2 or names[1:] not in ([], ["all"], [version]):
            return no_version(name, "/".join(names[1:]))
        return document([self._document(name, version)])

    def _document(self, name: str, version: str) -> dict[str, Any]:
        worker = {
            **{"id": "9000", "startTime": self._started, "status": "READY", "pid": os.getpid()},
            **{"memoryUsage": 0, "gpu": self._replica.is_on_gpu, "gpuUsage": "N/A"},
        }
        return {
            **{"modelName": name, "modelVersion": version, "modelUrl": self._archive.name, "runtime": "python"},
            **{"minWorkers": 1, "maxWorkers": 1, "batchSize": self._replica.window, "maxBatchDelay": 0},
            **{"loadedAtStartup": True, "workers": [worker]},
            "jobQueueStatus": {"remainingCapacity": self._most - self._running, "pendingRequests": self._running},
        }

    async def measure(self) -> dict[str, float]:
        """Measure seconds of a request in Python, and of cores in other code, by the model's own sample."""
        # The quickest: others had to wait for a core.
        python_s, cores_s = min([await self._replica.time_sample() for _ in range(SAMPLES)], key=sum)
        return {"python_s": python_s + HTTP_S, "cores_s": cores_s}

    def summary(self) -> dict[str, str]:
        """Return the rows that `make serve` prints, too."""
        metadata = self._replica.metadata
        return {
            "Model": f"{self._replica.name} {self._replica.version}",
            "Precision": metadata.precision or "as exported",
            "Engine": metadata.platform.removeprefix("torchserve_"),
        }


def _text(counters: Counters) -> str:
    """Return all counters in Prometheus' text format, with TorchServe's names and labels."""
    host, lines = socket.gethostname(), []
    for name, (names, samples) in sorted(counters.items()):
        lines += [f"# HELP {name} Torchserve prometheus counter metric with unit: count", f"# TYPE {name} counter"]
        for labels, value in samples.items():
            named = zip((*names, "Hostname"), (*labels, host), strict=True)
            written = ",".join(f"{label}={json.dumps(text, ensure_ascii=False)}" for label, text in named)
            lines.append(f"{name}{{{written},}} {float(value)}")
    return "\n".join([*lines, ""])
