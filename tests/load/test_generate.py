"""The generator and a server on a socket; no assertion depends on the speed of the machine."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from load import generate, measure
from load.__main__ import main
from load.generate import Attack, ClosedLoop, Load, OpenLoop, Target
from load.inputs import Inputs
from load.results import Recording, Verdict
from load.run_file import Run
from load.schedules import Constant
from tests.load.fake_server import serving
from tests.tables import table

TIMING = 'forward;dur=9.5, batch;desc="2"'


class Gate:
    """Responds when a number of requests are in flight, or after `open`."""

    def __init__(self, waits_for: float = float("inf")) -> None:
        self.most = self._in_flight = 0
        self.opened_s, self._waits_for = 0.0, waits_for

    async def answer(self, _request: web.Request) -> web.Response:
        self._in_flight += 1
        self.most = max(self.most, self._in_flight)
        if self._in_flight >= self._waits_for:
            self.open()
        while not self.opened_s:
            await asyncio.sleep(0.005)
        self._in_flight -= 1
        return web.Response(text="{}", headers={"Server-Timing": TIMING})

    def open(self) -> None:
        self.opened_s = self.opened_s or time.perf_counter()


async def soon(request: web.Request) -> web.Response:
    """Return the body as a label, in 5 ms: a faster server would saturate the generator's core."""
    await asyncio.sleep(0.005)
    return web.json_response({(await request.read()).decode(): 0.9}, headers={"Server-Timing": TIMING})


def attack(url: str, load: Load, *bodies: bytes, duration_s: float = 0.1) -> Attack:
    target = Target(f"{url}/predictions/m", {"Authorization": "Bearer key"}, timeout_s=10)
    return Attack(target, Inputs.of(bodies or [b"{}"], "text/x-test"), load, duration_s)


def answered(count: int) -> generate.Until:
    return until(lambda recording: len(recording.exchanges) >= count)


def until(holds: Callable[[Recording], bool]) -> generate.Until:
    async def wait(recording: Recording) -> None:
        async with asyncio.timeout(30):
            while not holds(recording):
                await asyncio.sleep(0.01)

    return wait


def test_open_loop_sends_by_its_schedule_while_nothing_is_answered_and_latency_counts_from_it() -> None:
    """The server stalls until 12 requests arrive, which a closed loop of fewer clients would not send."""
    gate = Gate(waits_for=12)
    with serving(gate.answer) as url:
        made = replace(attack(url, OpenLoop(Constant(50))), until=answered(12))
        recording = generate.run(made.generate(Recording()))
    first = sorted(recording.exchanges, key=lambda exchange: exchange.due_s)[:12]
    assert [exchange.due_s - recording.started_s for exchange in first] == pytest.approx([n / 50 for n in range(12)])
    assert all(each.sent_s >= each.due_s and each.answered_s >= gate.opened_s for each in first)
    # The first counted request waited for at least ten gaps of 20 ms.
    assert made.summarise(recording).latency_ms(100) >= 200


def test_open_loop_beyond_its_limit_counts_everything_that_was_due_from_when_it_was_due() -> None:
    gate = Gate()

    async def stall_twice(recording: Recording) -> None:
        await asyncio.sleep(0.2)
        gate.open()
        await answered(len(recording.exchanges) + 20)(recording)
        gate.opened_s, opened_s = 0.0, gate.opened_s
        await until(lambda recording: recording.in_flight == 3)(recording)
        asyncio.get_running_loop().call_later(0.05, setattr, gate, "opened_s", opened_s)

    with serving(gate.answer) as url:
        made = replace(attack(url, OpenLoop(Constant(1000), max_in_flight=3)), until=stall_twice)
        recording = generate.run(made.generate(Recording()))
    assert gate.most == 3
    late = [each for each in recording.exchanges if each.due_s < gate.opened_s <= each.sent_s]
    # Due before the end of the stall, sent after it.
    assert late
    assert all(each.latency_s >= gate.opened_s - each.due_s for each in late)
    summary = made.summarise(recording)
    due_s = (recording.started_s + number / 1000 for number in range(10**5))
    assert summary.requests == sum(recording.opens_s <= each < recording.closes_s for each in due_s)
    reasons = " ".join(summary.invalid_reasons)
    assert "waited because of the limit of requests in flight" in reasons
    assert f"{summary.unsent} requests that were due were never sent" in reasons
    assert "the generator fell behind" in reasons


