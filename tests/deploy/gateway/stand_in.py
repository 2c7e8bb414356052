"""A stand-in for a TorchServe: its management API, metrics and predictions, on one port, as each test wants them."""

import asyncio
import copy
from collections.abc import Callable
from typing import Any

from aiohttp import web

from deploy.nodes.node import Node

METADATA = {
    "name": "classifier",
    "version": "1.0",
    "platform": "torchserve_openvino",
    "task": "image_classification",
    "mode": "classic",
    "inputs": [{"name": "image", "datatype": "BYTES", "shape": [-1, 1]}],
    "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 1000]}],
    "max_batch_size": 16,
    "max_instances": 16,
    "options": {},
    "accepts": ["image/*"],
}


def described(
    name: str, version: str = "1.0", *, workers: int = 1, ready: int = 1, start: str = "T0"
) -> dict[str, Any]:
    """A version as TorchServe describes it, as far as the gateway reads it."""
    return {
        "modelName": name,
        "modelVersion": version,
        "modelUrl": f"{name}.mar",
        "minWorkers": workers,
        "maxWorkers": workers,
        "batchSize": 8,
        "maxBatchDelay": 20,
        "workers": [
            {"id": str(9000 + number), "startTime": start, "status": "READY" if number < ready else "UNLOADING"}
            for number in range(workers)
        ],
        "jobQueueStatus": {"remainingCapacity": 64, "pendingRequests": 0},
    }


class StandIn:
    """One node.

    Attributes:
        models: name -> what is described of each version, the default one first.
        metadata: what handlers say of themselves; None for those that refuse the question.
        metrics: the text of /metrics.
        delay_s: seconds before any answer of the management API and of the metrics.
        broken: answers in place of the management API's own; None for those.
        asked: every path and query that came, in order.
    """

    def __init__(self, name: str = "node-1") -> None:
        self.name = name
        self.models: dict[str, list[dict[str, Any]]] = {}
        self.metadata: dict[str, Any] | None = copy.deepcopy(METADATA)
        self.metrics = ""
        self.delay_s = 0.0
        self.broken: Callable[[], web.Response] | None = None
        self.asked: list[str] = []
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def node(self) -> Node:
        url = f"http://127.0.0.1:{self._port}"
        return Node(name=self.name, inference=url, management=url, metrics=url)

    async def start(self) -> "StandIn":
        """Listen; after `stop`, on the same port."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        assert site._server is not None
        self._port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        return self

    async def stop(self) -> None:
        """Listen no more."""
        assert self._runner is not None
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path_qs}")
        if request.path.startswith("/predictions/"):
            is_asked = request.headers.get("X-Model-Metadata") == "1"
            if not is_asked or self.metadata is None:
                return web.json_response({"error": {"type": "EmptyRequest"}}, status=400)
            return web.json_response(self.metadata)
        await asyncio.sleep(self.delay_s)
        if request.path == "/metrics":
            return web.Response(text=self.metrics)
        if self.broken is not None:
            return self.broken()
        return self._manage(request)

    def _manage(self, request: web.Request) -> web.Response:
        _, _, name, version, *_ = (*request.path.split("/"), "", "")
        if not name and request.method == "POST":
            return self._register(request.query["url"])
        if not name:
            return web.json_response({"models": [{"modelName": name} for name in self.models]})
        if name not in self.models:
            return web.json_response({"code": 404, "message": f"Model not found: {name}"}, status=404)
        if request.method == "DELETE":
            versions = self.models[name]
            if len(versions) > 1 and versions[0]["modelVersion"] == version:
                return web.json_response({"code": 403, "message": "Cannot remove default version"}, status=403)
            versions[:] = [each for each in versions if each["modelVersion"] != version]
            if not versions:
                del self.models[name]
            return web.json_response({"status": "unregistered"})
        return web.json_response(self.models[name] if version == "all" else self.models[name][:1])

    def _register(self, archive: str) -> web.Response:
        if archive != "classifier.mar":
            return web.json_response({"code": 404, "message": f"not in the model store: {archive}"}, status=404)
        self.models["classifier"] = [described("classifier")]
        return web.json_response({"status": "Processing"}, status=202)


async def until(holds: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait until something holds."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not holds():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)
