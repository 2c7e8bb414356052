"""API keys and rates, the access log that names their clients, the trace context, and TLS."""

import dataclasses
import http.client
import json
import re
import socket
import ssl
import stat
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests

from deploy.gateway.envoy.process import ask
from deploy.gateway.settings import GatewaySettings, Key, Tls
from load.sandbox import run_gateway
from tests.client.conftest import Certificates
from tests.deploy.gateway.envoy.conftest import ALICE, BOB, CAROL, DAVE, KEY
from tests.deploy.gateway.envoy.harness import Gateway, wait
from tests.tables import table
from tests.waiting import until

INFER = b"\x0a\x01m"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
GOOD = f"00-{TRACE}-00f067aa0ba902b7-01"
LIVE = "/v2/health/live"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@table(
    *(("POST", "/predictions/m", value) for value in ("Bearer", f"Bearer {ALICE}x", ALICE, f"Basic {ALICE}")),
    *(("POST", path, None) for path in ("/predictions/m/2.0", "/v2/models/m/infer", "/v2/repository/index", "/x")),
    *(("GET", path, None) for path in ("/v2/models/m", "/summary")),
)
def test_requests_without_a_valid_key_are_rejected(method: str, path: str, value: str | None, strict: Gateway) -> None:
    answer = strict.ask(method, path, headers={} if value is None else {"Authorization": value})
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, 'Bearer realm="gateway"')
    message = "A valid key is needed: Authorization: Bearer KEY."
    plain = {"code": 401, "type": "Unauthorized", "message": message}
    assert answer.json() == ({"error": message} if path.startswith("/v2") else plain)


def test_a_key_lets_through_and_only_the_control_process_learns_the_client(strict: Gateway) -> None:
    for scheme in ("Bearer", "bearer", "BEARER"):
        headers = {"Authorization": f"{scheme} {ALICE}", "X-Client": "carol"}
        of_node = strict.received("POST", "/predictions/m", headers=headers)
        assert not {"authorization", "x-client"} & of_node["headers"].keys()
    found = strict.received("GET", "/v2/models/m", headers={**KEY, "X-Client": "carol"})
    assert (found["headers"]["x-client"], "authorization" in found["headers"]) == ("alice", False)
    assert strict.received("POST", "/v2/repository/index", headers=KEY)["by"] == "control"
    # Over gRPC, all but the server's health needs one.
    assert [strict.rejected(method, INFER)[0] for method in ("ModelInfer", "ModelMetadata")] == [16, 16]
    assert strict.rejected("ModelInfer", INFER, authorization="Bearer wrong")[0] == 16
    _, found = strict.call("ModelInfer", INFER, authorization=KEY["Authorization"])
    assert not {"authorization", "x-client"} & found["headers"].keys()
    assert [strict.call(method)[1]["by"] for method in ("ServerLive", "ServerReady")] == ["control"] * 2


def test_a_rate_holds_its_own_client_alone_over_http_and_grpc(strict: Gateway) -> None:
    # Over separate connections, which share the client's bucket.
    url = f"{strict.url}/predictions/m"
    assert [requests.post(url, headers=bearer(BOB), timeout=30).status_code for _ in range(3)] == [200, 200, 429]
    for path in ("/predictions/m", "/v2/models/m"):
        answer = strict.ask("POST", path, headers=bearer(BOB))
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "50")
    for key in (ALICE, CAROL):
        assert all(strict.ask("POST", "/predictions/m", headers=bearer(key)).status_code == 200 for _ in range(20))
    for _ in range(2):
        strict.call("ModelInfer", INFER, authorization=f"Bearer {BOB}")
    assert strict.rejected("ModelInfer", INFER, authorization=f"Bearer {BOB}")[0] == 8


