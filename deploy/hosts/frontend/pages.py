"""The pages of a host without a gateway: its models at `/`, its API at `/docs`, and their data.

GET /, /docs, /page/NAME -> files; /summary, /openapi.json -> the models' metadata
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from deploy.hosts.frontend.http import Response, document
from deploy.protocol import openapi
from deploy.protocol.page import FILE, FILES, FRESH, TYPES
from torchserve_client.payloads import Json

KEPT_S = 5.0  # most seconds for which a description of the models answers other requests
NODE = "this server"
Counters = Mapping[str, Mapping[str, float]]  # a counter's name -> the end of a bucket, a type of errors or "" -> sum


class Models(Protocol):
    repository: Any

    @property
    def states(self) -> Mapping[str, str]: ...

    async def documents(self) -> dict[str, Json]: ...


class Pages:
    def __init__(self, models: Models, preferred: tuple[str, ...] = ()) -> None:
        self._models, self._preferred = models, preferred
        self.parts = openapi.FRONTEND  #: of `openapi.ROUTES`
        #: A name of the processes that count, and the counters of each model.
        self.count: Callable[[], tuple[str, Mapping[str, Counters]]] = lambda: ("", {})
        self._described: tuple[Mapping[str, str], float, bytes] = {}, float("-inf"), b""

    async def answer(self, path: str) -> Response | None:
        """Return a page or its data; None for another path."""
        if file := FILES.get(path or "/"):
            return Response(200, file.read_bytes(), f"{TYPES[file.suffix]}; charset=utf-8", FILE)
        if path == "/summary":
            return document(await self._summarize(), headers=FRESH)
        if path == "/openapi.json":
            return Response(200, await self._describe(), headers=FRESH)
        return None

    async def _describe(self) -> bytes:
        """Describe the API once for the models that are loaded now."""
        states, made_s, body = self._described
        if states != self._models.states or time.monotonic() > made_s + KEPT_S:
            states, models = self._models.states, await self._models.documents()
            parts = {*self.parts, *(["repository"] if self._models.repository else [])}
            body = json.dumps(openapi.describe(models, parts, self._preferred)).encode()
            self._described = states, time.monotonic(), body
        return body

    async def _summarize(self) -> Json:
        """Return the data of the page, as the gateway has it of several nodes."""
        (name, counters), models = self.count(), await self._models.documents()
        return {
            **{"id": name, "time_s": time.monotonic(), "nodes": [{"name": NODE, "is_draining": False}]},
            "models": [{**_model(each, found), "counters": counters.get(each, {})} for each, found in models.items()],
        }


def _model(name: str, metadata: Mapping[str, object]) -> Json:
    """Return a model of the page; one without metadata is not loaded."""
    workers, version = int(bool(metadata)), str(metadata.get("version") or "")
    sizes = {"batch_size": metadata.get("max_batch_size", 1), "max_batch_delay_ms": 0, "is_default": True}
    replica = {"node": NODE, "workers": workers, "ready_workers": workers, **sizes}
    shown = {"version": version, "is_ready": bool(workers), "metadata": metadata or None, "replicas": [replica]}
    return {"name": name, "is_ready": bool(workers), "default": version, "canary": None, "versions": [shown]}
