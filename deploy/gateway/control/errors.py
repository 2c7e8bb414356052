"""Refusals, and how each is answered: `{"error": ...}` over HTTP; over gRPC a status and a message.

400  INVALID_ARGUMENT    cannot be read, or asks for what cannot be
400  UNIMPLEMENTED       not supported; no 5xx, which tools would send again
403  PERMISSION_DENIED   from a page of another site
404  NOT_FOUND           no such model, version or route
502  INTERNAL            some nodes did not do what was asked; the message names them
503  UNAVAILABLE         no READY worker
"""

import ipaddress
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import quote, urlsplit

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from deploy.gateway.settings import problems
from handlers.protocol.responses import PROTOBUF

logger = logging.getLogger(__name__)

T = TypeVar("T")

UNIMPLEMENTED = 12
INTERNAL = 13
# HTTP status -> gRPC status.
GRPC_STATUS = {400: 3, 403: 7, 404: 5, 405: UNIMPLEMENTED, 413: 8, 502: INTERNAL, 503: 14}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RequestError(Exception):
    """A request that is refused; the message is for its client."""

    def __init__(self, status: int, message: str, grpc_status: int | None = None) -> None:
        """Refuse with a status of HTTP, and the one of gRPC that stands for it unless another is given."""
        super().__init__(message)
        self.status = status
        self.grpc_status = GRPC_STATUS.get(status, INTERNAL) if grpc_status is None else grpc_status


def answer(request: web.Request, error: RequestError) -> web.Response:
    """Answer with an error: JSON, or for gRPC an empty message with the headers that Envoy makes trailers of."""
    if request.content_type == PROTOBUF:
        message = quote(str(error), safe=" ,.:;'()/=<>[]{}")
        headers = {"X-Grpc-Status": str(error.grpc_status), "X-Grpc-Message": message}
        return web.Response(status=error.status, headers=headers, content_type=PROTOBUF)
    return web.json_response({"error": str(error)}, status=error.status)


async def read(request: web.Request, kind: type[T]) -> T:
    """Read a body of JSON; none is an empty object."""
    try:
        return TypeAdapter(kind).validate_json(await request.read() or b"{}")
    except ValidationError as error:
        raise RequestError(400, problems(error, "the body")) from None


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error in the protocol's form; of a bug the log has the traceback, and the client nothing."""
    try:
        return await handler(request)
    except RequestError as error:
        return answer(request, error)
    except web.HTTPException as error:
        answered = answer(request, RequestError(error.status, error.reason))
        if "Allow" in error.headers:
            answered.headers["Allow"] = error.headers["Allow"]
        return answered
    except web.RequestPayloadError:
        return answer(request, RequestError(400, "the body is not what Content-Encoding says"))
    except Exception:
        logger.exception("%s %s", request.method, request.path)
        return answer(request, RequestError(500, "internal error"))


@web.middleware
async def refuse_foreign(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what a page of another site would have a browser ask.

    A foreign Origin may not change anything. The Host must be an address or localhost: another name may have been bound
    to this machine by its owner. Envoy writes localhost there, and the client's into X-Forwarded-Host.
    """
    name = urlsplit(f"//{request.host}").hostname or ""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        if name != "localhost":
            raise RequestError(403, "Host must be an address or localhost") from None
    origin, asked = request.headers.get("Origin"), request.headers.get("X-Forwarded-Host", request.host)
    if origin is not None and request.method not in ("GET", "HEAD") and urlsplit(origin).netloc != asked:
        raise RequestError(403, "requests of another site's page are refused")
    return await handler(request)
