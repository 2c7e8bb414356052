"""The adaptive worker behind BatchHandler.handle, driven as TorchServe's frontend drives it."""

import json
import logging
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2

from handlers.adaptive.arrivals import Arrivals
from handlers.adaptive.decoder import LARGE_BYTES, LEAST_THREADS, Decoder
from handlers.adaptive.fail_fast import Guard
from handlers.adaptive.response_timing import ResponseTiming
from handlers.adaptive.worker import AdaptiveWorker
from handlers.config import HandlerConfig
from handlers.engines import Engine
from handlers.errors import InvalidConfig
from handlers.metrics import Recorder
from handlers.pipeline.warm_up import Rehearsal
from handlers.protocol.grpc_status import PROTOBUF
from handlers.protocol.requests import Request
from handlers.scheduling.latency_model import LatencyModel
from handlers.scheduling.policy import Policy
from handlers.scheduling.scheduler import Scheduler
from handlers.scheduling.streams import Streams
from tests.handlers.adaptive.frontend import Body, Field, Frontend
from tests.handlers.adaptive.gated import (
    RUN_S,
    SCHEDULING,
    TIMEOUT_S,
    GatedHandler,
    StreamedHandler,
    ThreadedHandler,
    started,
    wait_for,
)
from tests.handlers.protocol import test_grpc_inference
from tests.handlers.serving import Answer, context, serve

# Threads that wait for each other in real time.

