"""The page at `/`, the documentation of the API, and their data.

GET /, /docs, /page/NAME  -> files of deploy/gateway/page; a browser revalidates them with their ETag
GET /summary              -> the current data of the page
GET /openapi.json         -> the routes, for the models of the nodes
"""

import orjson
from aiohttp import web

from deploy.gateway.control.gateway import GATEWAY
from deploy.gateway.state import Fleet, ServedModel
from deploy.gateway.traffic import Traffic
from deploy.protocol.errors import RequestError
from deploy.protocol.openapi import GATEWAY as PARTS
from deploy.protocol.openapi import describe
from deploy.protocol.page import FILE, FILES, FRESH, TYPES
from torchserve_client.payloads import Json

# The fields of a placement on the page.
REPLICA_FIELDS = ("workers", "ready_workers", "batch_size", "max_batch_delay_ms", "is_default")

routes = web.RouteTableDef()


@routes.get("/")
@routes.get("/docs")
@routes.get("/page/{name}")
async def file(request: web.Request) -> web.StreamResponse:
    """Return a file of the page; a browser may cache it, and revalidates it each time."""
    path = FILES.get(request.path)
    if path is None:
        raise RequestError(404, "unknown file")
    return web.FileResponse(path, headers={**FILE, "Content-Type": f"{TYPES[path.suffix]}; charset=utf-8"})


@routes.get("/summary")
async def summary(request: web.Request) -> web.StreamResponse:
    """Return the data of the page; browsers must not cache it, since a key protects it."""
    gateway = request.app[GATEWAY]
    body = orjson.dumps(summarize(gateway.fleet, gateway.traffic))
    made = web.Response(body=body, content_type="application/json", headers=FRESH)
    made.enable_compression()
    return made


@routes.get("/openapi.json")
async def openapi(request: web.Request) -> web.Response:
    gateway = request.app[GATEWAY]
    models = gateway.fleet.models.values()
    described = {model.name: {**(model.metadata or {}), "versions": [*model.versions]} for model in models}
    parts = {*PARTS, *(["repository"] if gateway.settings.management else [])}
    made = web.json_response(describe(described, parts, gateway.settings.default_models))
    made.enable_compression()
    return made


def summarize(fleet: Fleet, traffic: Traffic) -> Json:
    """Return the data of the page; `time_s` is that of the counters."""
    return {
        "id": traffic.id,
        "time_s": traffic.time_s,
        "nodes": [{"name": name, "is_draining": name in fleet.draining} for name in sorted(fleet.nodes)],
        "models": [
            {**_model(fleet, model), "counters": traffic.grown(name)} for name, model in sorted(fleet.models.items())
        ],
    }


def _model(fleet: Fleet, model: ServedModel) -> Json:
    canary = fleet.canaries.get(model.name)
    return {
        "name": model.name,
        "is_ready": all(version.is_ready for version in model.versions.values()),
        "default": model.default,
        "canary": {"version": canary.version, "percent": canary.percent} if canary else None,
        "versions": [
            {
                "version": number,
                "is_ready": version.is_ready,
                "metadata": version.metadata,
                "replicas": [
                    {"node": node, **{name: getattr(each, name) for name in REPLICA_FIELDS}}
                    for node, each in sorted(version.placements.items())
                ],
            }
            for number, version in sorted(model.versions.items())
        ],
    }
