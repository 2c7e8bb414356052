"""The adaptive worker behind BatchHandler.handle, driven as TorchServe's frontend drives it."""

import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2

from deploy.models import ROOT
from handlers.base import RESPONSE_TIMEOUT_S
from handlers.batching.arrivals import LEAST_THREADS
from handlers.continuous.mode import claim
from handlers.errors import InvalidConfig
from handlers.protocol.wire import PROTOBUF
from tests.handlers.batching import gated
from tests.handlers.batching.frontend import Body, Field, Frontend
from tests.handlers.batching.gated import TIMEOUT_S, GatedHandler, Start, StreamedHandler, ThreadedHandler, write_list
from tests.handlers.protocol import test_grpc_inference
from tests.handlers.serving import Answer, Log, Patch, Temp, serve, started


@pytest.fixture(scope="module", params=[GatedHandler, ThreadedHandler, StreamedHandler])
def handler(request: pytest.FixtureRequest, tmp_path_factory: Temp) -> Any:
    return gated.start_handler(request.param, tmp_path_factory.mktemp("model"), {"max_groups": 2})


def result_of(answer: Any) -> Any:
    answer = answer if isinstance(answer, Answer) else answer.result(TIMEOUT_S)
    assert answer.status == 200, answer
    return answer.body


def test_many_clients_each_get_their_own_answer_once(handler: GatedHandler) -> None:
    def client(number: int) -> None:
        chosen = random.Random(number)
        for index in range(20):
            # Even, above the doubler's special numbers, and no other client's.
            values = [1000 + 200 * number + 2 * index + 60 * item for item in range(chosen.randint(1, 3))]
            assert result_of(frontend.send(write_list(*values))) == {"predictions": [2 * each for each in values]}
            time.sleep(chosen.choice([0, 0, 0.005]))

    with Frontend(handler, window=16) as frontend, ThreadPoolExecutor(12) as clients:
        list(clients.map(client, range(12)))
    assert handler.forgets()


BODIES = [
    *(b"2", b"3.5", b"", b"secret", b"bug", b"444", b"555", b"666", b"nan", b"{", b'{"number": 8}'),
    *(b"unpackable", b"unwritable"),
    b'{"instances": [{"number": 1}, {"number": "x"}, {"number": 666}, {}, {"number": 4}]}',
    *(b'{"instances": []}', write_list("x", 555), write_list(*range(10)), write_list(*range(11))),
    # Three groups, of which no number may run.
    write_list(101, 102, 103.5, "x"),
    b'{"inputs": [{"name": "number", "datatype": "FP32", "shape": [3, 1], "data": [1, 2, 666]}]}',
    b'{"inputs": [{"name": "number", "datatype": "INT64", "shape": [2], "data": [5, 6]}]}',
    b'{"inputs": [{"name": "number", "datatype": "INT64", "shape": [2], "data": []}]}',
]


def test_answers_are_classic_modes_and_nothing_is_kept(handler: GatedHandler, tmp_path: Path, caplog: Log) -> None:
    classic = started(GatedHandler(), tmp_path, {"max_batch_items": 8, "max_request_items": 10, "max_groups": 2})
    expected = [serve(classic, [body])[0][:2] for body in BODIES]
    assert sum(status == 200 for status, _ in expected) == 7
    threads = threading.active_count()
    with Frontend(handler) as frontend:
        for seed in range(8):
            order = random.Random(seed).sample(range(len(BODIES)), len(BODIES))
            answers = [frontend.submit(BODIES[index]) for index in order]
            for index, answer in zip(order, answers, strict=True):
                assert answer.result(TIMEOUT_S)[:2] == expected[index], BODIES[index]
    assert handler.forgets() and threading.active_count() <= threads + LEAST_THREADS
    assert not {101, 102, 103.5} & {number for batch in handler.module.batches for number in batch}
    # Not "666" alone: a metric's value or a time may contain it.
    assert not any(quoted in caplog.text for quoted in ("quotes its input", "a bug", "666.0", "b'666'"))


