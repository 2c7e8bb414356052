"""Stand-ins of TorchServe and of the control process, for tests of only the gateway."""

import asyncio
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from aiohttp import web

from deploy.nodes.run.node import Node
from tests.load.fake_server import Server

METADATA: dict[str, Any] = {
    "name": "classifier", "version": "1.0", "platform": "torchserve_openvino", "task": "image_classification",
    "mode": "classic", "max_batch_size": 16, "max_request_items": 16, "options": {}, "accepts": ["image/*"],
    "inputs": [{"name": "image", "datatype": "BYTES", "shape": [-1, 1]}],
    "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 1000]}],
}  # fmt: skip


def described(name: str, version: str = "1.0", workers: int = 1, ready: int = 1, start: str = "T0") -> dict[str, Any]:
    """Return TorchServe's description of a version, as far as the gateway reads it."""
    states = ["READY" if number < ready else "UNLOADING" for number in range(workers)]
    return {
        "modelName": name, "modelVersion": version, "modelUrl": f"{name}.mar", "batchSize": 8, "maxBatchDelay": 20,
        "minWorkers": workers, "maxWorkers": workers,
        "workers": [{"id": f"{9000 + n}", "startTime": start, "status": state} for n, state in enumerate(states)],
        "jobQueueStatus": {"remainingCapacity": 64, "pendingRequests": 0},
    }  # fmt: skip


def models_of(names: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Describe models by their names, each "NAME/VERSION", the default version of a model first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in names:
        name, _, version = each.partition("/")
        found.setdefault(name, []).append(described(name, version or "1.0"))
    return found


class StandIn:
    """A TorchServe with an inference port and a management port, which has the metrics too.

    A prediction is answered with its own request in JSON, or by its header X-Do (without one, by `do`):
        die, wait       resets the connection, waits until `release` is set; die-NAME, wait-NAME: only on that node
        break           resets the connection after one chunk of the answer
        any other word  (status, headers, body) of `answers`, by that word or by the path
    """

    def __init__(self, name: str, models: Iterable[str] = ()) -> None:
        self.name = name
        self.models = models_of(models)
        # Of a model's handler; METADATA where missing, an error where None.
        self.metadata: dict[str, dict[str, Any] | None] = {}
        self.metrics = ""
        # In place of the management API, and the seconds before it answers.
        self.broken: Callable[[], web.Response] | None = None
        self.delay_s = 0.0
        self.do = ""
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[str] = []
        self.checks: list[dict[str, str]] = []  # the headers of questions to the management API
        self.seen: Counter[str] = Counter()
        self.bodies: list[tuple[str, bytes]] = []
        self.release = threading.Event()
        self.inference, self.management = Server(self._infer), Server(self._manage)

    @property
    def node(self) -> Node:
        inference, management = (f"http://127.0.0.1:{each.port}" for each in (self.inference, self.management))
        return Node(name=self.name, inference=inference, management=management, metrics=management)

    def start(self) -> None:
        self.inference.open()
        self.management.open()

    def close(self) -> None:
        self.release.set()
        self.inference.close()
        self.management.close()

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path_qs}")
        if request.headers.get("X-Model-Metadata") == "1":
            found = self.metadata.get(request.path.split("/")[2], METADATA) or {"code": 400, "type": "EmptyRequest"}
            return web.json_response(found, status=found.get("code", 200))
        body = await request.read()
        self.seen[request.path] += 1
        self.bodies.append((request.content_type, body))
        assert request.transport is not None
        what = request.headers.get("X-Do", self.do)
        if what in ("die", f"die-{self.name}"):
            request.transport.abort()
        while what in ("wait", f"wait-{self.name}") and not self.release.is_set():
            await asyncio.sleep(0.01)
        if what == "break":
            begun = web.StreamResponse()
            begun.enable_chunked_encoding()
            await begun.prepare(request)
            await begun.write(b"1")
            await asyncio.sleep(0.05)
            request.transport.abort()
            return begun
        if (answer := self.answers.get(what or request.path)) is not None:
            return web.Response(status=answer[0], headers=answer[1], body=answer[2])
        return received(request, body, self.name)

    async def _manage(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path_qs}")
        self.checks.append({name.lower(): value for name, value in request.headers.items()})
        await asyncio.sleep(self.delay_s)
        if request.path == "/metrics":
            return web.Response(text=self.metrics)
        return self.broken() if self.broken is not None else self._answer(request)

    def _answer(self, request: web.Request) -> web.Response:
        _, _, name, version, *_ = (*request.path.split("/"), "", "")
        if request.method == "POST":
            return self._register(request.query["url"].removesuffix(".mar"))
        if not name:
            return _json({"models": [{"modelName": name} for name in self.models]})
        versions = self.models.get(name, [])
        found = [each for each in versions if version in ("all", each["modelVersion"])] if version else versions[:1]
        if not found:
            return _json({"code": 404, "message": f"Model not found: {name}"}, 404)
        if request.method != "DELETE":
            return _json(found)
        if len(versions) > 1 and versions[0] in found:
            return _json({"code": 403, "message": "Cannot remove default version"}, 403)
        self.models[name] = [each for each in versions if each not in found]
        if not self.models[name]:
            del self.models[name]
        return _json({"status": "unregistered"})

    def _register(self, name: str) -> web.Response:
        if name == "x":
            return _json({"code": 404, "message": f"not in the model store: {name}.mar"}, 404)
        self.models[name] = [described(name)]
        return _json({"status": "Processing"}, 202)


def _json(document: object, status: int = 200) -> web.Response:
    # Indented as TorchServe has it: Envoy's health check looks for this text.
    return web.Response(status=status, text=json.dumps(document, indent=2), content_type="application/json")


def control() -> Server:
    async def answer(request: web.Request) -> web.Response:
        return received(request, await request.read(), "control")

    return Server(answer)


def received(request: web.Request, body: bytes, name: str) -> web.Response:
    """Describe a request in JSON; to the gRPC bridge in a header, with the body as it came."""
    document: dict[str, Any] = {
        "by": name, "method": request.method, "path": request.path_qs, "bytes": len(body),
        "headers": {header.lower(): value for header, value in request.headers.items()},
        "sha256": hashlib.sha256(body).hexdigest(),
    }  # fmt: skip
    headers = {"X-Model-Version": "1.0", "X-Received": json.dumps(document)}
    if request.content_type == "application/x-protobuf":
        return web.Response(body=body, headers=headers, content_type="application/x-protobuf")
    headers["Server-Timing"] = 'decode;dur=1.61, wait;dur=2.40, forward;dur=178.20, encode;dur=0.04, batch;desc="8"'
    return web.json_response(document, headers=headers)
