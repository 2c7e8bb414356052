"""Requests that no client should send, to the gateway's ports: no crash, no 5xx of a bug, no payload in a log."""

import gzip
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import quote, urlsplit

import grpc
import psutil
import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy.gateway.settings import GatewaySettings
from deploy.nodes.run.server import Server
from handlers.protocol.wire import PROTOBUF
from load.sandbox import Sandbox
from tests.deploy.gateway.envoy.harness import Gateway as EnvoyAlone
from tests.e2e.conftest import Make
from tests.hostile.requests import STRANGE, Kind, Request
from tests.hostile.test_requests import CANARIES, KINDS
from tests.waiting import until

MODEL = "language-id"
KIND: Kind = KINDS["language_id"]
PATHS = (
    *("/predictions/{m}", "/predictions/{m}/1.0", "/v2/models/{m}/infer", "/v2/models/{m}/versions/1/infer"),
    *("/", "/v2", "/v2/health/live", "/v2/models", "/v2/models/{m}/{x}", "/v2/models/{x}/infer", "/predictions/{x}"),
    *("/predictions/{m}/../../models", "/models/{m}", "/metrics", "/control/nodes", "/page/../control.py", "//v2//"),
    *("/v1/embeddings", "/v2/rerank", "/v1/models/{x}"),
    *("/{x}", "/%2e%2e/metrics", "/v2/models/{m}%2finfer", "/v2/repository/index", "/ping", "/explanations/{m}"),
)
METHODS = ("ModelInfer", "ServerLive", "ModelMetadata", "ModelConfig", "RepositoryModelUnload", "Nothing", "x" * 300)
# Expected failures behind the gateway: no such method, no node, a time that is up. Any other 5xx is a bug.
NO_BUG = (501, 502, 503, 504)
BUGS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)
# A path is in the access log, and an error names it: what must be in neither is not in a path.
IN_PATHS = [odd for odd in STRANGE if not CANARIES.search(odd)]
many = settings(suppress_health_check=list(HealthCheck))


@pytest.fixture
def processes(server: Server, gateway: Sandbox, serve: Make, archive: Make) -> Iterator[None]:
    """A served model; at the end its worker, Envoy and control are the processes that they were."""
    serve(archive(MODEL), MODEL)

    def running() -> set[int]:
        (worker,) = server.management.describe(MODEL)["workers"]
        own = [
            each.pid for each in psutil.process_iter(["cmdline"]) if str(gateway.state_dir) in str(each.info["cmdline"])
        ]
        return {int(worker["pid"]), *own}

    before = running()
    assert len(before) >= 3
    yield
    assert running() == before
    for log in gateway.state_dir.rglob("*.log"):
        # A request's id is its client's own choice, and is there to be found in the log.
        assert not CANARIES.search(re.sub(r'"request_id":"[^"]*"', "", log.read_text(errors="replace"))), log.name


@pytest.mark.usefixtures("processes")
def test_any_request_over_http_is_answered_or_cut_off_and_never_a_bug(gateway: Sandbox) -> None:
    address = urlsplit(gateway.http)

    @many
    @given(KIND.requests(), st.sampled_from(PATHS), st.sampled_from(IN_PATHS), st.sampled_from(["POST", "GET", "PUT"]))
    def holds(request: Request, path: str, odd: str, method: str) -> None:
        part = request.parts[0]
        target = path.format(m=MODEL, x=quote(odd, safe="", errors="replace")[:2000] or "x")
        connection = HTTPConnection(str(address.hostname), address.port, timeout=60)
        try:
            headers = {"Content-Type": part.content_type, **request.headers}
            encoded = {name: value.encode("utf-8", "replace").decode("latin-1") for name, value in headers.items()}
            connection.request(method, target, part.value, encoded)
            answer = connection.getresponse()
            body = answer.read()
        except (HTTPException, ConnectionError, ValueError):
            return  # Envoy hangs up on what is no HTTP.
        finally:
            connection.close()
        assert answer.status < 500 or answer.status in NO_BUG
        if answer.status >= 400 and part.content_type != PROTOBUF:
            assert not CANARIES.search(body.decode("utf-8", "replace"))

    holds()


@pytest.mark.usefixtures("processes")
def test_any_message_over_grpc_has_a_status_that_is_no_bug(gateway: Sandbox) -> None:
    with grpc.insecure_channel(gateway.grpc) as channel:

        @many
        @given(st.one_of(KIND.grpc_messages(MODEL), st.binary(max_size=300)), st.sampled_from(METHODS))
        def holds(message: bytes, method: str) -> None:
            try:
                channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(message, timeout=60)
            except grpc.RpcError as error:
                assert error.code() not in BUGS
                assert not CANARIES.search(error.details() or "")

        holds()


def peak_bytes(envoy: EnvoyAlone, goes_on: Callable[[], bool]) -> int:
    """Return the most memory of Envoy for as long as something goes on."""
    process, peak = psutil.Process(envoy.envoy.pid()), 0
    while goes_on():
        peak = max(peak, process.memory_info().rss)
        time.sleep(0.02)
    return peak


def test_bodies_that_inflate_a_thousandfold_hold_a_bounded_part_of_memory(tmp_path: Path) -> None:
    """A hundred requests of 30 KB that are never finished, and would be 31 MiB each."""
    bomb = gzip.compress(bytes(31 << 20))
    head = b"POST /predictions/m HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    with EnvoyAlone(tmp_path, GatewaySettings()) as envoy, ExitStack() as stack:
        for _ in range(100):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", envoy.settings.ports.http)))
            with suppress(OSError):
                connection.sendall(head + f"{len(bomb):x}\r\n".encode() + bomb + b"\r\n")
        ends_s = time.monotonic() + 10
        assert peak_bytes(envoy, lambda: time.monotonic() < ends_s) < 1.3 * 2**30
        stack.close()
        until(lambda: envoy.ask("GET", "/v2/health/live").status_code == 200)


def test_worst_bodies_at_once_that_are_looked_through_for_their_model_hold_a_bounded_part_of_memory(
    tmp_path: Path,
) -> None:
    """A tree of one of the first would take 0.7 GB."""
    size = GatewaySettings().limits.api_body_bytes
    worst = (
        b'{"input": [' + b"0," * (size // 2 - 20) + b'0], "model": "m"}',
        b'{"input": [' + b'"",' * (size // 3 - 20) + b'""], "model": "m"}',
        b"{" + b'"a":1,' * (size // 6 - 20) + b'"model": "m"}',
        b'{"input": ' + b"[" * (size - 40) + b', "model": "m"}',
    )
    with EnvoyAlone(tmp_path, GatewaySettings(), nodes=1) as envoy, ThreadPoolExecutor(100) as threads:
        url = f"{envoy.url}/v1/embeddings"
        answers = [threads.submit(requests.post, url, body, timeout=120) for body in worst for _ in range(25)]
        assert peak_bytes(envoy, lambda: not all(answer.done() for answer in answers)) < 1.2 * 2**30
        assert {answer.result().status_code for answer in answers} == {200, 400}
