"""One batch through `handle`: every row gets its own answer or error, and no other client's data."""

import gc
import json
import re
import socket
import time
import traceback
import weakref
from contextlib import nullcontext
from importlib import reload
from inspect import cleandoc
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from handlers import base, torchserve
from handlers.archive_files import CONFIG
from handlers.base import BatchHandler
from handlers.batching import trial
from handlers.engines.function import FunctionEngine
from handlers.errors import InvalidConfig, OutOfTime
from handlers.metrics import REQUEST
from handlers.pipeline.jobs import Slot
from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.response_headers import server_timing
from handlers.pipeline.task import Hooks, inputs_of
from handlers.pipeline.values import Inputs
from handlers.protocol.requests import Payload, Request
from handlers.torchserve import BaseHandler
from tests.handlers.batching.frontend import Frontend
from tests.handlers.cpu_graphs import GPU, use_cpu_graphs
from tests.handlers.protocol.test_grpc_inference import HEADERS
from tests.handlers.serving import Answer, DoublingHandler, Log, Patch, Temp, context, serve, started, write_build


@pytest.fixture(scope="module", params=["eager", "graphs"])
def handler(request: pytest.FixtureRequest, tmp_path_factory: Temp) -> DoublingHandler:
    settings = {"max_batch_items": 4, "max_request_items": 10, "precision": "fp32"}
    with pytest.MonkeyPatch.context() as graphs:
        recorder = use_cpu_graphs(graphs) if request.param == "graphs" else None
        ready = DoublingHandler()
        ready.worker_context = context(tmp_path_factory.mktemp("model"), settings)
        ready.worker_context.manifest = {"model": {"modelVersion": "1.0"}}
        ready.initialize(ready.worker_context)
    assert recorder is None or (recorder.recorded, inputs_of(ready).overhead.sizes) == (3, (1, 2, 4))
    return ready


def listed(*numbers: Any) -> bytes:
    return json.dumps({"instances": [{"number": number} for number in numbers]}).encode()


def statuses(answers: list[Answer]) -> list[int]:
    return [answer.status for answer in answers]


def tensors(*numbers: float, count: int) -> bytes:
    inputs = [{"name": "number", "datatype": "FP64", "shape": [count, 1], "data": numbers}]
    return json.dumps({"inputs": inputs}).encode()


def test_worker_reads_batches_and_reports_as_torchserve_does(tmp_path: Path, caplog: Log, monkeypatch: Patch) -> None:
    monkeypatch.setattr(base, "ConnectionKeeper", nullcontext)

    def load(cl_socket: socket.socket) -> DoublingHandler:
        """Load where TorchServe loads: beside a variable with the connection."""
        return started(DoublingHandler(), tmp_path, {})

    ours, theirs = socket.socketpair()
    with ours, theirs, Frontend(load(theirs)) as frontend:
        answers = [frontend.send(body) for body in (b"1", b"secret")]
        answers += frontend.send_together(b"2", b"secret")
    assert statuses(answers) == [200, 422, 200, 422] and (answers[0].body, answers[2].body) == (2.0, 4.0)
    reported = [message for message in caplog.messages if "PredictionTime" in message]
    assert ["request-2,request-3" in line for line in reported] == [False, False, True]


CORRUPT = {"code": 422, "type": "CorruptInput", "message": "Not a number."}


