"""Questions about models in the Open Inference Protocol and Triton's extensions, over HTTP and gRPC.

HTTP  GET  /v2, /v2/models/M[/versions/V][/ready|/config|/stats], /v2/models/stats
      GET  /v1/models[/M], of OpenAI's API; /info, of text-embeddings-inference's
      POST /v2/repository/index, /v2/repository/models/M/load, /v2/repository/models/M/unload
gRPC  POST /inference.GRPCInferenceService/METHOD, from Envoy's bridge: messages as bodies

Both return the documents of `deploy.protocol`; gRPC converts them to messages. An inference arrives here only if Envoy
has no route for it. Triton returns 400 if a server or model is not ready; here it is 503, which load balancers
understand, and 404 for an unknown model.
"""

import inspect
from collections.abc import Callable
from typing import Any

from aiohttp import web
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError, Message

from deploy.gateway.control import description, repository
from deploy.gateway.control.errors import read_body
from deploy.gateway.control.gateway import GATEWAY, Gateway
from deploy.gateway.state import Fleet
from deploy.protocol import messages_pb2
from deploy.protocol.description import SERVICE, describe_embedder, describe_server, list_models
from deploy.protocol.errors import UNIMPLEMENTED, RequestError, not_ready, unknown_model
from handlers.protocol.responses import PROTOBUF

MODEL = "/v2/models/{model:[^/]+}"
VERSION = "/v2/models/{model:[^/]+}/versions/{version:[^/]+}"
# Maximum age in seconds of a scrape for statistics: handlers report once a second.
FRESH_S = 0.5

routes = web.RouteTableDef()

# -- HTTP -------------------------------------------------------------------------------------------------------------


@routes.get("/v2")
@routes.get("/v2/")
async def server(request: web.Request) -> web.Response:
    return web.json_response(_describe_server(request.app[GATEWAY]))


@routes.get(f"{VERSION}/stats")
@routes.get(f"{MODEL}/stats")
@routes.get("/v2/models/stats")
async def statistics(request: web.Request) -> web.Response:
    return web.json_response(await _statistics(request.app[GATEWAY], *_model_and_version(request)))


@routes.get(f"{VERSION}/{{question:config}}")
@routes.get(f"{MODEL}/{{question:config}}")
@routes.get(VERSION)
@routes.get(MODEL)
async def describe(request: web.Request) -> web.Response:
    make = description.configuration if "question" in request.match_info else description.metadata
    return web.json_response(make(request.app[GATEWAY].fleet, *_model_and_version(request)))


@routes.get(f"{VERSION}/ready")
@routes.get(f"{MODEL}/ready")
async def ready(request: web.Request) -> web.Response:
    if not _is_ready(request.app[GATEWAY].fleet, *_model_and_version(request)):
        raise _make_not_ready(request)
    return web.Response()


@routes.post(f"{VERSION}/infer")
@routes.post(f"{MODEL}/infer")
@routes.post("/predictions/{model:[^/]+}/{version:[^/]+}")
@routes.post("/predictions/{model:[^/]+}")
async def infer(request: web.Request) -> web.Response:
    """Refuse an inference after reading its body, so that the client can finish sending."""
    async for _ in request.content.iter_any():
        pass
    raise _make_not_ready(request)


@routes.post("/invocations")
async def invoke(request: web.Request) -> web.Response:
    """Refuse an inference without a model, or with an unknown one."""
    async for _ in request.content.iter_any():
        pass
    gateway = request.app[GATEWAY]
    if name := request.query.get("model_name") or gateway.settings.invocations:
        raise unknown_model(name)
    how = "add ?model_name=MODEL, or set invocations: MODEL in gateway.yaml"
    raise RequestError(400, f"/invocations names no model, and {len(gateway.fleet.models)} are served: {how}")


@routes.post("/v2/repository/index")
async def index(request: web.Request) -> web.Response:
    is_ready_only = (await read_body(request, dict[str, Any])).get("ready") is True
    return web.json_response(_index(request.app[GATEWAY], is_ready_only))


@routes.post("/v2/repository/models/{model:[^/]+}/load")
async def load(request: web.Request) -> web.Response:
    parameters = (await read_body(request, dict[str, Any])).get("parameters")
    await repository.load(request.app[GATEWAY], request.match_info["model"], parameters)
    return web.Response()


@routes.post("/v2/repository/models/{model:[^/]+}/unload")
async def unload(request: web.Request) -> web.Response:
    await repository.unload(request.app[GATEWAY], request.match_info["model"])
    return web.Response()


@routes.route("*", "/v2/{rest:.*}")
async def unknown(request: web.Request) -> web.Response:
    raise RequestError(404, f"{request.method} {request.path[:200]}: unknown route")


