"""/v1/embeddings and its like: the model that the body names decides where a request goes."""

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from deploy.gateway.settings import Canary, GatewayLimits, GatewaySettings
from deploy.gateway.state import ServedModel
from tests.deploy.gateway.envoy.conftest import KEY, STRICT, shared
from tests.deploy.gateway.envoy.harness import Gateway, wait
from tests.tables import table

JSON = {"Content-Type": "application/json"}
PATHS = {
    **dict.fromkeys(("/v1/embeddings", "/embed"), "embeddings"),
    **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank"), "rerank"),
    **{"/embed_sparse": "sparse", "/pooling": "pooling", "/v1/embed": "cohere-v1", "/v2/embed": "cohere-v2"},
}
LONG = json.dumps(['a "quoted" text, {[\\ and a path C:\\x\n' * 50] * 500)


aliased = shared(GatewaySettings(aliases={"BAAI/bge-m3": "m"}, limits=GatewayLimits(response_s=3.0)))


def error(answer: requests.Response) -> tuple[int, str, Any, str]:
    found = answer.json().get("error")
    if found is None:  # Cohere's form
        assert answer.json().keys() == {"message"}
        return answer.status_code, "", "", ""
    assert found.keys() == {"message", "type", "param", "code"}
    return answer.status_code, found["type"], found["param"], found["code"]


@pytest.mark.parametrize("path", PATHS)
def test_request_arrives_at_its_model_with_the_api_that_its_path_means(aliased: Gateway, path: str) -> None:
    body = b'{"model": "m", "input": "x"}'
    found = aliased.received("POST", f"{path}?x=1", data=body, headers={**JSON, "X-Api": "chat"})
    assert (found["by"][:4], found["path"], found["bytes"]) == ("node", "/predictions/m?x=1", len(body))
    assert (found["headers"]["x-api"], found["headers"]["x-envoy-original-path"]) == (PATHS[path], f"{path}?x=1")
    assert aliased.logged(path=path)["model"] == "m"


def test_request_of_a_client_without_models_goes_to_the_only_model_of_its_task(aliased: Gateway) -> None:
    fleet, settings, body = aliased.fleet(), aliased.settings, b'{"query": "x", "texts": ["x"]}'
    served = fleet.registered["m"].versions
    versions = {name: replace(each, metadata={"api": "rerank"}) for name, each in served.items()}

    def serve(status: int, *names: str, preferred: tuple[str, ...] = ()) -> None:
        aliased.settings = replace(settings, default_models=preferred)
        aliased.serve(replace(fleet, registered={name: ServedModel(name, versions, "1.0") for name in names}))
        wait(lambda: aliased.ask("POST", "/rerank", data=body).status_code == status)

    serve(200, "m")
    found = aliased.received("POST", "/rerank", data=body)
    assert (found["path"], found["headers"]["x-api"]) == ("/predictions/m", "rerank")
    for path in ("/embed", "/v1/rerank"):
        assert error(aliased.ask("POST", path, data=body))[3] == "MissingModel"
    serve(400, "m", "n")
    serve(200, "m", "n", preferred=("x", "m"))
    assert aliased.received("GET", "/info")["by"] == "control"
    aliased.settings = settings
    aliased.serve()
    wait(lambda: aliased.ask("POST", "/rerank", data=body).status_code == 400)


