"""A thousand requests that no client should send, to the gateway's ports: no crash, and no 5xx of a bug.

The model behind it is one of tests/fuzz, a small one; valid requests beside them keep their answers.
"""

import random
import re
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import urlsplit

import grpc
import psutil
import pytest

from deploy.gateway import sandbox
from deploy.server import Server
from tests.fuzz import gateway as fuzz
from tests.fuzz import served
from tests.fuzz.bodies import neighbours
from tests.fuzz.checks import CANARIES, Received, differ
from tests.fuzz.kinds import KINDS

TASK, SEED = "text_classification", 1
MODEL = f"{TASK}-classic"
HTTP_REQUESTS, GRPC_REQUESTS, GARBAGE = 600, 350, 50
# At once: more than one, so that one request's affair could become another's.
THREADS = 8


class Ground(NamedTuple):
    """What is fuzzed."""

    server: Server
    gateway: sandbox.Sandbox

    def processes(self) -> dict[str, set[int]]:
        """Of the gateway and behind it; the same at the end, or something has crashed."""
        (worker,) = self.server.management.describe(MODEL)["workers"]
        run = str(self.gateway.run)
        own = {
            process.pid
            for process in psutil.process_iter(["cmdline"])
            if any(run in word for word in process.info["cmdline"] or [])
        }
        envoy = int((self.gateway.run / "envoy.pid").read_text())
        return {"gateway": own, "envoy": {envoy}, "worker": {int(worker["pid"])}}


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with served.serving([TASK]) as server:
        server.register(MODEL, MODEL, batch_size=8, max_batch_delay_ms=1, workers=1)
        with sandbox.started([sandbox.node_of(server)]) as gateway:
            yield Ground(server, gateway)


def test_nothing_that_a_client_sends_crashes_the_gateway(ground: Ground) -> None:
    before = ground.processes()
    assert len(before["gateway"]) == 2
    kind, gateway = KINDS[TASK], ground.gateway
    beside = neighbours(kind, SEED)[0]
    path = f"/predictions/{MODEL}"
    alone = fuzz.send(gateway.http, path, beside)
    assert alone.status == 200
    findings: list[str] = []
    statuses: Counter[object] = Counter()

    def over_http(number: int) -> None:
        asked, sent = fuzz.http_request(TASK, MODEL, SEED, number)
        received: Received = fuzz.send(gateway.http, asked, sent)
        statuses[received.status] += 1
        findings.extend(f"HTTP {number}, {asked[:80]}: {problem}" for problem in fuzz.wrong(received))
        if number % 10 == 0 and differ(kind, alone, fuzz.send(gateway.http, path, beside)):
            findings.append(f"HTTP {number}: a neighbour's answer changed")

    def over_grpc(number: int) -> None:
        rpc = fuzz.grpc_request(MODEL, SEED, number)
        code, details = fuzz.call(channel, rpc)
        statuses[code.name] += 1
        findings.extend(f"gRPC {number}, {rpc.method[-40:]}: {problem}" for problem in fuzz.wrong_code(code, details))

    with ThreadPoolExecutor(THREADS) as pool, grpc.insecure_channel(gateway.grpc) as channel:
        list(pool.map(over_http, range(HTTP_REQUESTS)))
        list(pool.map(over_grpc, range(GRPC_REQUESTS)))
    for number in range(GARBAGE):
        garbage(gateway.http if number % 2 else f"http://{gateway.grpc}", number)
    assert not findings, "\n".join([*findings[:40], f"{len(findings)} findings; {statuses}"])
    assert {200, 400, "OK", "INVALID_ARGUMENT"} <= {*statuses}
    assert not differ(kind, alone, fuzz.send(gateway.http, path, beside))
    assert ground.processes() == before
    for log in ground.gateway.run.rglob("*.log"):
        # A request's id is its client's own choice, and is there to be found in the log.
        text = re.sub(r'"request_id":"[^"]*"', "", log.read_text(errors="replace"))
        found = CANARIES.search(text)
        assert found is None, f"{log.name}: {text[max(0, found.start() - 200) : found.end()]}"


def garbage(address: str, number: int) -> None:
    """Send what is neither HTTP/1.1 nor HTTP/2, or begins as one of them, and leave."""
    chance = random.Random(f"garbage/{number}")
    begins = chance.choice(
        [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"POST / HTTP/1.1\r\nHost: a\r\n", b"\x16\x03\x01"]
    )
    url = urlsplit(address)
    with socket.create_connection((url.hostname or "", url.port or 80), timeout=10) as connection:
        connection.settimeout(1)
        try:
            connection.sendall(begins + chance.randbytes(chance.randrange(2000)))
            connection.recv(4096)
        except OSError:
            pass
