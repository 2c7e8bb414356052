"""Limits of bodies, headers, time and connections."""

import gzip
import random
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest
import requests

from deploy.gateway.envoy import listeners
from deploy.gateway.settings import GatewayLimits, GatewaySettings
from tests.deploy.gateway.envoy.conftest import KEY, STRICT, shared
from tests.deploy.gateway.envoy.harness import Gateway, wait
from tests.tables import table

LIMIT = 1 << 20
PARTS, PAIRS = "multipart/form-data; boundary=b", "application/x-www-form-urlencoded"
MIXED = b'--b\r\nContent-Disposition: form-data; name="a"\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n--c\r\n'
impatient = shared(
    GatewaySettings(limits=GatewayLimits(header_s=1.0, body_s=2.0, idle_s=2.0, response_s=3.0, connections=5))
)
# Of HTTP/2, by hand: the preface and SETTINGS with a window of 0, so that no answer may be sent; GET http /x of a.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0])
HEAD = b"\x82\x86\x04\x02/x\x01\x01a"


def pieces(body: bytes) -> Iterator[bytes]:
    for at in range(0, len(body), 50_000):
        yield body[at : at + 50_000]


def test_bodies_forms_and_messages_beyond_their_limit_are_rejected(strict: Gateway) -> None:
    for path, kind, limit in (
        ("/predictions/m", "text/plain", LIMIT),
        ("/v2/models/m/infer", "application/octet-stream", LIMIT),
        ("/predictions/m", "Application/X-WWW-Form-Urlencoded; charset=a", 1000),
    ):
        for size, status in ((limit, 200), (limit + 1, 413)):
            body = b"x" * size
            data = body if kind == "text/plain" else pieces(body)
            answer = strict.ask("POST", path, data=data, headers={**KEY, "Content-Type": kind})
            assert (answer.status_code, kind) == (status, kind)
        assert limit != LIMIT or str(limit) in answer.json()["error" if path.startswith("/v2") else "message"]
    message = b"\x0a\x01m" + bytes(LIMIT + 1)
    assert strict.rejected("ModelInfer", message, authorization=KEY["Authorization"])[0] == 8


def parts(*names: str, value: bytes = b"x") -> bytes:
    head = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n'
    return b"".join(head % name.encode() + value + b"\r\n" for name in names) + b"--b--\r\n"


@table(
    ("", PARTS, parts("data", "top_k", value=b"\r\n--B\r\n\0" * 20_000), 200),
    ("", 'Multipart/Form-Data; charset=latin-1; Boundary="b"', parts("data", "Data", "filename"), 200),
    ("?top_k=3", PARTS, parts("data").replace(b"\r\n", b"\n"), 200),
    ("", PARTS, parts(*map(str, range(200))), 200),
    ("", PARTS, parts(*map(str, range(201))), 413),
    ("", PARTS, parts("data", "data"), 400),
    ("", PARTS, parts("data", value=bytes(65_400)) + parts("data"), 400),
    ("?data=x", PARTS, parts("data"), 400),
    ("", PARTS, parts("data").replace(b"name=", b"filename="), 400),
    ("", PARTS, MIXED, 400),
    *(
        ("", f"multipart/form-data{more}", parts("data"), 415)
        for more in ("", '; boundary="b', "; boundary=" + 71 * "b")
    ),
    ("", PAIRS, b"data=x&top_k=3&text=top_k", 200),
    ("", PAIRS, b"data=x&d%61ta=y", 400),
    ("", PAIRS, b"&".join(b"%d" % number for number in range(201)), 413),
    ("?top_k=1&t=2", "text/plain", b"x&x", 200),
    ("?top_k=1&top%5fk=2", "text/plain", b"x", 400),
)
def test_fields_are_few_and_of_own_names(query: str, kind: str, body: bytes, status: int, gateway: Gateway) -> None:
    answer = gateway.ask("POST", f"/predictions/m{query}", data=body, headers={"Content-Type": kind})
    assert answer.status_code == status, answer.text
    if status == 200:
        assert answer.json()["bytes"] == len(body)
    else:
        kinds = {400: "MalformedForm", 413: "BodyTooLarge", 415: "UnsupportedMedia"}
        assert answer.json()["type"] == kinds[status]