def test_closed_loop_keeps_as_many_requests_in_flight_and_connections_and_no_more() -> None:
    gate, connections, bodies = Gate(waits_for=7), set(), Counter[bytes]()

    async def answer(request: web.Request) -> web.Response:
        connections.add(request.transport)
        bodies[await request.read()] += 1
        assert (request.headers["Authorization"], request.content_type) == ("Bearer key", "text/x-test")
        return await gate.answer(request)

    with serving(answer) as url:
        summary = attack(url, ClosedLoop(7), b"a", b"b", bytes(3_000_000)).run()
    assert (gate.most, len(connections), set(bodies)) == (7, 7, {b"a", b"b", bytes(3_000_000)})
    # Each client warms up with one request, which does not count, and sends at least one that counts.
    assert 7 <= summary.completed <= bodies.total() - 7
    assert summary.statuses == {200: summary.completed}
    assert (summary.server_ms, summary.mean_batch_size) == ({"forward": 9.5}, 2)


def test_server_that_is_not_there_or_does_not_answer_in_time_is_a_reason_and_no_busy_loop() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        summary = attack(f"http://127.0.0.1:{unused.getsockname()[1]}", ClosedLoop(1), duration_s=0.25).run()
    assert summary.errors == {"ClientConnectorError": summary.failures[0]}
    # One per 0.1 s.
    assert summary.failures[0] <= 4
    with serving(Gate().answer) as url:
        made = attack(url, ClosedLoop(1), duration_s=0.01)
        summary = replace(made, target=replace(made.target, timeout_s=0.05)).run()
    assert not summary.completed
    assert summary.errors.keys() <= {"TimeoutError", "ConnectionTimeoutError", "SocketTimeoutError"}


@pytest.mark.parametrize("load", [OpenLoop(Constant(200)), ClosedLoop(2)], ids=str)
def test_fault_of_the_generator_fails_one_request_and_the_run_goes_on(load: Load) -> None:
    def judge(source: int, body: bytes) -> Verdict:
        if b"b" in body:
            raise KeyError("a bug of ours")
        return Verdict.RIGHT

    with serving(soon) as url:
        summary = replace(attack(url, load, b"a", b"b"), check=judge, until=answered(20)).run()
    faults = {error: failed for error, failed in summary.errors.items() if "KeyError at test_generate.py:" in error}
    assert summary.errors == faults
    (failed,) = faults.values()
    assert summary.failures == {0: failed}
    assert f"{failed} requests failed in the generator itself" in summary.invalid_reasons
    assert summary.completed > 1 < failed


@pytest.mark.parametrize("load", [OpenLoop(Constant(100)), ClosedLoop(2)], ids=str)
def test_stopped_run_keeps_what_it_has_and_waits_for_no_answer(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "STOP_GRACE_S", 0.05)
    asked = count()

    async def answer(_request: web.Request) -> web.Response:
        await asyncio.sleep(60 if next(asked) >= 40 else 0.002)
        return web.Response()

    async def stop(recording: Recording) -> None:
        await answered(40)(recording)
        recording.stop()
        await asyncio.sleep(60)

    with serving(answer) as url:
        summary = replace(attack(url, load), until=stop).run()
    assert summary.completed >= 5
    assert "ended early" in summary.invalid_reasons


def call(url: str, folder: Path, *more: str) -> list[str]:
    (folder / "texts.txt").write_text("cat\ncup\n")
    given = ["-u", url, "--management-url", "http://127.0.0.1:1", "-m", "m", "-i", str(folder / "texts.txt")]
    return [*given, "--warm-up", "0", "--duration", "50ms", *more]


