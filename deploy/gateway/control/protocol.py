"""Questions about models in the Open Inference Protocol and Triton's extensions, over HTTP and gRPC.

HTTP and gRPC, from Envoy's bridge with messages as bodies, return the documents of `deploy.protocol`. An inference
arrives here only if Envoy has no route for it. Triton returns 400 if a server or model is not ready; here it is 503,
which load balancers understand, and 404 for an unknown model.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError, Message

from deploy.gateway.control import repository
from deploy.gateway.control.deep import check as check_deeply
from deploy.gateway.control.errors import read_body
from deploy.gateway.control.gateway import GATEWAY, Control
from deploy.gateway.state import Fleet, ServedModel, ServedVersion
from deploy.protocol import description, messages_pb2
from deploy.protocol.deep import describe as describe_deep
from deploy.protocol.description import describe_embedder, describe_server, list_models, strip_zeros
from deploy.protocol.errors import RequestError, not_ready, unknown_model, unknown_version
from deploy.protocol.rejections import NOT_FOUND, UNNAMED
from handlers.protocol.statuses import UNIMPLEMENTED
from handlers.protocol.wire import PROTOBUF, SERVICE
from torchserve_client.payloads import Json

MODEL = "/v2/models/{model:[^/]+}"
VERSION = "/v2/models/{model:[^/]+}/versions/{version:[^/]+}"
FRESH_S = 0.5  # maximum age in seconds of a scrape for statistics: handlers report once a second

routes = web.RouteTableDef()


@routes.get("/v2")
@routes.get("/v2/")
async def server(request: web.Request) -> web.Response:
    return web.json_response(_describe_server(request.app[GATEWAY]))


@routes.get("/v2/health/deep")
async def deep_health(request: web.Request) -> web.Response:
    gateway = request.app[GATEWAY]
    document, status = describe_deep(*await check_deeply(gateway, *gateway.fleet.models))
    return web.json_response(document, status=status)


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
    make = configuration if "question" in request.match_info else metadata
    return web.json_response(make(request.app[GATEWAY].fleet, *_model_and_version(request)))


@routes.get(f"{VERSION}/ready")
@routes.get(f"{MODEL}/ready")
async def ready(request: web.Request) -> web.Response:
    if not await _is_ready(request.app[GATEWAY], *_model_and_version(request)):
        raise _make_not_ready(request)
    return web.Response()


@routes.post(f"{VERSION}/infer")
@routes.post(f"{MODEL}/infer")
@routes.post("/predictions/{model:[^/]+}/{version:[^/]+}")
@routes.post("/predictions/{model:[^/]+}")
async def infer(request: web.Request) -> web.Response:
    """Reject an inference after reading its body, so that the client can finish sending."""
    async for _ in request.content.iter_any():
        pass
    raise _make_not_ready(request)


@routes.post("/invocations")
async def invoke(request: web.Request) -> web.Response:
    """Reject an inference without a model, or with an unknown one."""
    async for _ in request.content.iter_any():
        pass
    gateway = request.app[GATEWAY]
    is_named = request.query.get("model_name") or gateway.settings.invocations
    status, kind, message, _ = NOT_FOUND if is_named else UNNAMED
    return web.json_response({"code": status, "type": kind, "message": message}, status=status)


@routes.post("/v2/repository/index")
async def index(request: web.Request) -> web.Response:
    is_ready_only = (await read_body(request, Json)).get("ready") is True
    return web.json_response(await _index(request.app[GATEWAY], is_ready_only))


@routes.post("/v2/repository/models/{model:[^/]+}/load")
async def load(request: web.Request) -> web.Response:
    parameters = (await read_body(request, Json)).get("parameters")
    await repository.load(request.app[GATEWAY], request.match_info["model"], parameters)
    return web.Response()


@routes.post("/v2/repository/models/{model:[^/]+}/unload")
async def unload(request: web.Request) -> web.Response:
    await repository.unload(request.app[GATEWAY], request.match_info["model"])
    return web.Response()


@routes.route("*", "/v2")
@routes.route("*", "/v2/{rest:.*}")
async def unknown(request: web.Request) -> web.Response:
    raise RequestError(404, f"{request.method} {request.path[:200]}: unknown route")


@routes.get("/v1/models")
async def models(request: web.Request) -> web.Response:
    """Return the models that /v1/embeddings and /v1/rerank accept."""
    return web.json_response(list_models(_documents(request))[0])


@routes.get("/v1/models/{model:.+}")
async def model(request: web.Request) -> web.Response:
    document, status = list_models(_documents(request), request.match_info["model"])
    return web.json_response(document, status=status)


@routes.get("/info")
async def info(request: web.Request) -> web.Response:
    gateway = request.app[GATEWAY]
    documents = {name: model.metadata for name, model in gateway.fleet.models.items()}
    return web.json_response(describe_embedder(documents, gateway.settings.default_models))


def _documents(request: web.Request) -> dict[str, Json]:
    """Return the metadata of each model, also by its aliases."""
    gateway = request.app[GATEWAY]
    models = gateway.fleet.models
    aliases = {alias: name for alias, name in gateway.settings.aliases.items() if name in models}
    return {alias: models[name].metadata for alias, name in ({name: name for name in models} | aliases).items()}


# Method -> function that returns the document, or a coroutine for it. Load and unload return None.
METHODS: dict[str, Callable[[Control, Any], Any]] = {
    "ServerLive": lambda _, __: {"live": True},
    "ServerReady": lambda gateway, _: {"ready": gateway.fleet.is_ready},
    "Check": lambda gateway, message: _health(gateway, message.service),
    "ServerMetadata": lambda gateway, _: _describe_server(gateway),
    "ModelReady": lambda gateway, message: _named("ready", _is_ready(gateway, message.name, message.version)),
    "ModelMetadata": lambda gateway, message: metadata(gateway.fleet, message.name, message.version),
    "ModelConfig": lambda gateway, message: {"config": configuration(gateway.fleet, message.name, message.version)},
    "ModelStatistics": lambda gateway, message: _statistics(gateway, message.name, message.version),
    "RepositoryIndex": lambda gateway, message: _named("models", _index(gateway, message.ready)),
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


def find(fleet: Fleet, name: str, requested: str = "") -> tuple[ServedModel, ServedVersion]:
    """Find a version of a model, or its default version; raise RequestError if there is none."""
    model = fleet.models.get(name)
    if model is None:
        raise unknown_model(name)
    version = model.find(requested) if requested else model.default
    if version is None:
        raise unknown_version(name, requested, ", ".join(model.versions))
    return model, model.versions[version]


def metadata(fleet: Fleet, name: str, requested: str = "") -> Json:
    model, version = find(fleet, name, requested)
    versions = [version.version] if requested else list(model.versions)
    return description.metadata(name, versions, _handler_metadata(fleet, model, version))


def configuration(fleet: Fleet, name: str, requested: str = "") -> Json:
    model, version = find(fleet, name, requested)
    placements = version.placements.values()
    return description.configuration(
        name,
        _handler_metadata(fleet, model, version),
        workers=sum(placement.workers for placement in placements),
        batch_size=max((placement.batch_size for placement in placements), default=0),
        delay_ms=max((placement.max_batch_delay_ms for placement in placements), default=0),
    )


def _handler_metadata(fleet: Fleet, model: ServedModel, version: ServedVersion) -> Json:
    """Return the handler's metadata; empty for a handler of another project."""
    if version.metadata is None and not fleet.is_version_ready(version):
        raise not_ready(model.name, version.version, version.lost)
    return dict(version.metadata or {})


