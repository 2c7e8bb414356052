"""The page at `/`: its files and its data.

GET /, /page/NAME  -> files of deploy/gateway/page; a browser revalidates them with their ETag
GET /summary       -> the current data of the page
"""

from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from deploy.gateway.control.gateway import GATEWAY
from deploy.gateway.state import Fleet, ServedModel
from deploy.gateway.traffic import Traffic
from deploy.protocol.errors import RequestError

PAGE = Path(__file__).parents[1] / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# The page loads only its own files, connects only to this server, and cannot be framed. A preview of a photograph is a
# blob. Trusted types: a model's text cannot become markup.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# The fields of a placement on the page.
REPLICA_FIELDS = ("workers", "ready_workers", "batch_size", "max_batch_delay_ms", "is_default")
FILES = {path.name: path for path in PAGE.iterdir() if path.suffix in TYPES}

routes = web.RouteTableDef()


@routes.get("/")
@routes.get("/page/{name}")
async def file(request: web.Request) -> web.StreamResponse:
    """Return a file of the page; a browser may cache it, and revalidates it each time."""
    path = FILES.get(request.match_info.get("name", "index.html"))
    if path is None:
        raise RequestError(404, "unknown file")
    headers = {**HEADERS, "Cache-Control": "no-cache", "Content-Type": f"{TYPES[path.suffix]}; charset=utf-8"}
    return web.FileResponse(path, headers=headers)


@routes.get("/summary")
async def summary(request: web.Request) -> web.StreamResponse:
    """Return the data of the page; browsers must not cache it, since a key protects it."""
    gateway = request.app[GATEWAY]
    body = orjson.dumps(summarize(gateway.fleet, gateway.traffic))
    made = web.Response(body=body, content_type="application/json", headers={**HEADERS, "Cache-Control": "no-store"})
    made.enable_compression()
    return made


def summarize(fleet: Fleet, traffic: Traffic) -> dict[str, Any]:
    """Return the data of the page; `time_s` is that of the counters."""
    return {
        "id": traffic.id,
        "time_s": traffic.time_s,
        "nodes": [{"name": name, "is_draining": name in fleet.draining} for name in sorted(fleet.nodes)],
        "models": [
            {**_model(fleet, model), "counters": traffic.grown(name)} for name, model in sorted(fleet.models.items())
        ],
    }


def _model(fleet: Fleet, model: ServedModel) -> dict[str, Any]:
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