def test_open_connections_obey_keys_and_rates_that_have_changed(tmp_path: Path) -> None:
    """Ten connections each of HTTP/1.1, HTTP/2 and gRPC, opened with a valid key; a slow request is not cut."""

    def channels(port: int) -> list[grpc.Channel]:
        return [grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) for _ in range(10)]

    def code(channel: grpc.Channel, method: str) -> grpc.StatusCode:
        try:
            channel.unary_unary(method)(INFER, timeout=30, metadata=(("authorization", f"Bearer {BOB}"),))
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    one, two = Key(client="one", key=ALICE), Key(client="two", key=BOB)
    with Gateway(tmp_path, GatewaySettings(keys=(one, two))) as gateway, ThreadPoolExecutor(1) as pool:
        ports, sessions = gateway.settings.ports, [requests.Session() for _ in range(10)]
        old, old_grpc = channels(ports.http), channels(ports.grpc)

        def answers() -> list[set[Any]]:
            url = f"{gateway.url}/predictions/m"
            by_http = {session.post(url, headers=bearer(BOB), timeout=30).status_code for session in sessions}
            # The stand-in's answer is none of gRPC, to which its own client says UNKNOWN.
            by_http2 = {code(channel, "/predictions/m") for channel in old}
            return [by_http, by_http2, {code(each, "/inference.GRPCInferenceService/ModelInfer") for each in old_grpc}]

        codes = grpc.StatusCode
        assert answers() == [{200}, {codes.UNKNOWN}, {codes.OK}]
        slow = pool.submit(gateway.status, "/predictions/m", authorization=f"Bearer {BOB}", x_do="wait")
        wait(lambda: gateway.in_flight() == 1)
        gateway.settings = dataclasses.replace(gateway.settings, keys=(one,))
        assert gateway.serve() == ["filter-keys.json"]
        wait(lambda: answers() == [{401}, {codes.UNAUTHENTICATED}, {codes.UNAUTHENTICATED}])
        for node in gateway.nodes:
            node.release.set()
        assert slow.result(30) == 200
        lower = dataclasses.replace(two, requests_per_second=0.001)
        gateway.settings = dataclasses.replace(gateway.settings, keys=(one, lower))
        gateway.serve()
        wait(lambda: gateway.status("/predictions/m", authorization=f"Bearer {BOB}") == 429)
        # Each thread of Envoy takes the new rates for itself.
        wait(lambda: answers() == [{429}, {codes.RESOURCE_EXHAUSTED}, {codes.RESOURCE_EXHAUSTED}])
        # Keys that are new count for connections that needed none.
        for keys, expected in (((), 200), ((one,), 401)):
            gateway.settings = dataclasses.replace(gateway.settings, keys=keys)
            gateway.serve()
            wait(lambda: answers()[0] == {expected})  # noqa: B023
        for each in (*old, *old_grpc, *sessions):
            each.close()


def test_keys_stand_in_no_log_whose_lines_are_bounded_and_files_are_their_owners(strict: Gateway) -> None:
    strict.ask("POST", f"/predictions/m?key={ALICE}", headers={**bearer("wrong-0123456789"), "X-Request-Id": "secret"})
    strict.logged(request_id="secret")
    for path in (strict.run, *strict.run.rglob("*")):
        assert stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0, path.name
    for name in ("access.log", "envoy.log"):
        text = (strict.run / name).read_text()
        assert not [key for key in (ALICE, BOB, CAROL, "wrong-0123456789") if key in text]
    headers = {"X-Request-Id": "i" * 500, "traceparent": "t" * 500}
    assert strict.ask("POST", "/" + "p" * 1000, headers=headers).status_code == 401
    assert len(json.dumps(strict.logged(status=401, request_id="i" * 64))) < 1200


def test_access_log_describes_a_request_without_its_payload(strict: Gateway) -> None:
    headers = {**KEY, "X-Request-Id": "my-own-id"}
    strict.received("POST", "/v2/models/m/versions/1/infer?secret=my-own-query", data=b"my-own-body", headers=headers)
    line = strict.logged(request_id="my-own-id")
    assert line["node"].startswith("node-")
    expected = {
        "client": "alice", "method": "POST", "path": "/v2/models/m/versions/1/infer", "status": 200, "model": "m",
        "version": "1.0", "batch_size": 8, "decode_ms": 1.61, "wait_ms": 2.4, "forward_ms": 178.2, "encode_ms": 0.04,
        "bytes_in": 11, "attempts": 1,
    }  # fmt: skip
    assert {name: line[name] for name in expected} == expected
    # An adaptive worker's begins with the total.
    timing = 'total;dur=9.25, decode;dur=1, wait;dur=2, forward;dur=3, encode;dur=4, batch;desc="5"'
    for node in strict.nodes:
        node.answers["timed"] = (200, {"Server-Timing": timing}, b"")
    strict.ask("POST", "/predictions/m", headers={**KEY, "X-Do": "timed", "X-Request-Id": "timed"})
    line = strict.logged(request_id="timed")
    parts = ("total_ms", "decode_ms", "wait_ms", "forward_ms", "encode_ms", "batch_size")
    assert [line[name] for name in parts] == [9.25, 1, 2, 3, 4, 5]
    assert not re.search("my-own-query|my-own-body", (strict.run / "access.log").read_text())