def test_bad_rows_fail_alone_each_in_the_form_of_its_request(handler: DoublingHandler) -> None:
    rows: list[Any] = [
        *(b"2", b"nan", b"4", b"", {}, listed(6, "x"), tensors(1, 444, 5, count=3), tensors(1, count=2)),
        {"data": b"8", "top_k": b"[" * 100_000},
        b'{"inputs": [{"name": "number", "datatype": "FP32", "shape": [0, 9223372036854775808], "data": []}]}',
        *(b"secret", listed(1, 1e308, 3)),
    ]
    answers = serve(handler, rows)
    assert statuses(answers) == [200, 500, 200, 400, 400, 200, 200, 400, 400, 400, 422, 200]
    assert [answers[index].body for index in (0, 2, 10)] == [4.0, 8.0, CORRUPT]
    assert answers[8].body["message"] == "Options: top_k: Unexpected keyword argument. Known options: none."
    assert answers[5].body == {"predictions": [12.0, {"error": CORRUPT}]}
    result, error = answers[6].body["outputs"]
    assert result["data"] == ["2.0", "", "10.0"]
    assert [text and json.loads(text)["code"] for text in error["data"]] == ["", 500, ""]
    assert answers[7].body == {"error": 'Input 0, number: "data" has 1 elements; "shape" has 2.'}
    assert {answer.headers["content-type"] for answer in answers} == {"application/json"}
    good, wrong, last = answers[11].body["predictions"]
    assert (good, last, wrong["error"]["code"], wrong["error"]["type"]) == (2.0, 6.0, 500, "WrongOutput")


def test_requests_share_forward_passes_by_group_and_size_and_headers_tell_them(handler: DoublingHandler) -> None:
    handler.module.batches.clear()
    answers = serve(handler, [b"1", b"2", b"3", listed(4, 6, 8, 10), b"secret"], [{}, *[{"explain": "False"}] * 4])
    assert handler.module.batches == [[1.0, 3.0], [2.0, 4.0, 6.0, 8.0], [10.0]]
    # The slowest item's.
    slots = [Slot(decode_s=0.3, wait_s=0.1, forward_s=0.4, batch_size=3), Slot(wait_s=0.2, batch_size=1)]
    expected = 'decode;dur=300.00, wait;dur=200.00, forward;dur=400.00, encode;dur=0.00, batch;desc="3"'
    assert server_timing(slots, 0.0) == expected
    sizes = [answer.headers["Server-Timing"].rpartition(", ")[2] for answer in answers]
    assert sizes == [f'batch;desc="{size}"' for size in (2, 4, 2, 4, 0)]
    assert {answer.headers["X-Model-Version"] for answer in answers} == {"1.0"}
    # TorchServe's own gRPC, whose requests have no headers, needs one that keeps its worker alive.
    assert [answer.headers.get("ts_stream_next") for answer in answers] == ["false", *[None] * 4]


rows = st.one_of(
    st.integers(0, 500).map(lambda n: str(n).encode()),
    st.sampled_from([b"", b"bug", b"secret", b"555", b"666", b"{"]),
    st.lists(st.integers(0, 700), min_size=1, max_size=4).map(lambda values: listed(*values)),
)


@given(st.lists(rows, min_size=1, max_size=9))
def test_row_has_the_same_answer_in_any_company(handler: DoublingHandler, batch: list[bytes]) -> None:
    assert [answer[:2] for answer in serve(handler, batch)] == [serve(handler, [row])[0][:2] for row in batch]


class FaultyHandler(DoublingHandler):
    def unpack(self, row: Any, headers: Any) -> Request:
        if b"unpackable" in row["body"]:
            raise LookupError(f"a bug that quotes its input {row['body']!r}")
        return super().unpack(row, headers)

    def prepare(self, items: Any) -> Any:
        if 302 in items:
            raise RuntimeError("a bug that quotes its input")
        return items

    def cost(self, item: Any) -> Cost:
        wrong: Any = {300: {"length": 0}, 301: {"group": [item]}}
        return Cost(**wrong[item]) if item in wrong else super().cost(item)


def test_bug_in_unpacking_preparing_or_planning_is_500_for_its_request_alone(tmp_path: Path, caplog: Log) -> None:
    handler = started(FaultyHandler(), tmp_path, {"max_batch_tokens": 8})
    bodies = [b"2", b"unpackable", b"300", b"301", b"302", b"4", b"unpackable"]
    answers = serve(handler, bodies, [*[{}] * 6, HEADERS])
    assert (statuses(answers), [answers[0].body, answers[5].body]) == ([200, 500, 500, 500, 500, 200, 500], [4.0, 8.0])
    assert {answer.body["type"] for answer in answers[1:5]} == {"InternalError"}
    assert (answers[6].body, answers[6].headers["X-Grpc-Status"]) == (b"", "13")
    assert "quotes its input" not in caplog.text


