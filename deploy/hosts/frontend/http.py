"""ASGI: reads a body up to its limit, sends an answer; and TorchServe's own errors."""

import asyncio
import json
import logging
import posixpath
import re
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl

from deploy.hosts.frontend.memory import Hold, Memory, expire
from deploy.protocol import rejections
from deploy.protocol.rejections import Rejection

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
# The answer to a browser's preflight, besides the origin; "*" does not contain Authorization.
PREFLIGHT = {
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": "*, Authorization",
    "access-control-max-age": "3600",
}
_JOINED = ("content-type", "content-encoding")  # headers that one of several does not replace
_SLASHES = re.compile(r"[/\\]+")
_CLEAN = re.compile(r"(?:/[^/\\\0.][^/\\\0]*+)++")  # no segment of it is empty or dots
LOOP_BYTES = 65536  # bytes of a body that an event loop reads itself; more would delay its other requests
# A thread that parses a body holds Python's lock, and a hostile one has many times its bytes once it is parsed.
_READERS = ThreadPoolExecutor(2, "reader")
HOLD = "hold"  # the key of a request's scope: its `Hold`
WHOLE = "whole"  # the key of a request's scope: its `Whole`, if its server has one


class Whole(Protocol):
    """A quick way to a request's body and for its response, without ASGI's messages."""

    def body(self) -> bytes | None:
        """Return the body, or None if a part of it has not come."""

    def write(self, answer: "Response") -> bool:
        """Write a response; False if it must be sent by messages."""


class Response(NamedTuple):
    """A response: plain data, since it also travels between processes."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}

    @property
    def all_headers(self) -> dict[str, str]:
        return {"content-type": self.content_type, "content-length": str(len(self.body)), **self.headers}

    async def __call__(self, scope: Message, _: Receive, send: Send) -> None:
        """Send this answer, as an ASGI application."""
        if (whole := scope.get(WHOLE)) and whole.write(self):
            return
        named = self.all_headers.items()
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in named]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class Rejected(Exception):
    """A request that is answered before it is read; its argument is a Rejection."""


class Disconnected(Exception):
    """The client has gone before its body was complete."""


async def off_loop(size: int, read: Callable[..., Any], *arguments: Any) -> Any:
    """Return what `read` makes of a body; a thread reads one of more than LOOP_BYTES."""
    if size <= LOOP_BYTES:
        return read(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_READERS, read, *arguments)


def headers_of(scope: Message) -> dict[str, str]:
    """Return a request's headers by their names in lower case; two types or codings as one, as Envoy joins them."""
    sent = scope["headers"]
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in sent}
    if len(headers) == len(sent):
        return headers
    headers.clear()
    for name, value in ((name.decode("latin-1"), value.decode("latin-1")) for name, value in sent):
        if name in _JOINED and (first := headers.get(name)):
            value = f"{first}, {value}" if value else first  # noqa: PLW2901
        headers[name] = value
    return headers


def clean_path(path: str) -> str:
    """Return a path as a gateway reads it: without empty segments and dots, and with slashes for backslashes."""
    if _CLEAN.fullmatch(path):
        return path
    if not path.startswith("/") or "\0" in path:
        raise Rejected(rejections.BAD_REQUEST)
    return posixpath.normpath(_SLASHES.sub("/", path))


def _check_query(query: bytes) -> None:
    """Reject a query that has a name twice: two servers may read two values."""
    if b"&" in query or b";" in query:
        names = [name for name, _ in parse_qsl(query.replace(b";", b"&"), keep_blank_values=True) if name]
        if len({*names}) < len(names):
            raise Rejected(rejections.MALFORMED_FORM)


