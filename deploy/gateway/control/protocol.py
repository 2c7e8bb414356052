"""The Open Inference Protocol and Triton's extensions: what is asked about models, over HTTP and over gRPC.

HTTP  GET  /v2, /v2/models/M[/versions/V][/ready|/config|/stats], /v2/models/stats
      GET  /v1/models[/M], of OpenAI's API
      POST /v2/repository/index, /v2/repository/models/M/load, /v2/repository/models/M/unload
gRPC  POST /inference.GRPCInferenceService/METHOD, as Envoy's bridge brings it: messages as bodies

Both answer the same documents (`description`); gRPC makes its messages of them. An inference comes here only where
Envoy knows no route for it. Triton answers 400 where a server or model is not ready; over HTTP it is 503 here, which
balancers know to mean "not now", and 404 where there is no such model.
"""

import inspect
from collections.abc import Callable
from typing import Any

from aiohttp import web
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError, Message

from deploy.gateway.control import description, messages_pb2, repository
from deploy.gateway.control.errors import UNIMPLEMENTED, RequestError, read
from deploy.gateway.control.gateway import GATEWAY, Gateway
from deploy.gateway.state import Fleet
from handlers.protocol.responses import PROTOBUF
from handlers.protocol.retrieval import error_document

SERVICE = "inference.GRPCInferenceService"
MODEL = "/v2/models/{model:[^/]+}"
VERSION = "/v2/models/{model:[^/]+}/versions/{version:[^/]+}"
# Of Triton's extensions those that are refused by name.
UNSUPPORTED = "/v2/{extension:trace|logging|systemsharedmemory|cudasharedmemory}"
# Seconds that a scrape may be old from which statistics are answered: handlers report once a second.
FRESH_S = 0.5

routes = web.RouteTableDef()

# -- over HTTP --------------------------------------------------------------------------------------------------------


@routes.get("/v2")
@routes.get("/v2/")
async def server(request: web.Request) -> web.Response:
    """Answer what this server is."""
    return web.json_response(description.server(request.app[GATEWAY].settings.management))


@routes.get(f"{VERSION}/stats")
@routes.get(f"{MODEL}/stats")
@routes.get("/v2/models/stats")
async def statistics(request: web.Request) -> web.Response:
    """Answer Triton's statistics: of a model, or of all."""
    return web.json_response(await _statistics(request.app[GATEWAY], *_asked(request)))


@routes.get(f"{VERSION}/{{question:config}}")
@routes.get(f"{MODEL}/{{question:config}}")
@routes.get(VERSION)
@routes.get(MODEL)
async def describe(request: web.Request) -> web.Response:
    """Answer the inputs and outputs of a model, or Triton's configuration of it."""
    make = description.configuration if "question" in request.match_info else description.metadata
    return web.json_response(make(request.app[GATEWAY].fleet, *_asked(request)))


@routes.get(f"{VERSION}/ready")
@routes.get(f"{MODEL}/ready")
async def ready(request: web.Request) -> web.Response:
    """Answer whether requests for a model are answered."""
    if not _is_ready(request.app[GATEWAY].fleet, *_asked(request)):
        raise _not_ready(request)
    return web.Response()


@routes.post(f"{VERSION}/infer")
@routes.post(f"{MODEL}/infer")
@routes.post("/predictions/{model:[^/]+}/{version:[^/]+}")
@routes.post("/predictions/{model:[^/]+}")
async def infer(request: web.Request) -> web.Response:
    """Refuse an inference; the body is read to its end, so that the client can send all of it."""
    async for _ in request.content.iter_any():
        pass
    raise _not_ready(request)


@routes.post("/invocations")
async def invoke(request: web.Request) -> web.Response:
    """Refuse an inference that names no model, or none that is served."""
    async for _ in request.content.iter_any():
        pass
    gateway = request.app[GATEWAY]
    if name := request.query.get("model_name") or gateway.settings.invocations:
        raise RequestError(404, f"Request for unknown model: '{name}' is not found")
    how = "add ?model_name=MODEL, or set invocations: MODEL in gateway.yaml"
    raise RequestError(400, f"/invocations names no model, and {len(gateway.fleet.models)} are served: {how}")


@routes.post("/v2/repository/index")
async def index(request: web.Request) -> web.Response:
    """Answer the repository's index."""
    is_ready_only = (await read(request, dict[str, Any])).get("ready") is True
    return web.json_response(_index(request.app[GATEWAY], is_ready_only))


@routes.post("/v2/repository/models/{model:[^/]+}/load")
async def load(request: web.Request) -> web.Response:
    """Register a model on all nodes."""
    parameters = (await read(request, dict[str, Any])).get("parameters")
    await repository.load(request.app[GATEWAY], request.match_info["model"], parameters)
    return web.Response()


@routes.post("/v2/repository/models/{model:[^/]+}/unload")
async def unload(request: web.Request) -> web.Response:
    """Remove a model from all nodes."""
    await repository.unload(request.app[GATEWAY], request.match_info["model"])
    return web.Response()


