"""The page at `/`: its files, and what it shows.

GET /, /page/NAME  -> files of deploy/gateway/page; a browser asks again with their ETag
GET /summary       -> Charts.summary, as it is now; ?since=TIME leaves out older points
"""

import math
from pathlib import Path

import orjson
from aiohttp import web

from deploy.gateway.control.errors import BadRequest, NotFound
from deploy.gateway.control.gateway import Gateway

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


def add_routes(app: web.Application, gateway: Gateway) -> None:
    """Register the routes."""
    files = {path.name: path for path in PAGE.iterdir() if path.suffix in TYPES}

    async def file(request: web.Request) -> web.StreamResponse:
        path = files.get(request.match_info.get("name", "index.html"))
        if path is None:
            raise NotFound("there is no such file")
        # A browser may keep a file and asks each time whether it is still the same.
        headers = {**HEADERS, "Cache-Control": "no-cache", "Content-Type": f"{TYPES[path.suffix]}; charset=utf-8"}
        return web.FileResponse(path, headers=headers)

    async def summary(request: web.Request) -> web.StreamResponse:
        try:
            since_s = float(request.query.get("since", "-inf"))
        except ValueError:
            since_s = math.nan
        if math.isnan(since_s):
            raise BadRequest("since must be a number of seconds")
        response = web.Response(
            body=orjson.dumps(gateway.charts.summary(gateway.fleet, since_s)),
            content_type="application/json",
            # What a key protects is kept nowhere.
            headers={**HEADERS, "Cache-Control": "no-store"},
        )
        response.enable_compression()
        return response

    app.router.add_get("/", file)
    app.router.add_get("/page/{name}", file)
    app.router.add_get("/summary", summary)
