"""Requests that two parsers of HTTP end at different bytes, while other clients ask for other answers.

What reaches a node by HTTP/2 and gRPC is in tests/deploy/gateway/envoy/test_headers.py.
"""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import requests

from deploy.models import ROOT, model
from deploy.run.server import Server
from deploy.sandbox import Sandbox
from tests.e2e.conftest import Make
from tests.waiting import until

PATH = "/predictions/colours"
# The request and response of other clients; the request within each attack is for navy.
OTHERS = {"#d2691e": "chocolate", "#ffffff": "white", "#ff0000": "red", "#008000": "green"}
INNER = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: 7\r\n\r\n#00007a".encode()
# Chunks that end before INNER, in a body that by its length ends after it.
REST = b"#00007a\r\n0\r\n\r\n" + INNER
ENDS = b"7\r\n" + REST
LONG, CODED = b"Content-Length: %d" % len(ENDS), b"Transfer-Encoding: "
CHUNKED = CODED + b"chunked"


def post(*lines: bytes, body: bytes = ENDS, version: bytes = b"1.1") -> bytes:
    return b"\r\n".join((f"POST {PATH} HTTP/".encode() + version, b"Host: a", *lines, b"", body))


# Name -> the bytes, and how often TorchServe's own port answers them: twice is once too often.
ATTACKS = {
    "Expect": (post(b"Expect: x", b"Content-Length: %d" % len(INNER), body=INNER), 2),
    "CVE-2021-43797, a control character in a name": (post(LONG, b"\x0b" + CHUNKED), 2),
    "CVE-2025-58056, a line feed in an extension": (post(CHUNKED, body=b"7;\n" + REST), 2),
    "CVE-2026-33870, a quoted extension": (post(CHUNKED, body=b'7;a="\r\n' + REST), 2),
    "CVE-2026-42580, a chunk of 4 GiB and 7 bytes": (post(CHUNKED, body=b"100000007\r\n" + REST), 1),
    "CVE-2026-42581, both lengths in HTTP/1.0": (post(LONG, CHUNKED, version=b"1.0"), 2),
    "CVE-2026-42585, a coding behind chunked": (post(LONG, CHUNKED + b", identity"), 2),
    "CVE-2026-89044, a coding named xchunked": (post(LONG, CHUNKED + b", xchunked"), 2),
    "CVE-2026-50020, control characters in front": (INNER + b"\x00\x01\x7f" + INNER, 2),
    "both lengths": (post(LONG, CHUNKED), 2),
    "two codings": (post(LONG, CHUNKED, CODED + b"identity"), 2),
    "a folded coding": (post(LONG, CODED + b"\r\n chunked"), 2),
    "a space before the colon": (post(LONG, b"Transfer-Encoding : chunked"), 1),
    "two lengths": (post(b"Content-Length: 0", LONG), 1),
    "a length with a sign": (post(b"Content-Length: +5"), 1),
    "a trailer": (post(CHUNKED, b"Trailer: Expect", body=b"1\r\nx\r\n0\r\nExpect: x\r\n\r\n"), 1),
    "an upgrade": (post(LONG, b"Connection: Upgrade", b"Upgrade: h2c"), 1),
}


def send(url: str, attack: bytes) -> int:
    host, _, port = url.removeprefix("http://").partition(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=0.3) as connection, suppress(OSError):
        connection.sendall(attack)
        while piece := connection.recv(65536):
            received += piece
    return received.count(b"HTTP/1.1 ")


def test_smuggled_requests_reach_no_node(server: Server, gateway: Sandbox, serve: Make, archive: Make) -> None:
    serve(archive(model("colours", ROOT / "examples" / "custom-task" / "models.yaml")), "colours", max_batch_delay_ms=1)
    until(lambda: requests.post(gateway.http + PATH, data="#ff0000", timeout=60).status_code == 200)
    attacks, is_over = [attack for attack, _ in ATTACKS.values()], threading.Event()

    def ask(colour: str) -> set[str]:
        answers = set[str]()
        with requests.Session() as session:
            while not is_over.is_set():
                answers.add(session.post(gateway.http + PATH, data=colour, timeout=60).text)
        return answers

    with ThreadPoolExecutor(2 * len(OTHERS)) as attacking, ThreadPoolExecutor(len(OTHERS)) as asking:
        answered = asking.map(lambda attack: send(server.settings.inference_url, attack), attacks)
        assert dict(zip(ATTACKS, answered, strict=True)) == {name: count for name, (_, count) in ATTACKS.items()}
        # Each attack many times, while others ask.
        asked = {colour: asking.submit(ask, colour) for colour in OTHERS}
        try:
            list(attacking.map(lambda attack: send(gateway.http, attack), attacks * 12))
        finally:
            is_over.set()
        wanted = {colour: {f'{{"name":"{name}"}}'} for colour, name in OTHERS.items()}
        assert {colour: each.result() for colour, each in asked.items()} == wanted