def _describe_server(gateway: Control) -> Json:
    return describe_server("statistics", *(["model_repository"] if gateway.settings.management else []))


async def _statistics(gateway: Control, name: str, requested: str) -> Json:
    """Return Triton's statistics of the versions of a model, or of all models."""
    await gateway.scrape(FRESH_S)
    wanted = [(model, version) for model in gateway.fleet.models.values() for version in model.versions]
    if name:
        model, found = find(gateway.fleet, name, requested)
        wanted = [(model, version) for version in ([found.version] if requested else model.versions)]
    documents = []
    for model, version in wanted:
        # Triton's tools parse integers: "1" for "1.0", if "1" is unambiguous.
        number = strip_zeros(version)
        numbered = number if number.isdecimal() and model.find(number) == version else version
        documents.append({"name": model.name, "version": numbered, **gateway.traffic.triton(model.name, version)})
    return {"model_stats": documents}


async def _named(name: str, value: Awaitable[object]) -> Json:
    return {name: await value}


async def _index(gateway: Control, is_ready_only: bool) -> list[dict[str, str]]:
    """List every registered version with its state."""
    repository.check(gateway)
    documents = []
    for model in gateway.fleet.models.values():
        for version in model.versions.values():
            workers = sum(placement.workers for placement in version.placements.values())
            state, reason = ("LOADING", "workers are starting") if workers else ("UNAVAILABLE", "no workers")
            if gateway.fleet.is_version_ready(version) and await gateway.is_routed(model.name, version.version):
                state, reason = "READY", ""
            if state == "READY" or not is_ready_only:
                documents.append({"name": model.name, "version": version.version, "state": state, "reason": reason})
    return documents


async def _health(gateway: Control, service: str) -> Json:
    """See https://github.com/grpc/grpc/blob/master/doc/health-checking.md: 1 is SERVING, 2 is NOT_SERVING."""
    if service in ("", SERVICE):
        return {"status": 1 if gateway.fleet.is_ready else 2}
    if service not in gateway.fleet.models:
        raise RequestError(404, "unknown service: a model's name is expected")
    _, is_ready = await check_deeply(gateway, service)
    return {"status": 1 if is_ready and await gateway.is_routed(service) else 2}


async def _is_ready(gateway: Control, name: str, requested: str) -> bool:
    model, version = find(gateway.fleet, name, requested)
    number = version.version if requested else None
    return gateway.fleet.is_version_ready(version) and await gateway.is_routed(model.name, number)


def _make_not_ready(request: web.Request) -> RequestError:
    model, version = find(request.app[GATEWAY].fleet, *_model_and_version(request))
    return not_ready(model.name, version.version, version.lost)


def _model_and_version(request: web.Request) -> tuple[str, str]:
    return request.match_info.get("model", ""), request.match_info.get("version", "")
