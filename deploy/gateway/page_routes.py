"""Routes of the page at `/`: its files, and what it shows.

GET /, /page/NAME  -> files of deploy/gateway/page, read once; a browser asks again with their ETag
GET /summary       -> summary.Summary.document, as it is now; ?since=TIME leaves out older points
"""

import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson
from aiohttp import ETag, web

from deploy.gateway.state import Fleet
from deploy.gateway.summary import Summary

PAGE = Path(__file__).parent / "page"
CONTENT_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

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
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# A browser may keep a file and asks each time whether it is still the same.
REVALIDATE = {"Cache-Control": "no-cache"}
# What a key protects is kept nowhere.
NO_STORE = {"Cache-Control": "no-store"}


@dataclass(frozen=True, slots=True)
class File:
    """A file of the page, as it is sent."""

    body: bytes
    content_type: str
    etag: str

    @classmethod
    def read(cls, path: Path) -> "File":
        """Read a file whose name ends as one of CONTENT_TYPES."""
        body = path.read_bytes()
        return cls(body, CONTENT_TYPES[path.suffix], hashlib.sha256(body).hexdigest()[:32])


def read_files(folder: Path = PAGE) -> Mapping[str, File]:
    """Read the page's files, by name; there are no folders in it."""
    return {path.name: File.read(path) for path in sorted(folder.iterdir()) if path.suffix in CONTENT_TYPES}


def add_routes(app: web.Application, summary: Summary, fleet: Callable[[], Fleet]) -> None:
    """Register the routes.

    Args:
        app: whose event loop also calls `summary.observe`.
        summary: what is told at /summary.
        fleet: says what is served now.
    """
    files = read_files()

    async def page(request: web.Request) -> web.StreamResponse:
        return _send(request, files["index.html"])

    async def file(request: web.Request) -> web.StreamResponse:
        found = files.get(request.match_info["name"])
        if found is None:
            return _error(404, "NotFound", "There is no such file.")
        return _send(request, found)

    async def summarise(request: web.Request) -> web.StreamResponse:
        since_s = _number(request.query.get("since", "-inf"))
        if since_s is None:
            return _error(400, "InvalidSince", "since must be a number of seconds.")
        return _json(200, summary.document(fleet(), since_s), NO_STORE)

    routes: Mapping[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
        "/": page,
        "/page/{name}": file,
        "/summary": summarise,
    }
    for path, handler in routes.items():
        app.router.add_get(path, handler)


def _send(request: web.Request, file: File) -> web.Response:
    """Send a file, or 304 where the client has it."""
    response = web.Response(headers={**SECURITY_HEADERS, **REVALIDATE, "Vary": "Accept-Encoding"})
    # Weak: the same file, compressed or not.
    response.etag = ETag(file.etag, is_weak=True)
    if any(tag.value in ("*", file.etag) for tag in request.if_none_match or ()):
        response.set_status(304)
        return response
    response.body = file.body
    response.content_type = file.content_type
    response.charset = "utf-8"
    response.enable_compression()
    return response


def _json(status: int, document: object, headers: Mapping[str, str]) -> web.Response:
    response = web.Response(
        status=status,
        body=orjson.dumps(document),
        content_type="application/json",
        headers={**SECURITY_HEADERS, **headers},
    )
    response.enable_compression()
    return response


def _error(status: int, kind: str, message: str) -> web.Response:
    return _json(status, {"code": status, "type": kind, "message": message}, NO_STORE)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return None if math.isnan(number) else number
