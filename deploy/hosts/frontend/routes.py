"""The routes of all archives at /: each finds the model and calls its replicas.

/v2/models/M/infer, /v1/embeddings, /embed, /v1/models/M:predict, /invocations -> Models.predict  -> a replica
/v2, /v2/models/M, /v2/health/ready, /ping                                      -> Models.describe -> deploy.protocol
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import parse_qs

from deploy.hosts.frontend.forms import Parsed
from deploy.hosts.frontend.http import (
    HOLD,
    LOOP_BYTES,
    Application,
    Message,
    Receive,
    Rejected,
    Response,
    document,
    headers_of,
    no_version,
    off_loop,
    reject,
)
from deploy.hosts.frontend.memory import MEMORY_BYTES, Hold, Memory
from deploy.hosts.frontend.methods import PREFIX, Repository, answer_repository, check_method, in_form, not_served
from deploy.hosts.frontend.pages import Pages
from deploy.protocol import deep, description
from deploy.protocol.description import strip_zeros
from deploy.protocol.errors import RequestError, not_ready, unknown_model, unknown_version
from deploy.protocol.rejections import BAD_REQUEST, BUSY, MISSING_MODEL, UNKNOWN_MODEL, UNNAMED, Rejection
from handlers.errors import BodyTooLarge, InvalidInput, MalformedMessage
from handlers.protocol import wire
from handlers.protocol.bodies import parse_api
from handlers.protocol.codings import decompress, inflate
from handlers.protocol.headers import is_utf8
from handlers.protocol.statuses import UNIMPLEMENTED
from torchserve_client.payloads import Json

# Calls a replica of a model: version, headers, body and path -> answer; None if the archive is not of that version.
Predict = Callable[[str, Mapping[str, str], bytes, str], Awaitable[Response | None]]
_V2 = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?"
_INFERENCE = (
    re.compile(r"/predictions/(?P<model>[^/]+)(?:/(?P<version>[^/]+))?"),
    re.compile(f"{_V2}/infer"),
    re.compile(r"/v1/models/(?P<model>.+):predict(?P<version>)"),
)
_MODEL = re.compile(f"{_V2}(?:/(?P<question>config|ready|stats))?")
_QUESTIONS = {None: "ModelMetadata", "config": "ModelConfig", "ready": "ModelReady", "stats": "ModelStatistics"}
LOADS = "load"  # of METADATA_HEADER: to load a model that is not loaded
MOST_INFLATING = 2  # large bodies at once
_INFLATERS = ThreadPoolExecutor(MOST_INFLATING, "reader_inflating")
_SERVER = {"/v2": "ServerMetadata", "/v2/health/live": "ServerLive", "/v2/models/stats": "ModelStatistics"}
_JSON = re.compile(wire.JSON_PATHS)
_FORM = re.compile(r"application/x-www-form-urlencoded|multipart/", re.IGNORECASE)


class Models:
    def __init__(
        self,
        replicas: Mapping[str, Predict],
        invocations: str | None,
        body_bytes: int,
        preferred: Sequence[str] = (),
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """Prepare; `invocations` answers /invocations, and `preferred` models answer embedding APIs that name none."""
        #: The bytes of all requests, by HTTP and by gRPC; one request alone must fit.
        self.memory = Memory(max(memory_bytes, 3 * body_bytes))
        self._inflating = asyncio.Semaphore(MOST_INFLATING)
        self.body_bytes, self._replicas, self._preferred = body_bytes, replicas, preferred
        self.repository: Repository | None = None  #: of models that are loaded at their first request
        self._checks = deep.Checks()
        self.pages = Pages(self, tuple(preferred))
        self.is_draining = False  #: whether the process is about to end, and so not ready
        #: The model of /invocations, or "" if the request must name it.
        self.invoked = invocations or (self.names[0] if len(replicas) == 1 else "")

    @property
    def names(self) -> list[str]:
        return [*self._replicas]

    @property
    def states(self) -> dict[str, str]:
        """The models, with the states of those that are loaded by request."""
        if self.repository is None:
            return dict.fromkeys(self.names, "")
        return {each["name"]: each["state"] for each in self.repository.index()}

    async def predict(
        self, name: str, version: str, headers: Mapping[str, str], body: bytes, path: str = ""
    ) -> Response:
        """Answer an inference; see `deploy.hosts.frontend.forms.row_of`."""
        if (replica := self._replicas.get(name)) and (answer := await replica(version, headers, body, path)):
            return answer
        is_v2 = path.startswith(("/v2/models/", f"/{wire.SERVICE}/"))
        if replica is None:
            if is_v2:
                raise unknown_model(name)
            return reject(Rejection(404, "ModelNotFoundException", f"Model not found: {name}"))
        if is_v2:
            raise unknown_version(name, version, str((await self._metadata(name)).get("version")))
        return no_version(name, version)

    async def inflate(self, hold: Hold, body: bytes, expand: Callable[[bytes, int], bytes | bytearray]) -> bytes:
        """Inflate a body up to its limit by `expand`, which takes both and returns plain bytes unchanged."""
        most = min(LOOP_BYTES, self.body_bytes)
        try:
            inflated = expand(body, most)
        except BodyTooLarge:
            if most == self.body_bytes:
                raise
            async with self._inflating:
                if not hold.take(self.body_bytes):
                    raise Rejected(BUSY) from None
                # A thread goes on if its client leaves, and so keeps its place in the pool.
                inflated = await asyncio.get_running_loop().run_in_executor(_INFLATERS, expand, body, self.body_bytes)
                hold.take(-self.body_bytes)
        if inflated is not body and not hold.take(len(inflated)):
            raise Rejected(BUSY)
        return bytes(inflated)

    async def find_only(self, path: str) -> str:
        """Find the only model for a request that names none; "" without one."""
        if path not in wire.NAMELESS or self.repository is not None:
            return ""  # which models of a repository are of that kind is known once they are loaded
        return description.find_only(path, await self.documents(), self._preferred)

    async def describe_embedder(self) -> Json:
        """Answer text-embeddings-inference's /info."""
        return description.describe_embedder(await self.documents(), self._preferred)

    async def documents(self) -> dict[str, Json]:
        """Return the metadata of each model; empty for one that is not loaded, which stays so."""
        states = self.states.items()
        return {name: await self._metadata(name) if state in ("", "READY") else {} for name, state in states}

    async def describe(self, method: str, name: str = "", version: str = "") -> Json:
        """Answer a method of Triton's gRPC service that describes a model, or all models."""
        if method == "ServerLive":
            return {"live": True}
        if method == "ServerMetadata":
            return description.describe_server(*(["model_repository"] if self.repository else []))
        if method == "ServerReady":
            needed = [] if self.repository else self.names
            return {"ready": not self.is_draining and all([await self._metadata(each) for each in needed])}
        is_of_all = method == "ModelStatistics" and not name
        if name not in self._replicas and not is_of_all:
            raise unknown_model(name)
        how = LOADS if method in ("ModelMetadata", "ModelConfig") else "1"
        document = {} if is_of_all else await self._metadata(name, how)
        own = str(document.get("version") or "")
        if document and version and strip_zeros(version) != strip_zeros(own):
            raise unknown_version(name, version, own)
        if method == "ModelStatistics":
            raise RequestError(400, "Prometheus has the statistics; here they are not supported", UNIMPLEMENTED)
        if method == "ModelReady":
            return {"ready": not self.is_draining and bool(document)}
        if not document:
            raise not_ready(name, version)
        if method == "ModelConfig":
            return {"config": description.configuration(name, document)}
        return description.metadata(name, [own], document)

    async def check(self, *names: str) -> dict[str, str]:
        """Return what is wrong with each model, by its own sample; "" if nothing is."""

        async def ask(name: str) -> str:
            answer = await self._replicas[name]("", {wire.METADATA_HEADER: deep.SAMPLE}, b"", "")
            return deep.problem_of(answer.status, answer.body) if answer else deep.problem_of(404, b"")

        found = await asyncio.gather(*(self._checks.check(name, partial(ask, name)) for name in names))
        return dict(zip(names, found, strict=True))

    async def _metadata(self, name: str, how: str = "1") -> Json:
        """Return a model's metadata; empty if no replica answers."""
        answer = await self._replicas[name]("", {wire.METADATA_HEADER: how}, b"", "")
        found: Json = json.loads(answer.body) if answer is not None and answer.status == 200 else {}
        return found