@table(
    '{"model":"m"}',
    f'{{"input": {LONG}, "model": "m"}}',
    '{"input": "model", "a": {"model": "x"}, "b": [{"model": "x"}], "c": ["model"], "model" : "m"}',
    '{"input": "\\\\\\" , \\"model\\": \\"x\\"", "model": "m"}',
    '\ufeff{"model": "\\u006d", "model": "x"}',
    '{"mod\\u0065l": "m"}',
    '{"mo\\"del": "x", "\\u006Dodel": "m"}',
    '{"model": "BAAI/bge-m3"}',
    '{"model": "BAAI\\/bge-m3"}',
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_model_is_found_wherever_it_stands(body: str, aliased: Gateway, is_packed: bool) -> None:
    data = gzip.compress(body.encode()) if is_packed else body.encode()
    headers = {"Content-Encoding": "gzip"} if is_packed else {"Content-Type": "application/json; charset=utf-8"}
    found = aliased.received("POST", "/v1/embeddings", data=data, headers=headers)
    assert (found["path"], found["bytes"]) == ("/predictions/m", len(body.encode()))


def test_model_is_found_at_every_place_around_the_ends_of_pieces(aliased: Gateway) -> None:
    generator = random.Random(1)
    for size in (64_400, 64_512, 65_536, 129_000, *(generator.randrange(60_000, 140_000) for _ in range(40))):
        filler = "".join(generator.choices(['\\"', "a", "[", "\\\\", "}"], k=size // 2))
        found = aliased.received("POST", "/v1/embeddings", data=f'{{"input": "{filler}", "model": "m"}}'.encode())
        assert found["path"] == "/predictions/m"


@table(
    *((body, 400, "MissingModel") for body in ("", "{", '["model", "m"]', '{"model": 7}', '{"input": {"model": "m"}}')),
    ("[" * 5000 + '"model": "m"', 400, "MissingModel"),
    *(
        (f'{{"model": "{name}"}}', 404, "model_not_found")
        for name in ("", "other", "m\\r\\nX-Client: alice", "m\\u0000")
    ),
)
def test_body_that_names_no_known_model_is_rejected(body: str, status: int, code: str, aliased: Gateway) -> None:
    for path, api in PATHS.items():
        found = error(aliased.ask("POST", path, data=body.encode(), headers=JSON))
        kind = "invalid_request_error" if status == 400 else "not_found_error"
        assert found == ((status, "", "", "") if api.startswith("cohere") else (status, kind, "model", code))


def test_keys_canaries_replay_and_errors_of_servers_hold(aliased: Gateway, strict: Gateway) -> None:
    body = b'{"model": "m"}'
    assert error(strict.ask("POST", "/v1/embeddings", data=body))[:2] == (401, "authentication_error")
    assert strict.ask("POST", "/v1/embeddings", data=body, headers=KEY).status_code == 200
    # A node that dies: the other one gets the same body.
    died = aliased.received("POST", "/v2/rerank", data=body, headers={"X-Do": "die-node-0"})
    assert (died["by"], died["bytes"]) == ("node-1", len(body))
    late = aliased.ask("POST", "/v2/rerank", data=body, headers={"X-Do": "wait"})
    assert (*error(late)[:2], late.headers["X-Should-Retry"]) == (504, "server_error", "false")
    own = b'{\n  "code": 503,\n  "type": "ServiceUnavailableException",\n  "message": "secret"\n}\n'
    for node in aliased.nodes:
        node.answers["busy"] = (503, JSON, own)
    busy = aliased.ask("POST", "/v2/rerank", data=body, headers={"X-Do": "busy"})
    cohere = aliased.ask("POST", "/v2/embed", data=body, headers={"X-Do": "busy"})
    assert error(busy) == (503, "server_error", None, "ServiceUnavailableException")
    assert (cohere.status_code, [*cohere.json()]) == (503, ["message"])
    aliased.restore()
    aliased.serve(canaries={"m": Canary("2.0", 100.0)})
    wait(lambda: aliased.received("POST", "/rerank", data=body)["path"] == "/predictions/m/2.0")
    aliased.serve()


def test_bodies_beyond_their_limit_are_rejected(aliased: Gateway, strict: Gateway) -> None:
    """The lesser of both limits holds: that of all bodies in the strict gateway."""
    head = b'{"model": "m", "input": "'
    for gateway, limit in ((aliased, 8 << 20), (strict, 1 << 20)):
        for size, status in ((limit, 200), (limit + 1, 413)):
            body = (head + b"x" * size)[: size - 2] + b'"}'
            answer = gateway.ask("POST", "/v1/embeddings", data=body, headers=KEY)
            assert answer.status_code == status, answer.text
        assert error(answer)[3] == "BodyTooLarge"


def test_pages_of_allowed_origins_may_call_and_their_preflights_need_no_key(tmp_path: Path, aliased: Gateway) -> None:
    asks = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    assert "Access-Control-Allow-Origin" not in aliased.ask("OPTIONS", "/v1/embeddings", headers=asks).headers
    with Gateway(tmp_path, replace(STRICT, cors=("https://a.example",))) as gateway:
        allowed = gateway.ask("OPTIONS", "/v1/embeddings", headers=asks)
        assert (allowed.status_code, allowed.headers["Access-Control-Allow-Origin"]) == (200, "https://a.example")
        assert "Authorization" in allowed.headers["Access-Control-Allow-Headers"]
        foreign = gateway.ask("OPTIONS", "/v1/embeddings", headers={**asks, "Origin": "https://b.example"})
        assert "Access-Control-Allow-Origin" not in foreign.headers
        for key, status in (({}, 401), (KEY, 200)):
            found = gateway.ask("POST", "/predictions/m", data=b"x", headers={"Origin": "https://a.example", **key})
            assert (found.status_code, found.headers["Access-Control-Allow-Origin"]) == (status, "https://a.example")