@routes.route("*", f"{VERSION}/trace/setting")
@routes.route("*", f"{MODEL}/trace/setting")
@routes.route("*", UNSUPPORTED)
@routes.route("*", UNSUPPORTED + "/{rest:.*}")
async def unsupported(request: web.Request) -> web.Response:
    """Refuse what is not done here."""
    raise RequestError(400, f"{request.path[:200]} is not supported")


@routes.route("*", "/v2/{rest:.*}")
async def unknown(request: web.Request) -> web.Response:
    """Refuse a route that there is not, or not for that method."""
    raise RequestError(404, f"{request.method} {request.path[:200]}: no such route")


# -- OpenAI's list of models -----------------------------------------------------------------------------------------


@routes.get("/v1/models")
async def models(request: web.Request) -> web.Response:
    """Answer the models that /v1/embeddings and its like may name."""
    return web.json_response({"object": "list", "data": [_model(name) for name in _names(request)]})


@routes.get("/v1/models/{model:.+}")
async def model(request: web.Request) -> web.Response:
    """Answer whether there is a model of that name."""
    name = request.match_info["model"]
    if name not in _names(request):
        message = "There is no such model; GET /v1/models lists them."
        return web.json_response(error_document(404, "model_not_found", message, "model"), status=404)
    return web.json_response(_model(name))


def _names(request: web.Request) -> list[str]:
    gateway = request.app[GATEWAY]
    names = gateway.fleet.models
    return [*names, *(alias for alias, name in gateway.settings.aliases.items() if name in names)]


def _model(name: str) -> dict[str, Any]:
    # Clients read a time here; none of the nodes tells it.
    return {"id": name, "object": "model", "created": 0, "owned_by": "torchserve"}


# -- over gRPC --------------------------------------------------------------------------------------------------------

# A method -> its answer as a document, or a coroutine that returns it. Load and unload return nothing.
METHODS: dict[str, Callable[[Gateway, Any], Any]] = {
    "ServerLive": lambda _, __: {"live": True},
    "ServerReady": lambda gateway, _: {"ready": gateway.fleet.is_ready},
    "Check": lambda gateway, asked: _health(gateway.fleet, asked.service),
    "ServerMetadata": lambda gateway, _: description.server(gateway.settings.management),
    "ModelReady": lambda gateway, asked: {"ready": _is_ready(gateway.fleet, asked.name, asked.version)},
    "ModelMetadata": lambda gateway, asked: description.metadata(gateway.fleet, asked.name, asked.version),
    "ModelConfig": lambda gateway, asked: {
        "config": description.configuration(gateway.fleet, asked.name, asked.version)
    },
    "ModelStatistics": lambda gateway, asked: _statistics(gateway, asked.name, asked.version),
    "RepositoryIndex": lambda gateway, asked: {"models": _index(gateway, asked.ready)},
    "RepositoryModelLoad": lambda gateway, asked: repository.load(gateway, asked.model_name, dict(asked.parameters)),
    "RepositoryModelUnload": lambda gateway, asked: repository.unload(gateway, asked.model_name),
}


@routes.post("/grpc.health.v1.Health/{method:Check}")
@routes.post(f"/{SERVICE}/{{method}}")
async def grpc(request: web.Request) -> web.Response:
    """Answer one call."""
    method = request.match_info["method"]
    if method not in METHODS:
        raise RequestError(400, f"{method[:100]} is not supported", UNIMPLEMENTED)
    asked: Message = getattr(messages_pb2, f"{method}Request")()
    try:
        asked.ParseFromString(await request.read())
    except DecodeError:
        raise RequestError(400, f"the message is no {method}Request") from None
    document = METHODS[method](request.app[GATEWAY], asked)
    if inspect.isawaitable(document):
        document = await document
    answered: Message = getattr(messages_pb2, f"{method}Response")()
    ParseDict(document or {}, answered, ignore_unknown_fields=True)
    return web.Response(body=answered.SerializeToString(), content_type=PROTOBUF)


# -- of both ----------------------------------------------------------------------------------------------------------


async def _statistics(gateway: Gateway, model: str, version: str) -> dict[str, Any]:
    await gateway.scrape(FRESH_S)
    return {"model_stats": list(description.statistics(gateway.fleet, gateway.traffic, model, version))}


def _index(gateway: Gateway, is_ready_only: bool) -> list[dict[str, str]]:
    repository.check(gateway)
    return list(description.index(gateway.fleet, is_ready_only=is_ready_only))


def _health(fleet: Fleet, service: str) -> dict[str, Any]:
    """Answer https://github.com/grpc/grpc/blob/master/doc/health-checking.md: 1 is SERVING, 2 is NOT_SERVING."""
    if service not in ("", SERVICE):
        raise RequestError(404, "no such service")
    return {"status": 1 if fleet.is_ready else 2}


def _is_ready(fleet: Fleet, model: str, version: str) -> bool:
    return description.is_model_ready(fleet, description.find(fleet, model, version)[1])


def _not_ready(request: web.Request) -> RequestError:
    return description.not_ready(*description.find(request.app[GATEWAY].fleet, *_asked(request)))


def _asked(request: web.Request) -> tuple[str, str]:
    return request.match_info.get("model", ""), request.match_info.get("version", "")
