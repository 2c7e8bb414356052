"""The application of archives: the routes of deploy.hosts.frontend, and those by which a gateway knows a node.

GET /models, /models/M, /models/M/V, /models/M/all, /metrics -> this module
every other                                                  -> deploy.hosts.frontend.routes -> Replica
"""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from deploy.hosts.frontend.http import WHOLE, Message, Receive, Response, document, no_version, reject
from deploy.hosts.frontend.replica import Replica
from deploy.hosts.frontend.routes import LOADS, Models, Routes
from deploy.hosts.serve.access_log import REQUEST_ID, AccessLog, id_of
from deploy.hosts.serve.limits import HostLimits
from deploy.hosts.serve.store import Predictions, Store, Use
from deploy.hosts.serve.stored import resident
from deploy.hosts.serve.totals import Counters, Totals
from deploy.protocol.openapi import ONE_PROCESS
from deploy.protocol.rejections import BUSY, DRAINING, Rejection
from handlers.protocol.wire import METADATA_HEADER
from torchserve_client.payloads import Json

BODY_BYTES = 8 << 20  # of a body until a model of a store is loaded: the largest default of a task
SAMPLES = 21  # runs of the model's own sample that are timed
HTTP_S = 0.00015  # seconds of Python around a model: a connection's parser, routes, and the writing of an answer