def document(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(status, json.dumps(content).encode(), headers=headers or {})


def reject(rejection: Rejection) -> Response:
    """Return an error in TorchServe's form."""
    status, kind, message, headers = rejection
    return document({"code": status, "type": kind, "message": message}, status, headers)


def _allow_origin(headers: Mapping[str, str], origins: frozenset[str]) -> dict[str, str]:
    """Return the headers of a response to a page of an allowed origin; none for any other."""
    origin = headers.get("origin", "")
    is_allowed = origin and not origins.isdisjoint((origin, "*"))
    allowed = {"access-control-allow-origin": origin, "access-control-expose-headers": "*", "vary": "origin"}
    return allowed if is_allowed else {}


def no_version(name: str, version: str) -> Response:
    """Return TorchServe's answer to a version that the model lacks."""
    words = f"Model version: {version} does not exist for model: {name}"
    return reject(Rejection(404, "ModelVersionNotFoundException", words))


def log_bug(error: Exception) -> None:
    """Log an unexpected error by its type and its place: its message may quote a client."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    logger.error("A request failed: %s in %s, line %s", type(error).__name__, place.filename, place.lineno)


class Application:
    """An ASGI application; `answer` has its routes, and `form` writes their errors."""

    most_head_bytes = 8192  #: bytes of a request's path, query and headers; by default as in TorchServe
    body_s = 60.0  #: seconds in which a body must come, as in the gateway
    origins: frozenset[str] = frozenset()  #: origins of web pages that may call from a browser

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self.close()
            await send({"type": "lifespan.shutdown.complete"})
            return
        target = (scope["path"], scope.get("query_string", b""))
        cors = _allow_origin(headers_of(scope), self.origins) if self.origins else {}
        hold = scope[HOLD] = Hold(self.memory)
        try:
            if sum(map(len, chain(target, *scope["headers"]))) > self.most_head_bytes:
                message = f"The path and the headers may have {self.most_head_bytes} bytes."
                raise Rejected(rejections.HEAD_TOO_LARGE.saying(message))
            scope["path"] = clean_path(scope["path"])
            _check_query(scope.get("query_string", b""))
            if cors and scope["method"] == "OPTIONS":
                answer = Response(200, b"", headers=PREFLIGHT)
            else:
                answer = await self.answer(scope, receive)
        except Rejected as rejected:
            answer = reject(*rejected.args)
        except Disconnected:
            return
        except Exception as error:
            log_bug(error)
            answer = reject(rejections.FAILED)
        finally:
            hold.free()
        answer = answer if answer.status < 400 else self.form(scope, answer)
        answer = answer._replace(headers={**answer.headers, **cors}) if cors else answer
        await self.finish(scope, answer)(scope, receive, send)

    async def read_body(self, scope: Message, receive: Receive, most: int) -> bytes:
        """Read a body of at most `most` bytes, of which the request's `Hold` has the count."""
        hold: Hold = scope[HOLD]
        if (whole := scope.get(WHOLE)) and (body := whole.body()) is not None and len(body) <= most:
            if not hold.take(len(body)):
                raise Rejected(rejections.BUSY)
            return bytes(body)
        stated = int(next((value for name, value in scope["headers"] if name == b"content-length"), 0))
        parts, is_more = list[bytes](), True
        try:
            async with asyncio.timeout(self.body_s) as deadline:
                while is_more and max(hold.size, stated) <= most:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    parts.append(message.get("body", b""))
                    if not hold.take(len(parts[-1])):
                        raise Rejected(rejections.BUSY)
                    if is_more := message.get("more_body", False):
                        hold.wait(lambda: expire(deadline))
        except TimeoutError:
            if hold.is_given_up:
                raise Rejected(rejections.BUSY) from None
            late = f"The body was not complete after {self.body_s:g} s."
            raise Rejected(rejections.LATE.saying(late, Connection="close")) from None
        finally:
            hold.go_on()
        if max(hold.size, stated) > most:
            raise Rejected(rejections.BODY_TOO_LARGE.saying(f"A body may have {most} bytes."))
        return b"".join(parts)

    async def answer(self, scope: Message, receive: Receive) -> Response:
        raise NotImplementedError

    def form(self, scope: Message, answer: Response) -> Response:
        """Write an error in the form of the request's API."""
        raise NotImplementedError

    def finish(self, scope: Message, answer: Response) -> Response:  # noqa: ARG002
        """Return the response to send, after all routes and errors."""
        return answer

    async def close(self) -> None:
        """End the application's processes and threads; its server has drained it."""