def test_requests_that_came_together_share_a_micro_batch(start: Start) -> None:
    handler = start()
    with Frontend(handler) as frontend:
        answers = frontend.send_together(b"2", b"4", b"6")
    assert [result_of(answer) for answer in answers] == [4, 8, 12]
    parts = [f"{name};dur=NUMBER, " for name in ("total", "decode", "wait", "forward", "encode")]
    timing = re.compile("".join(parts).replace("NUMBER", r"(\d+\.\d\d)") + 'batch;desc="3"')
    for answer in answers:
        match = timing.fullmatch(answer.headers["Server-Timing"])
        assert match is not None, answer
        total, *stages = map(float, match.groups())
        assert total >= max(1000 * gated.RUN_S, sum(stages) - 0.1)


def test_lone_request_has_the_whole_engine_and_two_run_side_by_side(start: Start) -> None:
    handler = start(StreamedHandler, streams=2)
    with Frontend(handler) as frontend:
        assert result_of(frontend.send(b"2")) == 4
        handler.gate.clear()
        together = frontend.submit_together([b"4", b"6"])
        handler.wait(running=2)
        third = frontend.submit(b"8")
        handler.wait(running=2, waiting=1)
        # A rollout waits for 0.
        assert frontend.send(b"", X_Model_Metadata="true").headers["X-In-Flight"] == "3"
        handler.gate.set()
        assert [*map(result_of, (*together, third))] == [8, 12, 16]
    assert (handler.whole.ran[2], {handler.whole.ran[4], handler.whole.ran[6]}) == ("whole", {"stream 0", "stream 1"})
    assert handler.forgets()


def number_by_header(number: float, priority: int = 0, timeout: int = 0) -> tuple[Body, dict[str, str]]:
    headers = {"X_Priority": str(priority)} if priority else {}
    return str(number).encode(), headers | ({"x_timeout_ms": str(timeout / 1000)} if timeout else {})


def number_by_grpc(number: float, **more: Any) -> tuple[Body, dict[str, str]]:
    message = test_grpc_inference.message(test_grpc_inference.tensor("x", np.array([number])), **more)
    return [Field("body", PROTOBUF, message)], {"content-type": PROTOBUF}


def number_by_json(number: float, **parameters: Any) -> tuple[Body, dict[str, str]]:
    tensor = {"name": "x", "datatype": "FP64", "shape": [1], "data": [number]}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode(), {}


@pytest.mark.parametrize("asking", [number_by_header, number_by_grpc, number_by_json])
def test_priorities_go_in_order_and_whose_time_is_up_is_504_at_once_and_never_run(start: Start, asking: Any) -> None:
    handler = start(settings={"max_batch_items": 1})
    with Frontend(handler) as frontend:
        handler.module.batches.clear()
        handler.gate.clear()
        busy = frontend.submit(b"0")
        handler.wait()
        asked = [asking(30, priority=3), asking(40, timeout=150_000), b"20"]
        asked += [asking(10, priority=1, timeout=50_000_000), asking(50, priority=4)]
        answers = frontend.submit_together(asked)
        late, wrong = answers[1].result(TIMEOUT_S), answers[4].result(TIMEOUT_S)
        assert not busy.done()
        handler.gate.set()
        first, last = answers[3].result(TIMEOUT_S), answers[0].result(TIMEOUT_S)
        assert [answer.status for answer in (first, last, late, wrong)] == [200, 200, 504, 400]
    assert handler.module.batches == [[0], [10], [20], [30]] and "Retry-After" not in late.headers
    if asking is number_by_grpc:
        assert triton.InferResult(service_pb2.ModelInferResponse.FromString(first.body)).as_numpy("result") == [b"20.0"]
        assert [answer.headers["X-Grpc-Status"] for answer in (late, wrong)] == ["4", "3"]
        assert wrong.headers["X-Grpc-Message"].startswith("priority must be a whole number from 1 (first) to 3")
    elif asking is number_by_json:
        assert late.body == {"error": "The request reached its queue timeout and was not run; retry later."}
    else:
        assert (late.body["type"], wrong.body["type"]) == ("QueueTimeout", "InvalidPriority")
    assert handler.forgets()


