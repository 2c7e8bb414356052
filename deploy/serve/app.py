"""The application of one archive: the routes of deploy.frontend, and those by which a gateway knows a node.

GET /models, /models/M, /models/M/V, /models/M/all, /metrics -> this module
every other                                                  -> deploy.frontend.routes -> Replica
"""

import asyncio
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deploy.frontend.http import RETRY, Answer, Message, Receive, document, no_version, refusal
from deploy.frontend.routes import Models, Routes
from deploy.ray.replica import Replica
from deploy.serve.http import RUNNING
from deploy.serve.metrics import Metrics

# The `type` of the answer of a node that ends (deploy.gateway.management).
DRAINING = "Draining"


class Host(Routes):
    """Serves one archive."""

    def __init__(self, replica: Replica, archive: Path, metrics: Metrics, *, most_requests: int) -> None:
        """Prepare; `most_requests` run and wait at once, the others are refused."""
        self._replica, self._archive, self._metrics, self._most = replica, archive, metrics, most_requests
        self._started = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._running = 0
        #: Whether the process is about to end.
        self.is_draining = False
        super().__init__(Models({replica.name: self._predict}, None, replica.max_body_bytes))

    @property
    def models(self) -> Models:
        """The one model, for gRPC."""
        return self._models

    async def answer(self, scope: Message, receive: Receive) -> Answer:
        """Answer a request."""
        path = scope["path"].rstrip("/")
        if path in ("/ping", "/v2/health/ready") and self.is_draining:
            return document({"status": "Unhealthy"}, 503)
        if path == "/metrics":
            return Answer(200, self._metrics.text().encode(), "text/plain; version=0.0.4; charset=utf-8")
        if path == "/models" or path.startswith("/models/"):
            return self._described_model(scope["method"], path.split("/")[2:])
        if self._running >= self._most:
            return refusal(503, "ServiceUnavailableException", "The server has too many requests.", RETRY)
        # A client that leaves cancels the task, and so its waiting items.
        own, task = scope.get(RUNNING, set()), asyncio.current_task()
        own.add(task)
        self._running += 1
        try:
            return await super().answer(scope, receive)
        finally:
            own.discard(task)
            self._running -= 1

    async def _predict(self, version: str, headers: Mapping[str, str], body: bytes, path: str) -> Answer | None:
        return await self._replica.predict(headers, body, path) if self._replica.is_version(version, path) else None

    def _described_model(self, method: str, names: list[str]) -> Answer:
        """Answer TorchServe's read-only management API."""
        name, version = self._replica.name, str(self._replica.version)
        if self.is_draining:
            return refusal(503, DRAINING, "This process is about to end.", RETRY)
        if method != "GET":
            return refusal(405, "MethodNotAllowedException", "This host serves one archive; start another for another.")
        if not names:
            return document({"models": [{"modelName": name, "modelUrl": self._archive.name}]})
        if names[0] != name:
            return refusal(404, "ModelNotFoundException", f"Model not found: {names[0]}")
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

    @property
    def running(self) -> int:
        """The requests that run or wait."""
        return self._running

    def summary(self) -> dict[str, str]:
        """Return the rows that `make serve` prints, too."""
        metadata = self._replica.metadata
        return {
            "Model": f"{self._replica.name} {self._replica.version}",
            "Precision": metadata.precision or "as exported",
            "Engine": metadata.platform.removeprefix("torchserve_"),
        }

    async def close(self) -> None:
        """End the core."""
        await self._replica.close()
