"""The methods of each path, and the errors of a path or method that is not served; Triton's repository.

POST /v2/repository/index, /v2/repository/models/M/load, /v2/repository/models/M/unload -> Repository
"""

import json
import re
from collections.abc import Mapping
from typing import Protocol

from deploy.hosts.frontend.http import Rejected, Response, document
from deploy.protocol.errors import RequestError
from deploy.protocol.rejections import MISSING_MODEL, NOT_FOUND, UNKNOWN_MODEL
from handlers.protocol import wire
from handlers.protocol.api_forms import error_document

PREFIX = "/v2/repository"
_PATHS = re.compile(rf"{PREFIX}/(?:index|models/(?P<model>[^/]+)/(?P<action>load|unload))")
# The methods of each path, as the gateway has them (deploy/gateway/envoy/route.yaml). TorchServe's predictions
# accept any; the gateway passes those of its clients on.
READS = ("GET", "HEAD")
_PREDICTIONS = re.compile(r"/predictions/.+")
_POSTS = re.compile(r"/v2/models/.+/infer|/v1/models/.+:predict|/invocations")


def check_method(method: str, path: str) -> None:
    """Reject a method that a path does not have: 404, in the form of the path's protocol."""
    is_posted = path in wire.APIS or bool(_POSTS.fullmatch(path))
    allowed = ("GET", "POST", "PUT") if _PREDICTIONS.fullmatch(path) else ("POST",) if is_posted else READS
    if method not in allowed:
        raise not_served(method, path)


def not_served(method: str, path: str) -> Exception:
    """Return the error of a method or a path that is not served: 404, in the form of the path's protocol."""
    if path in wire.APIS or f"{path}/".startswith("/v1/models/"):
        return Rejected(UNKNOWN_MODEL)
    if f"{path}/".startswith("/v2/") and not path.startswith("/v2/repository"):
        return RequestError(404, f"{method[:20]} {path[:200]}: unknown route")
    return Rejected(NOT_FOUND)


def in_form(path: str, answer: Response) -> Response:
    """Write an error of TorchServe's form in OpenAI's or Cohere's, or in the Open Inference Protocol's."""
    try:
        match json.loads(answer.body):
            case {"code": _, "type": kind, "message": message}:
                pass
            case _:
                return answer
    except ValueError:
        return answer
    field = "model" if kind in (MISSING_MODEL.type, UNKNOWN_MODEL.type) or message.startswith("model:") else None
    api = wire.APIS.get(path, "")
    is_v2 = path.startswith("/v2") and not api
    content = {"error": message} if is_v2 else error_document(answer.status, kind, message, field, api)
    return document(content, answer.status, answer.headers)


class Repository(Protocol):
    def index(self, *, is_ready: bool = False) -> list[dict[str, str]]:
        """Return Triton's index."""

    async def manage(self, action: str, name: str, parameters: Mapping[str, object]) -> None:
        """Load or unload a model; RequestError if that fails or is not allowed."""


async def answer_repository(repository: Repository, path: str, body: bytes) -> object:
    """Return the document that answers a request."""
    if (found := _PATHS.fullmatch(path)) is None:
        raise Rejected(NOT_FOUND)
    try:
        asked = json.loads(body or b"{}")
        parameters, is_ready = asked.get("parameters") or {}, asked.get("ready") is True
        names = {*parameters}
    except (ValueError, AttributeError, TypeError):
        raise RequestError(400, "The body must be a JSON object, and its parameters, too.") from None
    if found["action"] is None:
        return repository.index(is_ready=is_ready)
    await repository.manage(found["action"], found["model"], dict.fromkeys(names))
    return {}