def test_timeout_is_noticed_during_a_micro_batch_without_a_target(start: Start) -> None:
    handler = start(settings={"max_batch_items": 1}, latency_target_ms=None, queue_timeout_ms=None)
    with Frontend(handler) as frontend:
        frontend.send_together(b"2", b"4")  # the worker has seen how little an exchange costs
        handler.module.batches.clear()
        handler.gate.clear()
        busy, waiting = frontend.submit_together([b"0", b"30"])  # the exchange thread may run a single one itself
        handler.wait(waiting=1)
        late = frontend.submit(b"40", X_Timeout_Ms="100").result(TIMEOUT_S)
        assert ((late.status, late.body["type"]), busy.done()) == ((504, "QueueTimeout"), False)
        handler.gate.set()
        assert [*map(result_of, (busy, waiting))] == [0, 60]
    assert handler.module.batches == [[0], [30]] and handler.forgets()


def test_run_that_is_slower_than_predicted_keeps_the_exchange_thread_only_once(start: Start) -> None:
    handler = start(settings={"max_batch_items": 1}, took=((1, 1e-4), (8, 1e-4)), latency_target_ms=None)
    forward, threads = handler.forward, list[str]()

    def slow(inputs: Any, items: Any) -> Any:
        threads.append(threading.current_thread().name)
        time.sleep(0.06)  # more than HOLD_S: the model's own time, not a wait for something
        return forward(inputs, items)

    handler.forward = slow
    with Frontend(handler) as frontend:
        for number in (b"2", b"4", b"6"):
            assert frontend.send(number).status == 200
    assert [name == "worker" for name in threads] == [True, False, False]


@pytest.mark.parametrize("status", [503, 429])
def test_full_queue_rejects_with_the_configured_status(start: Start, status: int) -> None:
    handler = start(max_queue_items=3, overload_status=status)
    with Frontend(handler) as frontend:
        *answers, full, by_grpc = frontend.send_together(b"2", b"4", b"6", b"8", number_by_grpc(10))
        assert [result_of(answer) for answer in answers] == [4, 8, 12]
        assert (full.status, full.body["code"], full.body["type"]) == (status, status, "QueueFull"), full
        assert full.headers["content-type"] == "application/json"
        # The same twice, in whole seconds and finer.
        seconds, milliseconds = (int(full.headers[name]) for name in ("Retry-After", "Retry-After-Ms"))
        assert 1000 * (seconds - 1) < milliseconds <= 1000 * seconds
        assert full.body["message"] == by_grpc.headers["X-Grpc-Message"] == "3 items wait; max_queue_items is 3."
        code = {429: "8", 503: "14"}[status]
        assert (by_grpc.status, by_grpc.body, by_grpc.headers["X-Grpc-Status"]) == (status, b"", code)
        assert result_of(frontend.send(b"12")) == 24
    assert handler.forgets()


def test_idle_worker_makes_no_exchange_and_costs_no_processor_time(start: Start) -> None:
    handler = start()
    handler.service.reporter.stop()
    with Frontend(handler) as frontend:
        for number in range(20):
            frontend.send(str(number).encode())
        exchanges, cpu_s = frontend.exchanges, time.process_time()
        time.sleep(0.2)
        # A thread that turns in circles takes all of it.
        assert time.process_time() - cpu_s < 0.1 and frontend.exchanges == exchanges