# -- OpenAI's list of models -----------------------------------------------------------------------------------------


@routes.get("/v1/models")
async def models(request: web.Request) -> web.Response:
    """Return the models that /v1/embeddings and /v1/rerank accept."""
    return web.json_response(list_models(_names(request))[0])


@routes.get("/v1/models/{model:.+}")
async def model(request: web.Request) -> web.Response:
    document, status = list_models(_names(request), request.match_info["model"])
    return web.json_response(document, status=status)


@routes.get("/info")
async def info(request: web.Request) -> web.Response:
    """Describe the model of clients that name none."""
    gateway = request.app[GATEWAY]
    documents = {name: model.metadata for name, model in gateway.fleet.models.items()}
    return web.json_response(describe_embedder(documents, gateway.settings.default_models))


def _names(request: web.Request) -> list[str]:
    gateway = request.app[GATEWAY]
    names = gateway.fleet.models
    return [*names, *(alias for alias, name in gateway.settings.aliases.items() if name in names)]


# -- gRPC -------------------------------------------------------------------------------------------------------------

# Method -> function that returns the document, or a coroutine for it. Load and unload return None.
METHODS: dict[str, Callable[[Gateway, Any], Any]] = {
    "ServerLive": lambda _, __: {"live": True},
    "ServerReady": lambda gateway, _: {"ready": gateway.fleet.is_ready},
    "Check": lambda gateway, message: _health(gateway.fleet, message.service),
    "ServerMetadata": lambda gateway, _: _describe_server(gateway),
    "ModelReady": lambda gateway, message: {"ready": _is_ready(gateway.fleet, message.name, message.version)},
    "ModelMetadata": lambda gateway, message: description.metadata(gateway.fleet, message.name, message.version),
    "ModelConfig": lambda gateway, message: {
        "config": description.configuration(gateway.fleet, message.name, message.version)
    },
    "ModelStatistics": lambda gateway, message: _statistics(gateway, message.name, message.version),
    "RepositoryIndex": lambda gateway, message: {"models": _index(gateway, message.ready)},
    "RepositoryModelLoad": lambda gateway, message: repository.load(
        gateway, message.model_name, dict(message.parameters)
    ),
    "RepositoryModelUnload": lambda gateway, message: repository.unload(gateway, message.model_name),
}


@routes.post("/grpc.health.v1.Health/{method:Check}")
@routes.post(f"/{SERVICE}/{{method}}")
async def grpc(request: web.Request) -> web.Response:
    method = request.match_info["method"]
    if method not in METHODS:
        raise RequestError(400, f"{method[:100]} is not supported", UNIMPLEMENTED)
    message: Message = getattr(messages_pb2, f"{method}Request")()
    try:
        message.ParseFromString(await request.read())
    except DecodeError:
        raise RequestError(400, f"the message is not a valid {method}Request") from None
    document = METHODS[method](request.app[GATEWAY], message)
    if inspect.isawaitable(document):
        document = await document
    response: Message = getattr(messages_pb2, f"{method}Response")()
    ParseDict(document or {}, response, ignore_unknown_fields=True)
    return web.Response(body=response.SerializeToString(), content_type=PROTOBUF)


# -- shared -----------------------------------------------------------------------------------------------------------


def _describe_server(gateway: Gateway) -> dict[str, Any]:
    return describe_server("statistics", *(["model_repository"] if gateway.settings.management else []))


async def _statistics(gateway: Gateway, model: str, version: str) -> dict[str, Any]:
    await gateway.scrape(FRESH_S)
    return {"model_stats": list(description.statistics(gateway.fleet, gateway.traffic, model, version))}


def _index(gateway: Gateway, is_ready_only: bool) -> list[dict[str, str]]:
    repository.check(gateway)
    return list(description.index(gateway.fleet, is_ready_only=is_ready_only))


def _health(fleet: Fleet, service: str) -> dict[str, Any]:
    """See https://github.com/grpc/grpc/blob/master/doc/health-checking.md: 1 is SERVING, 2 is NOT_SERVING."""
    if service not in ("", SERVICE):
        raise RequestError(404, "unknown service")
    return {"status": 1 if fleet.is_ready else 2}


def _is_ready(fleet: Fleet, model: str, version: str) -> bool:
    return fleet.is_version_ready(description.find(fleet, model, version)[1])


def _make_not_ready(request: web.Request) -> RequestError:
    model, version = description.find(request.app[GATEWAY].fleet, *_model_and_version(request))
    return not_ready(model.name, version.version)


def _model_and_version(request: web.Request) -> tuple[str, str]:
    return request.match_info.get("model", ""), request.match_info.get("version", "")
