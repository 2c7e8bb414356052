"""ASGI: reads a body up to its limit, sends an answer; and TorchServe's own errors."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
# The methods of Triton's gRPC service that are served.
GRPC_METHODS = (
    "ModelInfer",
    "ServerLive",
    "ServerReady",
    "ServerMetadata",
    "ModelReady",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
)
RETRY = {"Retry-After": "1"}
# Bytes of a request's path, query and headers, as in TorchServe.
MOST_HEAD_BYTES = 8192
# Seconds in which a body must come, as in the gateway.
BODY_S = 60.0
# Bytes of a body that an event loop reads itself; more would delay its other requests.
LOOP_BYTES = 65536


class Answer(NamedTuple):
    """A response: plain data, since it also travels between processes."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}


class Disconnected(Exception):
    """The client has gone before its body was complete."""


async def read_body(receive: Receive, most: int) -> bytes:
    """Return a request's body, or its first bytes, more than `most`, if it is longer."""
    parts, size, is_more = [], 0, True
    async with asyncio.timeout(BODY_S):
        while is_more and size <= most:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            is_more = message.get("more_body", False)
    return b"".join(parts)


async def off_loop(size: int, read: Callable[..., Any], *arguments: Any) -> Any:
    """Return what `read` makes of a body; a thread reads one of more than LOOP_BYTES."""
    return read(*arguments) if size <= LOOP_BYTES else await asyncio.to_thread(read, *arguments)


def headers_of(scope: Message) -> dict[str, str]:
    """Return a request's headers by their names in lower case."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def document(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an answer of JSON."""
    return Answer(status, json.dumps(content).encode(), headers=headers or {})


def refusal(status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an error in TorchServe's form."""
    return document({"code": status, "type": kind, "message": message}, status, headers)


def no_version(name: str, version: str) -> Answer:
    """Return TorchServe's answer to a version that the model lacks."""
    return refusal(404, "ModelVersionNotFoundException", f"Model version: {version} does not exist for model: {name}")


class Application:
    """An ASGI application; `answer` has its routes."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self.close()
            await send({"type": "lifespan.shutdown.complete"})
            return
        target = (scope["path"], scope.get("query_string", b""))
        try:
            if sum(len(name) + len(value) for name, value in [target, *scope["headers"]]) > MOST_HEAD_BYTES:
                answer = refusal(431, "HeadTooLarge", f"The path and the headers may have {MOST_HEAD_BYTES} bytes.")
            else:
                answer = await self.answer(scope, receive)
        except Disconnected:
            return
        except TimeoutError:
            answer = refusal(408, "RequestTimeout", f"The body was not complete after {BODY_S:g} s.")
        named = {"content-type": answer.content_type, "content-length": str(len(answer.body)), **answer.headers}
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def answer(self, scope: Message, receive: Receive) -> Answer:
        raise NotImplementedError

    async def close(self) -> None:
        """End the application's processes and threads; Serve has drained the replica."""
