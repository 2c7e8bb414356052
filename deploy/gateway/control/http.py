"""The protocol over HTTP: what Open Inference Protocol and Triton's extensions ask under /v2.

GET  /v2, /v2/health/live, /v2/health/ready, /v2/models/M[/versions/V][/ready|/config|/stats], /v2/models/stats
POST /v2/repository/index, /v2/repository/models/M/load, /v2/repository/models/M/unload

Triton answers 400 where a server or model is not ready; here it is 503, which balancers know to mean "not now", and 404
where there is no such model or version.
"""

import json
from typing import Any

from aiohttp import web

from deploy.gateway.control import description
from deploy.gateway.control.errors import BadRequest, NotFound, NotReady, NotSupported
from deploy.gateway.control.gateway import Gateway
from deploy.gateway.control.repository import Repository

# First part of a path under /v2 -> what it is, where that is refused.
REFUSED = {
    "trace": "tracing",
    "logging": "changing the log",
    "systemsharedmemory": "shared memory",
    "cudasharedmemory": "shared memory",
}


class Http:
    """The handlers of the routes."""

    def __init__(self, gateway: Gateway, repository: Repository) -> None:
        """Answer from what the gateway knows."""
        self._gateway = gateway
        self._repository = repository

    def add_routes(self, app: web.Application) -> None:
        """Register every route under /v2; what is none of them is answered 404."""
        version = "/v2/models/{model}/versions/{version}"
        app.router.add_get("/v2", self.server)
        app.router.add_get("/v2/", self.server)
        app.router.add_get("/v2/health/live", self.live)
        app.router.add_get("/v2/health/ready", self.ready)
        app.router.add_get("/v2/models/stats", self.statistics)
        for model in ("/v2/models/{model}", version):
            app.router.add_get(model, self.metadata)
            app.router.add_get(f"{model}/ready", self.model_ready)
            app.router.add_get(f"{model}/config", self.configuration)
            app.router.add_get(f"{model}/stats", self.statistics)
            app.router.add_post(f"{model}/infer", self.infer)
            app.router.add_route("*", f"{model}/trace/setting", self.refuse_trace)
        app.router.add_post("/v2/repository/index", self.index)
        app.router.add_post("/v2/repository/models/{model}/load", self.load)
        app.router.add_post("/v2/repository/models/{model}/unload", self.unload)
        for refused in REFUSED:
            app.router.add_route("*", f"/v2/{refused}", self.refuse)
            app.router.add_route("*", f"/v2/{refused}/{{rest:.*}}", self.refuse)
        app.router.add_route("*", "/v2/{rest:.*}", self.unknown)

    async def server(self, _request: web.Request) -> web.Response:
        """Server metadata."""
        return web.json_response(description.server(self._gateway.settings.management))

    async def live(self, _request: web.Request) -> web.Response:
        """Whether the gateway answers at all."""
        return web.Response()

    async def ready(self, _request: web.Request) -> web.Response:
        """Whether every registered model has all its workers READY."""
        if not self._gateway.is_ready():
            raise NotReady("not ready: a node does not answer, or a model lacks workers")
        return web.Response()

    async def metadata(self, request: web.Request) -> web.Response:
        """Model metadata."""
        return web.json_response(description.metadata(self._gateway.fleet, *_asked(request)))

    async def model_ready(self, request: web.Request) -> web.Response:
        """Whether requests for a model are answered."""
        fleet = self._gateway.fleet
        model, version = description.find(fleet, *_asked(request))
        if not description.is_model_ready(fleet, version):
            raise NotReady(f"'{model.name}' version {version.version} is not at ready state")
        return web.Response()

    async def configuration(self, request: web.Request) -> web.Response:
        """Triton's model configuration."""
        return web.json_response(description.configuration(self._gateway.fleet, *_asked(request)))

    async def statistics(self, request: web.Request) -> web.Response:
        """Triton's statistics, of a version, a model or all."""
        return web.json_response({"model_stats": await self._gateway.statistics(*_asked(request))})

    async def infer(self, request: web.Request) -> web.Response:
        """Say what Envoy knows no route for; the body is read and forgotten, so that the client can send all of it."""
        async for _ in request.content.iter_any():
            pass
        model, version = description.find(self._gateway.fleet, *_asked(request))
        raise NotReady(f"'{model.name}' version {version.version} is not at ready state")

    async def index(self, request: web.Request) -> web.Response:
        """The repository's index."""
        self._repository.check()
        asked = await _document(request)
        return web.json_response(list(description.index(self._gateway.fleet, is_ready_only=asked.get("ready") is True)))

    async def load(self, request: web.Request) -> web.Response:
        """Register a model on all nodes."""
        self._repository.check()
        await self._repository.load(request.match_info["model"], (await _document(request)).get("parameters"))
        return web.Response()

    async def unload(self, request: web.Request) -> web.Response:
        """Remove a model from all nodes."""
        self._repository.check()
        await self._repository.unload(request.match_info["model"])
        return web.Response()

    async def refuse(self, request: web.Request) -> web.Response:
        """Say what is not done here."""
        raise NotSupported(f"{REFUSED[request.path.split('/')[2]]} is not supported")

    async def refuse_trace(self, _request: web.Request) -> web.Response:
        """Say that models are not traced here."""
        raise NotSupported("tracing is not supported")

    async def unknown(self, request: web.Request) -> web.Response:
        """Say that there is no such route, or not for that method."""
        raise NotFound(f"{request.method} {request.path[:200]}: no such route")


def _asked(request: web.Request) -> tuple[str, str]:
    return request.match_info.get("model", ""), request.match_info.get("version", "")


async def _document(request: web.Request) -> dict[str, Any]:
    """The body's JSON object; an empty one of no body.

    Raises:
        BadRequest: it is none.
    """
    body = await request.read()
    try:
        document = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise BadRequest("the body is no JSON") from None
    if not isinstance(document, dict):
        raise BadRequest("the body must be a JSON object")
    return document