def test_bug_on_an_item_is_500_for_it_alone_and_nothing_quotes_it(handler: DoublingHandler, caplog: Log) -> None:
    answers = serve(handler, [b"2", b"666", b"bug", b"4", b"444", b"canary", listed("canary", 6)])
    assert (statuses(answers), answers[1].body["type"]) == ([200, 500, 500, 200, 500, 422, 200], "InternalError")
    for answer in answers:
        assert "canary" not in json.dumps(answer.body) + str(answer.headers)
    assert "An item failed: ValueError < forward" in caplog.text and "RuntimeError < decode" in caplog.text
    # Not just "666": a metric's value or a time may contain it.
    assert not any(quoted in caplog.text for quoted in ("quotes its input", "666.0", "b'666'", "canary"))


def test_micro_batch_that_does_not_fit_is_halved_and_what_never_fits_is_507_alone(handler: DoublingHandler) -> None:
    handler.module.capacity = 2
    try:
        answers = serve(handler, [b"2", b"4", b"6", b"8", b"3", b"555", b"7", b"777"])
    finally:
        handler.module.capacity = 1000
    assert [answer.body for answer in answers[:4]] == [4.0, 8.0, 12.0, 16.0]
    assert 'batch;desc="2"' in answers[0].headers["Server-Timing"]
    assert statuses(answers[4:]) == [200, 507, 200, 507]
    assert {answers[index].body["type"] for index in (5, 7)} == {"OutOfMemory"}


