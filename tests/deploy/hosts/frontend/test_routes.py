"""HTTP requests as TorchServe's frontend hands them over, and the routes of all models and Triton's gRPC service."""

import asyncio
import gzip
import json
import pickle
import time
import zlib
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any
from unittest.mock import AsyncMock, Mock

import grpc
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as triton
from tritonclient.grpc.service_pb2 import ModelInferRequest

from deploy.hosts.frontend import http
from deploy.hosts.frontend.forms import MalformedForm, row_of
from deploy.hosts.frontend.grpc import Service
from deploy.hosts.frontend.http import Message, Rejected, Response, reject
from deploy.hosts.frontend.memory import Hold, Memory
from deploy.hosts.frontend.routes import Models, Routes
from deploy.protocol import rejections
from deploy.protocol.errors import RequestError
from handlers.errors import OUT_OF_TIME
from handlers.protocol import grpc_inference, retrieval, rows
from handlers.protocol.fields import Fields
from handlers.protocol.rows import Shape, read_headers
from handlers.protocol.wire import FORM_FIELDS
from tests.hostile.requests import Request
from tests.hostile.test_requests import KINDS
from tests.tables import table

METADATA = {
    "name": "texts", "version": "1.0", "platform": "torchserve_openvino", "task": "sentence_embedding",
    "api": "embeddings", "max_batch_size": 64, "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}],
    "outputs": [{"name": "label", "datatype": "BYTES", "shape": [-1, 1]}],
}  # fmt: skip
PATHS = (
    *("/predictions/texts", "/v1/models/texts:predict", "/v2/models/texts/infer", "/invocations", "/v1/embeddings"),
    *("/rerank", "/v1/models/texts", "/v2/models/texts/config", "/v2", "/ping", "//", "/\x00"),
    "/v2/models/\ufffd/infer",
)
MOST = 1_000_000
TEXT = frozenset({"text"})


def packed_with(window: int) -> bytes:
    """Deflate with a window of 2**window bytes; of a negative one, the bare stream."""
    packer = zlib.compressobj(9, zlib.DEFLATED, window)
    return packer.compress(b"abc") + packer.flush()


async def texts(version: str, headers: Mapping[str, str], body: bytes, path: str) -> Response | None:
    if "x-model-metadata" in headers:
        return Response(200, json.dumps(METADATA).encode())
    if version not in ("", "1", "1.0", "1.0.0"):
        return None
    if "rejects" in headers:
        return reject(rejections.BUSY)
    if "fails" in headers:
        raise ZeroDivisionError
    asked = {"version": version, "body": body.decode("utf-8", "replace"), "path": path, "api": headers.get("x-api")}
    return Response(200, json.dumps(asked).encode(), headers={"Server-Timing": "x"})


async def absent(version: str, headers: Mapping[str, str], body: bytes, path: str) -> Response | None:
    content = b'{"code": 503, "type": "ServiceUnavailableException", "message": "none"}'
    return Response(503, content, headers={"Retry-After": "7"})


async def codes(version: str, *_: object) -> Response:
    """Answer as a handler of the Open Inference Protocol fails; a version is a bug."""
    if version:
        raise ZeroDivisionError
    return Response(504, b"late", headers={"X-Grpc-Status": "7", "X-Grpc-Message": "f%C3%BCr"})


REPLICAS: dict[str, Any] = {"texts": texts, "absent": absent}


def ask(
    method: str, path: str, body: Any = b"", query: str = "", *, sent: Any = None, models: Any = None, **headers: str
) -> tuple[int, Any]:
    sent = [] if sent is None else sent  # the messages of the answer
    models = models or Models(REPLICAS, "texts", 1000)

    async def run() -> None:
        async def receive() -> Message:
            if body is None:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": body}

        async def send(message: Message) -> None:
            sent.append(message)

        named = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": named}
        await Routes(models)(scope, receive, send)

    asyncio.run(run())
    start, end = sent
    return start["status"], json.loads(end["body"]) if end["body"] else None


def call(method: str, message: bytes, models: Models | None = None, *sent: tuple[str, str]) -> tuple[int, str, bytes]:
    """Call by gRPC; return the code, its message and the answer."""
    context = Mock(invocation_metadata=lambda: sent)
    service: Any = Service(models or Models({**REPLICAS, "codes": codes}, None, MOST))
    answer = asyncio.run(getattr(service, method)(message, context)).SerializeToString()
    if not context.set_code.called:
        return 0, "", answer
    return context.set_code.call_args.args[0].value[0], context.set_details.call_args.args[0], answer