def test_shortest_useful_call_prints_a_table_and_stores_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "REFRESH_S", 0.01)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    out, page, keys = tmp_path / "folder" / "run.json", tmp_path / "page.html", tmp_path / "key_file.json"
    keys.write_text('{"inference": {"key": "secret"}}')
    with serving(soon) as url:
        more = ("--concurrency", "1,4", "-o", str(out), "--token-file", str(keys), "--expect", "alone")
        assert main(["run", *call(url, tmp_path, *more)]) == 0
    output = capsys.readouterr()
    assert [line.split()[1] for line in output.out.splitlines()] == ["load", "1", "4"]
    assert re.search(r"m, 4 clients: [\d.]+/s, p50 [\d.]+ ms, p99 [\d.]+ ms", output.err)
    assert " in flight, " in output.err
    assert b"secret" not in out.read_bytes()
    run = Run.read(out)
    assert run.inputs == ["texts.txt:1", "texts.txt:2"]
    for step in run.steps:
        assert ({*step.status, *step.answers}, step.mean_batch_size) == ({"200", "right"}, 2)
    assert main(["report", str(out), str(out), "--html", str(page)]) == 0
    assert "before: m, after: m" in capsys.readouterr().out
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("is_list", [False, True])
def test_first_refusal_is_reported_as_it_is(is_list: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = count(1)

    async def answer(_request: web.Request) -> web.Response:
        number = next(asked)
        await asyncio.sleep(0.005)
        if number % 2:
            return web.json_response({"label": 1})
        error = {"code": 429, "type": f"Refusal{number}", "message": "m"}
        body = {"predictions": [{"error": error}, {"error": error}]} if is_list else error
        return web.json_response(body, status=429, headers={"Retry-After": "7"})

    with serving(answer) as url:
        assert main(["run", *call(url, tmp_path, "--concurrency", "1", "-l", "60000")]) == 0
    # On a machine that stalls the run is not valid, and one more line warns of it.
    target = r"target (NOT MET|unknown, the step is NOT VALID): m, 1 client, 60000 ms: in time .*"
    refusal = r"first refusal: m, 1 client: 429 Refusal[24], Retry-After 7, after [\d.]+ ms"
    assert re.search(f"^{target}\n{refusal}$", capsys.readouterr().out, re.MULTILINE)


@table("1:8", "8,3,1,2", "3,2")
def test_search_finds_the_highest_load_that_holds(loads: str, tmp_path: Path, capsys: Any) -> None:
    in_flight = 0

    async def answer(_request: web.Request) -> web.Response:
        nonlocal in_flight
        in_flight += 1
        status = 503 if in_flight > 3 else 200
        await asyncio.sleep(0.03)
        in_flight -= 1
        return web.Response(status=status)

    with serving(answer) as url:
        more = ("--concurrency", loads, "-l", "60000", "--percentile", "90")
        assert main(["search", *call(url, tmp_path, *more)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    end = "; this is the end of the range, more may be possible" if loads == "3,2" else ""
    assert first == f"m: highest load with 90 % of requests within 60000 ms: 3 clients{end}"


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    enough, asked = threading.Event(), count(1)

    async def answer(request: web.Request) -> web.Response:
        if next(asked) == 30:
            enough.set()
        return await soon(request)

    out = tmp_path / "run.json"
    with serving(answer) as url:
        arguments = call(url, tmp_path, "--concurrency", "2,4", "--duration", "60s", "-o", str(out))
        # In another process, since a late interrupt would end the test's.
        running = subprocess.Popen([sys.executable, "-m", "load", "run", *arguments], stdout=subprocess.PIPE, text=True)
        with running:
            assert enough.wait(60)
            running.send_signal(signal.SIGINT)
            printed, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    (step,) = Run.read(out).steps
    assert "ended early" in str(step.invalid_reason)
    assert step.status["200"] >= 10
    assert "2 clients" in printed