class Limited(DoublingHandler):
    """Each item is its number of tokens; each negative one is a group."""

    def cost(self, item: float) -> Cost:
        return Cost(1, item) if item < 0 else Cost(max(1, int(item) // 2), work=int(item))


def test_request_over_its_budget_is_413_and_its_neighbours_are_answered(tmp_path: Path) -> None:
    handler = started(Limited(), tmp_path, {"max_request_tokens": 100, "max_groups": 2})
    handler.module.batches.clear()
    bodies = [b"2", listed(50, 51), listed(50, 50), listed(-1, -2, -3), listed(-1, -2), b"101", listed(60, 60, "x")]
    answers = serve(handler, bodies)
    assert statuses(answers) == [200, 413, 200, 413, 200, 200, 413]
    assert answers[2].body == {"predictions": [100.0, 100.0]}
    for answer, words in ((answers[1], "101 tokens"), (answers[3], "3 sets of options"), (answers[6], "120 tokens")):
        errors = [prediction["error"] for prediction in answer.body["predictions"]]
        assert {error["type"] for error in errors} == {"WorkTooLarge"}
        assert all(words in error["message"] for error in errors)
    assert sorted(number for batch in handler.module.batches for number in batch) == [-2, -1, 2, 50, 50, 101]


def test_answer_over_max_response_bytes_is_413_in_the_form_of_its_request(tmp_path: Path) -> None:
    # The third answer has exactly 40 bytes.
    handler = started(Limited(), tmp_path, {"max_response_bytes": 40})
    answers = serve(handler, [b"2", listed(*range(1, 9)), listed(2, 4, 6, 8, 10)])
    assert statuses(answers) == [200, 413, 200]
    assert [prediction["error"]["type"] for prediction in answers[1].body["predictions"]] == ["ResponseTooLarge"] * 8
    assert "max_response_bytes is 40" in answers[1].body["predictions"][0]["error"]["message"]


@pytest.mark.parametrize(("slow", "threads"), [("decode", 1), ("decode", 2), ("forward", 1)])
def test_items_left_without_time_are_503(tmp_path: Path, slow: str, threads: int, monkeypatch: Patch) -> None:
    class Threaded(DoublingHandler):
        inputs = Inputs(frozenset({"number"}), in_threads=threads > 1)

    handler = started(Threaded(), tmp_path, {"max_batch_items": 1, "decode_threads": threads}, responseTimeout=0.2)
    hook, called = getattr(handler, slow), list[Any]()

    def slowly(*given: Any) -> Any:
        called.append(given)
        time.sleep(0.06)
        return hook(*given)

    monkeypatch.setattr(handler, slow, slowly)
    answers = serve(handler, [b"2", b"4", b"6", b"8"] * threads)
    late = [answer for answer in answers if answer.status != 200]
    # The machine decides how many were in time; 0.12 s are over before the third begins.
    assert len(called) <= 2 * threads and len(late) >= 2 and answers[-len(late) :] == late
    assert {(answer.status, answer.body["type"]) for answer in late} == {(503, "BatchTimeout")}


def test_run_that_was_ended_is_not_tried_again_in_halves(tmp_path: Path) -> None:
    handler = started(DoublingHandler(), tmp_path, {})
    with patch.object(handler, "forward", wraps=handler.forward, side_effect=[OutOfTime, DEFAULT]) as forward:
        assert statuses(serve(handler, [b"2", b"4", b"6", b"1"])) == [503, 503, 503, 200]
    assert forward.call_count == 2


def test_latency_target_is_a_bucket_of_the_requests_seconds(tmp_path: Path) -> None:
    reporter = started(DoublingHandler(), tmp_path, {"scheduling": {"latency_target_ms": 230}}).service.reporter
    reporter.stop()
    for seconds in (0.23, 0.24):
        reporter.recorder.observe(REQUEST, seconds)
    buckets = {each.labels[0]: each.value for each in reporter.recorder.drain() if each.counter == REQUEST.bucket}
    assert buckets == {"0.23": 1, "0.25": 2, **dict.fromkeys(("0.5", "1", "2.5", "5", "10", "+Inf"), 2)}


def test_description_and_explanation_are_no_predictions(handler: DoublingHandler) -> None:
    headers = [{"describe": "True"}, {"explain": "True"}, {"describe": "True", "explain": "False"}]
    described, explained, predicted = serve(handler, [{}, *[{"body": {"number": 1}}] * 2], headers)
    assert (described.status, described.body["name"]) == (200, "model")
    assert (predicted.status, predicted.body) == (200, 2.0)
    assert (explained.status, explained.body["type"]) == (501, "NotImplemented")


@pytest.mark.parametrize("is_altered", [False, True])
def test_wrong_config_does_not_load_and_is_one_line(is_altered: bool, tmp_path: Path, caplog: Log) -> None:
    problem = "handler: max_batch_itms: unknown name (did you mean max_batch_items?)"
    if is_altered:
        (tmp_path / CONFIG).write_text("as built")
        write_build(tmp_path, [CONFIG])
        (tmp_path / CONFIG).write_text("altered")
        problem = "the archive's files differ from its build: changed: model-config.yaml"
    with pytest.raises(InvalidConfig, match=re.escape(problem)):
        started(DoublingHandler(), tmp_path, {"max_batch_itms": 3})
    (line,) = [message for message in caplog.messages if "Cannot load" in message]
    assert line.startswith(f"Cannot load model: InvalidConfig: {problem}")


def test_worker_whose_library_fails_logs_one_line_with_the_place(tmp_path: Path, caplog: Log) -> None:
    class Failing(DoublingHandler):
        def load(self) -> FunctionEngine:
            raise KeyError("a page\nof words")

    with pytest.raises(KeyError) as raised:
        started(Failing(), tmp_path, {})
    (line,) = [message for message in caplog.messages if "Cannot load" in message]
    assert re.fullmatch(r"Cannot load model: KeyError: .*; raised in KeyError < load \(.*test_base.py:\d+\) < .*", line)
    assert traceback.format_exception(raised.value) == ["KeyError: 'a page\\nof words'\n"]


def test_task_of_the_docstring_serves(tmp_path: Path) -> None:
    shown = re.search(r"\n\n((?:    .*\n|\n)+)", cleandoc(str(BatchHandler.__doc__)))
    assert shown
    module: dict[str, Any] = {"__name__": "doubling"}
    exec(compile(cleandoc(f"\n{shown[1]}"), "doubling.py", "exec"), module)  # noqa: S102
    task: BatchHandler[Any, Any] = module["Doubling"]()
    good, bad, many = (answer.body for answer in serve(started(task, tmp_path, {}), [b"21", b"x", listed(1, 2)]))
    assert (good, many) == (42.0, {"predictions": [2.0, 4.0]})
    assert bad == {"code": 422, "type": "CorruptInput", "message": "number: must be a number."}


def test_task_of_a_former_release_is_served_or_rejected_with_what_has_changed(tmp_path: Path) -> None:
    class Spoken(DoublingHandler):
        inputs: Any = Inputs(frozenset({"number"}), ("text/plain",), in_threads=False)

    class Renamed(Spoken):
        inputs = {"value"}  # noqa: RUF012

    class Former(DoublingHandler):
        view = "labels"

        def samples(self) -> list[Payload]:
            return [Payload(b"1")]

    assert inputs_of(Renamed()) == Inputs(frozenset({"value"}), ("text/plain",), in_threads=False)
    with pytest.raises(InvalidConfig, match=r"^Former: view is replaced by Results; samples is replaced by `sample`"):
        started(Former(), tmp_path, {})


def test_option_without_a_default_is_an_error_of_items_that_lack_it(tmp_path: Path) -> None:
    class Times:
        times: int

    class Multiplying(DoublingHandler):
        options_class = Times

        def sample(self) -> Payload:
            return Payload(b"1", {"times": 1})

    task = started(Multiplying(), tmp_path, {})
    lacking, good = serve(task, [b"2", {"body": {"number": 2, "times": 3}}])
    assert (lacking.status, lacking.body["type"], good.body) == (400, "InvalidOption", 4.0)


def test_base_class_has_at_most_20_members(tmp_path: Path) -> None:
    declared = {name for each in (Hooks, BatchHandler) for name in {**vars(each), **vars(each)["__annotations__"]}}
    task = started(DoublingHandler(), tmp_path, {})
    declared |= vars(task).keys() - {"module", "worker_context"} - vars(BaseHandler()).keys()
    assert len([name for name in declared if not name.startswith(("__", "_abc_"))]) <= 20


def test_change_by_a_gpus_precision_is_measured_once(tmp_path: Path, monkeypatch: Patch, caplog: Log) -> None:
    monkeypatch.delenv("CACHE_DIR", raising=False)
    monkeypatch.setattr(base, "_device", lambda _: GPU)
    write_build(tmp_path)
    models = []

    def fail(_: object) -> float:
        module: Any = torch.nn.Linear(1, 1)
        module.cycle = [module]
        models.append(weakref.ref(module))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    gc.disable()
    # A failure fails no load.
    for measure in (fail, lambda _: 0.25, fail):
        monkeypatch.setattr(base, "measure_change", measure)
        assert started(DoublingHandler(), tmp_path, {}).engine
    assert models[0]() is None
    gc.enable()
    told = [message.removeprefix("torch cpu float32 ") for message in caplog.messages if "hange" in message]
    change = "changes outputs by up to 2.5e-01 of their largest; precision: fp32 in model-config.yaml avoids the change"
    assert told == ["Change by torch cpu float32 not measured: OutOfMemoryError: CUDA out of memory.", change, change]


def test_split_costs_what_the_gpu_took_in_classic_mode(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(trial, "measure", lambda *_: [(1, 0.005), (20, 0.005)])
    assert inputs_of(started(DoublingHandler(), tmp_path, {})).overhead.tokens == 250
    monkeypatch.setattr(base, "_device", lambda _: GPU)
    assert inputs_of(started(DoublingHandler(), tmp_path, {})).overhead.tokens == 2**31


def test_precision_of_fp32_is_not_torchserves_choice() -> None:
    """On a GPU that has TF32, TorchServe's module sets "high" as it is imported; stock handlers keep it."""
    torch.set_float32_matmul_precision("high")
    reload(torchserve)
    assert (torch.get_float32_matmul_precision(), torchserve.STOCK_PRECISION) == ("highest", "high")
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
