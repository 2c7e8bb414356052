"""The page at `/`: its files, and what it shows.

GET /, /page/NAME  -> files of deploy/gateway/page; a browser asks again with their ETag
GET /summary       -> Charts.summary, as it is now; ?since=TIME leaves out older points
"""

from pathlib import Path

import orjson
from aiohttp import web

from deploy.gateway.control.errors import RequestError
from deploy.gateway.control.gateway import GATEWAY

PAGE = Path(__file__).parents[1] / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# The page runs its own files alone, talks to this server alone, and stands in no other page's frame. A preview of a
# photograph is a blob. Trusted types: no text of a model can become markup, whatever a script does.
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

FILES = {path.name: path for path in PAGE.iterdir() if path.suffix in TYPES}

routes = web.RouteTableDef()


@routes.get("/")
@routes.get("/page/{name}")
async def file(request: web.Request) -> web.StreamResponse:
    """Answer a file of the page; a browser may keep it and asks each time whether it is still the same."""
    path = FILES.get(request.match_info.get("name", "index.html"))
    if path is None:
        raise RequestError(404, "there is no such file")
    headers = {**HEADERS, "Cache-Control": "no-cache", "Content-Type": f"{TYPES[path.suffix]}; charset=utf-8"}
    return web.FileResponse(path, headers=headers)


@routes.get("/summary")
async def summary(request: web.Request) -> web.StreamResponse:
    """Answer what the page shows; a browser keeps nothing of it, since a key protects it."""
    gateway = request.app[GATEWAY]
    try:
        since_s = float(request.query.get("since", "-inf"))
    except ValueError:
        raise RequestError(400, "since must be a number of seconds") from None
    document = orjson.dumps(gateway.charts.summary(gateway.fleet, since_s))
    response = web.Response(
        body=document, content_type="application/json", headers={**HEADERS, "Cache-Control": "no-store"}
    )
    response.enable_compression()
    return response