class Host(Routes):
    log: AccessLog | None = None  #: or what notes requests in its place
    on_close: Callable[[], None] | None = None  #: sends what it has noted

    def __init__(
        self, replicas: Mapping[Path, Replica], totals: Totals, limits: HostLimits, store: Store | None = None
    ) -> None:
        """`replicas` of archives, or a store that loads them by request."""
        self._store = store
        self._replicas = {replica.name: replica for replica in replicas.values()}
        self._archives = {replica.name: archive.name for archive, replica in replicas.items()}
        self.totals = totals
        self._most, self.most_head_bytes, self.body_s = limits.requests, limits.head_bytes, limits.body_s
        self.origins = frozenset(limits.cors)
        self._started = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._running = Counter[str]()  # the requests of each model that run or wait
        self.calls: asyncio.Future[Any] | None = None  # the end of gRPC's
        predict: Mapping[str, Any] = {name: partial(self._predict, each) for name, each in self._replicas.items()}
        if store is not None:
            predict = Predictions(store, lambda model: partial(self._predict_stored, Use(store, model)))
            store.on_load = self._learn_limit
        most_bytes = max((replica.max_body_bytes for replica in self._replicas.values()), default=BODY_BYTES)
        super().__init__(Models(predict, None, most_bytes, memory_bytes=limits.memory_bytes), self._close_all)
        self.models.repository = store
        self.models.pages.parts, self.models.pages.count = ONE_PROCESS, self._count

    def _learn_limit(self, replica: Replica) -> None:
        self.models.body_bytes = max(self.models.body_bytes, replica.max_body_bytes)
        self.memory.most_bytes = max(self.memory.most_bytes, 3 * self.models.body_bytes)

    async def _close_all(self) -> None:
        await asyncio.gather(*(replica.close() for replica in self._replicas.values()))
        if self._store is not None:
            await self._store.close()

    async def close(self) -> None:
        """End the models after the last call, which needs them."""
        if self.calls is not None:
            await self.calls
        if self.on_close is not None:
            await asyncio.to_thread(self.on_close)
        await super().close()

    async def answer(self, scope: Message, receive: Receive) -> Response:
        path = scope["path"].rstrip("/")
        if path == "/metrics":
            text = _text(self.totals.read()) + _memory(self.totals.pids())
            return Response(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")
        if path == "/models" or path.startswith("/models/"):
            return self._described_model(scope["method"], path.split("/")[2:])
        return await super().answer(scope, receive)

    def finish(self, scope: Message, answer: Response) -> Response:
        sent = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"")
        request_id = id_of(sent.decode("latin-1"))
        if self.log is not None:
            self.log.note(scope, answer, request_id, scope[WHOLE].began_s)
        return answer._replace(headers={**answer.headers, "X-Request-Id": request_id})

    async def _predict(
        self, replica: Replica, version: str, headers: Mapping[str, str], body: bytes, path: str
    ) -> Response | None:
        if self._running.total() >= self._most and METADATA_HEADER not in headers:
            return reject(BUSY.saying("The server has too many requests."))
        self._running[replica.name] += 1
        try:
            return await replica.answer(version, headers, body, path)
        finally:
            self._running[replica.name] -= 1

    async def _predict_stored(
        self, model: Use, version: str, headers: Mapping[str, str], *rest: Any
    ) -> Response | None:
        if model.is_unloaded and headers.get(METADATA_HEADER, LOADS) != LOADS:
            return None  # to describe a model does not load it
        async with model as replica:
            return await self._predict(replica, version, headers, *rest)

    def _described_model(self, method: str, names: list[str]) -> Response:
        """Response TorchServe's read-only management API."""
        if self.models.is_draining:
            return reject(DRAINING)
        if method != "GET":
            words = "This host serves the archives of its start; start another for others."
            return reject(Rejection(405, "MethodNotAllowedException", words))
        if not names:
            return document({"models": self._listed()})
        stored = self._store.find(names[0]) if self._store is not None else None
        replica = stored.replica if stored is not None else self._replicas.get(names[0])
        if replica is None:
            words = f"Model not found: {names[0]}"
            return document([stored.describe()]) if stored else reject(Rejection(404, "ModelNotFoundException", words))
        if len(names) > 2 or names[1:] not in ([], ["all"], [str(replica.version)]):
            return no_version(replica.name, "/".join(names[1:]))
        return document([self._document(replica)])

    def _listed(self) -> list[dict[str, str]]:
        listed = [{"modelName": name, "modelUrl": archive} for name, archive in self._archives.items()]
        stored = self._store or ()
        return listed + [{"modelName": e.name, "modelUrl": e.archive.name, "state": e.state} for e in stored]

    def _document(self, replica: Replica) -> Json:
        name, running = replica.name, self._running[replica.name]
        url = self._archives.get(name, f"{name}.mar")
        shared = {"memoryUsage": 0, "gpu": replica.is_on_gpu, "gpuUsage": "N/A"}
        workers = [
            {"id": str(9000 + place), "startTime": self._started, "status": "READY", "pid": pid, **shared}
            for place, pid in enumerate(self.totals.pids())
        ]
        return {
            **{"modelName": name, "modelVersion": str(replica.version), "modelUrl": url},
            **{"runtime": "python", "minWorkers": len(workers), "maxWorkers": len(workers)},
            **{"batchSize": replica.window, "maxBatchDelay": 0, "loadedAtStartup": True, "workers": workers},
            "jobQueueStatus": {"remainingCapacity": self._most - self._running.total(), "pendingRequests": running},
        }

    def _count(self) -> tuple[str, dict[str, dict[str, dict[str, float]]]]:
        """Return the counters of each model, as the page draws them, and the processes that have counted."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for name, (labels, samples) in self.totals.read().items():
            for values, value in samples.items():
                named = dict(zip(labels, values, strict=True))
                sums = found.setdefault(named["ModelName"], {}).setdefault(name, {})
                end = named.get("le") or named.get("type", "")
                sums[end] = sums.get(end, 0.0) + value
        return f"{self.totals.pids()}", found

    async def measure(self) -> dict[str, float]:
        """Measure seconds of a request in Python, and of cores in other code, by each model's own sample."""
        found = {"python_s": 0.0, "cores_s": 0.0}
        for replica in self._replicas.values():
            # The quickest: others had to wait for a core.
            python_s, cores_s = min([await replica.time_sample() for _ in range(SAMPLES)], key=sum)
            found = {"python_s": found["python_s"] + python_s + HTTP_S, "cores_s": found["cores_s"] + cores_s}
        return found

    def summary(self) -> dict[str, str]:
        """Return the rows that `make serve` prints, too."""
        if self._store is not None:
            return {"Model": ", ".join(f"{each.name} (loads at its first request)" for each in self._store) or "-"}
        found = [(each, each.metadata) for each in self._replicas.values()]
        return {
            "Model": ", ".join(f"{each.name} {each.version}" for each, _ in found),
            "Precision": ", ".join(metadata.precision or "as exported" for _, metadata in found),
            "Engine": ", ".join(metadata.platform.removeprefix("torchserve_") for _, metadata in found),
            "Try": f"curl {found[0][0].sample_options()}",
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


def _memory(pids: Sequence[int]) -> str:
    """Return the memory of each process, under the name that Prometheus' own libraries use."""
    name = "process_resident_memory_bytes"
    lines = [f"# HELP {name} Resident memory in bytes.", f"# TYPE {name} gauge"]
    for pid in pids:
        with suppress(OSError):  # it has ended
            lines.append(f'{name}{{pid="{pid}"}} {resident(pid)}')
    return "\n".join([*lines, ""])
