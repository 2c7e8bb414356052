"""Triton's requests to the repository of a host that loads models by request.

POST /v2/repository/index, /v2/repository/models/M/load, /v2/repository/models/M/unload -> Repository
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Protocol

from deploy.hosts.frontend.http import Rejected
from deploy.protocol.errors import RequestError
from deploy.protocol.rejections import NOT_FOUND

PREFIX = "/v2/repository"
_PATHS = re.compile(rf"{PREFIX}/(?:index|models/(?P<model>[^/]+)/(?P<action>load|unload))")


class Repository(Protocol):
    def index(self, *, is_ready: bool = False) -> list[dict[str, str]]:
        """Return Triton's index."""

    async def manage(self, action: str, name: str, parameters: Mapping[str, Any]) -> None:
        """Load or unload a model; RequestError if that fails or is not allowed."""


async def answer(repository: Repository, path: str, body: bytes) -> Any:
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
