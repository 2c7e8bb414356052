"""The routes of all models, with replicas that repeat what they are asked."""

import asyncio
import gzip
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy.frontend import http
from deploy.frontend.http import Answer, Message, Refused
from deploy.frontend.routes import Models, Routes
from deploy.protocol.errors import RequestError
from tests.hostile.requests import Request
from tests.hostile.test_requests import KINDS

METADATA = {
    "name": "texts",
    "version": "1.0",
    "platform": "torchserve_openvino",
    "task": "sentence_embedding",
    "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}],
    "outputs": [{"name": "label", "datatype": "BYTES", "shape": [-1, 1]}],
    "max_batch_size": 64,
}


async def texts(version: str, headers: Mapping[str, str], body: bytes, path: str) -> Answer | None:
    if "x-model-metadata" in headers:
        return Answer(200, json.dumps(METADATA).encode())
    if version not in ("", "1.0"):
        return None
    asked = {"version": version, "body": body.decode("utf-8", "replace"), "path": path, "api": headers.get("x-api")}
    return Answer(200, json.dumps(asked).encode(), headers={"Server-Timing": "x"})


async def absent(version: str, headers: Mapping[str, str], body: bytes, path: str) -> Answer | None:
    return Answer(503, b'{"code": 503, "type": "ServiceUnavailableException", "message": "none"}')


def ask(
    method: str, path: str, body: bytes | None = b"", query: str = "", sent: Any = None, **headers: str
) -> tuple[int, Any]:
    sent = [] if sent is None else sent  # the messages of the answer

    async def run() -> None:
        async def receive() -> Message:
            if body is None:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": body}

        async def send(message: Message) -> None:
            sent.append(message)

        named = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": named}
        await Routes(Models({"texts": texts, "absent": absent}, "texts", 1000))(scope, receive, send)

    asyncio.run(run())
    start, end = sent
    return start["status"], json.loads(end["body"]) if end["body"] else None


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/predictions/texts", b"a", {}),
        ("/predictions/texts/1.0/", b"a", {"version": "1.0"}),
        ("/v1/models/texts:predict", b"a", {}),
        ("/invocations", b"a", {}),
        ("/v2/models/texts/infer", b"a", {"path": "/v2/models/texts/infer"}),
        (
            "/v2/models/texts/versions/1.0/infer",
            b"a",
            {"version": "1.0", "path": "/v2/models/texts/versions/1.0/infer"},
        ),
        ("/v1/embeddings", b'{"model":"texts"}', {"path": "/v1/embeddings", "api": "embeddings"}),
        ("/embed", b"{}", {"path": "/embed", "api": "embeddings"}),
        ("/v1/embed", b"{}", {"path": "/v1/embed", "api": "cohere-v1"}),
        ("/rerank", b'{"model":"texts"}', {"path": "/rerank", "api": "rerank"}),
    ],
)
def test_inference_reaches_the_model_that_path_or_body_names(path: str, body: bytes, expected: dict[str, Any]) -> None:
    arrived = {"version": "", "body": body.decode(), "path": "", "api": None, **expected}
    assert ask("POST", path, body) == (200, arrived)


def test_body_that_is_compressed_is_inflated_up_to_the_limit() -> None:
    status, asked = ask("POST", "/predictions/texts", gzip.compress(b"abc"), content_encoding="gzip")
    assert (status, asked["body"]) == (200, "abc")
    assert ask("POST", "/predictions/texts", gzip.compress(bytes(5000)), content_encoding="gzip")[0] == 413
    # TorchServe's status of any compressed body.
    assert ask("POST", "/predictions/texts", b"abc", content_encoding="gzip")[0] == 415
    for path in ("/predictions/texts", "/v2/models/texts/infer"):
        assert ask("POST", path, b"x" * 5000)[0] == 413


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("/predictions/nobody", 404, "type"),
        ("/predictions/texts/7", 404, "type"),
        ("/v2/models/nobody/infer", 404, "error"),
        ("/v2/models/texts/versions/7/infer", 404, "error"),
        ("/v2/models/absent/infer", 503, "error"),
        ("/v2/models/nobody", 404, "error"),
        ("/v2/models/nobody/stats", 404, "error"),
        ("/v2/models/texts/stats", 400, "error"),
        ("/v2/models/absent", 503, "error"),
        ("/v2/models/texts/nothing", 404, "error"),
        ("/v2/models", 404, "error"),
        ("/v3", 404, "type"),
        ("/v1/embeddings", 400, "error"),
        ("/rerank", 400, "error"),
        ("/v2/embed", 400, "message"),
        ("/v1/models/nobody", 404, "error"),
        ("/v2/health/ready", 503, "status"),
    ],
)
def test_what_is_not_served_is_an_error_in_the_form_of_its_protocol(path: str, status: int, field: str) -> None:
    found, document = ask("POST", path, b"x")
    assert (found, field in document) == (status, True)


