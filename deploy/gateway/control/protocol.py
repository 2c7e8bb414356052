"""The Open Inference Protocol and Triton's extensions: what is asked about models, over HTTP and over gRPC.

HTTP  GET  /v2, /v2/health/ready, /v2/models/M[/versions/V][/ready|/config|/stats], /v2/models/stats
      POST /v2/repository/index, /v2/repository/models/M/load, /v2/repository/models/M/unload
gRPC  POST /inference.GRPCInferenceService/METHOD, as Envoy's bridge brings it: messages as bodies, perhaps gzip

Both answer the same documents; gRPC makes its messages of them. Triton answers 400 where a server or model is not
ready; over HTTP it is 503 here, which balancers know to mean "not now", and 404 where there is no such model.
"""

import json
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError, Message

from deploy.gateway.control import description
from deploy.gateway.control.errors import GRPC_PATH, PROTOBUF, BadRequest, NotFound, NotReady, NotSupported
from deploy.gateway.control.gateway import Gateway
from deploy.gateway.control.repository import Repository
from handlers.protocol.grpc_messages import CLASSES

# First part of a path under /v2 -> what it is, where that is refused.
REFUSED = {
    "trace": "tracing",
    "logging": "changing the log",
    "systemsharedmemory": "shared memory",
    "cudasharedmemory": "shared memory",
}
GZIP_MAGIC = b"\x1f\x8b"
# Bytes of the largest question over gRPC, and of what is read of an inference to know whose it is.
MAX_BYTES = 1 << 16
Document = Any