def test_content_type_has_the_boundary_that_was_read_and_endless_fields_hold_nothing_up(gateway: Gateway) -> None:
    """TorchServe would read none of the first, and other parts of the second."""
    for extra, charset in (("; a=1; c=2; boundary=b", ""), ("; charset=a; boundary=b; boundary=c", "; charset=a")):
        kind = {"Content-Type": f"multipart/form-data{extra}"}
        found = gateway.received("POST", "/predictions/m", data=parts("data"), headers=kind)
        assert found["headers"]["content-type"] == f'multipart/form-data; boundary="b"{charset}'
    began_s = time.monotonic()
    # Sixteen million bytes of empty fields; no name among the first.
    assert gateway.rejected("ModelInfer", b"\x1a\x00" * (8 << 20))[0] == 3
    for node in gateway.nodes:
        node.answers["nothing"] = (200, {"Content-Type": "application/x-protobuf", "X-Received": "{}"}, b"")
    assert gateway.call("ModelInfer", b"\x0a\x01m" + b"\x1a\x00" * (8 << 20), x_do="nothing")[0] == b""
    assert time.monotonic() - began_s < 10


@table(("gzip", gzip.compress), ("deflate", zlib.compress))
def test_bombs_are_cut_off_at_the_limit(encoding: str, pack: Callable[[bytes], bytes], strict: Gateway) -> None:
    """Zeros, which compress to a thousandth; and random bytes, which reach the limit exactly."""

    def send(body: bytes) -> int:
        headers = {**KEY, "Content-Encoding": encoding}
        return strict.ask("POST", "/predictions/m", data=pack(body), headers=headers).status_code

    whole = random.Random(1).randbytes(LIMIT + 1)
    assert [send(body) for body in (bytes(LIMIT), whole[:-1])] == [200, 200]
    assert [send(body) for body in (bytes(30 * LIMIT), bytes(LIMIT + 1), whole)] == [413, 413, 413]


@table(
    ({"X-Long": "x" * 2000, **{f"X-Number-{number}": "1" for number in range(8)}}, 200),
    ({f"X-Number-{number}": "1" for number in range(30)}, 431),
    ({"X-Long": "x" * 5000}, 431),
    ({"under_score": "1"}, 400),
)
def test_heads_are_bounded(headers: dict[str, str], status: int, strict: Gateway) -> None:
    answer = strict.ask("POST", "/predictions/m", headers={**KEY, **headers})
    assert answer.status_code == status
    if status != 200:
        assert answer.json()["code"] == status


def test_open_routes_hold_no_bodies_and_inflate_nothing(strict: Gateway) -> None:
    bomb = gzip.compress(bytes(30 * LIMIT))
    for path in ("/v2/health/live", "/page/app.js"):
        assert strict.ask("POST", path).status_code == 401
        assert strict.ask("GET", path, data=bytes(5000)).status_code == 413
        assert strict.ask("GET", path, data=pieces(bomb), headers={"Content-Encoding": "gzip"}).status_code == 413
    packed = gzip.compress(bytes(100_000), mtime=0)
    found = strict.received("GET", "/page/app.js", data=packed, headers={"Content-Encoding": "gzip"})
    assert found["bytes"] == len(packed)


def test_probes_are_answered_without_the_control_process(gateway: Gateway) -> None:
    before = gateway.ask("GET", "/v2/health/ready")
    assert (before.status_code, list(before.json())) == (503, ["error"])
    gateway.serve(is_up=True)
    wait(lambda: gateway.ask("GET", "/v2/health/ready").status_code == 200)
    for method in ("GET", "HEAD"):
        live = gateway.ask(method, "/v2/health/live")
        assert (live.status_code, live.headers["Content-Type"]) == (200, "application/json")
    # KServe's client reads both bodies.
    assert gateway.ask("GET", "/v2/health/live").json() == {"live": True}
    assert gateway.ask("GET", "/v2/health/ready").json() == {"ready": True}
    gateway.restore()