@pytest.mark.parametrize("name", ["/predictions/texts", "/v1/models", "/nothing"])
def test_head_of_a_request_is_bounded(name: str) -> None:
    for query, header in (("", "x" * 9000), ("a=b&" * 3000, "")):
        status, document = ask("POST", name, b"a", query, x_long=header)
        assert (status, document["type"]) == (431, "HeadTooLarge")


def test_one_of_several_models_answers_clients_that_name_none() -> None:
    async def reranks(version: str, headers: Mapping[str, str], *_: object) -> Answer | None:
        return Answer(200, json.dumps({"task": "reranking", "max_request_items": 7}).encode())

    def found(path: str, replicas: Any, *preferred: str) -> tuple[str, Any]:
        models = Models(replicas, None, 1000, preferred)
        try:
            return asyncio.run(models.find_only(path)), asyncio.run(models.describe_embedder())["model_type"]
        except RequestError as error:
            return "", error.status

    assert found("/embed", {"a": texts, "b": texts, "c": absent}) == ("", 404)
    assert found("/embed", {"a": texts, "b": texts}, "b", "x") == ("b", {"embedding": {}})
    assert found("/rerank", {"r": reranks, "s": reranks}, "s") == ("s", {"reranker": {}})
    assert found("/v1/rerank", {"r": reranks}) == ("", {"reranker": {}})
    status, info = ask("GET", "/info")
    assert (status, info["model_id"], info["max_client_batch_size"]) == (200, "texts", None)


@pytest.mark.parametrize(("allowed", "origin"), [(("https://a.example",), "https://a.example"), (("*",), "null")])
def test_pages_of_allowed_origins_may_call(allowed: tuple[str, ...], origin: str, monkeypatch: Any) -> None:
    assert "access-control-allow-origin" not in headers_sent("POST", origin)
    monkeypatch.setattr(Routes, "origins", frozenset(allowed))
    preflight = headers_sent("OPTIONS", origin)
    assert (preflight["access-control-allow-origin"], preflight["access-control-allow-methods"]) == (
        origin,
        "GET, POST",
    )
    assert headers_sent("POST", origin)["access-control-allow-origin"] == origin
    if allowed != ("*",):
        assert "access-control-allow-origin" not in headers_sent("OPTIONS", "https://b.example")


def headers_sent(method: str, origin: str) -> dict[str, str]:
    sent: list[Message] = []
    ask(method, "/predictions/texts", b"a", sent=sent, origin=origin)
    return {name.decode(): value.decode() for name, value in sent[0]["headers"]}


def test_models_are_described_as_the_gateway_describes_them() -> None:
    status, found = ask("GET", "/v2/models/texts/versions/1")
    assert (status, found["versions"], found["inputs"]) == (200, ["1.0"], METADATA["inputs"])
    assert ask("GET", "/v2/models/texts/config")[1]["max_batch_size"] == 64
    assert ask("GET", "/v2/models/texts/ready") == (200, None)
    assert ask("GET", "/v2/models/absent/ready") == (503, None)
    assert "statistics" not in ask("GET", "/v2")[1]["extensions"]
    assert [each["id"] for each in ask("GET", "/v1/models")[1]["data"]] == ["texts", "absent"]
    assert ask("GET", "/v1/models/texts")[1]["id"] == "texts"


def test_body_that_does_not_come_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http.Application, "body_s", 0.0)
    status, document = ask("POST", "/predictions/texts", None)
    assert (status, document["type"]) == (408, "RequestTimeout")


@pytest.mark.parametrize(("stated", "received"), [(0, 3), (26, 0)])
def test_body_is_read_up_to_its_limit_and_no_further(stated: int, received: int) -> None:
    read = []

    async def receive() -> Message:
        read.append(1)
        return {"type": "http.request", "body": b"x" * 10, "more_body": True}

    scope = {"headers": [(b"content-length", b"%d" % stated)]}
    with pytest.raises(Refused) as refused:
        asyncio.run(http.Application().read_body(scope, receive, 25))
    assert (refused.value.args[0], len(read)) == (413, received)


PATHS = (
    *("/predictions/texts", "/v1/models/texts:predict", "/v2/models/texts/infer", "/invocations", "/v1/embeddings"),
    *(
        "/rerank",
        "/v1/models/texts",
        "/v2/models/texts/config",
        "/v2",
        "/ping",
        "//",
        "/\x00",
        "/v2/models/\ufffd/infer",
    ),
)


@settings(max_examples=settings().max_examples // 4, suppress_health_check=list(HealthCheck))
@given(
    KINDS["language_id"].requests(), st.sampled_from(PATHS), st.sampled_from(["", "model_name=texts", "&=%", "a=%ff"])
)
def test_no_malformed_request_is_a_bug(request: Request, path: str, query: str) -> None:
    part, headers = request.parts[0], dict[str, str]()
    for name, value in {"content-type": part.content_type, **request.headers}.items():
        headers[name] = value.encode("utf-8", "replace").decode("latin-1")
    for method in ("GET", "POST"):
        assert ask(method, path, part.value, query, **headers)[0] != 500