def test_rejections_name_their_client_in_the_log_and_are_counted(strict: Gateway) -> None:
    """The rejections in docs/reference/errors.md: status, client, details, and the series that counts them."""

    def count(client: str, status: int, attempts: int, flags: str, grpc_status: str = "") -> float:
        """Of the counter that the gateway's metrics port returns; 0 before the first."""
        values = {"client": client, "status": status, "grpc_status": grpc_status, "attempts": attempts, "flags": flags}
        labels = ",".join(f'{name}="{value}"' for name, value in values.items())
        lines = ask(strict.run, "/stats/prometheus").splitlines()
        found = [line for line in lines if line.startswith(f"envoy_gateway_errors{{{labels}}}")]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    form = {**KEY, "Content-Type": "application/x-www-form-urlencoded"}
    for node in strict.nodes:
        node.answers["busy"] = (503, {"Retry-After": "1"}, b'{"code": 503, "type": "QueueFull", "message": "m"}')
    assert strict.ask("POST", "/predictions/m", headers=bearer(DAVE)).status_code == 200
    for client, status, details, attempts, flags, headers, body in (
        ("", 401, "lua_response", 0, "-", {}, b""),
        ("alice", 413, "request_payload_too_large", 0, "-", KEY, bytes(2 << 20)),
        ("alice", 413, "lua_response", 0, "-", form, b"x" * 1001),
        ("alice", 503, "via_upstream", 1, "-", {**KEY, "X-Do": "busy"}, b""),
        ("dave", 429, "local_rate_limited", 0, "RL", bearer(DAVE), b""),
    ):
        name, before = f"{client}-{details}", count(client, status, attempts, flags)
        answer = strict.ask("POST", "/predictions/m", data=body, headers={**headers, "X-Request-Id": name})
        line = strict.logged(request_id=name)
        assert (line["client"] or "", line["status"], line["details"]) == (client, status, details)
        assert answer.status_code == status
        wait(lambda: count(client, status, attempts, flags) == before + 1)  # noqa: B023
    strict.call("ModelInfer", INFER, authorization=f"Bearer {DAVE}")
    before = count("dave", 200, 0, "RL", "8")
    assert strict.rejected("ModelInfer", INFER, authorization=f"Bearer {DAVE}")[0] == 8
    wait(lambda: count("dave", 200, 0, "RL", "8") == before + 1)


def test_clients_trace_reaches_the_node_as_it_came_and_is_logged(gateway: Gateway) -> None:
    name = str(uuid.uuid4())
    headers = {"traceparent": GOOD, "tracestate": "vendor=value,other=1", "X-Request-Id": name}
    got = gateway.received("POST", "/predictions/m", headers=headers)["headers"]
    assert (got["traceparent"], got["tracestate"], got["x-request-id"]) == (GOOD, headers["tracestate"], name)
    assert gateway.logged(request_id=name)["trace_id"] == TRACE
    # The gateway's own responses are in the log too, and contain the client's name.
    answer = gateway.ask("GET", "/nothing/here", headers={"traceparent": GOOD, "X-Request-Id": "a-404"})
    assert (answer.status_code, answer.headers["X-Request-Id"]) == (404, "a-404")
    assert gateway.logged(request_id="a-404")["trace_id"] == TRACE
    assert "traceparent" not in gateway.received("POST", "/predictions/m")["headers"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    (made.folder / "live").mkdir()
    replace(made, "server")
    return made


def replace(certificates: Certificates, name: str) -> None:
    for path, kind in ((certificates.key(name), "key.pem"), (certificates.pem(name), "certificate.pem")):
        new = certificates.folder / "live" / f"{kind}.new"
        new.write_bytes(path.read_bytes())
        new.replace(certificates.folder / "live" / kind)


def settings(certificates: Certificates, client_ca: str | None = None) -> GatewaySettings:
    certificate, key = (str(certificates.folder / "live" / name) for name in ("certificate.pem", "key.pem"))
    return GatewaySettings(tls=Tls(certificate=certificate, key=key, client_ca=client_ca))


def context(certificates: Certificates, *, client: str | None = None, protocol: str = "http/1.1") -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(certificates.pem("ca")))
    made.set_alpn_protocols([protocol])
    if client is not None:
        made.load_cert_chain(certificates.pem(client), certificates.key(client))
    return made


