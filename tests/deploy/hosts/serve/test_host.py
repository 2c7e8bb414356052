"""One archive in one process: its routes, its limits, its end."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from unittest.mock import Mock
from uuid import UUID
from zipfile import ZipFile

import grpc
import pytest
import requests

from deploy.hosts.serve import __main__ as program
from deploy.models import ROOT
from tests.deploy.hosts.serve.conftest import INFER, number_archive
from tests.doors.kinds import asking
from tests.hosts import Host, command, is_ready, run_hosts, start
from tests.waiting import until
from torchserve_client.version import VERSION

pytestmark = pytest.mark.builds

Serve = Callable[..., Host]
PATH = "/predictions/colours"
CHUNKED = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n".encode()


def ask(served: Host, number: int) -> requests.Response:
    return requests.post(served.url + PATH, json={"x": number}, timeout=30)


def test_routes_are_those_of_a_node(served: Host) -> None:
    assert ask(served, 4).text == '{"y":8}'
    (described,) = requests.get(f"{served.url}/models/colours/all", timeout=9).json()
    worker = described["workers"][0]
    assert (described["modelVersion"], worker["status"], worker["pid"]) == ("1.0", "READY", served.process.pid)
    client = [sys.executable, "-m", "torchserve_client", "--url", served.url, "--management-url", served.url]
    shown = subprocess.run([*client, "describe", "colours"], capture_output=True, text=True, check=True).stdout
    assert "1 READY" in shown and "INT64" in shown
    for path, status in (
        *(("/models/other", 404), ("/models/colours/1.0", 200), ("/models/colours/2.0", 404)),
        *(("/v2/models/colours", 200), ("/v1/models", 200), (f"{PATH}/2.0", 404), ("/invocations", 404)),
    ):
        assert requests.get(served.url + path, timeout=9).status_code == status, path
    for kind in ("keep-alive", "close"):
        assert requests.head(f"{served.url}/ping", headers={"Connection": kind}, timeout=9).status_code == 200
    assert requests.delete(f"{served.url}/models/colours", timeout=9).status_code == 405
    labels = 'ModelName="colours",ModelVersion="1.0",outcome="success",Hostname='
    until(lambda: f"handler_requests_total{{{labels}" in requests.get(f"{served.url}/metrics", timeout=9).text)
    deep = requests.get(f"{served.url}/v2/health/deep", timeout=9)
    assert (deep.status_code, deep.json()) == (200, {"ready": True})
    with grpc.insecure_channel(served.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert [check(message) for message in (b"", b"\x0a\x07colours")] == [b"\x08\x01"] * 2
        with pytest.raises(grpc.RpcError, match="expected a model's name"):
            check(b"\x0a\x01x")
        assert channel.unary_unary("/inference.GRPCInferenceService/ServerReady")(b"") == b"\x08\x01"


def test_garbage_collection_passes_over_what_was_loaded(tmp_path: Path) -> None:
    code = (
        "import gc\n\ndef infer(x):\n    return {'y': 0 * x + len(gc.get_objects()) // (1 + gc.get_freeze_count())}\n"
    )
    with run_hosts(number_archive("frozen", code, tmp_path)) as (host,):
        done = requests.post(f"{host.url}/predictions/frozen", json={"x": 1}, timeout=30)
    assert done.text == '{"y":0}'  # more objects are frozen than not


def test_cached_response_says_so_by_http_and_by_grpc(tmp_path: Path) -> None:
    with run_hosts(number_archive("double", INFER, tmp_path, cache_mib=1)) as (host,):
        url = f"{host.url}/predictions/double"
        sent = [requests.post(url, json={"x": 2}, timeout=30).headers.get("X-Cache") for _ in range(2)]
        with grpc.insecure_channel(host.grpc) as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            called = [dict(infer.with_call(asking(3))[1].trailing_metadata()).get("x-cache") for _ in range(2)]
    assert sent == called == [None, "hit"]


def test_client_that_reads_nothing_is_closed(served: Host) -> None:
    with connect(served) as connection, pytest.raises(ConnectionError):
        for _ in range(10**6):
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 100)
    assert ask(served, 1).text == '{"y":2}'


def connect(served: Host, address: str = "") -> socket.socket:
    host, port = (address or served.url).removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def head(size: int, *lines: str) -> bytes:
    sent = ("Host: a", "Content-Type: application/json", f"Content-Length: {size}", *lines)
    return "\r\n".join((f"POST {PATH} HTTP/1.1", *sent, "", "")).encode()


def test_clients_that_left_delay_no_other(served: Host) -> None:
    # A body of more than 64 KiB stops uvicorn from reading on.
    before, bodies = executions(served), [b'{"x": 7}'.ljust(size) for size in (8, 200_000)] * 100
    with ThreadPoolExecutor(200) as pool:
        connections = [*pool.map(lambda _: connect(served), bodies)]
        done = pool.map(lambda each, body: each.sendall(head(len(body)) + body), connections, bodies)
        assert [*done] == [None] * 200
    until(lambda: _waiting(served) > 150)
    for connection in connections:
        connection.close()
    until(lambda: _waiting(served) == 0)
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda number: ask(served, number), range(10)))
    assert [each.text for each in answers] == [f'{{"y":{2 * number}}}' for number in range(10)]
    # Those ten, and the few that ran before the others left: fewer than all with bodies of one size.
    assert executions(served) - before < 100


def executions(served: Host) -> float:
    lines = requests.get(f"{served.url}/metrics", timeout=9).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("handler_executions_total"))


def test_requests_and_connections_are_limited(serve: Serve) -> None:
    served = serve(requests=2, connections=20)
    with ThreadPoolExecutor(8) as pool:
        statuses = sorted(each.status_code for each in pool.map(lambda number: ask(served, number), range(8)))
    # The first two run, and later ones only once those are answered.
    assert set(statuses) == {200, 503} and statuses.count(200) >= 2
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(connect(served, served.grpc))
        with connect(served, served.grpc) as connection, suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    with ExitStack() as stack:
        others = [stack.enter_context(connect(served)) for _ in range(21)]
        # The one that was silent for longest has made room; another that asks now is answered.
        with suppress(ConnectionResetError):
            assert others[0].recv(1) == b""
        for each in (others[1], others[20]):
            assert ping(each)
    with ExitStack() as stack:
        first, *others = [stack.enter_context(connect(served)) for _ in range(20)]
        assert all(map(ping, others))
        # An idle one makes room, and not the first, whose request is on its way.
        assert ping(stack.enter_context(connect(served))) and ping(first)


def ping(connection: socket.socket) -> bool:
    connection.sendall(b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n")
    return connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_sigterm_ends_after_the_last_answer_and_a_second_one_at_once(serve: Serve) -> None:
    served = serve(notice_s=0.2)
    with ThreadPoolExecutor(9) as pool:
        answers = [pool.submit(ask, served, number) for number in range(9)]
        # Those that a client has by now come first, since they wait no more.
        until(lambda: sum(each.done() for each in answers) + _waiting(served) == 9)
        served.process.send_signal(signal.SIGTERM)
        # They take 1.8 s, far longer than the notice.
        assert [each.result().status_code for each in answers] == [200] * 9
    assert served.process.wait(30) == 0
    served = serve(notice_s=600.0, drain_s=600.0)
    for _ in range(2):
        served.process.send_signal(signal.SIGTERM)
        time.sleep(0)
        with suppress(requests.ConnectionError):
            until(lambda: requests.get(f"{served.url}/ping", timeout=9).status_code == 503)
    assert served.process.wait(30) == 1


def test_sigterm_under_load_resets_no_connection(serve: Serve) -> None:
    served, is_over = serve(notice_s=0.5), threading.Event()

    def ask_anew() -> int:
        """Send each request on a new connection, until none is accepted."""
        answered = 0
        while True:
            try:
                connection = connect(served)
            except ConnectionRefusedError:
                return answered
            with connection:
                connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
                assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
                answered += 1
                is_over.set()

    with ThreadPoolExecutor(50) as pool:
        asking = [pool.submit(ask_anew) for _ in range(50)]
        is_over.wait(30)
        served.process.send_signal(signal.SIGTERM)
        assert sum(each.result() for each in asking) > 50
    assert served.process.wait(30) == 0


def _waiting(served: Host) -> int:
    document = requests.get(f"{served.url}/models/colours", timeout=9).json()
    return int(document[0]["jobQueueStatus"]["pendingRequests"])


def test_signal_while_the_archive_loads_ends_cleanly(archive: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "LOADS": "600"}
    with subprocess.Popen(command(archive, "--port", 0), cwd=ROOT, env=environment, stderr=subprocess.PIPE) as process:
        try:
            until(lambda: [*tmp_path.glob("serve-*/work/archive-*/*/infer.py")])
            process.send_signal(signal.SIGTERM)
            _, written = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, written, [*tmp_path.iterdir()]) == (0, b"", [])


def test_killed_process_leaves_its_measurements_and_the_next_removes_its_files(archive: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CACHE_DIR"}
    environment |= {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    line, left, measured = command(archive, "--port", 0), list[Path](), ".cache/torchserve-batching/measured-*.json"
    events: tuple[Callable[[], object], ...] = (lambda: [*tmp_path.glob(measured)], lambda: not left[0].exists())
    for has_happened in events:
        with subprocess.Popen(line, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as process:
            try:
                until(has_happened)
                left += tmp_path.glob("serve-*")
            finally:
                process.kill()


def test_request_has_an_id_and_a_line_of_the_access_log(archive: Path, tmp_path: Path) -> None:
    host = start(archive, "--access-log", log := tmp_path / "access.log")
    trace = "0af7651916cd43dd8448eb211c80319c"
    sent = {"X-Request-Id": "mine-1", "traceparent": f"00-{trace}-b7ad6b7169203331-01", "Authorization": "secret"}
    try:
        until(lambda: is_ready(host))
        log.write_text("")
        done = requests.post(f"{host.url}{PATH}?key=secret", json={"x": 123456}, headers=sent, timeout=30)
        bad = requests.post(host.url + PATH, json={"x": "a"}, headers={"X-Request-Id": "two words"}, timeout=30)
        with grpc.insecure_channel(host.grpc) as channel:
            ready = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
            metadata = dict(ready.with_call(b"", metadata=[("x-request-id", "mine-2")])[1].trailing_metadata())
        until(lambda: log.read_text().count("\n") == 3)
    finally:
        host.kill()
    first, second, third = map(json.loads, log.read_text().splitlines())
    assert (done.headers["X-Request-Id"], metadata["x-request-id"]) == ("mine-1", "mine-2")
    assert UUID(bad.headers["X-Request-Id"]) == UUID(second["request_id"])
    assert (first["path"], first["status"], first["request_id"], first["trace_id"]) == (PATH, 200, "mine-1", trace)
    assert (first["batch_size"], first["version"], first["bytes_in"]) == (1, "1.0", len('{"x": 123456}'))
    assert 200 <= first["forward_ms"] <= first["total_ms"] <= first["duration_ms"]
    assert (second["status"], third["grpc_status"], third["path"].rpartition("/")[2]) == (400, 0, "ServerReady")
    assert not any(word in log.read_text() for word in ("123456", "secret", "246912"))
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


# The sockets end with their process, which this test is not.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_failure_is_one_line(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (wrong := tmp_path / "bad.mar").write_bytes(b"x")
    (limits := tmp_path / "limits.yaml").write_text("head_s: -1\nother: 1\n")
    (no_number := tmp_path / "no_number.yaml").write_text("body_s: .nan\n")
    with ZipFile(archive) as whole, ZipFile(changed := tmp_path / "changed.mar", "w") as less:
        for name in whole.namelist():
            less.writestr(name, whole.read(name) + (b"# changed" if name.endswith("infer.py") else b""))
    with ZipFile(tmp_path / "old.mar", "w") as old:
        old.writestr("build.json", json.dumps({"made_with": "0.3.0", "format": 3}))
    with ZipFile(empty := tmp_path / "empty.mar", "w") as none:
        none.writestr("infer.py", "")
    monkeypatch.setattr(program, "Process", lambda: Mock(end=lambda code: code))
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        for words, arguments in {
            "cannot listen on 127.0.0.1:": ["--port", port],
            "set --grpc-port": ["--port", 0, "--grpc-port", port],
            "cannot listen on nowhere.invalid:": ["--host", "nowhere.invalid"],
            "head_s": ["--config", limits],
            "body_s": ["--config", no_number],
            "none.yaml": ["--config", tmp_path / "none.yaml"],
            "--access-log: ": ["--access-log", tmp_path / "none" / "access.log"],
            f"old.mar has format 3, of torchserve-batching 0.3.0, and this is {VERSION} ": [tmp_path / "old.mar"],
        }.items():
            names = [] if str(arguments[0]).endswith(".mar") else [str(archive)]
            assert program.main([*names, *map(str, arguments)]) == 1
            out, error = capfd.readouterr()
            assert (out, len(error.splitlines()), words in error) == ("", 1, True), error
    # An archive's own modules take the place of this project's.
    run = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(lambda path: run(command(path, "--port", 0)), (wrong, empty, changed))
    for path, each in zip((wrong, empty, changed), done, strict=True):
        assert (each.returncode, len(each.stderr.splitlines()), each.stdout) == (1, 1, ""), each.stderr
        assert f"{path.name} does not load" in each.stderr
