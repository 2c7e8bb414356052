"""Errors of the protocol: a message, an HTTP status and gRPC's, and how each is answered.

ProtocolError
├── NotFound        404, NOT_FOUND: no such model, version, route
├── Foreign         403, PERMISSION_DENIED: a page of another site asks, or this server under a name that it has not
├── BadRequest      400, INVALID_ARGUMENT: it cannot be read, or asks for what cannot be
├── NotSupported    400, UNIMPLEMENTED: this server does not do that; no 5xx, which tools would try again
├── NotReady        503, UNAVAILABLE: no worker yet, or no more
└── NodesFailed     502, INTERNAL: some nodes did not do what was asked; the message names them
"""

import ipaddress
import logging
from collections.abc import Awaitable, Callable
from urllib.parse import quote, urlsplit

from aiohttp import web

logger = logging.getLogger(__name__)

GRPC_PATH = "/inference.GRPCInferenceService/"
PROTOBUF = "application/x-protobuf"
INTERNAL = 13
# HTTP status -> gRPC's, of what aiohttp itself refuses.
GRPC_STATUS = {400: 3, 404: 12, 405: 12, 413: 8}


class ProtocolError(Exception):
    """What a client is told; `status` is HTTP's, `grpc_status` gRPC's."""

    status = 500
    grpc_status = INTERNAL


class NotFound(ProtocolError):
    """There is no such model, version or route."""

    status, grpc_status = 404, 5


class Foreign(ProtocolError):
    """A browser asks for a page of another site, or under a name that this server has not."""

    status, grpc_status = 403, 7


class BadRequest(ProtocolError):
    """It cannot be read, or asks for what cannot be."""

    status, grpc_status = 400, 3


class NotSupported(ProtocolError):
    """This server does not do that."""

    status, grpc_status = 400, 12


class NotReady(ProtocolError):
    """No worker is READY."""

    status, grpc_status = 503, 14


class NodesFailed(ProtocolError):
    """Some nodes did not do what was asked."""

    status, grpc_status = 502, INTERNAL


def answer(request: web.Request, status: int, grpc_status: int, message: str) -> web.Response:
    """Answer with an error: JSON, or for gRPC an empty message with the headers that Envoy makes trailers of."""
    if request.path.startswith(GRPC_PATH):
        headers = {"X-Grpc-Status": str(grpc_status), "X-Grpc-Message": quote(message, safe=" ,.:;'()/=<>[]{}")}
        return web.Response(status=status, headers=headers, content_type=PROTOBUF)
    return web.json_response({"error": message}, status=status)


@web.middleware
async def answer_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Give every error the protocol's form; a bug is logged, and tells the client nothing."""
    try:
        return await handler(request)
    except ProtocolError as error:
        return answer(request, error.status, error.grpc_status, str(error))
    except web.HTTPException as error:
        if error.status < 400:
            raise
        told = answer(request, error.status, GRPC_STATUS.get(error.status, INTERNAL), error.reason)
        if "Allow" in error.headers:
            told.headers["Allow"] = error.headers["Allow"]
        return told
    except web.RequestPayloadError as error:
        # Not even what aiohttp has unpacked of it is left: Content-Encoding says what the body is not.
        logger.info("%s %s: %s", request.method, request.path, type(error).__name__)
        return answer(request, BadRequest.status, BadRequest.grpc_status, "the body is not what Content-Encoding says")
    except Exception:
        logger.exception("%s %s", request.method, request.path)
        return answer(request, 500, INTERNAL, "internal error")


@web.middleware
async def refuse_foreign(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse what a page of another site would have a browser ask.

    A foreign Origin may not change anything. The Host must be an address or localhost, or a name that is bound anew to
    this machine would make the page one of the same site; Envoy writes localhost there, and the client's elsewhere.

    Raises:
        Foreign: it is such a request.
    """
    if not _is_own(request.host):
        raise Foreign("Host must be an address or localhost")
    origin, asked = request.headers.get("Origin"), request.headers.get("X-Forwarded-Host", request.host)
    if origin is not None and request.method not in ("GET", "HEAD") and urlsplit(origin).netloc != asked:
        raise Foreign("requests of another site's page are refused")
    return await handler(request)


def _is_own(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost"
    return True