Start = Callable[..., GatedHandler]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a handler with a scheduling section; its gates are opened in the end."""
    handlers: list[GatedHandler] = []

    def make(kind: type[GatedHandler] = GatedHandler, **scheduling: Any) -> GatedHandler:
        handlers.append(started(kind, tmp_path, **scheduling))
        return handlers[-1]

    yield make
    for handler in handlers:
        handler.gate.set()
        handler.slow_gate.set()


@pytest.fixture(scope="module", params=[GatedHandler, ThreadedHandler, StreamedHandler])
def handler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GatedHandler:
    return started(request.param, tmp_path_factory.mktemp("model"))


def result_of(answer: Answer) -> Any:
    assert answer.status == 200, answer
    return answer.body


# -- answers ---------------------------------------------------------------------------------------------------------


def test_adaptive_metadata_is_answered_while_the_engine_is_busy_and_counts_for_nobody(start: Start) -> None:
    handler = start(max_queue_items=1)
    with Frontend(handler) as frontend:
        handler.gate.clear()
        busy = frontend.submit(b"2")
        wait_for(lambda: handler.worker.state.running_batches == 1)
        waiting = frontend.submit(b"4")
        wait_for(lambda: handler.worker.state.waiting_items == 1)
        asked = [frontend.submit(b"", X_Model_Metadata="1").result(TIMEOUT_S) for _ in range(3)]
        assert not busy.done()
        handler.gate.set()
        assert [result_of(each.result(TIMEOUT_S)) for each in (busy, waiting)] == [4.0, 8.0]
    assert {answer.status for answer in asked} == {200}
    assert asked[0].body["mode"] == "adaptive"
    assert asked[0].body["inputs"] == [{"name": "number", "datatype": "BYTES", "shape": [-1, 1]}]


def test_adaptive_many_clients_each_get_their_own_answer_once(handler: GatedHandler) -> None:
    with Frontend(handler, window=16) as frontend:

        def client(number: int) -> None:
            chosen = random.Random(number)
            for index in range(30):
                # Even, above the doubler's special numbers, and nobody else's.
                values = [1000 + 200 * number + 2 * index + 60 * item for item in range(chosen.randint(1, 3))]
                if len(values) == 1:
                    assert result_of(frontend.send(str(values[0]).encode())) == 2 * values[0]
                else:
                    body = json.dumps({"instances": [{"number": value} for value in values]}).encode()
                    assert result_of(frontend.send(body)) == {"predictions": [2 * value for value in values]}
                time.sleep(chosen.choice([0, 0, 0.01]))

        with ThreadPoolExecutor(12) as clients:
            list(clients.map(client, range(12)))
    assert handler.forgets()


BODIES = [
    b"2",
    b"3.5",
    b"",
    b"secret",
    b"bug",
    b"444",
    b"555",
    b"666",
    b"nan",
    b"{",
    b'{"number": 8}',
    b'{"instances": []}',
    b'{"instances": [{"number": 1}, {"number": "x"}, {"number": 666}, {}, {"number": 4}]}',
    b'{"instances": [{"number": "x"}, {"number": 555}]}',
    json.dumps({"instances": [{"number": number} for number in range(10)]}).encode(),
    json.dumps({"instances": [{"number": number} for number in range(11)]}).encode(),
    b'{"inputs": [{"name": "number", "datatype": "FP32", "shape": [3, 1], "data": [1, 2, 666]}]}',
    b'{"inputs": [{"name": "number", "datatype": "INT64", "shape": [2], "data": [5, 6]}]}',
    b'{"inputs": [{"name": "number", "datatype": "INT64", "shape": [2], "data": []}]}',
]


def test_adaptive_and_classic_give_the_same_answers_in_any_order(handler: GatedHandler, tmp_path: Path) -> None:
    classic = GatedHandler()
    classic.worker_context = context(tmp_path, {"max_items": 8, "max_instances": 10})
    classic.initialize(classic.worker_context)
    expected = [serve(classic, [body])[0][:2] for body in BODIES]
    assert sum(status == 200 for status, _ in expected) == 7
    with Frontend(handler) as frontend:
        for seed in range(4):
            order = random.Random(seed).sample(range(len(BODIES)), len(BODIES))
            answers = [frontend.submit(BODIES[index]) for index in order]
            for index, answer in zip(order, answers, strict=True):
                assert answer.result(TIMEOUT_S)[:2] == expected[index], BODIES[index]


def test_adaptive_requests_that_came_together_share_a_micro_batch(start: Start) -> None:
    handler = start()
    with Frontend(handler) as frontend:
        answers = [a.result(TIMEOUT_S) for a in frontend.submit_together([(b"2", {}), (b"4", {}), (b"6", {})])]
    assert [result_of(answer) for answer in answers] == [4, 8, 12]
    for answer in answers:
        number = r"dur=(\d+\.\d\d)"
        parts = f'total;{number}, decode;{number}, wait;{number}, forward;{number}, encode;{number}, batch;desc="3"'
        match = re.fullmatch(parts, answer.headers["Server-Timing"])
        assert match is not None, answer
        total, *stages = (float(duration) for duration in match.groups())
        assert total >= 1000 * RUN_S
        assert total >= sum(stages) - 0.1


def test_adaptive_lone_request_has_the_whole_engine_and_two_run_side_by_side(start: Start) -> None:
    handler = start(StreamedHandler, streams=2)
    assert isinstance(handler, StreamedHandler)
    with Frontend(handler) as frontend:
        assert result_of(frontend.send(b"2")) == 4
        handler.gate.clear()
        together = frontend.submit_together([(b"4", {}), (b"6", {})])
        deadline = time.monotonic() + TIMEOUT_S
        while handler.worker.state.running_batches < 2:
            assert time.monotonic() < deadline, "one waits for the other"
            time.sleep(0.001)
        # With both streams busy the next one waits.
        third = frontend.submit(b"8")
        time.sleep(0.05)
        assert handler.worker.state.running_batches == 2
        handler.gate.set()
        assert [result_of(answer.result(TIMEOUT_S)) for answer in (*together, third)] == [8, 12, 16]
    assert handler.whole.ran[2] == "whole"
    assert {handler.whole.ran[4], handler.whole.ran[6]} == {"stream 0", "stream 1"}
    assert handler.forgets()


def test_adaptive_with_streams_of_one_runs_one_micro_batch_at_a_time(start: Start) -> None:
    handler = start(StreamedHandler, streams=1)
    assert isinstance(handler, StreamedHandler)
    with Frontend(handler) as frontend:
        submitted = [frontend.submit(str(number).encode()) for number in range(20)]
        answers = [answer.result(TIMEOUT_S) for answer in submitted]
    assert [result_of(answer) for answer in answers] == [2 * number for number in range(20)]
    assert set(handler.whole.ran.values()) == {"whole"}


def test_adaptive_slow_decoding_delays_nobody_else(start: Start) -> None:
    handler = start()
    handler.slow_gate.clear()
    with Frontend(handler) as frontend:
        # Large, so that it has a thread of its own.
        slow = frontend.submit(b"slow" + b"21".rjust(LARGE_BYTES))
        for number in range(10):
            assert result_of(frontend.send(str(number).encode())) == 2 * number
        with pytest.raises(NotYet):
            slow.result(0)
        handler.slow_gate.set()
        assert result_of(slow.result(TIMEOUT_S)) == 42
    assert handler.forgets()


def test_adaptive_item_at_fault_costs_the_others_of_its_micro_batch_nothing_but_time(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    handler = start()
    with Frontend(handler) as frontend:
        bodies = [b"2", b"4", b"666", b"8", b'{"instances": [{"number": 10}, {"number": 666}]}']
        answers = [a.result(TIMEOUT_S) for a in frontend.submit_together([(body, {}) for body in bodies])]
    assert [answer.status for answer in answers] == [200, 200, 500, 200, 200]
    assert [answers[index].body for index in (0, 1, 3)] == [4, 8, 16]
    assert answers[4].body["predictions"][0] == 20
    assert answers[4].body["predictions"][1]["error"]["type"] == "InternalError"
    # Not "666" alone: a metric's value or a time may contain it.
    assert not any(quoted in caplog.text for quoted in ("quotes its input", "666.0", "b'666'"))


# -- order and refusals ----------------------------------------------------------------------------------------------


def behind_a_running_batch(
    handler: GatedHandler, frontend: Frontend, *requests: tuple[Body, dict[str, str]]
) -> list[Answer]:
    """Answers of requests that came while the engine stands at the gate with another; it opens after 0.4 s."""
    handler.gate.clear()
    first, *others = frontend.submit_together([(b"0", {"x_priority": "1", "x_timeout_ms": "4000"}), *requests])
    time.sleep(0.4)
    handler.gate.set()
    assert result_of(first.result(TIMEOUT_S)) == 0
    return [other.result(TIMEOUT_S) for other in others]


def test_adaptive_priorities_go_in_their_order(start: Start) -> None:
    handler = start(max_batch_items=1)
    with Frontend(handler) as frontend:
        handler.module.batches.clear()
        behind_a_running_batch(
            handler, frontend, (b"30", {"X_Priority": "3"}), (b"20", {}), (b"10", {"x_priority": "1"})
        )
    assert handler.module.batches == [[0], [10], [20], [30]]


def assert_refused(answer: Answer, status: int, type_: str) -> None:
    assert (answer.status, answer.body["code"], answer.body["type"]) == (status, status, type_), answer
    assert answer.headers["content-type"] == "application/json"
    if type_ == "QueueTimeout":
        assert "Retry-After" not in answer.headers
    else:
        # The same twice, in whole seconds and finer.
        seconds, milliseconds = int(answer.headers["Retry-After"]), int(answer.headers["Retry-After-Ms"])
        assert seconds >= 1
        assert 1000 * (seconds - 1) < milliseconds <= 1000 * seconds


@pytest.mark.parametrize("status", [503, 429])
def test_adaptive_queue_that_is_full_refuses_with_the_configured_status(start: Start, status: int) -> None:
    handler = start(max_queue_items=3, overload_status=status)
    with Frontend(handler) as frontend:
        answers = [
            answer.result(TIMEOUT_S)
            for answer in frontend.submit_together([(str(number).encode(), {}) for number in (2, 4, 6, 8, 10)])
        ]
        assert [result_of(answer) for answer in answers[:3]] == [4, 8, 12]
        for answer in answers[3:]:
            assert_refused(answer, status, "QueueFull")
            assert answer.body["message"] == "3 items wait; max_queue_items is 3."
        assert result_of(frontend.send(b"12")) == 24
    assert handler.forgets()


class ReadingHandler(GatedHandler):
    """Keeps the bodies that it was given to unpack."""

    def load(self) -> Engine:
        self.unpacked: list[bytes] = []
        return super().load()

    def unpack(self, row: Any, headers: Any) -> Request:
        self.unpacked.append(bytes(row["body"]))
        return super().unpack(row, headers)


def test_adaptive_refused_body_that_is_one_item_is_not_read(start: Start) -> None:
    handler = start(ReadingHandler, max_queue_items=1)
    assert isinstance(handler, ReadingHandler)

    def text(number: int, **headers: str) -> tuple[Body, dict[str, str]]:
        return [Field("body", "text/plain; charset=utf-8", str(number).encode())], headers

    with Frontend(handler) as frontend:
        handler.gate.clear()
        busy = frontend.submit(b"2")
        wait_for(lambda: handler.worker.state.running_batches == 1)
        waiting = frontend.submit(b"4")
        wait_for(lambda: handler.worker.state.waiting_items == 1)
        # The first is read: only then is it known that there is no room.
        refused = frontend.submit_together([text(6), text(8), text(10, X_Priority="x"), (b"12", {}), text(14)])
        refused += frontend.submit_together([text(16, X_Model_Metadata="1")])
        answers = [answer.result(TIMEOUT_S) for answer in refused]
        handler.gate.set()
        assert [result_of(each.result(TIMEOUT_S)) for each in (busy, waiting)] == [4.0, 8.0]
        for answer in (*answers[:2], answers[3], answers[4]):
            assert_refused(answer, 503, "QueueFull")
            assert answer.body["message"] == "1 items wait; max_queue_items is 1."
        assert [answer.status for answer in answers[2::3]] == [400, 200]
        assert result_of(frontend.submit_together([text(18)])[0].result(TIMEOUT_S)) == 36
    assert handler.unpacked == [b"2", b"4", b"6", b"10", b"12", b"18"]
    assert handler.forgets()


def test_adaptive_request_that_allows_less_than_a_micro_batch_takes_is_refused_at_once(start: Start) -> None:
    handler = start()
    with Frontend(handler) as frontend:
        handler.module.batches.clear()
        answer = frontend.send(b"2", X_Timeout_Ms="1")
    assert_refused(answer, 503, "Overloaded")
    assert answer.body["message"].endswith("the request allows 1.")
    assert handler.module.batches == []


def test_adaptive_request_whose_time_is_up_in_the_queue_is_answered_504_and_never_run(start: Start) -> None:
    handler = start(max_batch_items=1)
    with Frontend(handler) as frontend:
        handler.module.batches.clear()
        late, fine = behind_a_running_batch(handler, frontend, (b"2", {"x_timeout_ms": "300"}), (b"4", {}))
    assert_refused(late, 504, "QueueTimeout")
    assert result_of(fine) == 8
    assert handler.module.batches == [[0], [4]]
    assert handler.forgets()


def numbers_by_grpc(number: float, **more: Any) -> tuple[list[Field], dict[str, str]]:
    """A request as the gateway's bridge makes one."""
    message = test_grpc_inference.message(test_grpc_inference.tensor("x", np.array([number])), **more)
    return [Field("body", PROTOBUF, message)], {"content-type": PROTOBUF}


