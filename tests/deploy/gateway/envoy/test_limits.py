"""What one client may take, and how long."""

import gzip
import random
import socket
import time
import zlib
from collections.abc import Iterator

import pytest

from tests.deploy.gateway.envoy.conftest import ALICE
from tests.deploy.gateway.envoy.harness import Gateway, wait

KEY = {"Authorization": f"Bearer {ALICE}"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
LIMIT = 1 << 20


def pieces(body: bytes) -> Iterator[bytes]:
    """Send a body in chunks, without its length."""
    for at in range(0, len(body), 50_000):
        yield body[at : at + 50_000]


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize(("path", "error"), [("/predictions/m", "type"), ("/v2/models/m/infer", "error")])
def test_bodies_beyond_the_limit_are_refused(strict: Gateway, is_chunked: bool, path: str, error: str) -> None:
    def send(size: int) -> tuple[int, dict[str, object]]:
        body = b"x" * size
        answer = strict.ask("POST", path, data=pieces(body) if is_chunked else body, headers=KEY)
        return answer.status_code, answer.json()

    assert send(LIMIT)[0] == 200
    status, document = send(LIMIT + 1)
    assert (status, error in document) == (413, True)
    assert str(LIMIT) in str(document)


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "Application/X-WWW-Form-Urlencoded; charset=a"])
def test_forms_beyond_their_limit_are_refused(strict: Gateway, is_chunked: bool, kind: str) -> None:
    def send(size: int) -> int:
        body = b"x" * size
        headers = {**KEY, "Content-Type": kind}
        return strict.ask(
            "POST", "/predictions/m", data=pieces(body) if is_chunked else body, headers=headers
        ).status_code

    assert (send(1000), send(1001)) == (200, 413)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_bombs_are_cut_off_where_the_limit_of_bodies_is(strict: Gateway, encoding: str) -> None:
    """Of zeros, which become a thousandth; and of what hardly shrinks, to have the limit exactly."""

    def send(body: bytes) -> int:
        packed = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
        return strict.ask(
            "POST", "/predictions/m", data=packed, headers={**KEY, "Content-Encoding": encoding}
        ).status_code

    whole = random.Random(1).randbytes(LIMIT + 1)
    assert [send(body) for body in (bytes(LIMIT), whole[:-1])] == [200, 200]
    assert [send(body) for body in (bytes(100 * LIMIT), bytes(LIMIT + 1), whole)] == [413, 413, 413]


def test_grpc_messages_beyond_the_limit_are_refused(strict: Gateway) -> None:
    def send(size: int) -> int:
        message = b"\x0a\x01m" + b"\x1a\xff\xff\xff\xff\x0f"
        return strict.refused("ModelInfer", message + bytes(size), authorization=KEY["Authorization"])[0]

    assert send(LIMIT + 1) == 8
    assert send(10) == 3


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({f"X-Number-{number}": "1" for number in range(8)}, 200),
        ({f"X-Number-{number}": "1" for number in range(30)}, 431),
        ({"X-Long": "x" * 2000}, 200),
        ({"X-Long": "x" * 5000}, 431),
        ({"under_score": "1"}, 400),
    ],
)
def test_heads_are_bounded(strict: Gateway, headers: dict[str, str], status: int) -> None:
    answer = strict.ask("POST", "/predictions/m", headers={**KEY, **headers})
    assert answer.status_code == status
    if status != 200:
        assert answer.json()["code"] == status


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/predictions/../predictions/m", 200),
        ("//predictions//m", 200),
        ("/predictions/%6d", 200),
        ("/predictions%2fm", 400),
        ("/x/../metrics", 404),
    ],
)
def test_paths_are_made_plain(strict: Gateway, path: str, status: int) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: {KEY['Authorization']}\r\nContent-Length: 0\r\n\r\n"
    assert raw(strict, head.encode()).startswith(f"HTTP/1.1 {status} ")