@pytest.mark.parametrize("hook", ["decode", "forward", "split", "stuck"])
def test_uncaught_bug_or_stuck_engine_ends_the_worker(start: Start, hook: str, monkeypatch: Patch, caplog: Log) -> None:
    """On a decode thread, an engine thread and the frontend's thread."""

    first = threading.Lock()

    def fails(*_: Any) -> Any:
        # No step catches the first. A second one on another thread could end the process of the tests, after this one.
        raise GeneratorExit if first.acquire(blocking=False) else ValueError

    is_dead = threading.Event()
    monkeypatch.setattr("handlers.batching.guard.os._exit", lambda _: is_dead.set())
    # TorchServe itself does not notice a stuck one while it is asked for new requests.
    monkeypatch.setattr("handlers.base.RESPONSE_TIMEOUT_S", 0.2 if hook == "stuck" else RESPONSE_TIMEOUT_S)
    handler = start(ThreadedHandler)
    if hook == "stuck":
        handler.gate.clear()
    else:
        monkeypatch.setattr(handler, hook, fails)
    frontend = Frontend(handler).__enter__()
    frontend.submit(write_list(2, 4))
    assert is_dead.wait(TIMEOUT_S)
    assert " failed: Stuck" in caplog.text if hook == "stuck" else " failed: GeneratorExit < fails" in caplog.text
    frontend.abandon()
    handler.gate.set()
    # The micro-batch that died counts as running: once `os._exit` is real again, it would end the process of the tests.
    handler.service.core.close()
    frontend.end()


def test_metrics_say_what_was_rejected_missed_and_exchanged(start: Start) -> None:
    handler = start(settings={"max_batch_items": 1}, max_queue_items=3)
    handler.service.reporter.stop()
    with Frontend(handler) as frontend:
        handler.gate.clear()
        busy = frontend.submit(b"0", x_timeout_ms="1000")  # it begins in time, on a machine that stalls
        handler.wait()
        requests = [(b"2", {"x_timeout_ms": "1000"}), (b"4", {}), (b"6", {}), (b"8", {"x_timeout_ms": "0.01"})]
        late, fine, *rejected = frontend.submit_together(requests)
        assert late.result(TIMEOUT_S).status == 504
        handler.gate.set()
        assert [each.result(TIMEOUT_S).status for each in (busy, fine, *rejected)] == [200, 200, 200, 503]
    totals = Counter[str]()
    for each in handler.service.reporter.recorder.drain():
        totals[" ".join([each.counter.name.removeprefix("handler_"), *each.labels])] += each.value
    counted = {"rejections_total QueueTimeout": 1, "rejections_total QueueFull": 1, "deadline_misses_total": 2}
    counted |= {"requests_total success": 3, "requests_total fail": 2, "executions_total 1": 3}
    counted |= {"micro_batches_total alone": 2, "micro_batches_total full": 1}
    counted |= dict.fromkeys(("queue_depth_count", "forward_prediction_ratio_count", "engine_wait_seconds_count"), 3)
    assert {name: totals[name] for name in counted} == counted and totals["exchanges_total"] >= 1
    # One request waited at the gate, and two in the queue.
    assert all(totals[name] > 0.1 for name in ("engine_busy_seconds_total", "worker_wait_seconds_total"))


OTHER = """
import sys
from handlers.continuous.mode import claim
claim(sys.argv[1], 0.0)
print("claimed", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
def test_name_that_another_process_has_is_rejected_and_is_free_when_that_has_ended(monkeypatch: Patch) -> None:
    claims: dict[str, socket.socket] = {}
    monkeypatch.setattr("handlers.continuous.mode._claims", claims)
    name, pipe = f"test {os.getpid()} m 1.0", subprocess.PIPE
    command = [sys.executable, "-c", OTHER, name]
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "claimed\n"
        with pytest.raises(InvalidConfig, match="another worker serves this model"):
            claim(name, 0.0)
        claim(f"{name}-other{128 * 'x'}", 0.0)  # a model may have a name of 128 characters
        process.kill()
    claim(name, 60.0)
    claim(name, 0.0)
    for each in claims.values():
        each.close()