def numbers_by_json(number: float, **parameters: Any) -> tuple[bytes, dict[str, str]]:
    tensor = {"name": "x", "datatype": "FP64", "shape": [1], "data": [number]}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode(), {}


@pytest.mark.parametrize("asking", [numbers_by_grpc, numbers_by_json])
def test_adaptive_parameters_of_the_protocol_act_as_the_headers_do(start: Start, asking: Any) -> None:
    handler = start(max_batch_items=1)
    with Frontend(handler) as frontend:
        handler.module.batches.clear()
        last, late, _, first, wrong = behind_a_running_batch(
            handler,
            frontend,
            asking(30, priority=3),
            asking(40, timeout=300_000),
            (b"20", {}),
            asking(10, priority=1, timeout=4_000_000),
            asking(50, priority=4),
        )
    assert handler.module.batches == [[0], [10], [20], [30]]
    assert [answer.status for answer in (first, last, late, wrong)] == [200, 200, 504, 400]
    if asking is numbers_by_grpc:
        assert triton.InferResult(service_pb2.ModelInferResponse.FromString(first.body)).as_numpy("result") == [b"20.0"]
        assert [answer.headers["X-Grpc-Status"] for answer in (late, wrong)] == ["4", "3"]
        assert wrong.headers["X-Grpc-Message"].startswith("priority must be a whole number from 1 (first) to 3")
    else:
        assert late.body == {"error": "The request waited longer than it may; no work was spent on it."}


