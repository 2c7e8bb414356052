"""Routes, the requests and headers as they arrive, and errors in the form that clients expect."""

import gzip
import json
import random
import re
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from tritonclient.grpc import service_pb2

from deploy.gateway.settings import GatewayLimits, GatewaySettings
from tests.deploy.gateway.envoy.conftest import shared
from tests.deploy.gateway.envoy.harness import Gateway, wait
from tests.deploy.gateway.envoy.stand_ins import models_of
from tests.tables import table

INFER, JSON = b"\x0a\x01m", {"Content-Type": "application/json"}
PACKED = {"gzip": gzip.compress(INFER), "deflate": zlib.compress(INFER)}
NAMES = [
    "n" * 200,
    "모" * 200,
    "sentence-transformers-paraphrase-multilingual-mpnet-base-v2-int8-cpu",
    *("a b", "größe", "x+y", "a:b", "a;b,c=d", "$x!'()*@", "a{b}", "{", "a%2Fb", "%", 'a"b', "a?b#c", "[a|b]^`<>", "~"),
    *("control", "stats", "m.n", "m_n", "m,n", "-", "...", "\U0001f600"),
]
# Headers that handlers read, and headers of every kind that end at the gateway.
READ = {
    "content-type": "text/plain; charset=utf-8", "content-encoding": "identity",
    "inference-header-content-length": "1", "x-priority": "1", "x-timeout-ms": "9000", "x-api": "rerank",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=1", "x-request-id": "me",
    "x-tenant": "shop",
}  # fmt: skip
DROPPED = {
    "expect": "x", "te": "trailers", "trailer": "x-a", "keep-alive": "timeout=5", "proxy-connection": "keep-alive",
    "x-unknown": "1", "cookie": "a=b", "origin": "http://a", "if-none-match": "1", "user-agent": "me",
    "authorization": "Bearer mine", "x-client": "me", "x-model-metadata": "1", "x-envoy-retry-on": "5xx",
    "x-forwarded-for": "1.2.3.4", "forwarded": "for=1.2.3.4", "accept-language": "en", "range": "bytes=0-1",
    "accept": "application/json",
}  # fmt: skip
heads = shared(GatewaySettings(limits=GatewayLimits(headers=1000), forward_headers=("X-Tenant",)))


@table(
    ("node", "POST", "/predictions/m", None),
    ("node", "PUT", "/predictions/m/1.0?top_k=2", None),
    ("node", "POST", "/predictions/m/2", "/predictions/m/2.0"),
    ("node", "POST", "/v2/models/m/infer", "/predictions/m"),
    ("node", "POST", "/v2/models/m/versions/1/infer", "/predictions/m/1.0"),
    ("node", "POST", "//predictions//%6d", "/predictions/m"),
    *(("control", "GET", path, None) for path in ("/", "/page/app.js", "/summary", "/v2/models/m/versions/1/config")),
    ("control", "POST", "/v2/models/unknown/infer", None),
)
def test_inference_arrives_at_a_node(by: str, method: str, path: str, arrives: str | None, gateway: Gateway) -> None:
    found = gateway.received(method, path, data=b"x" * 10)
    assert (found["by"].split("-")[0], found["method"], found["path"]) == (by, method, arrives or path)
    assert found["bytes"] == 10


@table(
    *(("GET", path) for path in ("/control/nodes", "/models/m?customized=true")),
    *(("POST", path) for path in ("/predictions/unknown", "/predictions/m/3", "/v2/repository/index")),
    ("POST", "/inference.GRPCInferenceService/ModelInfer"),
    ("DELETE", "/predictions/m"),
)
def test_everything_else_is_not_found(method: str, path: str, gateway: Gateway) -> None:
    answer, message = gateway.ask(method, path), "This path or this model is not served."
    is_v2 = path.startswith("/v2")
    expected = {"error": message} if is_v2 else {"code": 404, "type": "NotFound", "message": message}
    assert (answer.status_code, answer.json()) == (404, expected)