def status(gateway: Gateway, trusted: ssl.SSLContext) -> int:
    port = gateway.settings.ports.http
    with closing(http.client.HTTPSConnection("127.0.0.1", port, context=trusted, timeout=30)) as connection:
        connection.request("GET", LIVE)
        return connection.getresponse().status


def by_grpc(gateway: Gateway, certificates: Certificates, client: str | None = None) -> bytes:
    chain = (certificates.key(client).read_bytes(), certificates.pem(client).read_bytes()) if client else (None, None)
    credentials = grpc.ssl_channel_credentials(certificates.pem("ca").read_bytes(), *chain)
    with grpc.secure_channel(f"127.0.0.1:{gateway.settings.ports.grpc}", credentials) as channel:
        answer: bytes = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"\x08\x01", timeout=30)
        return answer


def test_tls_alone_is_spoken_and_a_renamed_certificate_served(certificates: Certificates, tmp_path: Path) -> None:
    with Gateway(tmp_path, settings(certificates)) as secure:
        for protocol in ("h2", "http/1.1"):
            with (
                socket.create_connection(("127.0.0.1", secure.settings.ports.http), timeout=30) as raw,
                context(certificates, protocol=protocol).wrap_socket(raw, server_hostname="127.0.0.1") as wrapped,
            ):
                assert (wrapped.selected_alpn_protocol(), wrapped.version()) == (protocol, "TLSv1.3")
        assert by_grpc(secure, certificates) == b"\x08\x01"
        with pytest.raises(requests.ConnectionError):
            secure.ask("GET", LIVE)

        # `elsewhere` is of another host: a client that checks names rejects it.
        def is_trusted() -> bool:
            with suppress(ssl.SSLCertVerificationError):
                return status(secure, context(certificates)) == 200
            return False

        assert is_trusted()
        replace(certificates, "elsewhere")
        wait(lambda: not is_trusted())
        replace(certificates, "server")
        wait(is_trusted)


def test_certificate_that_is_removed_ends_its_open_connections(certificates: Certificates, tmp_path: Path) -> None:
    """Under the control process, which sees that the file's content has changed."""
    authority = tmp_path / "clients.pem"
    authority.write_bytes(certificates.pem("ca").read_bytes())
    with run_gateway([], tls=dataclasses.asdict(settings(certificates, str(authority)).tls)) as gateway:  # type: ignore[arg-type]
        port = int(gateway.http.rpartition(":")[2])

        def connect(client: str) -> http.client.HTTPSConnection:
            trusted = context(certificates, client=client)
            return http.client.HTTPSConnection("127.0.0.1", port, context=trusted, timeout=30)

        def status_on(connection: http.client.HTTPSConnection) -> int:
            connection.request("GET", "/v2")
            with connection.getresponse() as answer:
                answer.read()
                return answer.status

        def is_admitted(client: str) -> bool:
            with closing(connect(client)) as connection, suppress(OSError, http.client.HTTPException):
                return status_on(connection) == 200
            return False

        idle = [connect("client") for _ in range(40)]
        assert {status_on(each) for each in idle} == {200}
        new = authority.with_suffix(".new")
        new.write_bytes(certificates.pem("stranger").read_bytes())
        new.replace(authority)
        wait(lambda: is_admitted("strange-client"))
        used = iter(idle)
        until(lambda: status_on(next(used)) == 503, 30, every_s=0.2)
        assert {status_on(each) for each in used} == {503}
        assert (is_admitted("strange-client"), is_admitted("client")) == (True, False)
        for each in idle:
            each.close()


