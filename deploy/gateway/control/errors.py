"""Rejected requests, and their responses: `{"error": ...}` over HTTP, a status and a message over gRPC."""

import ipaddress
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlsplit

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from deploy.protocol.errors import RequestError
from deploy.settings_file import describe_problems
from handlers.protocol.responses import error_headers
from handlers.protocol.wire import PROTOBUF

logger = logging.getLogger(__name__)

T = TypeVar("T")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answer(request: web.Request, error: RequestError) -> web.Response:
    """Return an error as JSON, or for gRPC as an empty message with headers that Envoy converts to trailers."""
    if request.content_type == PROTOBUF:
        headers = error_headers(error.grpc_status, str(error))
        return web.Response(status=error.status, headers=headers, content_type=PROTOBUF)
    return web.json_response({"error": str(error)}, status=error.status)


async def read_body(request: web.Request, kind: type[T]) -> T:
    """Read a body of JSON; no body means an empty object."""
    try:
        return TypeAdapter(kind).validate_json(await request.read() or b"{}")
    except ValidationError as error:
        raise RequestError(400, describe_problems(error, "the body")) from None


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return every error in the protocol's form; only the log contains the traceback of a bug."""
    try:
        return await handler(request)
    except RequestError as error:
        return answer(request, error)
    except web.HTTPException as error:
        response = answer(request, RequestError(error.status, error.reason))
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except web.RequestPayloadError:
        return answer(request, RequestError(400, "the body does not match Content-Encoding"))
    except Exception:
        logger.exception("%s %s", request.method, request.path)
        return answer(request, RequestError(500, "internal error"))


@web.middleware
async def reject_foreign(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Reject a page of another site: no foreign Origin, and a Host, which rebinding could choose, only of here."""
    name = urlsplit(f"//{request.host}").hostname or ""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        if name != "localhost":
            raise RequestError(403, "Host must be an address or localhost") from None
    origin, host = request.headers.get("Origin"), request.headers.get("X-Forwarded-Host", request.host)
    if origin is not None and request.method not in ("GET", "HEAD", "OPTIONS") and urlsplit(origin).netloc != host:
        raise RequestError(403, "requests from a page of another site are rejected")
    return await handler(request)
