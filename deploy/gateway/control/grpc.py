"""The protocol over gRPC, as Envoy's bridge brings it: POST /inference.GRPCInferenceService/METHOD, messages as bodies.

body (perhaps gzip) -> request message -> the same documents that HTTP answers -> response message -> body
"""

import zlib
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError, Message

from deploy.gateway.control import description
from deploy.gateway.control.errors import GRPC_PATH, PROTOBUF, BadRequest, NotReady, NotSupported
from deploy.gateway.control.gateway import Gateway
from deploy.gateway.control.repository import Repository
from handlers.protocol.grpc_messages import CLASSES

GZIP_MAGIC = b"\x1f\x8b"
# Bytes of the largest question, and of what is read of an inference to know whose it is.
MAX_BYTES = 1 << 16


class Grpc:
    """The methods of the service that ask about models."""

    def __init__(self, gateway: Gateway, repository: Repository) -> None:
        """Answer from what the gateway knows."""
        self._gateway = gateway
        self._repository = repository
        self._methods: dict[str, Callable[[Any], Awaitable[dict[str, Any]]]] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server,
            "ModelMetadata": self._metadata,
            "ModelConfig": self._configuration,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }

    def add_routes(self, app: web.Application) -> None:
        """Register every method; those that are not answered are refused."""
        app.router.add_post(f"{GRPC_PATH}ModelInfer", self.infer)
        app.router.add_post(f"{GRPC_PATH}{{method}}", self.call)

    async def call(self, request: web.Request) -> web.Response:
        """Answer one call."""
        method = request.match_info["method"]
        answer = self._methods.get(method)
        if answer is None:
            raise NotSupported(f"{method[:100]} is not supported")
        asked = _message(f"{method}Request", await _body(request))
        answered = CLASSES[f"{method}Response"]()
        ParseDict(await answer(asked), answered, ignore_unknown_fields=True)
        return web.Response(body=answered.SerializeToString(), content_type=PROTOBUF)

    async def infer(self, request: web.Request) -> web.Response:
        """Say what Envoy knows no route for: the model's name and version are all that is read."""
        start = bytearray()
        async for part in request.content.iter_any():
            # The rest is read and forgotten, so that all of it is sent.
            if len(start) < MAX_BYTES:
                start += part
        name, version = name_and_version(_inflate(bytes(start[:MAX_BYTES]), is_whole=False))
        model, found = description.find(self._gateway.fleet, name, version)
        raise NotReady(f"'{model.name}' version {found.version} is not at ready state")

    async def _live(self, _asked: Any) -> dict[str, Any]:
        return {"live": True}

    async def _ready(self, _asked: Any) -> dict[str, Any]:
        return {"ready": self._gateway.is_ready()}

    async def _model_ready(self, asked: Any) -> dict[str, Any]:
        _, version = description.find(self._gateway.fleet, asked.name, asked.version)
        return {"ready": description.is_model_ready(self._gateway.fleet, version)}

    async def _server(self, _asked: Any) -> dict[str, Any]:
        return description.server(self._gateway.settings.management)

    async def _metadata(self, asked: Any) -> dict[str, Any]:
        return description.metadata(self._gateway.fleet, asked.name, asked.version)

    async def _configuration(self, asked: Any) -> dict[str, Any]:
        return {"config": description.configuration(self._gateway.fleet, asked.name, asked.version)}

    async def _statistics(self, asked: Any) -> dict[str, Any]:
        return {"model_stats": await self._gateway.statistics(asked.name, asked.version)}

    async def _index(self, asked: Any) -> dict[str, Any]:
        self._repository.check()
        return {"models": list(description.index(self._gateway.fleet, is_ready_only=asked.ready))}

    async def _load(self, asked: Any) -> dict[str, Any]:
        self._repository.check()
        await self._repository.load(asked.model_name, dict(asked.parameters))
        return {}

    async def _unload(self, asked: Any) -> dict[str, Any]:
        self._repository.check()
        await self._repository.unload(asked.model_name)
        return {}


async def _body(request: web.Request) -> bytes:
    body = bytearray()
    async for part in request.content.iter_any():
        body += part
        if len(body) > MAX_BYTES:
            raise BadRequest(f"a message may have {MAX_BYTES} bytes")
    return _inflate(bytes(body), is_whole=True)


def _inflate(body: bytes, *, is_whole: bool) -> bytes:
    """Undo gzip where the client has compressed; of a body's start, what can be had of it."""
    if not body.startswith(GZIP_MAGIC):
        return body
    inflater = zlib.decompressobj(wbits=31)
    try:
        plain = inflater.decompress(body, MAX_BYTES)
    except zlib.error:
        raise BadRequest("the message is no gzip") from None
    if is_whole and not inflater.eof:
        raise BadRequest(f"the message is cut off, or larger than {MAX_BYTES} bytes")
    return plain


def _message(name: str, body: bytes) -> Any:
    message: Message = CLASSES[name]()
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise BadRequest(f"the message is no {name}") from None
    return message


def name_and_version(start: bytes) -> tuple[str, str]:
    """Read fields 1 and 2 of a ModelInferRequest, which stand first where they are set.

    Raises:
        BadRequest: there is no name at its start.
    """
    found = {1: "", 2: ""}
    at = 0
    while at + 2 <= len(start) and start[at] in (0x0A, 0x12):
        field, size, at = start[at] >> 3, start[at + 1], at + 2
        if size >= 0x80:
            if at >= len(start) or start[at] >= 0x80:
                break
            size, at = (size & 0x7F) | start[at] << 7, at + 1
        found[field] = start[at : at + size].decode(errors="replace")
        at += size
    if not found[1]:
        raise BadRequest("model_name must be set")
    return found[1], found[2]