def test_paths_with_dots_and_escaped_slashes_http_1_0_and_bodies_that_are_cut_off(gateway: Gateway) -> None:
    for path, version, status in (
        *((path, "1.1", 200) for path in ("/predictions/../predictions/m", "/predictions%2fm")),
        *((path, "1.1", 404) for path in ("/x/../metrics", "/page%2f..%2fmetrics")),
        ("/predictions/m", "1.0", 200),
    ):
        answer = gateway.raw(f"POST {path} HTTP/{version}\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode())
        assert answer.startswith(f"HTTP/{version} {status} "), path
    packed = gzip.compress(random.Random(1).randbytes(100_000))
    # The last two name a dictionary, and a window of 64 KiB.
    heads = (("deflate", head + zlib.compress(packed)[2:]) for head in (b"\x78\xbb", b"\x88\x1c"))
    for coding, cut in (*(("gzip", each) for each in (packed[:-9], packed[:1000], b"nothing compressed")), *heads):
        rejected = gateway.ask("POST", "/predictions/m", data=cut, headers={"Content-Encoding": coding})
        assert (rejected.status_code, rejected.json()["type"]) == (400, "BadRequest")
    # Envoy alone would inflate the last of several codings, and pass on what it does not know.
    for coding in ("br", "gzip, gzip", "deflate, gzip"):
        rejected = gateway.ask("POST", "/predictions/m", data=packed, headers={"Content-Encoding": coding})
        assert (rejected.status_code, rejected.json()["type"]) == (415, "UnsupportedMedia")


@table(
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
)
def test_grpc_call_arrives_as_a_post(method: str, message: bytes, arrives: str, gateway: Gateway) -> None:
    answer, found = gateway.call(method, message)
    by = "node" if arrives.startswith("/predictions/m") else "cont"
    assert (found["by"][:4], found["method"], found["path"]) == (by, "POST", arrives)
    assert (found["headers"]["content-type"], answer) == ("application/x-protobuf", message)


@table(
    ("ModelInfer", b"\x12\x011", 3, "model_name is empty"),
    ("ModelInfer", b"\x0a\xff", 3, "not a valid ModelInferRequest"),
    ("ModelStreamInfer", b"", 12, "ModelStreamInfer is not supported"),
    ("/grpc.health.v1.Health/Watch", b"", 12, "and Check of grpc.health.v1.Health"),
    ("/org.pytorch.serve.grpc.inference.InferenceAPIsService/StreamPredictions", b"", 12, "only inference."),
    ("/predictions/m", b"", 12, "only inference."),
)
def test_wrong_grpc_call_is_rejected(method: str, message: bytes, status: int, text: str, gateway: Gateway) -> None:
    code, details = gateway.rejected(method, message)
    assert (code, text in details) == (status, True), details


@table(
    *((coding, packed, "x-received: ") for coding, packed in PACKED.items()),
    *((coding, packed[:-1], "grpc-status: 3") for coding, packed in PACKED.items()),
    *((coding, packed[:-8] + b"\0" * 8, "grpc-status: 3") for coding, packed in PACKED.items()),
)
def test_compressed_message_is_whole_and_has_its_sum(coding: str, packed: bytes, sees: str, gateway: Gateway) -> None:
    named = ("content-type: application/grpc", "te: trailers", f"grpc-encoding: {coding}")
    words = [word for each in named for word in ("-H", each)]
    curl = ["curl", "--silent", "--http2-prior-knowledge", *words, "--data-binary", "@-", "-D-", "-o", "/dev/null"]
    url = f"http://127.0.0.1:{gateway.settings.ports.grpc}/inference.GRPCInferenceService/ModelInfer"
    sent = b"\1" + len(packed).to_bytes(4) + packed
    done = subprocess.run([*curl, url], input=sent, capture_output=True, check=True)
    assert sees in done.stdout.decode()


def test_every_name_is_served_under_every_path_that_clients_write_and_versions_without_zeros(tmp_path: Path) -> None:
    """With any percent-encoding; a route that Envoy rejects would block all changes of routes."""
    # Few health checks: in a usual time, a slow machine answers not all of so many models in time.
    with Gateway(tmp_path, GatewaySettings(limits=GatewayLimits(unresponsive_s=600.0))) as gateway:
        version = "1.0-3f786850e387550fdaf8c5e1a2c4a9c1e1c2f0d9"
        for node in gateway.nodes:
            node.models = models_of([f"{name}/{version}" for name in NAMES if "/" not in name])
        gateway.serve(models={name: [version] for name in NAMES})
        gateway.wait_for(*(f"{quote(name, safe='')}{of}" for name in NAMES for of in ("", f"/{version}")))
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
        for node in gateway.nodes:
            node.models = models_of(["z/1", "z/2.0.0", "z/3.10"])
        gateway.serve(models={"z": ["1", "2.0.0", "3.10"]})
        gateway.wait_for("z", "z/1", "z/2.0.0", "z/3.10")
        versions = {"1": "1", "1.0": "1", "1.0.0.0": "1", "2": "2.0.0", "2.0": "2.0.0", "3.10": "3.10"}
        for asked, version in versions.items():
            assert gateway.received("POST", f"/predictions/z/{asked}")["path"] == f"/predictions/z/{version}"
        assert [gateway.status(f"/predictions/z/{asked}") for asked in ("10", "3.1", "1x0", "")] == [404, 404, 404, 200]


def test_invocations_go_to_the_only_model_or_to_the_one_of_the_settings(tmp_path: Path) -> None:
    with Gateway(tmp_path, GatewaySettings(), nodes=1) as gateway:
        assert gateway.received("POST", "/invocations?x=1")["path"] == "/predictions/m?x=1"
        assert gateway.received("POST", "/invocations?model_name=x")["by"] == "control"
        assert [gateway.ask("GET", path).status_code for path in ("/ping", "/invocations")] == [503, 404]
        gateway.nodes[0].models = models_of(["m/1.0", "n/1.0"])
        gateway.serve(models={"m": ["1.0"], "n": ["1.0"]}, is_up=True)
        wait(lambda: gateway.ask("POST", "/invocations").json().get("by") == "control")
        assert gateway.ask("GET", "/ping").status_code == 200
        wait(lambda: gateway.status("/predictions/n") == 200)
        gateway.settings = replace(gateway.settings, invocations="n")
        gateway.serve(models={"m": ["1.0"], "n": ["1.0"]})
        wait(lambda: gateway.received("POST", "/invocations")["by"] != "control")
        assert gateway.received("POST", "/invocations")["path"] == "/predictions/n"


def test_headers_that_only_the_gateway_may_set_neither_arrive_nor_come_back(heads: Gateway) -> None:
    response = heads.ask("POST", "/predictions/m", data=iter([b"x"]), headers={**READ, **DROPPED})
    found = response.json()["headers"]
    assert found == {**READ, "host": found["host"], "content-length": "1"}
    assert [name for name in response.headers if name.lower().startswith("x-envoy-")] == []
    # Headers that Connection names belong only to that connection.
    nominated = heads.received("POST", "/predictions/m", headers={"Connection": "close, X-Tenant", "X-Tenant": "shop"})
    assert "x-tenant" not in nominated["headers"]
    words = [word for header in {**READ, **DROPPED}.items() for word in ("-H", ": ".join(header))]
    curl = ["curl", "--silent", "--fail", "--http2-prior-knowledge", "-H", "X-Do:", "-d", "x", "-D-", *words]
    answer = subprocess.run([*curl, f"{heads.url}/predictions/m"], capture_output=True, text=True, check=True).stdout
    assert answer.startswith("HTTP/2 200")
    for name in READ:
        assert f'"{name}": ' in answer, name
    assert [name for name in DROPPED if f'"{name}": ' in answer] == []
    hub = heads.received("POST", "/predictions/m", headers={"User-Agent": "unknown/None; hf_hub/1.2.0"})
    assert hub["headers"]["user-agent"] == "unknown/None; hf_hub/1.2.0"
    # gRPC's client sets or rejects these headers.
    own = {"te", "content-type", "content-encoding", "keep-alive", "proxy-connection", "user-agent"}
    metadata = {name: value for name, value in {**READ, **DROPPED}.items() if name not in own}
    _, message = heads.call("ModelInfer", INFER, **metadata)
    assert message["headers"].keys() == (READ.keys() | {"host", "content-length"}) - {"content-encoding"}


def test_control_process_gets_what_it_reads_and_no_node_what_it_would_reject(heads: Gateway) -> None:
    found = heads.received("GET", "/v2/models/m", headers={**READ, **DROPPED})["headers"]
    its = {"host", "x-forwarded-host", "origin", "if-none-match"}
    assert its <= found.keys()
    assert [name for name in found.keys() - READ.keys() - its if not name.startswith("x-envoy-")] == []

    def status(query: str = "", header: str = "") -> int:
        return heads.ask("POST", f"/predictions/m{query}", headers={"X-Tenant": header}).status_code

    assert [status(query="?" + "a" * (size - len("/predictions/m?"))) for size in (3072, 3073)] == [200, 431]
    # This client's other headers have some 150 bytes.
    assert [status(header="a" * size) for size in (6900, 7300)] == [200, 431]


def test_torchserves_own_errors_have_our_form_and_none_of_its_words(gateway: Gateway) -> None:
    """tests/e2e/test_gateway.py has those of a form and of a large body."""
    payload = "a secret of the request"
    for node in gateway.nodes:
        body = f'{{\n  "code": 503,\n  "type": "ServiceUnavailableException",\n  "message": "{payload}"\n}}\n'
        node.answers["busy"] = (503, JSON, body.encode())
    # A node that dies has no words, and no other can take its requests.
    for path, form in (("/predictions/m", ["code", "type", "message"]), ("/v2/models/m/infer", ["error"])):
        for do in ("busy", "die"):
            answer = gateway.ask("POST", path, headers={"X-Do": do})
            assert (answer.status_code, list(answer.json()), payload in answer.text) == (503, form, False)
    for do in ("busy", "die"):
        status, words = gateway.rejected("ModelInfer", INFER, x_do=do)
        assert (status, payload in words) == (14, False)


def test_handlers_own_errors_are_left_as_they_are(gateway: Gateway) -> None:
    body = b'{"code": 422, "type": "CorruptInput", "message": "The JPEG data is truncated or broken."}'
    # With the status that a handler chose for gRPC, whatever that of HTTP is.
    own = {"Content-Type": "application/x-protobuf", "X-Grpc-Status": "3", "X-Grpc-Message": "broken"}
    for node in gateway.nodes:
        node.answers |= {"corrupt": (422, JSON, body), "own": (422, own, b"")}
        node.answers |= {"no-status": (507, JSON, b"{}"), "limited": (429, JSON, b"{}")}
    answer = gateway.ask("POST", "/predictions/m", headers={"X-Do": "corrupt"})
    assert (answer.status_code, answer.content) == (422, body)
    assert gateway.rejected("ModelInfer", INFER, x_do="own") == (3, "broken")
    assert [gateway.rejected("ModelInfer", INFER, x_do=do)[0] for do in ("no-status", "limited")] == [8, 8]
