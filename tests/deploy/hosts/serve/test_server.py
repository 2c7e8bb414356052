"""The timers and limits of a connection, of a call by gRPC and of their ends, without a process."""

import asyncio
import json
import os
import shlex
import socket
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock, call

import grpc
import numpy as np
import psutil
import pytest
import uvicorn
from uvicorn.server import ServerState

from deploy.hosts.frontend.http import Response
from deploy.hosts.frontend.memory import Memory
from deploy.hosts.frontend.replica import curl_options
from deploy.hosts.frontend.routes import Models
from deploy.hosts.serve import __main__ as program
from deploy.hosts.serve import rpc
from deploy.hosts.serve.access_log import AccessLog
from deploy.hosts.serve.app import Host
from deploy.hosts.serve.children import Child, lengthen
from deploy.hosts.serve.connection import Joined, Protocol
from deploy.hosts.serve.limits import HostLimits
from deploy.hosts.serve.server import Series, _start_grpc, print_summary
from deploy.hosts.serve.totals import Totals
from tests.disks import full_disk
from tests.tables import table

# No two of them are equal: each is of one step.
LIMITS = HostLimits(head_s=1.0, body_s=2.0, keep_alive_s=3, drain_s=4.0, notice_s=5.0, connections=6, requests=7)
HEAD, REST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n", b"\r\n"


@pytest.fixture
def timers() -> list[tuple[float, Mock]]:
    return []