@table(
    *((path, b"a", {}) for path in ("/predictions/texts", "/v1/models/texts:predict", "/invocations")),
    ("/predictions/texts/1.0/", b"a", {"version": "1.0"}),
    ("/v2/models/texts/infer", b"a", {"path": "/v2/models/texts/infer"}),
    ("/v2/models/texts/versions/1.0/infer", b"a", {"version": "1.0", "path": "/v2/models/texts/versions/1.0/infer"}),
    ("/v1/embeddings", b'{"model":"texts"}', {"path": "/v1/embeddings", "api": "embeddings"}),
    ("/embed", b"{}", {"path": "/embed", "api": "embeddings"}),
    ("/embed_sparse", b'{"model":"texts"}', {"path": "/embed_sparse", "api": "sparse"}),
    ("/v1/embed", b"{}", {"path": "/v1/embed", "api": "cohere-v1"}),
    ("/rerank", b'{"model":"texts"}', {"path": "/rerank", "api": "rerank"}),
)
def test_inference_reaches_the_model_that_path_or_body_names(path: str, body: bytes, expected: dict[str, Any]) -> None:
    arrived = {"version": "", "body": body.decode(), "path": "", "api": None, **expected}
    assert ask("POST", path, body) == (200, arrived)


@table(
    (rejections.BUSY, True),
    *((rejections.Rejection(status, kind, ""), True) for status in (429, 503) for kind in ("QueueFull", "Overloaded")),
    (rejections.Rejection(*astuple(OUT_OF_TIME)), True),
    (rejections.NOT_READY, False),
    (rejections.DRAINING, False),
    (rejections.FAILED, False),
    (rejections.Rejection(503, "InternalServerException", "TorchServe's, if a handler raises an exception."), False),
)
def test_deep_health_tells_a_full_queue_from_other_errors_by_their_type(
    rejection: rejections.Rejection, is_healthy: bool
) -> None:
    models = Models({"texts": AsyncMock(return_value=reject(rejection))}, None, MOST)
    problems = {"texts": f"its own sample returned {rejection.status}"}
    expected = (200, {"ready": True}) if is_healthy else (503, {"ready": False, "problems": problems})
    assert ask("GET", "/v2/health/deep", models=models) == expected


def test_head_and_body_are_bounded_as_a_compressed_body_is_inflated() -> None:
    status, asked = ask("POST", "/predictions/texts", gzip.compress(b"abc"), content_encoding="gzip")
    assert (status, asked["body"]) == (200, "abc")
    assert ask("POST", "/predictions/texts", gzip.compress(bytes(5000)), content_encoding="gzip")[0] == 413
    # A message of protobuf has no Content-Encoding.
    packed, kind = gzip.compress(b"abc"), "application/x-protobuf"
    assert ask("POST", "/predictions/texts", packed, content_type=kind)[1]["body"] == "abc"
    assert ask("POST", "/predictions/texts", gzip.compress(bytes(5000)), content_type=kind)[0] == 413
    assert ask("POST", "/predictions/texts", gzip.compress(packed), content_type=kind)[0] == 400
    for path in ("/predictions/texts", "/v2/models/texts/infer"):
        assert ask("POST", path, b"x" * 5000)[0] == 413
    for path in ("/predictions/texts", "/v1/models", "/nothing"):
        for query, header in (("", "x" * 9000), ("a=b&" * 3000, "")):
            status, document = ask("POST", path, b"a", query, x_long=header)
            assert (status, document["type"]) == (431, "HeadTooLarge")


NATIVE, OPENAI, COHERE, INFERENCE = {"code", "type", "message"}, {"message", "type", "param", "code"}, {"message"}, None
BEHIND = {"x_envoy_original_path": "/v2/models/texts/versions/1/infer"}
# Paths and headers -> the fields of their API's errors, of which OpenAI's are in `error`, as the protocol's text is.
FORMS: list[tuple[str, dict[str, str], set[str] | None]] = [
    *((path, {}, OPENAI) for path in ("/v1/embeddings", "/embed", "/rerank", "/v1/rerank", "/v2/rerank")),
    *((path, {}, COHERE) for path in ("/v1/embed", "/v2/embed")),
    *((path, {}, NATIVE) for path in ("/predictions/texts", "/v1/models/texts:predict", "/invocations")),
    ("/v2/models/texts/infer", {}, INFERENCE),
    # As a gateway's node gets them.
    ("/predictions/texts", BEHIND, INFERENCE),
    ("/predictions/texts", {"x_envoy_original_path": "/v1/embeddings?a=b", "x_api": "embeddings"}, OPENAI),
    ("/predictions/texts", {"x_envoy_original_path": "/v2/embed", "x_api": "cohere-v2"}, COHERE),
]
BODY = b'{"model": "texts"}'
REJECTIONS: dict[int, tuple[bytes | None, dict[str, str]]] = {
    408: (None, {}),
    413: (b"x" * 5000, {}),
    415: (b"abc", {"content_encoding": "br"}),
    431: (BODY, {"x_long": "x" * 9000}),
    500: (BODY, {"fails": "1"}),
    503: (BODY, {"rejects": "1"}),
}