def raw(gateway: Gateway, request: bytes, *, is_whole: bool = False) -> str:
    """Send bytes as they are, and give what comes back; `is_whole` until the connection is closed."""
    with socket.create_connection(("127.0.0.1", gateway.settings.ports.http), timeout=30) as connection:
        connection.sendall(request)
        answer = connection.recv(65536)
        while is_whole and (more := connection.recv(65536)):
            answer += more
        return answer.decode("latin-1")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /predictions/m HTTP/1.1\r\nHost: a\r\n",
        b"POST /predictions/m HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer "
        + ALICE.encode()
        + b"\r\nContent-Length: 10\r\n\r\nabc",
    ],
)
def test_slow_requests_end(strict: Gateway, request_bytes: bytes) -> None:
    answer = raw(strict, request_bytes)
    assert answer.startswith("HTTP/1.1 408 ")
    assert '"type": "RequestTimeout"' in answer


def test_answers_that_do_not_come_are_504(strict: Gateway) -> None:
    for node in strict.nodes:
        node.release.clear()
    answer = strict.ask("POST", "/predictions/m", headers={**KEY, "X-Do": "wait"})
    for node in strict.nodes:
        node.release.set()
    assert (answer.status_code, answer.json()["type"]) == (504, "ResponseTimeout")


def test_many_slow_clients_leave_others_alone(strict: Gateway) -> None:
    """Connections that say nothing, half a head, half a body: others are answered meanwhile."""
    starts = [b"", b"POST /predictions/m HT", b"POST /predictions/m HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1"]
    connections = [socket.create_connection(("127.0.0.1", strict.settings.ports.http), timeout=30) for _ in range(300)]
    try:
        for number, connection in enumerate(connections):
            connection.sendall(starts[number % len(starts)])
        began = time.monotonic()
        assert all(strict.ask("POST", "/predictions/m", headers=KEY).status_code == 200 for _ in range(50))
        assert time.monotonic() - began < 20
    finally:
        for connection in connections:
            connection.close()


def test_torchserves_own_errors_have_the_form_that_is_expected(strict: Gateway) -> None:
    secret = b"a secret of the request"
    for node in strict.nodes:
        for status, kind in ((500, "ErrorDataDecoderException"), (503, "ServiceUnavailableException")):
            body = b'{\n  "code": %d,\n  "type": "%s",\n  "message": "%s"\n}\n' % (status, kind.encode(), secret)
            node.answers[kind] = (status, {"Content-Type": "application/json"}, body)
    form = strict.ask("POST", "/predictions/m", headers={**KEY, "X-Do": "ErrorDataDecoderException"})
    assert (form.status_code, form.json()["type"]) == (400, "MalformedForm")
    refused = strict.ask("POST", "/v2/models/m/infer", headers={**KEY, "X-Do": "ServiceUnavailableException"})
    assert (refused.status_code, list(refused.json())) == (503, ["error"])
    called = strict.refused(
        "ModelInfer", b"\x0a\x01m", authorization=KEY["Authorization"], x_do="ServiceUnavailableException"
    )
    assert called[0] == 14
    assert secret.decode() not in form.text + refused.text + called[1]


def test_handlers_own_errors_are_left_as_they_are(strict: Gateway) -> None:
    body = b'{"code": 422, "type": "CorruptInput", "message": "The JPEG data is truncated or broken."}'
    for node in strict.nodes:
        node.answers["corrupt"] = (422, {"Content-Type": "application/json"}, body)
    answer = strict.ask("POST", "/predictions/m", headers={**KEY, "X-Do": "corrupt"})
    assert (answer.status_code, answer.content) == (422, body)


def test_the_access_log_tells_a_request_without_its_payload(strict: Gateway) -> None:
    headers = {**KEY, "X-Request-Id": "my-own-id"}
    strict.told("POST", "/v2/models/m/versions/1/infer?secret=my-own-query", data=b"my-own-body", headers=headers)
    wait(lambda: any(line["request_id"] == "my-own-id" for line in strict.log()))
    (line,) = (line for line in strict.log() if line["request_id"] == "my-own-id")
    assert line["node"].startswith("node-")
    expected = {
        "client": "alice", "method": "POST", "path": "/v2/models/m/versions/1/infer", "status": 200, "model": "m",
        "version": "1.0", "batch_size": 8, "decode_ms": 1.61, "wait_ms": 2.4, "forward_ms": 178.2, "encode_ms": 0.04,
        "bytes_in": 11, "attempts": 1,
    }  # fmt: skip
    assert {name: line[name] for name in expected} == expected
    text = (strict.run / "access.log").read_text()
    assert [secret for secret in ("my-own-query", "my-own-body") if secret in text] == []