@pytest.fixture
def protocol(timers: list[tuple[float, Mock]], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A connection whose client has just connected."""
    loop, transport = Mock(), Mock()
    loop.call_later.side_effect = lambda seconds, _: timers.append((seconds, Mock())) or timers[-1][1]  # type: ignore[func-returns-value]
    loop.create_task.side_effect = lambda coroutine, **_: coroutine.close() or Mock()
    transport.get_extra_info.return_value = None
    transport.is_closing.return_value = False
    monkeypatch.setattr(Protocol, "limits", LIMITS)
    monkeypatch.setattr(Protocol, "memory", Memory(100_000))
    made: Any = Protocol(uvicorn.Config(Mock(), lifespan="off"), ServerState(), {}, _loop=loop)
    made.connection_made(transport)
    made.raw = transport
    return made


@table(
    (b"", [LIMITS.head_s]),
    (b"\r\n", [LIMITS.head_s]),
    (HEAD, [LIMITS.head_s]),
    # The application bounds the time of a body.
    (HEAD + REST, []),
    (HEAD + REST + b"12345", []),
)
def test_connection_waits_for_a_head_until_that_is_complete(
    sent: bytes, expected: list[float], protocol: Any, timers: list[tuple[float, Mock]]
) -> None:
    for byte in sent:
        protocol.data_received(bytes([byte]))
    assert [seconds for seconds, timer in timers if not timer.cancel.called] == expected
    protocol.connection_lost(None)
    assert all(timer.cancel.called for _, timer in timers)


def test_rest_of_a_rejected_body_has_the_time_of_a_head(protocol: Any, timers: list[tuple[float, Mock]]) -> None:
    protocol.data_received(HEAD + REST + b"12345")
    protocol.cycle.response_complete = True
    protocol.on_response_complete()
    assert LIMITS.head_s in [seconds for seconds, timer in timers if not timer.cancel.called]


def test_connection_ends_with_more_waiting_requests_than_its_limit(protocol: Any) -> None:
    # One is answered, 65 wait.
    protocol.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 66)
    assert not protocol.raw.abort.called
    protocol.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert protocol.raw.abort.called


def test_connection_beyond_the_limit_stays_while_all_run_requests(
    protocol: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A moment later they are idle: it was reset, wherever the process had stalled."""
    monkeypatch.setattr(Protocol, "silent", {})
    monkeypatch.setattr(Protocol, "idle", {})
    made, most = [protocol], LIMITS.connections
    while len(made) <= 2 * most:
        made[-1].data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        made.append(Protocol(protocol.config, protocol.server_state, {}, _loop=protocol.loop))
        made[-1].connection_made(Mock(is_closing=lambda: False, get_extra_info=lambda _: None))
    assert [each.transport.abort.called for each in made] == [*[False] * 2 * most, True]
    for each in made[:-1]:
        each.cycle.response_complete = True
        each.on_response_complete()
    assert [each.transport.abort.called for each in made] == [*[True] * most, *[False] * most, True]


def test_head_and_body_of_an_answer_are_sent_together() -> None:
    """uvicorn writes both by themselves, and Nagle's algorithm would keep the body for 40 ms."""
    with program._bind("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)  # so that it starts again at once
    transport, first, parts = Mock(), b"HTTP/1.1 100 Continue\r\n\r\n", [b"HTTP/1.1 200 OK\r\n\r\n", b"4"]
    joined = Joined(transport)
    joined.write(first)
    for end in (joined.flush, joined.close):
        for part in parts:
            joined.write(part)
        end()
    assert [each.args[0] for each in transport.writelines.mock_calls] == [[first], parts, parts]
    assert transport.mock_calls[-1] == call.close()


def test_answer_that_is_not_read_counts_and_ends_its_connection(
    protocol: Any, timers: list[tuple[float, Mock]]
) -> None:
    protocol.raw.get_write_buffer_size.return_value = 70_000
    protocol.pause_writing()
    seconds, timer = timers[-1]
    assert (seconds, protocol.memory.held_bytes, protocol.raw.abort.called) == (LIMITS.body_s, 70_000, False)
    # One that ends its connection has the same time to be read.
    for is_closing, cancelled in ((True, 0), (False, 1)):
        protocol.raw.is_closing.return_value = is_closing
        protocol.resume_writing()
        assert (timer.cancel.call_count, protocol.memory.held_bytes) == (cancelled, 0)
    protocol.pause_writing()
    protocol.connection_lost(None)
    assert (protocol.memory.held_bytes, protocol.memory.waiting) == (0, {})
    # Those who wait for their clients have three quarters of the memory.
    protocol.raw.get_write_buffer_size.return_value = 75_001
    protocol.pause_writing()
    assert protocol.raw.abort.called


def test_connection_has_a_moment_for_a_request_that_is_under_way_at_the_end(
    protocol: Any, timers: list[tuple[float, Mock]]
) -> None:
    protocol.shutdown()
    protocol.cycle = Mock(response_complete=True)
    protocol.shutdown()
    assert [seconds for seconds, _ in timers] == [LIMITS.head_s, 5.0, 1.0]
    protocol._end_if_idle()
    assert protocol.raw.close.called
    protocol.raw.close.reset_mock()
    protocol.cycle = Mock(response_complete=False, keep_alive=True)
    protocol.shutdown()
    protocol._end_if_idle()
    protocol.cycle.response_complete = True
    protocol._is_in_head = True
    protocol._end_if_idle()
    assert (len(timers), protocol.cycle.keep_alive, protocol.raw.close.called) == (3, False, False)


async def _infer(message: bytes, _: object) -> bytes:
    return message * 2


def test_call_is_read_within_its_time_and_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "SLOW_S", 0.02)
    models = Models({}, None, 1000, memory_bytes=400_000)
    held = list[int]()

    async def ask(read: Any, body_s: float = 60.0) -> tuple[Any, Any]:
        calls, context = (
            rpc.Calls(models, HostLimits(body_s=body_s)),
            Mock(read=read, invocation_metadata=dict, trailing_metadata=tuple),
        )
        watching = asyncio.create_task(calls.watch())
        try:
            answer = await calls.handler(_infer).stream_unary(None, context)
        finally:
            watching.cancel()
        held.append(models.memory.held_bytes)
        assert (models.memory.waiting, calls._waiting) == ({}, {})
        context.add_done_callback.call_args.args[0](context)
        return answer, context.set_code.call_args and context.set_code.call_args.args[0]

    async def slow() -> bytes:
        while models.memory.held_bytes != 1000 + rpc.HEAD_BYTES + rpc.CALL_BYTES:  # a whole message besides the call
            await asyncio.sleep(0.01)
        return b"ab"

    codes = grpc.StatusCode
    assert asyncio.run(ask(AsyncMock(return_value=b"ab"))) == (b"abab", None)
    assert asyncio.run(ask(slow)) == (b"abab", None)
    assert asyncio.run(ask(AsyncMock(return_value=grpc.aio.EOF))) == (b"", codes.INVALID_ARGUMENT)
    assert asyncio.run(ask(asyncio.Event().wait, body_s=0.05)) == (b"", codes.DEADLINE_EXCEEDED)
    assert held == [rpc.CALL_BYTES + 4, rpc.CALL_BYTES + 4, rpc.CALL_BYTES, rpc.CALL_BYTES]
    assert models.memory.held_bytes == 0
    # Without room for a call, for a slow one, or for its answer.
    for free in (rpc.CALL_BYTES - 1, rpc.CALL_BYTES + 1):
        models.memory.held_bytes = 400_000 - free
        assert asyncio.run(ask(asyncio.Event().wait)) == (b"", codes.UNAVAILABLE)
        assert models.memory.held_bytes == 400_000 - free
    assert asyncio.run(ask(AsyncMock(return_value=b"ab"))) == (b"", codes.UNAVAILABLE)


@table(("127.0.0.1", "127.0.0.1:7"), ("::1", "[::1]:7"))
def test_grpc_has_the_limits_of_the_port_and_says_whether_it_serves(
    host: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Mock(start=AsyncMock())
    monkeypatch.setattr(grpc.aio, "server", made := Mock(return_value=started))
    served: Any = Mock(models=Models({}, None, 1000))

    async def start() -> list[bytes]:
        server = await _start_grpc(served, Mock(), Mock(host=host, grpc_port=7), LIMITS)
        server.watching.cancel()
        _, health = (each.args[0][0] for each in started.add_generic_rpc_handlers.mock_calls)
        check = health.service(Mock(method="/grpc.health.v1.Health/Check")).stream_unary
        found = [await check(None, Mock(read=AsyncMock(return_value=b"")))]
        served.models.is_draining = True
        return [*found, await check(None, Mock(read=AsyncMock(return_value=b"")))]

    assert asyncio.run(start()) == [b"\x08\x01", b"\x08\x02"]  # SERVING, NOT_SERVING
    started.add_insecure_port.assert_called_once_with(address)
    assert dict(made.call_args.kwargs["options"]) == {
        "grpc.max_receive_message_length": 1000 + 65536, "grpc.so_reuseport": 0, "grpc.http2.bdp_probe": 0,
        "grpc.max_allowed_incoming_connections": 6, "grpc.max_concurrent_streams": 100,
        # Milliseconds: keep_alive_s, and body_s with drain_s.
        "grpc.max_connection_idle_ms": 3000, "grpc.max_connection_age_ms": 3000,
        "grpc.max_connection_age_grace_ms": 6000,
    }  # fmt: skip


@table(("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"))
def test_summary_names_the_url_of_the_model(host: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_summary({"Model": "m 1.0", "Engine": "openvino", "Try": "curl -d 1"}, host, 8)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Model      m 1.0", "Engine     openvino"]
    assert lines[2:4] == [
        f"URL        http://{shown}:8/predictions/m",
        f"Try        curl -d 1 http://{shown}:8/predictions/m",
    ]


def test_summary_on_a_full_disk_ends_nothing() -> None:
    with full_disk() as disk, redirect_stdout(disk):
        print_summary({"Model": "m"}, "::1", 8)


@table(
    ("it's", ["-H", "Content-Type: text/plain", "-d", "it's"]),
    ({"question": "Ä?", "top_k": 1}, ["-H", "Content-Type: application/json", "-d", '{"question": "Ä?", "top_k": 1}']),
    *((value, ["-T", "FILE"]) for value in (None, b"raw", "x" * 201, {"x": np.ones(2)}, {"x": "y" * 200})),
)
def test_sample_is_sent_by_the_command_that_is_printed(value: Any, words: list[str]) -> None:
    assert shlex.split(curl_options(value)) == words


def test_options_reach_the_host_and_its_end_is_that_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found, process = list[dict[str, Any]](), Mock(end=lambda code: code + 40)
    monkeypatch.setattr(program, "Process", lambda: process)
    monkeypatch.setattr(program, "_find_archive", lambda text: Path(f"{text}.mar"))
    monkeypatch.setattr(program, "_serve", lambda options, own: found.append(vars(options) | {"own": own is process}))
    words = "--host h --port 1 --grpc-port 0 --threads 2 --gpu 3 --config c --access-log l"
    assert [program.main(each) for each in (["a"], ["b", *words.split()])] == [40, 40]
    # Without --threads and --gpu the archive's own setting and the processor, and gRPC only if it is asked for.
    first = {
        "archives": [Path("a.mar")],
        "host": "127.0.0.1",
        "port": 8080,
        "grpc_port": None,
        "threads": 0,
        "gpu": None,
    }
    second = {"archives": [Path("b.mar")], "host": "h", "port": 1, "grpc_port": 0, "threads": 2, "gpu": 3}
    both = {"own": True, "processes": None, "member": None, "store": None, "most_memory": None}
    assert found == [
        {**first, "config": None, "access_log": None, **both},
        {**second, "config": Path("c"), "access_log": Path("l"), **both},
    ]


DESCRIBED = {
    "modelName": "m", "modelVersion": "1.0", "modelUrl": "m.mar", "runtime": "python", "minWorkers": 1, "maxWorkers": 1,
    "batchSize": 8, "maxBatchDelay": 0, "loadedAtStartup": True,
}  # fmt: skip


def test_host_describes_its_archive_as_torchserve_does_and_has_its_limits() -> None:
    has_begun, may_answer, ended = asyncio.Event(), asyncio.Event(), list[str]()

    async def answer(version: str, headers: object, body: bytes, path: str) -> Response:
        has_begun.set()
        await may_answer.wait()
        return Response(200, b"{}" if body else 1 / 0)  # type: ignore[arg-type]

    of = {"metadata": Mock(precision="", platform="torchserve_openvino"), "is_on_gpu": False, "window": 8}
    close = AsyncMock(side_effect=lambda: ended.append("model"))
    of |= {"max_body_bytes": 9, "sample_options": lambda: curl_options(b"an image")}
    replica: Any = SimpleNamespace(name="m", version="1.0", answer=answer, close=close, **of)
    metrics: Any = {"b_total": Series(("x",), {('a"b',): 2.0}), "a_total": Series((), {(): 1.0})}
    limits = replace(LIMITS, requests=1, cors=("https://a",), head_bytes=2048, memory_bytes=2 << 20)
    host = Host({Path("store/m.mar"): replica}, Totals(metrics, None), limits)
    assert (host.most_head_bytes, host.body_s, host.origins, host.memory.most_bytes) == (
        *(2048, LIMITS.body_s), frozenset({"https://a"}), 2 << 20,
    )  # fmt: skip
    shown = {"Model": "m 1.0", "Precision": "as exported", "Engine": "openvino", "Try": "curl -T FILE"}
    assert host.summary() == shown

    async def ask(path: str, method: str = "GET", body: bytes = b"") -> tuple[int, Any, bytes | None]:
        sent = list[Any]()
        scope = {"type": "http", "method": method, "path": path, "headers": []}
        await host(
            scope, AsyncMock(return_value={"type": "http.request", "body": body}), AsyncMock(side_effect=sent.append)
        )
        found, headers = sent[1]["body"], dict(sent[0]["headers"])
        return (
            sent[0]["status"],
            found.decode() if path == "/metrics" else json.loads(found),
            headers.get(b"retry-after"),
        )

    async def end_calls() -> None:
        await asyncio.sleep(0)
        ended.append("calls")

    async def run() -> None:
        first = asyncio.create_task(ask("/predictions/m", "POST", b"a"))
        await has_begun.wait()
        assert (await ask("/predictions/m", "POST", b"a"))[::2] == (503, b"1")
        (found,) = (await ask("/models/m/1.0"))[1]
        assert found.pop("jobQueueStatus") == {"remainingCapacity": 0, "pendingRequests": 1}
        (worker,) = found.pop("workers")
        assert (found, worker["status"], worker["pid"]) == (DESCRIBED, "READY", os.getpid())
        may_answer.set()
        assert await first == (200, {}, None)
        # A bug ends its request, too.
        assert (await ask("/predictions/m", "POST"))[0] == 500
        (found,) = (await ask("/models/m/all"))[1]
        assert found["jobQueueStatus"] == {"remainingCapacity": 1, "pendingRequests": 0}
        assert (await ask("/models"))[1] == {"models": [{"modelName": "m", "modelUrl": "m.mar"}]}
        wrong = [("/models/x", "GET"), ("/models/m/2.0", "GET"), ("/models/m/1.0/x", "GET"), ("/models/m", "DELETE")]
        assert [(await ask(*each))[0] for each in wrong] == [404, 404, 404, 405]
        series = [line for line in (await ask("/metrics"))[1].splitlines() if line[0] != "#"]
        labels = f'Hostname="{socket.gethostname()}",'
        assert series[:-1] == [f"a_total{{{labels}}} 1.0", f'b_total{{x="a\\"b",{labels}}} 2.0']
        name = f'process_resident_memory_bytes{{pid="{os.getpid()}"}} '
        assert int(series[-1].removeprefix(name)) == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
        host.models.is_draining = True
        status, document, retry = await ask("/models/m")
        assert (status, document["type"], retry) == (503, "Draining", b"1")
        # The last call needs the model.
        host.calls = asyncio.ensure_future(end_calls())
        await host.close()
        assert ended == ["calls", "model"]

    asyncio.run(run())


def test_access_log_on_a_full_disk_fails_no_request_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    log, scope = AccessLog(Path("/dev/full")), {"method": "GET", "path": "/ping", "headers": []}
    for _ in range(2):
        log.note(scope, Response(200, b""), "id", 0.0)
    assert [each.getMessage() for each in caplog.records] == ["the access log lacks lines: No space left on device"]


def test_fragment_of_a_path_is_not_http() -> None:
    protocol = Protocol(uvicorn.Config(Mock(), lifespan="off"), ServerState(), {}, _loop=Mock())
    protocol.connection_made(transport := Mock(is_closing=lambda: False, get_extra_info=lambda _: None))
    protocol.data_received(b"GET /ping#a HTTP/1.1\r\nHost: a\r\n\r\n")
    (sent,) = (b"".join(call.args[0]) for call in transport.writelines.call_args_list)
    assert sent.startswith(b"HTTP/1.1 400 ")


def test_counter_adds_up_by_labels() -> None:
    series = Series(("outcome",), {})
    for value, label in ((1.0, "success"), (2.0, "fail"), (3.0, "success")):
        series.add_or_update(value, [label])
    assert series.samples == {("success",): 4.0, ("fail",): 2.0}


def test_process_that_never_serves_is_started_less_and_less_often() -> None:
    pauses_s = [0.0]
    for _ in range(8):
        pauses_s.append(lengthen(pauses_s[-1]))
    assert pauses_s == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


@table((0, "exit code 0"), (3, "exit code 3"), (-9, "signal 9"))
def test_end_of_a_process_is_told(code: int, words: str) -> None:
    assert Child(1, Mock(returncode=code), Mock(), Mock(), Path()).end == words
