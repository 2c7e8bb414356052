"""The routes of requests, and the requests as they arrive."""

import gzip
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from tritonclient.grpc import service_pb2

from deploy.gateway.settings import GatewaySettings
from tests.deploy.gateway.envoy.harness import Gateway, wait
from tests.deploy.gateway.envoy.stand_ins import models_of

INFER = "/inference.GRPCInferenceService/ModelInfer"


@pytest.mark.parametrize(
    ("by", "method", "path", "arrives"),
    [
        ("node", "POST", "/predictions/m", None),
        ("node", "PUT", "/predictions/m/1.0?top_k=2", None),
        ("node", "POST", "/predictions/m/2", "/predictions/m/2.0"),
        ("node", "POST", "/v2/models/m/infer", "/predictions/m"),
        ("node", "POST", "/v2/models/m/versions/1/infer", "/predictions/m/1.0"),
        ("node", "POST", "//predictions//%6d", "/predictions/m"),
        ("control", "GET", "/", None),
        ("control", "GET", "/page/app.js", None),
        ("control", "GET", "/summary", None),
        ("control", "GET", "/v2/models/m/versions/1/config", None),
        ("control", "POST", "/v2/models/unknown/infer", None),
    ],
)
def test_inference_arrives_at_a_node_and_questions_at_the_control_process(
    gateway: Gateway, by: str, method: str, path: str, arrives: str | None
) -> None:
    found = gateway.received(method, path, data=b"x" * 10)
    assert (found["by"].split("-")[0], found["method"], found["path"]) == (by, method, arrives or path)
    assert found["bytes"] == 10


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/control/nodes"),
        ("GET", "/models/m?customized=true"),
        ("POST", "/predictions/unknown"),
        ("POST", "/predictions/m/3"),
        ("DELETE", "/predictions/m"),
        ("POST", INFER),
        # Management, which is disabled.
        ("POST", "/v2/repository/index"),
    ],
)
def test_everything_else_is_not_found(gateway: Gateway, method: str, path: str) -> None:
    answer = gateway.ask(method, path)
    message = "This path or this model is not served."
    is_v2 = path.startswith("/v2")
    expected = {"error": message} if is_v2 else {"code": 404, "type": "NotFound", "message": message}
    assert (answer.status_code, answer.json()) == (404, expected)


def test_paths_with_dots_and_escaped_slashes_and_http_1_0(gateway: Gateway) -> None:
    for path, version, status in (
        ("/predictions/../predictions/m", "1.1", 200),
        ("/x/../metrics", "1.1", 404),
        ("/predictions%2fm", "1.1", 200),
        ("/page%2f..%2fmetrics", "1.1", 404),
        ("/predictions/m", "1.0", 200),
    ):
        answer = gateway.raw(f"POST {path} HTTP/{version}\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode())
        assert answer.startswith(f"HTTP/{version} {status} "), path


# -- bodies -------------------------------------------------------------------------------------------------------


def test_compressed_bodies_that_are_cut_off_are_refused(gateway: Gateway) -> None:
    packed = gzip.compress(random.Random(1).randbytes(100_000))
    for cut in (packed[:-9], packed[:1000], b"nothing compressed"):
        answer = gateway.ask("POST", "/predictions/m", data=cut, headers={"Content-Encoding": "gzip"})
        assert (answer.status_code, answer.json()["type"]) == (400, "BadRequest")


# -- gRPC ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "message", "arrives"),
    [
        ("ModelInfer", b"\x0a\x01m", "/predictions/m"),
        ("ModelInfer", b"\x0a\x01m\x12\x011", "/predictions/m/1.0"),
        # An id before the name, and a tensor's bytes that look like a name.
        ("ModelInfer", b"\x1a\x02id\x3a\x03\x0a\x01x\x0a\x01m", "/predictions/m"),
        ("ModelInfer", b"\x0a\x07unknown", "/predictions/unknown"),
        ("ModelInfer", b"\x0a\x03a/b\x12\x011", "/predictions/a%2Fb/1"),
        # The longest name.
        ("ModelInfer", b"\x0a\x80\x08" + b"n" * 1024, f"/predictions/{'n' * 1024}"),
        ("ModelMetadata", b"\x0a\x01m", "/inference.GRPCInferenceService/ModelMetadata"),
        ("/grpc.health.v1.Health/Check", b"", "/grpc.health.v1.Health/Check"),
    ],
)
def test_grpc_calls_arrive_as_a_post_of_their_message(
    gateway: Gateway, method: str, message: bytes, arrives: str
) -> None:
    answer, found = gateway.call(method, message)
    by = "node" if arrives.startswith("/predictions/m") else "cont"
    assert (found["by"][:4], found["method"], found["path"]) == (by, "POST", arrives)
    assert (found["headers"]["content-type"], answer) == ("application/x-protobuf", message)