class Protocol:
    """The answers: a document for a model's name, a version, and what else was asked."""

    def __init__(self, gateway: Gateway) -> None:
        """Answer from what the gateway knows."""
        self._gateway = gateway
        self._repository = Repository(gateway)
        self._methods: dict[str, Callable[[Any], Awaitable[Document]]] = {
            "ServerLive": self._live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server,
            "ModelMetadata": lambda asked: self._metadata(asked.name, asked.version),
            "ModelConfig": lambda asked: self._grpc_config(asked.name, asked.version),
            "ModelStatistics": lambda asked: self._statistics(asked.name, asked.version),
            "RepositoryIndex": lambda asked: self._grpc_index(asked.ready),
            "RepositoryModelLoad": lambda asked: self._load(asked.model_name, dict(asked.parameters)),
            "RepositoryModelUnload": lambda asked: self._unload(asked.model_name),
        }

    def add_routes(self, app: web.Application) -> None:
        """Register every route under /v2 and of the service; what is none of them is answered 404 or refused."""
        app.router.add_get("/v2", self._http(lambda *_: self._server(None)))
        app.router.add_get("/v2/", self._http(lambda *_: self._server(None)))
        app.router.add_get("/v2/models/stats", self._http(self._statistics))
        for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            app.router.add_get(model, self._http(self._metadata))
            app.router.add_get(f"{model}/config", self._http(self._config))
            app.router.add_get(f"{model}/stats", self._http(self._statistics))
            app.router.add_get(f"{model}/ready", self.model_ready)
            app.router.add_post(f"{model}/infer", self.infer)
            app.router.add_route("*", f"{model}/trace/setting", self.refuse_trace)
        app.router.add_post("/v2/repository/index", self.index)
        app.router.add_post("/v2/repository/models/{model}/load", self.load)
        app.router.add_post("/v2/repository/models/{model}/unload", self.unload)
        for refused in REFUSED:
            app.router.add_route("*", f"/v2/{refused}", self.refuse)
            app.router.add_route("*", f"/v2/{refused}/{{rest:.*}}", self.refuse)
        app.router.add_route("*", "/v2/{rest:.*}", self.unknown)
        app.router.add_post(f"{GRPC_PATH}ModelInfer", self.grpc_infer)
        app.router.add_post(f"{GRPC_PATH}{{method}}", self.grpc)

    # -- documents ----------------------------------------------------------------------------------------------------

    async def _live(self, _asked: Any) -> Document:
        return {"live": True}

    async def _server_ready(self, _asked: Any) -> Document:
        return {"ready": self._gateway.fleet.is_ready}

    async def _model_ready(self, asked: Any) -> Document:
        _, version = description.find(self._gateway.fleet, asked.name, asked.version)
        return {"ready": description.is_model_ready(self._gateway.fleet, version)}

    async def _server(self, _asked: Any) -> Document:
        return description.server(self._gateway.settings.management)

    async def _metadata(self, model: str, version: str) -> Document:
        return description.metadata(self._gateway.fleet, model, version)

    async def _config(self, model: str, version: str) -> Document:
        return description.configuration(self._gateway.fleet, model, version)

    async def _grpc_config(self, model: str, version: str) -> Document:
        return {"config": await self._config(model, version)}

    async def _statistics(self, model: str, version: str) -> Document:
        return {"model_stats": await self._gateway.triton(model, version)}

    async def _index(self, is_ready_only: bool) -> Document:
        self._repository.check()
        return list(description.index(self._gateway.fleet, is_ready_only=is_ready_only))

    async def _grpc_index(self, is_ready_only: bool) -> Document:
        return {"models": await self._index(is_ready_only)}

    async def _load(self, model: str, parameters: object) -> Document:
        self._repository.check()
        await self._repository.load(model, parameters)
        return {}

    async def _unload(self, model: str) -> Document:
        self._repository.check()
        await self._repository.unload(model)
        return {}

    # -- over HTTP ----------------------------------------------------------------------------------------------------

    def _http(
        self, document: Callable[[str, str], Awaitable[Document]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            return web.json_response(await document(*_asked(request)))

        return answer

    async def model_ready(self, request: web.Request) -> web.Response:
        """Answer whether requests for a model are answered."""
        model, version = description.find(self._gateway.fleet, *_asked(request))
        if not description.is_model_ready(self._gateway.fleet, version):
            raise NotReady(f"'{model.name}' version {version.version} is not at ready state")
        return web.Response()

    async def infer(self, request: web.Request) -> web.Response:
        """Say what Envoy knows no route for; the body is read and forgotten, so that the client can send all of it."""
        async for _ in request.content.iter_any():
            pass
        model, version = description.find(self._gateway.fleet, *_asked(request))
        raise NotReady(f"'{model.name}' version {version.version} is not at ready state")

    async def index(self, request: web.Request) -> web.Response:
        """Answer the repository's index."""
        return web.json_response(await self._index((await _document(request)).get("ready") is True))

    async def load(self, request: web.Request) -> web.Response:
        """Register a model on all nodes."""
        await self._load(request.match_info["model"], (await _document(request)).get("parameters"))
        return web.Response()

    async def unload(self, request: web.Request) -> web.Response:
        """Remove a model from all nodes."""
        await self._unload(request.match_info["model"])
        return web.Response()

    async def refuse(self, request: web.Request) -> web.Response:
        """Say what is not done here."""
        raise NotSupported(f"{REFUSED[request.path.split('/')[2]]} is not supported")

    async def refuse_trace(self, _request: web.Request) -> web.Response:
        """Say that models are not traced here."""
        raise NotSupported("tracing is not supported")

    async def unknown(self, request: web.Request) -> web.Response:
        """Say that there is no such route, or not for that method."""
        raise NotFound(f"{request.method} {request.path[:200]}: no such route")

    # -- over gRPC ----------------------------------------------------------------------------------------------------

    async def grpc(self, request: web.Request) -> web.Response:
        """Answer one call."""
        method = request.match_info["method"]
        answer = self._methods.get(method)
        if answer is None:
            raise NotSupported(f"{method[:100]} is not supported")
        body = bytearray()
        async for part in request.content.iter_any():
            body += part
            if len(body) > MAX_BYTES:
                raise BadRequest(f"a message may have {MAX_BYTES} bytes")
        asked = _message(f"{method}Request", _inflate(bytes(body), is_whole=True))
        answered = CLASSES[f"{method}Response"]()
        ParseDict(await answer(asked), answered, ignore_unknown_fields=True)
        return web.Response(body=answered.SerializeToString(), content_type=PROTOBUF)

    async def grpc_infer(self, request: web.Request) -> web.Response:
        """Say what Envoy knows no route for: the model's name and version are all that is read."""
        start = bytearray()
        async for part in request.content.iter_any():
            # The rest is read and forgotten, so that all of it is sent.
            if len(start) < MAX_BYTES:
                start += part
        name, version = name_and_version(_inflate(bytes(start[:MAX_BYTES]), is_whole=False))
        model, found = description.find(self._gateway.fleet, name, version)
        raise NotReady(f"'{model.name}' version {found.version} is not at ready state")


def _asked(request: web.Request) -> tuple[str, str]:
    return request.match_info.get("model", ""), request.match_info.get("version", "")


async def _document(request: web.Request) -> dict[str, Any]:
    """Return the body's JSON object; an empty one of no body.

    Raises:
        BadRequest: it is none.
    """
    body = await request.read()
    try:
        document = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise BadRequest("the body is no JSON") from None
    if not isinstance(document, dict):
        raise BadRequest("the body must be a JSON object")
    return document


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
