"""The routes of all archives at /: each finds the model and calls its replicas.

/v2/models/M/infer, /v1/embeddings, /rerank, /v1/models/M:predict, /invocations -> Models.predict  -> a replica
/v2, /v2/models/M, /v2/health/ready, /ping                                      -> Models.describe -> deploy.protocol
"""

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

from deploy.frontend.http import (
    Answer,
    Application,
    Message,
    Receive,
    document,
    headers_of,
    no_version,
    off_loop,
    read_body,
    refusal,
)
from deploy.protocol.description import APIS, configuration, describe_server, list_models, metadata, strip_zeros
from deploy.protocol.errors import UNIMPLEMENTED, RequestError, not_ready, unknown_model, unknown_version
from handlers.errors import BodyTooLarge, InvalidInput
from handlers.protocol.bodies import parse_json
from handlers.protocol.grpc_inference import decompress
from handlers.protocol.metadata import METADATA_HEADER
from handlers.protocol.retrieval import HEADER, error_document

# Calls a replica of a model: version, headers, body and path -> answer; None if the archive is not of that version.
Predict = Callable[[str, Mapping[str, str], bytes, str], Awaitable[Answer | None]]
_V2 = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?"
_INFERENCE = (
    re.compile(r"/predictions/(?P<model>[^/]+)(?:/(?P<version>[^/]+))?"),
    re.compile(f"{_V2}/infer"),
    re.compile(r"/v1/models/(?P<model>.+):predict(?P<version>)"),
)
_MODEL = re.compile(f"{_V2}(?:/(?P<question>config|ready|stats))?")
_QUESTIONS = {None: "ModelMetadata", "config": "ModelConfig", "ready": "ModelReady", "stats": "ModelStatistics"}
_CODINGS = ("gzip", "x-gzip", "deflate")
_SERVER = {"/v2": "ServerMetadata", "/v2/health/live": "ServerLive"}


class Models:
    """The replicas of each model."""

    def __init__(self, replicas: Mapping[str, Predict], invocations: str | None, body_bytes: int) -> None:
        """Prepare; `invocations` is the model of /invocations, `body_bytes` the most bytes of a body."""
        self.names, self.body_bytes, self._replicas = list(replicas), body_bytes, replicas
        #: The model of /invocations, or "" if the request must name it.
        self.invoked = invocations or (self.names[0] if len(replicas) == 1 else "")

    async def predict(self, name: str, version: str, headers: Mapping[str, str], body: bytes, path: str = "") -> Answer:
        """Answer an inference; see `deploy.frontend.forms.row_of`."""
        if name not in self._replicas:
            return refusal(404, "ModelNotFoundException", f"Model not found: {name}")
        return await self._replicas[name](version, headers, body, path) or no_version(name, version)

    async def describe(self, method: str, name: str = "", version: str = "") -> dict[str, Any]:
        """Answer a method of Triton's gRPC service that describes a model, or all models.

        Raises:
            RequestError: there is no such model or version, or it is not ready.
        """
        if method == "ServerLive":
            return {"live": True}
        if method == "ServerMetadata":
            return describe_server()
        if method == "ServerReady":
            return {"ready": all([await self._metadata(each) for each in self.names])}
        if method == "ModelStatistics":
            raise RequestError(400, "Prometheus has the statistics; here they are not supported", UNIMPLEMENTED)
        if name not in self._replicas:
            raise unknown_model(name)
        document = await self._metadata(name)
        own = str(document.get("version") or "")
        if document and version and strip_zeros(version) != strip_zeros(own):
            raise unknown_version(name, version, own)
        if method == "ModelReady":
            return {"ready": bool(document)}
        if not document:
            raise not_ready(name, version)
        is_config = method == "ModelConfig"
        return {"config": configuration(name, document)} if is_config else metadata(name, [own], document)

    async def _metadata(self, name: str) -> dict[str, Any]:
        """Return a model's metadata; empty if no replica answers."""
        answer = await self._replicas[name]("", {METADATA_HEADER: "1"}, b"", "")
        found: dict[str, Any] = json.loads(answer.body) if answer is not None and answer.status == 200 else {}
        return found


class Routes(Application):
    """Every route but /predictions/M of a model."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def answer(self, scope: Message, receive: Receive) -> Answer:
        path, headers, models = scope["path"].rstrip("/"), headers_of(scope), self._models
        body = await read_body(receive, models.body_bytes)
        try:
            if len(body) > models.body_bytes:
                raise BodyTooLarge(f"A body may have {models.body_bytes} bytes.")
            if headers.get("content-encoding", "identity") in _CODINGS:
                body = bytes(await off_loop(models.body_bytes, decompress, body, models.body_bytes))
                del headers["content-encoding"]
            if path in APIS:
                return await self._api(path, headers, body)
            if found := next(filter(None, (each.fullmatch(path) for each in _INFERENCE)), None):
                name, version = found["model"], found["version"] or ""
            elif path == "/invocations":
                query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
                name, version = query.get("model_name", [models.invoked])[0], ""
                if not name:
                    raise RequestError(400, "/invocations names no model: add ?model_name=MODEL, or set invocations")
            else:
                return await self._described(path)
            is_v2 = path.startswith("/v2/")
            answer = await models.predict(name, version, headers, body, path if is_v2 else "")
            return _as_v2(answer) if is_v2 else answer
        except RequestError as error:
            return document({"error": str(error)}, error.status)
        except InvalidInput as error:
            answer = refusal(error.code, type(error).__name__, str(error))
            return _as_v2(answer) if path.startswith("/v2/") else answer

    async def _api(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answer a request whose body names the model."""
        try:
            asked = await off_loop(len(body), parse_json, body)
        except InvalidInput:
            asked = None
        name = asked.get("model") if isinstance(asked, dict) else None
        if not isinstance(name, str):
            message = 'The body must be a JSON object that has "model", a name.'
            return document(error_document(400, "MissingModel", message, "model"), 400)
        if name not in self._models.names:
            return document(*list_models(self._models.names, name))
        return await self._models.predict(name, "", {**headers, HEADER.lower(): APIS[path]}, body, path)

    async def _described(self, path: str) -> Answer:
        """Answer a request that describes the server or its models."""
        if path.startswith("/v1/models"):
            return document(*list_models(self._models.names, path[11:]))
        if path in _SERVER:
            return document(await self._models.describe(_SERVER[path]))
        if path in ("/ping", "/v2/health/ready"):
            is_ready = (await self._models.describe("ServerReady"))["ready"]
            return document({"status": "Healthy" if is_ready else "Unhealthy"}, 200 if is_ready else 503)
        if found := _MODEL.fullmatch(path):
            method = _QUESTIONS[found["question"]]
            described = await self._models.describe(method, found["model"], found["version"] or "")
            if method == "ModelReady":
                return Answer(200 if described["ready"] else 503, b"")
            return document(described.get("config", described))
        if path.startswith("/v2/"):
            raise RequestError(404, f"{path[:200]}: no such route")
        return refusal(404, "NotFound", "Neither this path nor this model is served.")


def _as_v2(answer: Answer) -> Answer:
    """Write an error that is not the handler's in the form of the Open Inference Protocol."""
    if answer.status < 400 or "Server-Timing" in answer.headers:
        return answer
    return document({"error": json.loads(answer.body)["message"]}, answer.status, answer.headers)
