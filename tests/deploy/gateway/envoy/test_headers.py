"""The request headers that reach a node or the control process, and their limits."""

import subprocess
from collections.abc import Iterator

import pytest

from deploy.gateway.settings import GatewaySettings, Limits
from tests.deploy.gateway.envoy.harness import Gateway

# Headers that handlers read, and headers of every kind that end at the gateway.
READ = {
    "content-type": "text/plain; charset=utf-8", "content-encoding": "br",
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


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    settings = GatewaySettings(limits=Limits(headers=1000), forward_headers=("X-Tenant",))
    with Gateway(tmp_path_factory.mktemp("heads"), settings) as gateway:
        yield gateway


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
    # gRPC's client sets or refuses these headers.
    own = {"te", "content-type", "content-encoding", "keep-alive", "proxy-connection", "user-agent"}
    metadata = {name: value for name, value in {**READ, **DROPPED}.items() if name not in own}
    _, message = heads.call("ModelInfer", b"\x0a\x01m", **metadata)
    assert message["headers"].keys() == (READ.keys() | {"host", "content-length"}) - {"content-encoding"}


def test_control_process_gets_what_it_reads(heads: Gateway) -> None:
    found = heads.received("GET", "/v2/models/m", headers={**READ, **DROPPED})["headers"]
    its = {"host", "x-forwarded-host", "origin", "if-none-match"}
    assert its <= found.keys()
    assert [name for name in found.keys() - READ.keys() - its if not name.startswith("x-envoy-")] == []


def test_headers_of_framing_and_of_the_gateway_cannot_be_forwarded() -> None:
    for name in ("Expect", "te", "Transfer-Encoding", "Host", "Authorization", "X-Envoy-Retry-On", "X-Client"):
        with pytest.raises(ValueError, match=f"{name.lower()} must not reach a node"):
            GatewaySettings(forward_headers=("X-Tenant", name))


def test_heads_and_paths_that_a_node_would_refuse_are_refused(heads: Gateway) -> None:
    def status(query: str = "", header: str = "") -> int:
        return heads.ask("POST", f"/predictions/m{query}", headers={"X-Tenant": header}).status_code

    assert [status(query="?" + "a" * (size - len("/predictions/m?"))) for size in (3072, 3073)] == [200, 431]
    # This client's other headers have some 150 bytes.
    assert [status(header="a" * size) for size in (6900, 7300)] == [200, 431]