def test_adaptive_grpc_request_that_is_refused_is_unavailable(start: Start) -> None:
    handler = start(max_queue_items=1)
    with Frontend(handler) as frontend:
        requests = [numbers_by_grpc(number) for number in (2, 4)]
        taken, refused = [answer.result(TIMEOUT_S) for answer in frontend.submit_together(requests)]
    assert (taken.status, refused.status, refused.body) == (200, 503, b"")
    assert refused.headers["X-Grpc-Status"] == "14"
    assert refused.headers["X-Grpc-Message"] == "1 items wait; max_queue_items is 1."
    assert int(refused.headers["Retry-After"]) >= 1


def test_adaptive_request_whose_time_is_up_is_run_last_where_that_is_configured(start: Start) -> None:
    handler = start(max_batch_items=1, timeout_action="delay")
    with Frontend(handler) as frontend:
        handler.module.batches.clear()
        late, fine = behind_a_running_batch(handler, frontend, (b"2", {"x_timeout_ms": "300"}), (b"4", {}))
    assert [result_of(late), result_of(fine)] == [4, 8]
    assert handler.module.batches == [[0], [4], [2]]


@pytest.mark.parametrize(
    ("headers", "type_"),
    [
        ({"X_Priority": "4"}, "InvalidPriority"),
        ({"x_priority": "000000001" * 600}, "InvalidPriority"),
        ({"X_Timeout_Ms": "soon"}, "InvalidTimeout"),
    ],
)
def test_adaptive_headers_that_are_wrong_fail_their_request_alone(
    handler: GatedHandler, headers: dict[str, str], type_: str
) -> None:
    with Frontend(handler) as frontend:
        good, bad = frontend.submit_together([(b"2", {"x_priority": "1"}), (b"4", headers)])
        assert result_of(good.result(TIMEOUT_S)) == 4
        assert (bad.result(TIMEOUT_S).status, bad.result(TIMEOUT_S).body["type"]) == (400, type_)
    assert handler.forgets()