@pytest.mark.parametrize(
    ("method", "message", "status", "text"),
    [
        ("ModelInfer", b"\x12\x011", 3, "model_name is empty"),
        ("ModelInfer", b"\x0a\xff", 3, "not a valid ModelInferRequest"),
        ("ModelStreamInfer", b"", 12, "ModelStreamInfer is not supported"),
        ("/grpc.health.v1.Health/Watch", b"", 12, "and Check of grpc.health.v1.Health"),
        ("/org.pytorch.serve.grpc.inference.InferenceAPIsService/StreamPredictions", b"", 12, "only inference."),
        ("/predictions/m", b"", 12, "only inference."),
    ],
)
def test_grpc_calls_that_cannot_be_are_refused_with_a_reason(
    gateway: Gateway, method: str, message: bytes, status: int, text: str
) -> None:
    code, details = gateway.refused(method, message)
    assert (code, text in details) == (status, True), details


# -- names --------------------------------------------------------------------------------------------------------

NAMES = [
    "n" * 200,
    "모" * 200,
    "sentence-transformers-paraphrase-multilingual-mpnet-base-v2-int8-cpu",
    *("a b", "größe", "x+y", "a:b", "a;b,c=d", "$x!'()*@", "a{b}", "{", "a%2Fb", "%", 'a"b', "a?b#c", "[a|b]^`<>", "~"),
    *("control", "stats", "m.n", "m_n", "m,n", "-", "...", "\U0001f600"),
]


def test_every_name_is_served_under_every_path_that_clients_write(gateway: Gateway) -> None:
    """With any percent-encoding; a route that Envoy rejects would block all changes of routes."""
    version = "1.0-3f786850e387550fdaf8c5e1a2c4a9c1e1c2f0d9"
    for node in gateway.nodes:
        node.models = models_of([f"{name}/{version}" for name in NAMES if "/" not in name])
    gateway.serve(models={name: [version] for name in NAMES})
    wait(lambda: gateway.ask("POST", f"/predictions/{quote(NAMES[-1])}").status_code == 200)
    for name in NAMES:
        canonical = f"/predictions/{quote(name, safe='')}"
        for form in {quote(name, safe=safe) for safe in ("", "!'()*", "!$&'()*+,;=:@[]")}:
            lower = re.sub(r"%..", lambda code: code[0].lower(), form)
            for path, arrives in (
                (f"/predictions/{form}", canonical),
                (f"/predictions/{lower}/", canonical),
                (f"/predictions/{form}/{version}/?x=1", f"{canonical}/{version}?x=1"),
                (f"/v2/models/{form}/versions/{version}/infer", f"{canonical}/{version}"),
                (f"/v2/models/{form}/infer/", canonical),
                (f"/v1/models/{form}:predict", canonical),
                (f"/invocations?model_name={quote(name, safe='')}", None),
            ):
                head = f"POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
                answer = gateway.raw(head.encode())
                assert answer.startswith("HTTP/1.1 200"), (path, answer)
                found = json.loads(answer.partition("x-received: ")[2].partition("\r\n")[0])
                assert (found["by"][:4], found["path"]) == ("node", arrives or found["path"])
        message = service_pb2.ModelInferRequest(model_name=name, model_version=version).SerializeToString()
        assert gateway.call("ModelInfer", message)[1]["path"] == f"{canonical}/{version}"
        for text in (json.dumps(name), json.dumps(name, ensure_ascii=False)):
            found = gateway.received("POST", "/v1/embeddings", data=f'{{"model": {text}}}'.encode())
            assert (found["by"][:4], found["path"]) == ("node", canonical), name
    gateway.restore()


def test_versions_are_reached_with_and_without_zeros(gateway: Gateway) -> None:
    for node in gateway.nodes:
        node.models = models_of(["z/1", "z/2.0.0", "z/3.10"])
    gateway.serve(models={"z": ["1", "2.0.0", "3.10"]})
    wait(lambda: gateway.status("/predictions/z") == 200)
    for asked, version in (
        ("1", "1"),
        ("1.0", "1"),
        ("1.0.0.0", "1"),
        ("2", "2.0.0"),
        ("2.0", "2.0.0"),
        ("3.10", "3.10"),
    ):
        assert gateway.received("POST", f"/predictions/z/{asked}")["path"] == f"/predictions/z/{version}"
    assert [gateway.status(f"/predictions/z/{asked}") for asked in ("10", "3.1", "1x0", "")] == [404, 404, 404, 200]
    gateway.restore()


def test_invocations_go_to_the_only_model_or_to_the_one_of_the_settings(tmp_path: Path) -> None:
    with Gateway(tmp_path, GatewaySettings(), nodes=1) as gateway:
        assert gateway.received("POST", "/invocations?x=1")["path"] == "/predictions/m?x=1"
        assert gateway.received("POST", "/invocations?model_name=x")["by"] == "control"
        assert [gateway.ask("GET", path).status_code for path in ("/ping", "/invocations")] == [503, 404]
        gateway.nodes[0].models = models_of(["m/1.0", "n/1.0"])
        gateway.serve(models={"m": ["1.0"], "n": ["1.0"]}, is_up=True)
        wait(lambda: gateway.received("POST", "/invocations")["by"] == "control")
        assert gateway.ask("GET", "/ping").status_code == 200
        gateway.settings = replace(gateway.settings, invocations="n")
        gateway.serve(models={"m": ["1.0"], "n": ["1.0"]})
        wait(lambda: gateway.received("POST", "/invocations")["by"] != "control")
        assert gateway.received("POST", "/invocations")["path"] == "/predictions/n"
