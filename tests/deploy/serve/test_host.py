"""One archive in one process: its routes, its limits, its end."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
import requests

from deploy.models import ROOT
from deploy.serve.__main__ import _bind
from tests.e2e.test_smuggling import ATTACKS, send
from tests.hosts import Host, command
from tests.waiting import until

pytestmark = pytest.mark.builds

Serve = Callable[..., Host]
PATH = "/predictions/colours"


def ask(served: Host, number: int) -> requests.Response:
    return requests.post(served.url + PATH, json={"x": number}, timeout=30)


def test_routes_are_those_of_a_node(serve: Serve) -> None:
    served = serve()
    assert ask(served, 4).text == '{"y":8}'
    described = requests.get(f"{served.url}/models/colours/all", timeout=9).json()
    assert [(each["modelVersion"], each["workers"][0]["status"]) for each in described] == [("1.0", "READY")]
    assert described[0]["workers"][0]["pid"] == served.process.pid
    for path, status in (
        *(("/models/other", 404), ("/models/colours/1.0", 200), ("/models/colours/2.0", 404)),
        *(("/v2/models/colours", 200), ("/v1/models", 200), (f"{PATH}/2.0", 404), ("/invocations", 400)),
    ):
        assert requests.get(served.url + path, timeout=9).status_code == status, path
    assert requests.delete(f"{served.url}/models/colours", timeout=9).status_code == 405
    labels = 'ModelName="colours",ModelVersion="1.0",outcome="success",Hostname='
    until(lambda: f"handler_requests_total{{{labels}" in requests.get(f"{served.url}/metrics", timeout=9).text)
    with grpc.insecure_channel(served.grpc) as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x01"
        assert channel.unary_unary("/inference.GRPCInferenceService/ServerReady")(b"") == b"\x08\x01"


def test_response_does_not_wait_for_the_receipt_of_its_head() -> None:
    """uvicorn writes both by themselves, and Nagle's algorithm would keep the body for 40 ms."""
    with _bind("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_process_imports_neither_torch_nor_ts(serve: Serve) -> None:
    served = serve()
    mapped = Path(f"/proc/{served.process.pid}/maps").read_text()
    assert "libtorch" not in mapped


def test_no_attack_is_answered_more_often_than_by_torchserve(serve: Serve) -> None:
    served = serve()
    for name, (attack, most) in ATTACKS.items():
        assert send(served.url, attack) <= most, name
    assert ask(served, 1).text == '{"y":2}'


def test_clients_that_left_delay_no_other(serve: Serve) -> None:
    served = serve()
    host, port = served.url.removeprefix("http://").split(":")
    body = b'{"x": 7}'
    head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connections = [socket.create_connection((host, int(port))) for _ in range(200)]
    for connection in connections:
        connection.sendall(head.encode() + body)
    for connection in connections:
        connection.close()
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda number: ask(served, number), range(10)))
    assert [each.text for each in answers] == [f'{{"y":{2 * number}}}' for number in range(10)]
    # The 200 would have taken 40 s, so fewer than those ten and the one that ran then.
    text = requests.get(f"{served.url}/metrics", timeout=9).text
    ran = [line for line in text.splitlines() if line.startswith("handler_executions_total")]
    assert sum(float(line.rpartition(" ")[2]) for line in ran) < 100


def test_slow_and_large_heads_are_closed(serve: Serve) -> None:
    served = serve(head_s=0.3, head_bytes=2048)
    host, port = served.url.removeprefix("http://").split(":")
    for sent in (b"GET /ping HTTP/1.1\r\n", b"GET /ping HTTP/1.1\r\nA: " + b"x" * 5000):
        with socket.create_connection((host, int(port)), timeout=60) as connection, suppress(ConnectionResetError):
            connection.sendall(sent)
            assert connection.recv(1) == b""
    assert ask(served, 2).text == '{"y":4}'


def test_sigterm_ends_after_the_last_answer_and_a_second_one_at_once(serve: Serve) -> None:
    served = serve(notice_s=1.0)
    with ThreadPoolExecutor(5) as pool:
        answers = [pool.submit(ask, served, number) for number in range(5)]
        until(lambda: _waiting(served) == 5)
        served.process.send_signal(signal.SIGTERM)
        until(lambda: requests.get(f"{served.url}/ping", timeout=9).status_code == 503)
        assert [each.result().status_code for each in answers] == [200] * 5
    assert served.process.wait(30) == 0
    served = serve(notice_s=600.0, drain_s=600.0)
    for _ in range(2):
        served.process.send_signal(signal.SIGTERM)
        time.sleep(0)
        with suppress(requests.ConnectionError):
            until(lambda: requests.get(f"{served.url}/ping", timeout=9).status_code == 503)
    assert served.process.wait(30) == 1


def _waiting(served: Host) -> int:
    document = requests.get(f"{served.url}/models/colours", timeout=9).json()
    return int(document[0]["jobQueueStatus"]["pendingRequests"])


@pytest.mark.parametrize("case", ["missing", "no archive", "used port", "wrong limit"])
def test_failure_is_one_line(case: str, archive: Path, tmp_path: Path) -> None:
    (wrong := tmp_path / "bad.mar").write_bytes(b"x")
    (limits := tmp_path / "limits.yaml").write_text("head_s: -1\nother: 1\n")
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        cases: dict[str, tuple[list[object], str]] = {
            "missing": ([tmp_path / "none.mar"], "no archive"),
            "no archive": ([wrong, "--port", 0], "bad.mar does not load"),
            "used port": ([archive, "--port", port], f"cannot listen on 127.0.0.1:{port}"),
            "wrong limit": ([archive, "--config", limits], "head_s"),
        }
        words, named = cases[case]
        done = subprocess.run(
            command(*words), cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=False, timeout=60
        )
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert named in done.stderr