def test_client_without_a_certificate_asked_for_gets_nothing(certificates: Certificates, tmp_path: Path) -> None:
    with Gateway(tmp_path, settings(certificates, str(certificates.pem("ca")))) as gateway:
        assert status(gateway, context(certificates, client="client")) == 200
        assert by_grpc(gateway, certificates, "client") == b"\x08\x01"
        for client in (None, "strange-client"):
            with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
                status(gateway, context(certificates, client=client))
        with pytest.raises(grpc.RpcError):
            by_grpc(gateway, certificates)


def test_tokens_of_responses_are_debited_and_the_limit_is_named(tmp_path: Path) -> None:
    """A debt delays its client alone, until a minute's tokens have paid it; each request without tokens costs one."""
    limited = Key(client="bob", key=BOB, tokens_per_minute=600)
    with Gateway(tmp_path, GatewaySettings(keys=(limited, Key(client="alice", key=ALICE)))) as gateway:
        for node in gateway.nodes:
            node.answers = {"some": (200, {"X-Tokens": "300"}, b"{}"), "many": (200, {"X-Tokens": "70000"}, b"{}")}

        def ask(path: str, what: str = "", key: str = BOB) -> requests.Response:
            # One connection, so one of Envoy's threads, whose debt is its own.
            return gateway.ask("POST", path, headers={**bearer(key), **({"X-Do": what} if what else {})})

        assert [ask("/predictions/m", what).status_code for what in ("some", "some", "")] == [200] * 3
        found, openai, v2 = ask("/predictions/m"), ask("/v1/embeddings"), ask("/v2/models/m/infer")
        words = "This key's tokens_per_minute, 600, are used up."
        assert found.json() == {"code": 429, "type": "TooManyRequests", "message": words}
        assert (openai.json()["error"]["message"], v2.json()) == (words, {"error": words})
        for answer in (found, openai, v2):
            assert (answer.status_code, answer.headers["X-RateLimit-Limit-Tokens"]) == (429, "600")
            assert answer.headers["Retry-After"] == "1"
        wait(lambda: ask("/predictions/m", "many").status_code == 200)  # ten tokens in a second
        assert ask("/predictions/m").headers["Retry-After"] == "60"
        assert ask("/predictions/m", key=ALICE).status_code == 200
        # gRPC has its own bucket, as for requests.
        head = {"X-Tokens": "70000", "Content-Type": "application/x-protobuf", "X-Received": "{}"}
        for node in gateway.nodes:
            node.answers["message"] = (200, head, b"")
        gateway.call("ModelInfer", INFER, authorization=f"Bearer {BOB}", x_do="message")
        assert gateway.rejected("ModelInfer", INFER, authorization=f"Bearer {BOB}") == (8, words)
        assert gateway.logged(client="bob", status=429)["details"] == "local_rate_limited"


def test_tokens_exceed_their_limit_by_one_response_for_each_thread_or_request_under_way(tmp_path: Path) -> None:
    limit, tokens, threads, clients = 600, 100, 3, 8
    keys = tuple(Key(client=key, key=key, tokens_per_minute=limit) for key in (ALICE, CAROL))
    with Gateway(tmp_path, GatewaySettings(keys=keys), options=("--concurrency", str(threads))) as gateway:
        for node in gateway.nodes:
            node.answers = {"some": (200, {"X-Tokens": str(tokens)}, b"{}")}

        def spend(key: str, times: int, session: Any) -> int:
            asked = {"url": f"{gateway.url}/predictions/m", "headers": {**bearer(key), "X-Do": "some"}, "timeout": 30}
            return tokens * [session.post(**asked).status_code for _ in range(times)].count(200)

        began_s = time.monotonic()
        one_by_one = spend(ALICE, 60, requests)  # a new connection each, so on any thread
        with ThreadPoolExecutor(clients) as pool:
            sessions = [requests.Session() for _ in range(clients)]
            together = sum(pool.map(spend, [CAROL] * clients, [20] * clients, sessions))
        refilled = limit / 60 * (time.monotonic() - began_s + 1)
        for each in sessions:
            each.close()
    assert limit <= one_by_one <= limit + refilled + threads * tokens
    assert limit <= together <= limit + refilled + clients * tokens