def test_what_needs_no_key_has_a_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # So slow a rate that a machine that stalls does not refill the bucket.
    monkeypatch.setattr(listeners, "OPEN_PER_S", 1)
    monkeypatch.setattr(listeners, "OPEN_BURST", 20)
    with Gateway(tmp_path, STRICT) as gateway:
        found = [gateway.ask("HEAD", "/page/app.js").status_code for _ in range(40)]
        assert (set(found[:20]), found.count(429) > 0) == ({200}, True)
        assert {gateway.ask("GET", "/v2/health/live").status_code for _ in range(40)} == {200}
        assert gateway.ask("POST", "/predictions/m", headers=KEY).status_code == 200


def test_heads_bodies_and_answers_that_do_not_come_or_are_not_read_end(impatient: Gateway) -> None:
    cases = (
        (b"", 408, "RequestTimeout", "request_header_timeout"),
        (b"Content-Length: 10\r\n\r\nabc", 408, "RequestTimeout", "request_overall_timeout"),
        (b"X-Do: wait\r\nContent-Length: 0\r\n\r\n", 504, "ResponseTimeout", "response_timeout"),
    )
    head = b"POST /predictions/m HTTP/1.1\r\nHost: a\r\n"
    with ThreadPoolExecutor(len(cases)) as threads:
        answers = list(threads.map(lambda case: impatient.raw(head + case[0]), cases))
    for (_, status, kind, details), answer in zip(cases, answers, strict=True):
        assert answer.startswith(f"HTTP/1.1 {status} ") and f'"type": "{kind}"' in answer
        impatient.logged(details=details)
    active = partial(impatient.envoy.statistic, "http.http.downstream_rq_active")
    numbers = (struct.pack(">I", 2 * each + 1) for each in range(1000))
    sent = GREETING + b"".join(bytes([0, 0, len(HEAD), 1, 5]) + number + HEAD for number in numbers)
    with socket.create_connection(("127.0.0.1", impatient.settings.ports.http), timeout=30) as connection:
        connection.sendall(sent)
        wait(lambda: active() == 128)
        wait(lambda: active() == 0)
        assert connection.fileno() > 0


def test_connections_beyond_the_limit_are_closed(impatient: Gateway) -> None:
    port = impatient.settings.ports.http
    with ExitStack() as opened:
        for _ in range(10):
            opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        wait(lambda: "envoy_listener_downstream_global_cx_overflow" in impatient.envoy.prometheus())
        assert probe(impatient) == 200

    def is_answered() -> bool:
        with suppress(requests.ConnectionError):
            return requests.post(f"{impatient.url}/predictions/m", timeout=30).status_code == 200
        return False

    wait(is_answered)


def probe(gateway: Gateway, path: str = "/v2/health/live", method: str = "GET") -> int:
    return requests.request(method, f"http://127.0.0.1:{gateway.settings.ports.probe}{path}", timeout=30).status_code


def test_probes_are_answered_where_memory_has_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "HEAP_BYTES", 1 << 20)
    with Gateway(tmp_path, GatewaySettings(limits=GatewayLimits(body_bytes=1024))) as full:
        wait(lambda: full.envoy.statistic("overload.envoy.overload_actions.stop_accepting_requests.active") == 1)
        assert [probe(full), probe(full, "/v2/health/ready")] == [200, 503]
        full.serve(is_up=True)
        wait(lambda: probe(full, "/v2/health/ready") == 200)
        assert {probe(full, path) for path in ("/v2", "/v2/health/live/../")} == {403}
        assert {probe(full, path, "POST") for path in ("/predictions/m", "/v2/health/live")} == {403}
