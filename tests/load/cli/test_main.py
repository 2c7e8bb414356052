"""`python -m load` as its user meets it, against a server of known latencies."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from deploy.models import ROOT
from load.__main__ import main
from tests.load.fake_server import serving

# Nothing listens there: the management API and the metrics are not needed.
NOWHERE = "http://127.0.0.1:1"
FLAGS = ["--management-url", NOWHERE, "--metrics-url", NOWHERE, "--warm-up", "50ms"]


@pytest.fixture
def server() -> Iterator[str]:
    """Echoes its input as a label, in 10 ms; body `slow` takes 100 ms, `bad` is refused."""

    async def answer(request: web.Request) -> web.Response:
        text = (await request.read()).decode()
        if text == "bad":
            return web.json_response({"code": 415, "message": "no image"}, status=415)
        await asyncio.sleep(0.1 if text == "slow" else 0.01)
        return web.json_response({text: 0.9}, headers={"Server-Timing": 'forward;dur=9.5, batch;desc="2"'})

    with serving(answer) as url:
        yield url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "texts.txt").write_text("cat\ncup\n")
    (tmp_path / "bad.bin").write_bytes(b"bad")
    return tmp_path


def arguments(server: str, folder: Path, *more: str) -> list[str]:
    return ["run", "--url", server, "--model", "m", "--input", str(folder / "texts.txt"), *FLAGS, *more]


def test_shortest_useful_call_prints_a_table_and_stores_the_run(
    server: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder / "run.json"
    assert main(arguments(server, folder, "--concurrency", "1,4", "--duration", "300ms", "--out", str(out))) == 0
    output = capsys.readouterr()
    assert [line.split()[0] for line in output.out.splitlines()] == ["load", "1", "4"]
    assert output.err.count("load: m, ") == 2
    run = json.loads(out.read_text())
    one, four = run["steps"]
    assert one["status"].keys() == four["status"].keys() == {"200"}
    assert 10 <= one["latency_ms"]["p50"] < 30
    assert one["throughput_per_s"] < 100 < four["throughput_per_s"] < 400
    assert one["server_ms"] == {"forward": 9.5}
    assert run["inputs"] == ["texts.txt:1", "texts.txt:2"]
    assert run["settings"]["input"] == [str(folder / "texts.txt")]
    assert "token" not in run["settings"]


def test_stored_runs_are_redrawn_and_compared(server: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(folder / name) for name in ("a.json.gz", "b.json")]
    for path in paths:
        call = arguments(server, folder, "--concurrency", "2", "--duration", "150ms", "--repeats", "2", "--out", path)
        assert main(call) == 0
    capsys.readouterr()
    page, table = folder / "page.html", folder / "table.csv"
    assert main(["report", *paths, "--html", str(page), "--csv", str(table), "-v"]) == 0
    assert page.read_text().startswith("<!doctype html>")
    assert len(table.read_text().splitlines()) == 5
    assert "throughput   1/s: " in capsys.readouterr().out
    assert main(["compare", *paths]) == 0
    output = capsys.readouterr()
    assert "throughput 1/s" in output.out
    assert "not measured in turn" in output.err


def test_answers_are_held_to_what_is_expected(server: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "expected.json").write_text(json.dumps({"texts.txt:1": {"cat": 0.9}, "texts.txt:2": {"cow": 0.9}}))
    for expected, answers in ((str(folder / "expected.json"), {"right", "wrong"}), ("alone", {"right"})):
        out = folder / "run.json"
        call = arguments(server, folder, "--concurrency", "2", "--duration", "150ms", "-o", str(out))
        assert main([*call, "--expect", expected]) == 0
        step = json.loads(out.read_text())["steps"][0]
        assert step["answers"].keys() == answers
        assert ("WRONG ANSWERS: m, 2 clients" in capsys.readouterr().out) is ("wrong" in answers)


def test_answers_of_another_request_are_told_from_wrong_ones(folder: Path) -> None:
    waiting: list[tuple[str, asyncio.Future[str]]] = []

    async def answer(request: web.Request) -> web.Response:
        text = (await request.read()).decode()
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        waiting.append((text, future))
        if len(waiting) == 2:
            (first, one), (second, other) = waiting
            waiting.clear()
            one.set_result(second)
            other.set_result(first)
        async with asyncio.timeout(1):
            return web.json_response({await future: 0.9})

    (folder / "expected.json").write_text(json.dumps({"texts.txt:1": {"cat": 0.9}, "texts.txt:2": {"cup": 0.9}}))
    out = folder / "run.json"
    is_first = True

    async def echo_then_mix(request: web.Request) -> web.Response:
        # The first request is the one that asks whether the model answers at all.
        nonlocal is_first
        if is_first:
            is_first = False
            return web.json_response({})
        return await answer(request)

    with serving(echo_then_mix) as url:
        call = arguments(url, folder, "--concurrency", "2", "--requests", "20", "--timeout", "2s", "-o", str(out))
        assert main([*call, "--expect", str(folder / "expected.json")]) == 0
    answers = json.loads(out.read_text())["steps"][0]["answers"]
    assert answers["swapped"] >= 10
    assert "wrong" not in answers


def test_search_finds_the_highest_rate_that_keeps_the_threshold(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turn = asyncio.Lock()

    async def answer(_request: web.Request) -> web.Response:
        # One at a time, 10 ms each: no more than 100 a second.
        async with turn:
            await asyncio.sleep(0.01)
        return web.Response(text="{}")

    with serving(answer) as url:
        more = ("--rate", "20:220:40", "--request-distribution", "constant", "--duration", "700ms")
        assert main(arguments(url, folder, *more, "--binary-search", "-l", "60", "--percentile", "90")) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "m: highest load with 90 % of requests within 60 ms: 60/s constant"


def test_several_models_are_measured_in_turn_into_a_folder(folder: Path) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text="{}")

    with serving(answer, path="/predictions/{model}") as url:
        call = arguments(url, folder, "--model", "n", "--rate", "40", "--duration", "100ms", "--repeats", "2")
        assert main([*call, "--out", str(folder / "runs")]) == 0
    runs = [json.loads((folder / "runs" / name).read_text()) for name in ("m.json", "n.json")]
    started = {step["started_at"]: run["model"] for run in runs for step in run["steps"]}
    assert [started[moment] for moment in sorted(started)] == ["n", "m", "m", "n"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "give one of --concurrency, --rate, --request-intervals and --scenario"),
        (("--concurrency", "1", "--rate", "2"), "give one of"),
        (("--concurrency", "many"), "'many' is no range"),
        (("--concurrency", "1.5"), "not a whole number"),
        (("--scenario", "Server"), "needs --rate"),
        (("--rate", "1:9", "--binary-search"), "needs --latency-threshold"),
        (("--rate", "9", "--binary-search", "-l", "5"), "cannot be searched"),
        (("--concurrency", "1", "--input", "absent.jpg"), "cannot read absent.jpg"),
        (("--concurrency", "1", "--expect", "absent.json"), "cannot read absent.json"),
        (("--request-intervals", "absent.txt"), "cannot read absent.txt"),
        (("--concurrency", "1", "--model", "n", "--out", "run.json"), "name a folder"),
        (("--concurrency", "1", "--out", "/dev/null/run.json"), "cannot write /dev/null/run.json"),
        (("--concurrency", "1", "--html", "."), "cannot write .: it is a folder"),
        (
            ("--rate", "100,1000", "--duration", "2h", "--repeats", "2"),
            "some 15,840,110 requests take 3,0",
        ),
        (
            ("--concurrency", "1", "--requests", "20000", "--max-memory", "1MB"),
            "some 20,000 requests take 3.8 MB to record, --max-memory is 1.0 MB",
        ),
        (("--concurrency", "1", "--url", NOWHERE), f"nothing answers at {NOWHERE}: start the server"),
    ],
)
def test_call_that_makes_no_sense_is_one_line_and_exit_code_2(
    server: str, folder: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], words: str
) -> None:
    assert main(arguments(server, folder, *more)) == 2
    error = capsys.readouterr().err
    assert words in error
    assert (error.count("\n"), error[:6]) == (1, "load: ")


@pytest.mark.parametrize("call", [["report", "absent.json"], ["compare", "absent.json", "absent.json"]])
def test_stored_run_that_is_missing_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], call: list[str]
) -> None:
    assert main(call) == 2
    assert capsys.readouterr().err == "load: cannot read absent.json: No such file or directory\n"


def test_model_that_refuses_the_input_is_one_line_with_its_words(
    server: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(server, folder, "--concurrency", "1", "--input", str(folder / "bad.bin"))) == 2
    assert capsys.readouterr().err == (
        'load: a first request, bad.bin, was answered 415: {"code": 415, "message": "no image"}\n'
    )


@pytest.mark.parametrize(
    "flag",
    [("--duration", "soon"), ("--percentile", "101"), ("--repeats", "0"), ("-l", "nan"), ("--max-memory", "much")],
)
def test_flag_that_makes_no_sense_is_refused(server: str, folder: Path, flag: tuple[str, str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments(server, folder, "--concurrency", "1", *flag))


def test_interrupted_run_keeps_and_reports_what_was_measured(server: str, folder: Path) -> None:
    out = folder / "run.json"
    call = arguments(server, folder, "--concurrency", "2,4", "--duration", "60s", "--out", str(out))
    with subprocess.Popen(
        [sys.executable, "-m", "load", *call], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        # Long enough for Python to start and for the first answers.
        time.sleep(4)
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=20)
    assert process.returncode == 130
    (step,) = json.loads(out.read_text())["steps"]
    assert (step["is_valid"], step["invalid_reason"]) == (False, "ended early")
    assert step["status"]["200"] > 5
    assert "2 clients" in output
    assert "Traceback" not in error


def test_run_ends_where_its_memory_does_and_keeps_what_was_measured(
    server: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A closed loop's requests are known only when they are answered; one takes 135 bytes here.
    out = folder / "run.json"
    call = arguments(server, folder, "--concurrency", "4,8", "--duration", "60s", "--out", str(out))
    started_s = time.monotonic()
    assert main([*call, "--max-memory", "0.05MB"]) == 0
    assert time.monotonic() - started_s < 30
    (step,) = json.loads(out.read_text())["steps"]
    assert not step["is_valid"]
    assert "requests take as much memory as --max-memory allows" in step["invalid_reason"]
    assert 300 < step["requests"] < 450
    output = capsys.readouterr()
    assert "NOT VALID: m, 4 clients: cut short" in output.out
    assert "load: m, 8 clients: not measured: what was recorded before takes as much as --max" in output.err