@table(*((status, *form) for status in REJECTIONS for form in FORMS))
def test_every_rejection_has_the_form_of_its_api(
    status: int, path: str, sent: dict[str, str], fields: set[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, headers = REJECTIONS[status]
    monkeypatch.setattr(http.Application, "body_s", 60.0 if body else 0.0)
    found, document = ask("POST", path, body, **sent, **headers)
    error = document if fields in (NATIVE, COHERE) else document["error"]
    assert (found, isinstance(error, str) if fields is INFERENCE else {*error} == fields) == (status, True), document


def test_gateways_header_makes_the_path_of_the_protocol() -> None:
    _, asked = ask("POST", "/predictions/texts/1.0", b"a", **BEHIND)
    assert (asked["version"], asked["path"]) == ("1.0", BEHIND["x_envoy_original_path"])
    assert ask("POST", "/predictions/texts", b"a", x_envoy_original_path="/predictions/texts")[1]["path"] == ""


@table(
    *((path, 404, "type") for path in ("/predictions/nobody", "/predictions/texts/7", "/v3")),
    *((f"/v2/models/{path}", 404, "error") for path in ("nobody/infer", "nobody", "nobody/stats", "texts/nothing")),
    *((path, 404, "error") for path in ("/v2/models/texts/versions/7/infer", "/v2/other", "/v1/models/nobody")),
    *((path, 400, "error") for path in ("/v2/models/texts/stats", "/v2/models/stats", "/v1/embeddings", "/rerank")),
    *((path, 503, "error") for path in ("/v2/models/absent/infer", "/v2/models/absent")),
    ("/v2/embed", 400, "message"),
    ("/v2/health/ready", 503, "status"),
)
def test_what_is_not_served_is_an_error_in_the_form_of_its_protocol(path: str, status: int, field: str) -> None:
    is_read = path.startswith("/v2/") and not path.endswith(("/infer", "/embed"))
    found, document = ask("GET" if is_read else "POST", path, b"x")
    assert (found, field in document) == (status, True)


def test_model_is_the_only_one_or_must_be_named() -> None:
    several, one = Models(REPLICAS, None, 1000), Models({"texts": texts}, None, 1000)
    asked = ((one, ""), (several, ""), (several, "model_name=texts"), (several, "model_name=absent"), (one, "a=texts"))
    found = [ask("POST", "/invocations", b"a", query, models=models)[0] for models, query in asked]
    assert found == [200, 400, 200, 503, 200]
    for body, named in ((b"{}", {"code": "MissingModel"}), (b'{"model": "b"}', {"code": "model_not_found"})):
        error = ask("POST", "/v1/embeddings", body, models=several)[1]["error"]
        assert error.items() >= {"param": "model", **named}.items(), error


@table(
    *((method, f"/v2/models/texts{end}") for method in ("POST", "DELETE", "PUT") for end in ("", "/config", "/ready")),
    *((method, path) for method in ("POST", "DELETE") for path in ("/v2", "/v2/health/live", "/v1/models")),
    *((method, "/v2/models/texts/infer") for method in ("GET", "PUT", "DELETE")),
    *((method, "/v1/models/texts:predict") for method in ("PUT", "DELETE")),
    *((method, "/predictions/texts") for method in ("PATCH", "DELETE")),
    *((method, path) for method in ("GET", "DELETE") for path in ("/v1/embeddings", "/rerank", "/invocations")),
    *(("POST", path) for path in ("/info", "/ping", "/v2/repository/index")),
)
def test_method_that_a_path_does_not_have_is_not_found(method: str, path: str) -> None:
    found, document = ask(method, path, b'{"model": "texts"}')
    assert (found, "error" in document) == (404, path.startswith(("/v2", "/v1", "/rerank")))


@table(
    *(("HEAD", path) for path in ("/ping", "/v2", "/v1/models", "/v2/models/texts")),
    *(("PUT", f"/predictions/texts{end}") for end in ("", "/1.0")),
    ("GET", "/predictions/texts"),
)
def test_method_that_a_path_has_is_answered(method: str, path: str) -> None:
    assert ask(method, path, models=Models({"texts": texts}, None, 1000))[0] == 200


def test_headers_are_read_as_envoy_joins_them_and_the_server_starts_and_ends_with_its_application() -> None:
    named = [(b"content-type", b"a"), (b"x", b"1"), (b"content-type", b"b"), (b"x", b"2")]
    assert http.headers_of({"headers": named}) == {"content-type": "a, b", "x": "2"}
    steps = list[str]()

    async def receive() -> Message:
        steps.append("receive")
        return {}

    application = Routes(Models(REPLICAS, None, 1000), AsyncMock(side_effect=lambda: steps.append("close")))
    asyncio.run(
        application({"type": "lifespan"}, receive, AsyncMock(side_effect=lambda each: steps.append(each["type"])))
    )
    assert steps == ["receive", "lifespan.startup.complete", "receive", "close", "lifespan.shutdown.complete"]


@table(
    *((coding, zlib.compress(b"abc")) for coding in ("Deflate", "identity, deflate")),
    *(("deflate", packed_with(window)) for window in (9, 13)),
    *((coding, gzip.compress(b"abc")) for coding in ("gzip", "GZIP", "X-GZip", "gzip, identity")),
)
def test_body_of_any_valid_coding_is_inflated(coding: str, packed: bytes) -> None:
    status, asked = ask("POST", "/predictions/texts", packed, content_encoding=coding)
    assert (status, asked["body"]) == (200, "abc")


@table(
    *(("gzip", gzip.compress(b"abc") + more, 400) for more in (gzip.compress(b"def"), b"\0" * 9)),
    *(
        ("gzip", gzip.compress(b"")[:-2], 400),
        ("gzip", gzip.compress(b"abc")[:-6], 400),
        ("deflate", packed_with(-15), 400),
    ),
    *((coding, gzip.compress(b"abc"), 415) for coding in ("br", "zstd", "gzip, gzip", "gzip, deflate")),
    *((coding, body, 400) for coding in ("gzip", "deflate") for body in (b"abc", b"")),
    ("deflate", zlib.compress(bytes(5000)), 413),
)
def test_body_of_a_damaged_or_unknown_coding_is_rejected(coding: str, packed: bytes, status: int) -> None:
    assert ask("POST", "/predictions/texts", packed, content_encoding=coding)[0] == status


# Paths as clients write them -> the path that the gateway reads, and the status.
@table(
    *((path, 200) for path in ("//predictions/texts", "/predictions///texts/", "/a/../predictions/./texts")),
    *((path, 200) for path in ("/predictions\\texts", "/predictions/texts/1", "/predictions/texts/1.0.0")),
    *((path, 200) for path in ("/v2//models/./texts/infer", "//v1/models/texts:predict")),
    *((path, 404) for path in ("/predictions/texts/..", "/predictions/texts/01", "/Predictions/texts")),
    *((path, 400) for path in ("*", "predictions/texts", "/predictions/texts\0")),
)
def test_path_is_read_as_the_gateway_reads_it(path: str, status: int) -> None:
    assert ask("POST", path, b"a")[0] == status


@table(("a=1&b=1&a=2", 400), ("a=1;a=2", 400), ("%61=1&a=2", 400), ("a=1&b=2&&=&=", 200), ("a=1&A=2", 200))
def test_query_has_each_name_once(query: str, status: int) -> None:
    assert ask("POST", "/predictions/texts", b"a", query)[0] == status


def test_headers_of_one_name_are_joined_where_the_last_does_not_replace_the_first() -> None:
    sent = [(b"content-type", b"a"), (b"content-encoding", b"gzip"), (b"x", b"1")]
    twice = [*sent, (b"content-type", b""), (b"content-encoding", b"identity"), (b"x", b"2")]
    assert http.headers_of({"headers": twice}) == {"content-type": "a", "content-encoding": "gzip, identity", "x": "2"}


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "MULTIPART/form-data; boundary=b"])
def test_paths_of_json_take_no_forms(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    predict = AsyncMock(return_value=Response(200, b"{}"))
    monkeypatch.setattr(Models, "predict", predict)
    for path in ("/v1/models/texts:predict", "/v2/models/texts/infer", "/v1/embeddings", "/predictions/texts"):
        ask("POST", path, b'{"model": "texts"}', content_type=kind)
        is_json = predict.await_args_list[-1].args[2]["content-type"] == "application/json"
        assert is_json == (path != "/predictions/texts")


@table(
    (b'{"model": "", "input": "a"}', 404),
    (b'{"model": "absent", "input": "a", "model": "texts"}', 400),
    (b'{"mod\\u0065l": "absent", "input": "a", "model": "texts"}', 400),
    (b'{"mod\\u0065l": "texts", "input": "a"}', 200),
    (b'{"model": "texts", "input": ["model", "\\u006d", {"model": "absent"}]}', 200),
)
def test_body_names_one_model_however_it_is_written(body: bytes, status: int) -> None:
    assert ask("POST", "/v1/embeddings", body)[0] == status


def test_one_of_several_models_answers_clients_that_name_none() -> None:
    async def reranks(version: str, headers: Mapping[str, str], *_: object) -> Response | None:
        return Response(200, json.dumps({"api": "rerank", "max_request_items": 7}).encode())

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


@table(*("/predictions/absent", "/v2/models/absent/infer", "/v1/embeddings"))
def test_error_in_any_form_keeps_the_headers_that_say_when_to_retry(path: str) -> None:
    sent: list[Message] = []
    assert ask("POST", path, b'{"model": "absent"}', sent=sent)[0] == 503
    assert dict(sent[0]["headers"])[b"retry-after"] == b"7"


def test_bodies_that_end_early_in_any_way_leave_room_for_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(Routes):
        body_s = 0.01

    application = Small(Models({"texts": texts}, "texts", 20))

    async def ask_in_parts(*parts: dict[str, Any]) -> list[Message]:
        sent, coming = list[Message](), [{"type": "http.request", **part} for part in parts]

        async def receive() -> Message:
            return coming.pop(0) if coming else await asyncio.Event().wait()  # type: ignore[return-value]

        scope = {"type": "http", "method": "POST", "path": "/invocations", "headers": []}
        await application(scope, receive, AsyncMock(side_effect=sent.append))
        return sent

    async def ask_beside_a_slow_one() -> tuple[list[Message], list[Message]]:
        slow = asyncio.create_task(ask_in_parts(part))
        await asyncio.sleep(0)
        return await asyncio.gather(slow, ask_in_parts({**end, "body": bytes(20)}, end))

    part, end = {"body": b"12345678", "more_body": True}, {"body": b"1", "more_body": False}
    ends = {408: [part], 413: [part, {**end, "body": bytes(20)}], 200: [part, end]}
    for status, parts in ends.items():
        assert asyncio.run(ask_in_parts(*parts))[0]["status"] == status
        assert asyncio.run(ask_in_parts(part, {"type": "http.disconnect"})) == []
        assert application.models.memory.held_bytes == 0
    # One that is slow for long gives way if others need its memory.
    application.models.memory.most_bytes, application.body_s = 20, 60.0
    monkeypatch.setattr("deploy.hosts.frontend.memory.PATIENCE_S", 0.0)
    slow, other = asyncio.run(ask_beside_a_slow_one())
    assert (slow[0]["status"], dict(slow[0]["headers"])[b"retry-after"], other[0]["status"]) == (503, b"1", 200)
    assert (application.models.memory.held_bytes, application.models.memory.waiting) == (0, {})


@table(
    ("application/json; charset=UTF-8", "utf-8", 1),
    ("application/json; charset=iso-8859-1", "utf-8", 2),
    ("application/x-www-form-urlencoded", "utf-8", 1),
)
def test_body_is_parsed_once_between_the_socket_and_the_core(
    kind: str, charset: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica reads other character sets itself."""
    read: list[Any] = []

    async def unpacking(version: str, headers: Mapping[str, str], body: bytes, path: str) -> Response:
        assert type(pickle.loads(pickle.dumps(body))) is bytes  # for a replica in another process
        row, sent = row_of(headers, body, MOST, path)
        shape = Shape(Fields(TEXT, 8), MOST, inputs=TEXT, max_request_items=8, api="embeddings")
        unpack = retrieval.unpack if path == "/v1/embeddings" else rows.unpack
        read.append(unpack(row, read_headers(sent), shape).payloads[0])
        return Response(200, b"{}")

    counted = [Mock(wraps=orjson.loads), Mock(wraps=grpc_inference._check_count)]
    monkeypatch.setattr(orjson, "loads", counted[0])
    monkeypatch.setattr(grpc_inference, "_check_count", counted[1])
    models = Models({"texts": unpacking}, None, MOST)
    body = '{"model": "texts", "input": "Grüße"}'.encode(charset)
    assert ask("POST", "/v1/embeddings", body, models=models, content_type=kind)[0] == 200
    message = ModelInferRequest(model_name="texts")
    message.inputs.add(name="text", datatype="BYTES", shape=[1], contents={"bytes_contents": ["Grüße".encode()]})
    assert call("ModelInfer", message.SerializeToString(), models)[0] == 0
    text = {"text": "Grüße" if times == 1 else "GrÃ¼Ã\x9fe"}
    assert [each.value for each in read] == [text, "Grüße".encode()]
    assert [each.call_count for each in counted] == [times, 1]


def test_grpc_forwards_what_a_request_says_of_its_priority_and_time_and_nothing_else() -> None:
    received: list[Any] = []

    async def keeping(version: str, headers: Mapping[str, str], body: bytes, path: str) -> Response:
        received.append((version, headers, path))
        return Response(200, b"")

    sent = (("x-priority", "1"), ("x-timeout-ms", "250"), ("x-model-metadata", "1"), ("user-agent", "a"))
    message = ModelInferRequest(model_name="texts", model_version="2.0").SerializeToString()
    call("ModelInfer", message, Models({"texts": keeping}, None, MOST), *sent)
    headers = {"content-type": "application/x-protobuf", "x-priority": "1", "x-timeout-ms": "250"}
    assert received == [("2.0", headers, "/inference.GRPCInferenceService/ModelInfer")]


@pytest.mark.parametrize(("allowed", "origin"), [("https://a.example", "https://a.example"), ("*", "null")])
def test_pages_of_allowed_origins_may_call(allowed: str, origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def headers_sent(method: str, origin: str) -> dict[str, str]:
        sent: list[Message] = []
        ask(method, "/predictions/texts", b"a", sent=sent, origin=origin)
        return {name.decode(): value.decode() for name, value in sent[0]["headers"]}

    assert "access-control-allow-origin" not in headers_sent("POST", origin)
    monkeypatch.setattr(Routes, "origins", frozenset([allowed]))
    # Scripts of the page read all headers; a cache keeps an answer for each origin.
    shown = {"access-control-allow-origin": origin, "access-control-expose-headers": "*", "vary": "origin"}
    allowed_ones = {"methods": "GET, POST", "headers": "*, Authorization"}  # "*" does not contain it
    preflight = {**shown, **{f"access-control-allow-{name}": value for name, value in allowed_ones.items()}}
    sizes = {"content-type": "application/json", "content-length": "0", "access-control-max-age": "3600"}
    assert headers_sent("OPTIONS", origin) == preflight | sizes
    assert headers_sent("POST", origin).items() >= shown.items()
    if allowed != "*":
        assert "access-control-allow-origin" not in headers_sent("OPTIONS", "https://b.example")


def test_models_are_described_as_the_gateway_describes_them() -> None:
    status, found = ask("GET", "/v2/models/texts/versions/1")
    assert (status, found["versions"], found["inputs"]) == (200, ["1.0"], METADATA["inputs"])
    assert ask("GET", "/v2/models/texts/config")[1]["max_batch_size"] == 64
    assert ask("GET", "/v2/models/texts/ready") == (200, None)
    assert ask("GET", "/v2/models/absent/ready") == (503, None)
    assert "statistics" not in ask("GET", "/v2")[1]["extensions"]
    assert [each["id"] for each in ask("GET", "/v1/models")[1]["data"]] == ["texts", "absent"]
    assert ask("GET", "/v1/models/texts")[1]["id"] == "texts"
    assert ask("GET", "/v2/models") == (200, {"models": ["texts", "absent"]})


def test_body_is_waited_for_and_read_up_to_its_limit_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = AsyncMock(return_value={"type": "http.request", "body": b"x" * 10, "more_body": True})
    # Bytes that are stated -> calls until they are too many.
    for stated, calls in ((26, 0), (0, 3)):
        memory = Memory()
        scope = {"headers": [(b"content-length", b"%d" % stated)], http.HOLD: Hold(memory)}
        with pytest.raises(Rejected) as rejected:
            asyncio.run(http.Application(memory).read_body(scope, receive, 25))
        assert (rejected.value.args[0].status, receive.await_count) == (413, calls)
    monkeypatch.setattr(http.Application, "body_s", 0.0)
    sent: list[Message] = []
    status, document = ask("POST", "/predictions/texts", None, sent=sent)
    assert (status, document["type"]) == (408, "RequestTimeout")
    # The rest of the body must not be read as a request.
    assert dict(sent[0]["headers"])[b"connection"] == b"close"


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


@table(
    # An empty tensor takes two bytes here and a hundred once it is read.
    (b"\x2a\x00" * 100_000, "more than 1000 tensors"),
    (b"\x78\x9c" + bytes(9), "not valid gzip or zlib"),
    (b"\xff" * 20, "not a valid ModelInferRequest"),
)
def test_hostile_message_is_rejected_before_it_is_parsed(message: bytes, words: str) -> None:
    code, said, answer = call("ModelInfer", message)
    assert (code, words in said, answer) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], True, b""), said
    assert call("ModelInfer", ModelInferRequest(model_name="texts").SerializeToString())[0] == 0


@table(
    ("ModelReady", {"name": "texts", "version": "2"}, 5, "'texts' version 2 is not found; versions: 1.0"),
    ("ModelConfig", {"name": "other"}, 5, "'other' is not found"),
    ("ModelMetadata", {"name": "absent", "version": "3"}, 14, "'absent' version 3 is not at ready state"),
    ("ModelStatistics", {}, 12, "Prometheus has the statistics"),
    ("ModelInfer", {"model_name": "other"}, 5, "'other' is not found"),
    ("ModelInfer", {"model_name": "texts", "model_version": "7"}, 5, "'texts' version 7 is not found; versions: 1.0"),
    # The headers of the handler have the code and the message; without them, the status and the body do.
    ("ModelInfer", {"model_name": "codes"}, 7, "f\u00fcr"),
    ("ModelInfer", {"model_name": "absent"}, 14, "none"),
    ("ModelInfer", {"model_name": "codes", "model_version": "1"}, 13, "The server failed."),
)
def test_grpc_says_which_code_and_why(method: str, asked: dict[str, str], code: int, words: str) -> None:
    message = getattr(triton, f"{method}Request")(**asked).SerializeToString()
    found, said, answer = call(method, message)
    assert (found, words in said, said[:1] == "{", answer) == (code, True, False, b""), said
    if method != "ModelInfer":
        assert call(method, b"\xff")[:2] == (3, f"The message is not a valid {method}Request.")


def test_grpc_describes_the_models_and_whether_they_are_ready() -> None:
    models = Models({"texts": texts}, None, MOST)
    asked: dict[str, Any] = {"name": "texts", "version": "1"}

    def described(method: str, models: Models = models, **more: str) -> Any:
        message = getattr(triton, f"{method}Request")(**more).SerializeToString()
        return getattr(triton, f"{method}Response").FromString(call(method, message, models)[2])

    def states() -> list[bool]:
        return [described("ServerReady").ready, described("ServerLive").live, described("ModelReady", **asked).ready]

    assert states() == [True] * 3
    assert not described("ServerReady", Models(REPLICAS, None, MOST)).ready  # one of its models is absent
    metadata = described("ModelMetadata", **asked)
    assert (metadata.name, [*metadata.versions], metadata.inputs[0].name) == ("texts", ["1.0"], "text")
    assert described("ModelConfig", **asked).config.max_batch_size == 64
    paths = ("/ping", "/v2/health/ready", "/v2/models/texts/ready", "/v2/health/live")
    assert [ask("GET", path, models=models)[0] for path in paths] == [200] * 4
    # One that ends is alive, and not ready.
    models.is_draining = True
    assert states() == [False, True, False]
    assert [ask("GET", path, models=models)[0] for path in paths] == [503, 503, 503, 200]


@table(100, http.LOOP_BYTES + 1)
def test_request_holds_its_bytes_as_they_came_and_inflated_until_it_is_answered(size: int) -> None:
    held = list[int]()

    async def keeping(version: str, headers: Mapping[str, str], body: bytes, path: str) -> Response:
        held.append(models.memory.held_bytes)
        return Response(200, b"")

    models = Models({"texts": keeping}, None, MOST)
    message = ModelInferRequest(model_name="texts", id="x" * size).SerializeToString()
    packed = gzip.compress(message)
    for sent in (message, packed):
        assert call("ModelInfer", sent, models)[0] == 0
        assert ask("POST", "/predictions/texts", sent, models=models, content_type="application/x-protobuf")[0] == 200
    assert ask("POST", "/predictions/texts", packed, models=models, content_encoding="gzip")[0] == 200
    assert held == [len(message)] * 2 + [len(packed) + len(message)] * 3
    assert models.memory.held_bytes == 0


def test_request_without_room_is_told_when_to_try_again() -> None:
    size = http.LOOP_BYTES + 1
    models = Models(REPLICAS, "texts", size, memory_bytes=1)
    # Three bodies of any one request always fit.
    assert (models.memory.most_bytes, Models(REPLICAS, None, 1, memory_bytes=4).memory.most_bytes) == (3 * size, 4)
    (others := Hold(models.memory)).take(3 * size - 200)
    for sent, status in ((bytes(200), 200), (bytes(201), 503)):
        answer: list[Message] = []
        assert ask("POST", "/predictions/texts", sent, sent=answer, models=models)[0] == status
        assert dict(answer[0]["headers"]).get(b"retry-after") == (None if status == 200 else b"1")
    # Inflated on the loop, and by a thread, for which a whole body must fit.
    for plain in (bytes(300), bytes(size)):
        packed = gzip.compress(plain)
        assert ask("POST", "/predictions/texts", packed, models=models, content_encoding="gzip")[0] == 503
    message = ModelInferRequest(model_name="texts", id="x" * 300).SerializeToString()
    for each in (message, gzip.compress(message)):
        code, said, _ = call("ModelInfer", each, models)
        assert (code, "too many bytes of requests" in said) == (14, True)
    others.free()
    assert (call("ModelInfer", message, models)[0], models.memory.held_bytes) == (0, 0)
    assert call("ModelInfer", message, Models(REPLICAS, None, len(message)))[0] == 0
    assert call("ModelInfer", message, Models(REPLICAS, None, len(message) - 1))[0] == 8


URL_ENCODED, FORM = "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"
JPEG, PNG = "\r\nContent-Type: image/jpeg", "\r\ncontent-type : image/png"


def part(name: str, value: bytes, more: str = "") -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


TABLE: list[tuple[str, bytes, dict[str, tuple[bytes, str]]]] = [
    ("", b"abc", {"body": (b"abc", "")}),
    (URL_ENCODED, b"a=%3D%3d%0A=%20&b=_=%25", {"a": (b"==\n= ", ""), "b": (b"_=%", "")}),
    ("application/json", b"{}", {"body": (b"{}", "application/json")}),
    (URL_ENCODED, b"%ff=1&a=2", {"\ufffd": (b"1", ""), "a": (b"2", "")}),
    (URL_ENCODED, b"data=a+b%21&top_k=2", {"data": (b"a b!", ""), "top_k": (b"2", "")}),
    # JSON that `curl -d` sends as a form: Netty drops a last field without "=".
    (URL_ENCODED, b'{"text": 1}', {}),
    (FORM, part("data", b"x\r\ny") + b"--b--\r\n", {"data": (b"x\r\ny", "")}),
    (
        FORM,
        part("a", b"j", f'; filename="a"{JPEG}') + part("b", b"3") + b"--b--",
        {"a": (b"j", JPEG[16:]), "b": (b"3", "")},
    ),
    # Lines that end with LF alone.
    (FORM, (part("a", b"x\r\ny") + b"--b--\r\n").replace(b"\r\n", b"\n"), {"a": (b"x\ny", "")}),
    # The next are TorchServe's own answers.
    (FORM, part('a;b:c\\"d', b"x") + b"--b--", {"a b c\\d": (b"x", "")}),
    (FORM, part("a", b"x", '; NAME=c; x=";;=\\";"') + b"--b--", {"c": (b"x", "")}),
    (FORM, part("a\u2028b", b"x", f"; filename*=utf-8''a;b{PNG}") + b"--b--", {"a\u2028b": (b"x", "image/png")}),
    (FORM, part("a", b"x", "; filename*0=a\r\nContent-Type: image/png") + b"--b--", {"a": (b"x", "")}),
    (f"{FORM}; boundary=c", part("a", b"x") + b"--b--", {"a": (b"x", "")}),
    ('multipart/form-data; BOUNDARY="b=c"', part("a", b"x").replace(b"--b", b"--b=c") + b"--b=c--", {"a": (b"x", "")}),
    # TorchServe parses none of these, and the handler rejects them.
    ("multipart/form-data", b"--b", {"body": (b"--b", "multipart/form-data")}),
    *((f"{FORM[:30]}{more}", b"--b", {"body": (b"--b", f"{FORM[:30]}{more}")}) for more in ("", '"b', "b" * 71)),
    ("MULTIPART/FORM-DATA; boundary=b", part("a", b"x") + b"--b--", {"a": (b"x", "")}),
    # Without a complete part it has no fields, as TorchServe says.
    *((FORM, body, {}) for body in (b"", b"zz", b"--b\r\n", part("a", b"1"), b"zz" + part("a", b"1") + b"--b--")),
]


@table(*TABLE)
def test_row_has_fields_or_a_body(content_type: str, body: bytes, expected: dict[str, tuple[bytes, str]]) -> None:
    row, headers = row_of({"content-type": content_type}, body, MOST)
    types = read_headers(headers).types
    assert {name: (value, types[name]) for name, value in row.items()} == expected


@table(
    *(part("a", b"1") + part("b", b"1"), part("a", b"1") * 2 + b"--b--", b"--b\r\n\r\n--b--"),
    *(part(*each) + b"--b--" for each in (("", b"1"), ("a", b"1", "; x=" + "y" * 4096))),
    *(part("a", b"1", more) + b"--b--" for more in ("; filename*=x''a", "\r\nContent-Type: text/plain; charset=x")),
    part("a", b"1", "\r\nContent-Type: multipart/mixed; boundary=c") + b"--b--",
    part("a", b"1").replace(b"form-data", b"attachment") + b"--b--",
    part("a", b"1").replace(b"--b", b"--b ") + b"--b--",
)
def test_form_that_is_none_is_an_error(body: bytes) -> None:
    with pytest.raises(MalformedForm):
        row_of({"content-type": FORM}, body, MOST)


@table(b"a=%", b"a=%4", b"%zz=1", b"a=1&b=%4g", b"a=%\n", b"a=1&&b=2", b"&", b"=1")
def test_form_of_broken_escapes_is_an_error(body: bytes) -> None:
    with pytest.raises(MalformedForm):
        row_of({"content-type": URL_ENCODED}, body, MOST)


@table(('multipart/form-data; x="' + ";" * 60_000, ""), (FORM, '; x="' + ";" * 900))
def test_parameters_take_a_time_that_grows_with_their_length_only(kind: str, part_head: str) -> None:
    body = b"".join(part(str(number), b"1", part_head) for number in range(FORM_FIELDS)) + b"--b--"
    began_s = time.process_time()
    row, _ = row_of({"content-type": kind}, body, len(body))
    assert len(row) == (1 if kind != FORM else FORM_FIELDS)
    assert time.process_time() - began_s < 0.5


def test_escapes_take_a_time_that_grows_with_their_length_only() -> None:
    began_s = time.process_time()
    row, _ = row_of({"content-type": URL_ENCODED}, b"a=" + b"%41" * 1_900_000, 6_000_000)
    assert (len(row["a"]), time.process_time() - began_s < 0.5) == (1_900_000, True)


def test_form_of_too_many_fields_is_a_row_and_bodies_beyond_the_limit_or_of_other_paths_are_no_forms() -> None:
    many = range(5 * FORM_FIELDS)
    parts = b"".join(part(str(number), b"1") for number in many) + b"--b--"
    for kind, body in ((URL_ENCODED, b"&".join(b"%d=1" % number for number in many)), (FORM, parts)):
        assert len(row_of({"content-type": kind}, body, len(body))[0]) > FORM_FIELDS
    body = part("data", b"x") + b"--b--"
    for limits in ((3,), (MOST, "/v2/models/m/infer")):
        assert row_of({"content-type": FORM}, body, *limits)[0] == {"body": body}
    # Headers that only a proxy may send are the frontend's own.
    sent = {"x-envoy-original-path": "/v2/models/m/infer", "explain": "True", "describe": "True"}
    _, headers = row_of(sent, b"x", MOST)
    assert (headers.get("x-envoy-original-path"), headers["explain"]) == (None, "False")
    _, headers = row_of(sent, b"x", MOST, "/v1/embeddings")
    assert headers["x-envoy-original-path"] == "/v1/embeddings"
