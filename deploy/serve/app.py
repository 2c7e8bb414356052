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

from deploy.frontend.http import Message, Receive, Response, document, no_version, reject
from deploy.frontend.replica import Metrics, Replica
from deploy.frontend.routes import Models, Routes
from deploy.protocol.rejections import BUSY, DRAINING, Rejection
from deploy.serve.connection import RUNNING
from deploy.serve.limits import HostLimits
from handlers.protocol.wire import METADATA_HEADER


class Host(Routes):
    def __init__(self, replica: Replica, archive: Path, metrics: Metrics, limits: HostLimits) -> None:
        self._replica, self._archive, self._metrics = replica, archive, metrics
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

    async def answer(self, scope: Message, receive: Receive) -> Response:
        path = scope["path"].rstrip("/")
        if path == "/metrics":
            return Response(200, _text(self._metrics).encode(), "text/plain; version=0.0.4; charset=utf-8")
        if path == "/models" or path.startswith("/models/"):
            return self._described_model(scope["method"], path.split("/")[2:])
        # A client that leaves cancels the task, and so its waiting items.
        own, task = scope.get(RUNNING, set()), asyncio.current_task()
        own.add(task)
        try:
            return await super().answer(scope, receive)
        finally:
            own.discard(task)

    async def _predict(self, version: str, headers: Mapping[str, str], body: bytes, path: str) -> Response | None:
        if self._running >= self._most and METADATA_HEADER not in headers:
            return reject(BUSY.saying("The server has too many requests."))
        self._running += 1
        try:
            return await self._replica.answer(version, headers, body, path)
        finally:
            self._running -= 1

    def _described_model(self, method: str, names: list[str]) -> Response:
        """Answer TorchServe's read-only management API."""
        name, version = self._replica.name, str(self._replica.version)
        if self.models.is_draining:
            return reject(DRAINING)
        if method != "GET":
            words = "This host serves one archive; start another for another."
            return reject(Rejection(405, "MethodNotAllowedException", words))
        if not names:
            return document({"models": [{"modelName": name, "modelUrl": self._archive.name}]})
        if names[0] != name:
            return reject(Rejection(404, "ModelNotFoundException", f"Model not found: {names[0]}"))
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

    def summary(self) -> dict[str, str]:
        """Return the rows that `make serve` prints, too."""
        metadata = self._replica.metadata
        return {
            "Model": f"{self._replica.name} {self._replica.version}",
            "Precision": metadata.precision or "as exported",
            "Engine": metadata.platform.removeprefix("torchserve_"),
        }


def _text(metrics: Metrics) -> str:
    """Return all counters in Prometheus' text format, with TorchServe's names and labels."""
    host, lines = socket.gethostname(), []
    for name, series in sorted([*metrics.items()]):
        lines += [f"# HELP {name} Torchserve prometheus counter metric with unit: count", f"# TYPE {name} counter"]
        for labels, value in [*series.samples.items()]:
            named = zip((*series.labels, "Hostname"), (*labels, host), strict=True)
            written = ",".join(f"{label}={json.dumps(text, ensure_ascii=False)}" for label, text in named)
            lines.append(f"{name}{{{written},}} {float(value)}")
    return "\n".join([*lines, ""])