# -- what must not go wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"unpackable", b"unwritable"])
def test_adaptive_request_that_meets_a_bug_fails_alone(
    start: Start, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    handler = start(max_batch_items=1)
    with Frontend(handler) as frontend:
        answers = frontend.submit_together([(b"4", {}), (body, {}), *((b"6", {}) for _ in range(20))])
        first, bad, *others = (answer.result(TIMEOUT_S) for answer in answers)
        assert [result_of(answer) for answer in (first, *others)] == [8, *[12] * 20]
        assert (bad.status, bad.body["type"]) == (500, "InternalError")
    assert handler.forgets()
    assert "LookupError" in caplog.text
    assert "a bug" not in caplog.text


def test_adaptive_worker_whose_frontend_is_gone_ends(start: Start) -> None:
    handler = start()
    frontend = Frontend(handler)
    with frontend:
        assert result_of(frontend.send(b"2")) == 4
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs, pytest.raises(SystemExit) as raised:
        handler.worker.serve(theirs)
    assert raised.value.code == 0


def test_adaptive_idle_worker_costs_no_processor_time(start: Start) -> None:
    handler = start()
    with Frontend(handler) as frontend:
        for number in range(20):
            frontend.send(str(number).encode())
        handler.reporter.report()
        # The metrics of the last second are sent once.
        time.sleep(1.2)
        exchanges, cpu_s = frontend.exchanges, time.process_time()
        time.sleep(1)
        assert time.process_time() - cpu_s < 0.03
        assert frontend.exchanges == exchanges


def test_adaptive_lone_client_costs_about_an_exchange_a_request(start: Start) -> None:
    handler = start()
    with Frontend(handler) as frontend:
        for number in range(40):
            frontend.send(str(number).encode())
        # And a fetch in every eighth micro-batch or so, in vain.
        assert 40 <= frontend.exchanges <= 60


def test_adaptive_after_two_thousand_requests_keeps_nothing_of_them(handler: GatedHandler) -> None:
    threads = threading.active_count()
    with Frontend(handler) as frontend:
        bodies = [b"%d" % number if number % 50 else BODIES[number // 50 % len(BODIES)] for number in range(400)]
        answers = [frontend.submit(body) for _ in range(5) for body in bodies]
        statuses = [answer.result(60).status for answer in answers]
    assert statuses.count(200) > 1900
    assert handler.forgets()
    assert threading.active_count() <= threads + LEAST_THREADS


def test_adaptive_metrics_say_what_was_refused_missed_and_exchanged(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    # Others' metrics come between, of handlers that tests before have started.
    handler = start(max_batch_items=1, max_queue_items=3, version="counted")
    handler.reporter.stop()
    with caplog.at_level(logging.INFO, "ts.metrics"), Frontend(handler) as frontend:
        caplog.clear()
        requests = [(b"2", {"x_timeout_ms": "300"}), (b"4", {}), (b"6", {}), (b"8", {"x_timeout_ms": "1"})]
        started_s = time.perf_counter()
        answers = behind_a_running_batch(handler, frontend, *requests)
        elapsed_s = time.perf_counter() - started_s
        assert [answer.status for answer in answers] == [504, 200, 503, 503]
        handler.reporter.report()
    pattern = re.compile(r"\[METRICS\](handler_\w+)\.Count:([\d.e+-]+)\|#([^|]*)\|")
    totals: dict[str, float] = {}
    for record in caplog.records:
        match = pattern.search(record.getMessage())
        if match and "ModelVersion:counted" in match[3]:
            name, value, labels = match.groups()
            series = name + "".join(re.findall(r"(?:Reason|Outcome|Size):(\w+)", labels))
            totals[series] = totals.get(series, 0) + float(value)
    assert totals["handler_refusals_totalQueueTimeout"] == 1
    assert totals["handler_refusals_totalQueueFull"] == 2
    # The engine stands at the gate for 0.4 s at least, and longer only where everything takes longer.
    assert 0.3 <= totals["handler_engine_busy_seconds_total"] <= elapsed_s
    assert totals["handler_exchanges_total"] >= 1
    assert totals["handler_queue_depth_count"] == totals["handler_forward_prediction_ratio_count"] == 2
    assert totals["handler_deadline_misses_total"] == 1
    assert (totals["handler_requests_totalsuccess"], totals["handler_requests_totalfail"]) == (2, 3)
    assert totals["handler_executions_total1"] == totals["handler_wait_seconds_count"] == 2
    # One stood at the gate; the other, behind it, in the queue, and is as much longer in its request's time.
    assert 0.3 <= totals["handler_queue_seconds_total"] <= 2 * elapsed_s
    assert 0.6 <= totals["handler_request_seconds_totalsuccess"] <= 2 * elapsed_s
    assert 0.3 <= totals["handler_execution_seconds_total1"] <= elapsed_s


class Bug(BaseException):
    """Worse than what anybody catches."""


class BuggyScheduler(Scheduler):
    """Fails on the engine's thread."""

    def finish(self, *_: Any, **__: Any) -> None:
        raise Bug


class BuggyRunner:
    """Fails on a decoding thread, otherwise a handler's runner."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def price(self, slots: Any) -> Any:
        raise Bug

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


@pytest.mark.parametrize(("where", "thread"), [("engine", "engine"), ("decoding", "decode")])
def test_adaptive_bug_on_a_thread_of_its_own_ends_the_worker(
    start: Start, where: str, thread: str, caplog: pytest.LogCaptureFixture
) -> None:
    handler = start()
    is_dead = threading.Event()
    guard = Guard(die=is_dead.set)
    kind = BuggyScheduler if where == "engine" else Scheduler
    runner = handler.runner if where == "engine" else BuggyRunner(handler.runner)
    scheduler = kind(Policy(max_latency_s=1, max_items=8), Streams(LatencyModel()))
    recorder = Recorder()
    handler.worker = AdaptiveWorker(
        handler.runner,
        [handler.runner],
        scheduler,
        rehearsals=[Rehearsal([], list, 0)],
        arrivals=Arrivals(scheduler, recorder, HandlerConfig()),
        decoder=Decoder(runner, guard, threads=1, is_threaded=True),  # type: ignore[arg-type]
        timing=ResponseTiming(8, 0.1),
        recorder=recorder,
        wake=lambda: None,
        guard=guard,
    )
    # Not as a context: its request is never answered.
    frontend = Frontend(handler)
    frontend.start()
    frontend.submit(b"2")
    assert is_dead.wait(TIMEOUT_S)
    assert f"The worker's thread {thread} failed: Bug" in caplog.text
    frontend.abandon()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, ["continuousBatching: true"]),
        ({"continuousBatching": True, "asyncCommunication": True}, ["asyncCommunication"]),
        ({"continuousBatching": True, "maxWorkers": 2}, ["maxWorkers must be 1"]),
        ({"asyncCommunication": True, "maxWorkers": 4}, ["continuousBatching", "asyncCommunication", "maxWorkers"]),
    ],
)
def test_adaptive_archive_that_torchserve_could_not_serve_so_does_not_load(
    tmp_path: Path, settings: dict[str, Any], words: list[str]
) -> None:
    ctx = context(tmp_path, {"scheduling": SCHEDULING})
    ctx.model_yaml_config.update(settings)
    with pytest.raises(InvalidConfig) as raised:
        GatedHandler().initialize(ctx)
    for word in words:
        assert word in str(raised.value)