class Routes(Application):
    def __init__(self, models: Models, close: Callable[[], Awaitable[None]] | None = None) -> None:
        """Prepare; `close` ends the models' process."""
        super().__init__(models.memory)
        self.models, self._close = models, close

    async def answer(self, scope: Message, receive: Receive) -> Response:
        try:
            return await self._answer(scope["path"].rstrip("/"), scope, receive)
        except RequestError as error:
            return document({"error": str(error)}, error.status)
        except InvalidInput as error:
            return reject(Rejection(error.code, type(error).__name__, str(error)))

    def form(self, scope: Message, answer: Response) -> Response:
        """Write an error that is not the handler's in the form of the API of the request's path."""
        path = (headers_of(scope).get(wire.ORIGINAL_PATH_HEADER) or str(scope["path"])).partition("?")[0].rstrip("/")
        is_openai = path.startswith("/v1/models") and UNKNOWN_MODEL.type.encode() in answer.body
        return in_form(path, answer) if path in wire.APIS or path.startswith("/v2") or is_openai else answer

    async def _answer(self, path: str, scope: Message, receive: Receive) -> Response:
        headers, models = headers_of(scope), self.models
        body = await self.read_body(scope, receive, models.body_bytes)
        if coding := headers.pop("content-encoding", ""):
            try:
                body = await models.inflate(scope[HOLD], body, lambda body, most: inflate(body, coding, most))
            except MalformedMessage:
                raise Rejected(BAD_REQUEST) from None
        if _JSON.match(path) and _FORM.search(headers.get("content-type", "")):
            headers["content-type"] = "application/json"  # `curl -d` sends JSON as a form
        if headers.get("content-type", "").partition(";")[0].strip().lower() == wire.PROTOBUF:
            body = await models.inflate(scope[HOLD], body, decompress)
        if path in wire.APIS:
            check_method(scope["method"], path)
            name, body = await off_loop(len(body), _named_model, body, headers.get("content-type", ""))
            if name is None and not (name := await models.find_only(path)):
                raise Rejected(MISSING_MODEL)
            if name not in models.names:
                raise Rejected(UNKNOWN_MODEL)
            return await models.predict(name, "", {**headers, wire.API_HEADER: wire.APIS[path]}, body, path)
        if found := next(filter(None, (each.fullmatch(path) for each in _INFERENCE)), None):
            check_method(scope["method"], path)
            # A gateway's nodes get the path of a prediction, and the client's path as a header.
            paths = (path, headers.get(wire.ORIGINAL_PATH_HEADER, ""))
            asked = next((each for each in paths if each.startswith("/v2/")), "")
            return await models.predict(found["model"], found["version"] or "", headers, body, asked)
        if models.repository and scope["method"] == "POST" and path.startswith(PREFIX):
            return document(await answer_repository(models.repository, path, body))
        check_method(scope["method"], path)
        if path == "/invocations":
            query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
            if not (name := query.get("model_name", [models.invoked])[0]):
                raise Rejected(UNNAMED)
            return await models.predict(name, "", headers, body)
        return await models.pages.answer(path) or await self._described(scope["method"], path)

    async def _described(self, method: str, path: str) -> Response:
        """Answer a request that describes the server or its models."""
        if path == "/v1/models" or path.startswith("/v1/models/"):
            listed = description.list_models(await self.models.documents(), path[11:], self.models.states)
            return document(*listed)
        if path == "/v2/models":
            states = {"states": self.models.states} if self.models.repository else {}
            return document({"models": self.models.names, **states})  # KServe's form
        if path in _SERVER or path == "/info":
            models = self.models
            return document(await (models.describe(_SERVER[path]) if path in _SERVER else models.describe_embedder()))
        if path in ("/ping", "/v2/health/ready", "/v2/health/deep"):
            return await self._health(path)
        if found := _MODEL.fullmatch(path):
            question = _QUESTIONS[found["question"]]
            described = await self.models.describe(question, found["model"], found["version"] or "")
            if question == "ModelReady":
                return Response(200 if described["ready"] else 503, b"")
            return document(described.get("config", described))
        raise not_served(method, path)

    async def _health(self, path: str) -> Response:
        if path == "/v2/health/deep":
            # A store loads no model for it.
            ready = [name for name, state in self.models.states.items() if state in ("", "READY")]
            return document(*deep.describe(await self.models.check(*ready)))
        is_ready = (await self.models.describe("ServerReady"))["ready"]
        answered: dict[str, object] = {"status": "Healthy" if is_ready else "Unhealthy"}
        if is_ready and path != "/ping":
            answered = {"ready": True}  # KServe's client reads it
        return document(answered, 200 if is_ready else 503)

    async def close(self) -> None:
        if self._close is not None:
            await self._close()


def _named_model(body: bytes, content_type: str) -> tuple[str | None, bytes]:
    """Return the model that the body of an embedding server's API names, None if it names none, and the parsed body."""
    asked = parse_api(body) if body else None
    name = asked.get("model") if isinstance(asked, dict) else None
    # A replica decodes other character sets.
    parsed = Parsed.of(body, asked) if body and is_utf8(content_type) else body
    return name if isinstance(name, str) else None, parsed
