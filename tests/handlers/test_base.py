import inspect
import json
import logging
import re
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from handlers.base import BatchHandler
from handlers.errors import InvalidConfig, OutOfTime
from handlers.pipeline.micro_batches import Cost
from handlers.protocol.requests import Request
from tests.handlers.protocol import test_grpc_inference
from tests.handlers.serving import DoublingHandler, context, serve, started


@pytest.fixture(scope="module")
def handler(tmp_path_factory: pytest.TempPathFactory) -> DoublingHandler:
    ready = started(DoublingHandler(), tmp_path_factory.mktemp("model"), {"max_items": 4, "max_instances": 10})
    assert isinstance(ready, DoublingHandler)
    return ready


CORRUPT = {"code": 422, "type": "CorruptInput", "message": "Not a number."}


def test_handle_bad_rows_fail_alone(handler: DoublingHandler) -> None:
    answers = serve(handler, [b"2", b"secret", b"4", b"", {}, b'{"instances": [{"number": 6}, {"number": "x"}]}'])
    assert [answer.status for answer in answers] == [200, 422, 200, 400, 400, 200]
    assert [answers[i].body for i in (0, 1, 2)] == [4.0, CORRUPT, 8.0]
    assert answers[5].body == {"predictions": [12.0, {"error": CORRUPT}]}
    assert {answer.headers["content-type"] for answer in answers} == {"application/json"}


def number_by_grpc(number: float, **more: Any) -> dict[str, Any]:
    """A row as the gateway's bridge makes one."""
    return {"body": bytearray(test_grpc_inference.message(test_grpc_inference.tensor("x", np.array([number])), **more))}


def test_handle_grpc_requests_share_the_batch_and_are_answered_in_their_way(handler: DoublingHandler) -> None:
    handler.module.batches.clear()
    by_grpc = test_grpc_inference.HEADERS
    rows = [number_by_grpc(2, request_id="7"), b"4", number_by_grpc(444), {"body": bytearray(b"{}")}]
    good, plain, failed, malformed = serve(handler, rows, [by_grpc, {"content-type": ""}, by_grpc, by_grpc])
    assert handler.module.batches == [[2.0, 4.0]]
    message = service_pb2.ModelInferResponse.FromString(good.body)
    assert (good.status, message.id, message.outputs[0].name) == (200, "7", "result")
    assert triton.InferResult(message).as_numpy("result").tolist() == [b"4.0"]
    assert (plain.status, plain.body) == (200, 8.0)
    assert (failed.status, failed.body, failed.headers["X-Grpc-Status"]) == (500, b"", "13")
    assert (malformed.status, malformed.body, malformed.headers["X-Grpc-Status"]) == (400, b"", "3")
    assert malformed.headers["X-Grpc-Message"] == "The body is no ModelInferRequest."


def test_handle_bug_in_unpacking_a_grpc_request_is_its_own_internal_error(
    handler: DoublingHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "unpack", lambda *_: int("a bug"))
    (answer,) = serve(handler, [number_by_grpc(2)], [test_grpc_inference.HEADERS])
    assert (answer.status, answer.body, answer.headers["X-Grpc-Status"]) == (500, b"", "13")


def test_handle_requests_share_forward_passes_by_group_and_size(handler: DoublingHandler) -> None:
    handler.module.batches.clear()
    serve(handler, [b"1", b"2", b"3", b'{"instances": [{"number": 4}, {"number": 6}, {"number": 8}, {"number": 10}]}'])
    assert handler.module.batches == [[1.0, 3.0], [2.0, 4.0, 6.0, 8.0], [10.0]]


numbers = st.integers(0, 500).map(lambda n: str(n).encode())
rows = st.one_of(
    numbers,
    st.sampled_from([b"", b"bug", b"secret", b"555", b"666", b"{"]),
    st.lists(st.integers(0, 700), min_size=1, max_size=4).map(
        lambda values: json.dumps({"instances": [{"number": value} for value in values]}).encode()
    ),
)


@given(st.lists(rows, min_size=1, max_size=9), st.randoms())
def test_handle_batched_permuted_or_alone_gives_each_row_the_same_answer(
    handler: DoublingHandler, batch: list[bytes], random: Any
) -> None:
    alone = [serve(handler, [row])[0] for row in batch]
    order = list(range(len(batch)))
    random.shuffle(order)
    together = serve(handler, [batch[index] for index in order])
    for position, index in enumerate(order):
        assert together[position][:2] == alone[index][:2]


class FaultyHandler(DoublingHandler):
    """Has a bug in what comes before the hooks of an item, for one body each."""

    def unpack(self, row: Any, headers: Any) -> Request:
        if row["body"] == b"unpackable":
            raise LookupError(f"a bug that quotes its input {row['body']!r}")
        return super().unpack(row, headers)

    def cost(self, item: float) -> Cost:
        if item == 300:
            return Cost(length=0)
        return Cost(group=[item]) if item == 301 else super().cost(item)  # type: ignore[arg-type]


@pytest.mark.parametrize("body", [b"unpackable", b"300", b"301"])
def test_handle_bug_in_unpacking_or_planning_gets_500_alone(
    body: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = serve(started(FaultyHandler(), tmp_path, {"max_tokens": 8}), [b"2", body, b"4"])
    assert [answer.status for answer in answers] == [200, 500, 200]
    assert [answers[0].body, answers[2].body] == [4.0, 8.0]
    assert answers[1].body["type"] == "InternalError"
    assert "quotes its input" not in caplog.text


def test_handle_form_field_nested_too_deep_harms_nobody(handler: DoublingHandler) -> None:
    answers = serve(handler, [b"2", {"data": b"4", "top_k": b"[" * 100_000}, b"6"])
    assert [answer.status for answer in answers] == [200, 200, 200]


def test_handle_tensor_of_a_size_that_no_array_has_gets_400_alone(handler: DoublingHandler) -> None:
    tensor = {"name": "number", "datatype": "FP32", "shape": [0, 2**63], "data": []}
    answers = serve(handler, [b"2", json.dumps({"inputs": [tensor]}).encode(), b"4"])
    assert [answer.status for answer in answers] == [200, 400, 200]


def test_handle_out_of_memory_halves_until_it_fits(handler: DoublingHandler) -> None:
    handler.module.capacity = 2
    try:
        answers = serve(handler, [b"2", b"4", b"6", b"8"])
    finally:
        handler.module.capacity = 1000
    assert [answer.body for answer in answers] == [4.0, 8.0, 12.0, 16.0]
    assert 'batch;desc="2"' in answers[0].headers["Server-Timing"]


def test_handle_item_that_cannot_fit_gets_507_alone(handler: DoublingHandler) -> None:
    answers = serve(handler, [b"3", b"555", b"7"])
    assert [answer.status for answer in answers] == [200, 507, 200]
    assert answers[1].body["type"] == "OutOfMemory"


# -- budgets and time ------------------------------------------------------------------------------------------------


def listed(*numbers: float) -> bytes:
    return json.dumps({"instances": [{"number": number} for number in numbers]}).encode()


def limited(model_dir: Path, **settings: Any) -> DoublingHandler:
    """A handler whose items have as many tokens as they say, and whose negative ones are a group each."""

    class Limited(DoublingHandler):
        def cost(self, item: float) -> Cost:
            return Cost(1, item) if item < 0 else Cost(max(1, int(item)))

    handler = started(Limited(), model_dir, settings)
    assert isinstance(handler, DoublingHandler)
    return handler


def test_handle_request_over_its_budget_gets_413_and_its_neighbours_their_answers(tmp_path: Path) -> None:
    handler = limited(tmp_path, max_request_tokens=100, max_groups=2)
    handler.module.batches.clear()
    answers = serve(
        handler, [b"2", listed(50, 51), listed(50, 50), listed(-1, -2, -3), listed(-1, -2), b"101", listed(60, 60)]
    )
    assert [answer.status for answer in answers] == [200, 413, 200, 413, 200, 200, 413]
    assert answers[2].body == {"predictions": [100.0, 100.0]}
    for answer, message in ((answers[1], "101 tokens"), (answers[3], "3 sets of options"), (answers[6], "120 tokens")):
        errors = [prediction["error"] for prediction in answer.body["predictions"]]
        assert {error["type"] for error in errors} == {"WorkTooLarge"}
        assert all(message in error["message"] for error in errors)
    assert sorted(number for batch in handler.module.batches for number in batch) == [-2, -1, 2, 50, 50, 101]


def test_handle_answer_over_max_response_bytes_is_413_in_the_form_of_its_request(tmp_path: Path) -> None:
    handler = limited(tmp_path, max_response_bytes=40)
    answers = serve(handler, [b"2", listed(*range(1, 9)), listed(2, 4)])
    assert [answer.status for answer in answers] == [200, 413, 200]
    assert [prediction["error"]["type"] for prediction in answers[1].body["predictions"]] == ["ResponseTooLarge"] * 8
    assert "max_response_bytes is 40" in answers[1].body["predictions"][0]["error"]["message"]


def slow(model_dir: Path, decode_s: float = 0.0, forward_s: float = 0.0) -> DoublingHandler:
    """A handler of a batch that may take 0.5 s in all: half of a responseTimeout of 1 s."""

    class Slow(DoublingHandler):
        decodes_in_threads = False

        def decode(self, payload: Any) -> float:
            time.sleep(decode_s)
            return super().decode(payload)

        def forward(self, inputs: Any, items: Any) -> Any:
            time.sleep(forward_s)
            return super().forward(inputs, items)

    handler = Slow()
    handler.worker_context = context(model_dir, {"max_items": 1})
    handler.worker_context.model_yaml_config["responseTimeout"] = 1
    handler.initialize(handler.worker_context)
    return handler


@pytest.mark.parametrize("takes", [{"decode_s": 0.3}, {"forward_s": 0.3}])
def test_handle_what_a_batch_has_no_time_left_for_is_answered_503(tmp_path: Path, takes: dict[str, float]) -> None:
    answers = serve(slow(tmp_path, **takes), [b"2", b"4", b"6", b"8"])
    late = [answer for answer in answers if answer.status != 200]
    # How many were in time is the machine's business; 0.6 s are over before the third is begun.
    assert len(late) >= 2
    assert answers[len(answers) - len(late) :] == late
    assert {(answer.status, answer.body["type"]) for answer in late} == {(503, "BatchTimeout")}


def test_handle_run_that_is_ended_is_not_tried_again_in_halves(tmp_path: Path) -> None:
    class Ended(DoublingHandler):
        runs = -1

        def forward(self, inputs: Any, items: Any) -> Any:
            if self.runs >= 0:
                self.runs += 1
                if len(items) > 1:
                    raise OutOfTime
            return super().forward(inputs, items)

    handler = started(Ended(), tmp_path, {})
    assert isinstance(handler, Ended)
    handler.runs = 0
    answers = serve(handler, [b"2", b"4", b"6", b"1"])
    assert [answer.status for answer in answers] == [503, 503, 503, 200]
    assert handler.runs == 2


def test_handle_bug_on_one_item_gets_500_alone_and_logs_no_payload(
    handler: DoublingHandler, caplog: pytest.LogCaptureFixture
) -> None:
    answers = serve(handler, [b"2", b"666", b"bug", b"4", b"444"])
    assert [answer.status for answer in answers] == [200, 500, 500, 200, 500]
    assert answers[1].body["type"] == "InternalError"
    log = caplog.text
    assert "An item failed: ValueError < forward" in log
    assert "RuntimeError < decode" in log
    # Not "666" alone: a metric's value or a time may contain it.
    assert not any(quoted in log for quoted in ("quotes its input", "666.0", "b'666'"))


def test_handle_result_that_json_cannot_hold_fails_alone(handler: DoublingHandler) -> None:
    assert [answer.status for answer in serve(handler, [b"nan", b"2"])] == [500, 200]


def test_handle_canaries_of_bad_rows_reach_nobody(handler: DoublingHandler, caplog: pytest.LogCaptureFixture) -> None:
    secrets = [f"canary-{index:03}" for index in range(20)]
    batch = [secret.encode() if index % 2 else b"2" for index, secret in enumerate(secrets)]
    answers = serve(handler, batch)
    for answer in answers:
        assert "canary" not in json.dumps(answer.body) + str(answer.headers)
    assert "canary" not in caplog.text


def test_handle_every_row_has_server_timing(handler: DoublingHandler) -> None:
    answers = serve(handler, [b"2", b"4", b"secret"])
    number = r"\d+\.\d\d"
    for answer, size in zip(answers, (2, 2, 0), strict=True):
        header = answer.headers["Server-Timing"]
        expected = (
            f'decode;dur={number}, wait;dur={number}, forward;dur={number}, encode;dur={number}, batch;desc="{size}"'
        )
        assert re.fullmatch(expected, header)


def test_handle_content_type_of_the_body_decides_json(handler: DoublingHandler) -> None:
    headers: list[dict[str, Any]] = [
        {"body": {"content-type": "application/json"}},
        {"body": {"content-type": "text/plain"}, "Host": "x"},
    ]
    answers = serve(handler, [b'{"number": 2}', b'{"number": 2}'], headers)
    assert [answer.status for answer in answers] == [200, 422]


def test_initialize_wrong_config_is_logged_in_one_line_and_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidConfig, match="max_itms"):
        DoublingHandler().initialize(context(tmp_path, {"max_itms": 3}))
    assert [record.getMessage() for record in caplog.records if "Cannot load" in record.getMessage()] == [
        "Cannot load model: InvalidConfig: handler: max_itms: Unexpected keyword argument"
    ]


def test_metrics_of_a_batch_reach_torchserve_as_lines(
    handler: DoublingHandler, caplog: pytest.LogCaptureFixture
) -> None:
    handler.reporter.report()
    caplog.clear()
    with caplog.at_level(logging.INFO, "ts.metrics"):
        serve(handler, [b"2", b"4", b"6", b"secret"])
        handler.reporter.report()
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("[METRICS]")]
    expected = {
        "[METRICS]handler_items_total.Count:3|#ModelName:model,ModelVersion:unknown|",
        "[METRICS]handler_item_errors_total.Count:1|#ModelName:model,ModelVersion:unknown,Type:CorruptInput|",
        "[METRICS]handler_batch_size_bucket.Count:1|#ModelName:model,ModelVersion:unknown,le:3|",
        "[METRICS]handler_decode_seconds_count.Count:4|#ModelName:model,ModelVersion:unknown|",
    }
    for start in expected:
        assert any(line.startswith(start) for line in lines), start
    # Declared with the first report, and not grown since.
    assert not any("handler_batch_size_bucket" in line and "le:2|" in line for line in lines)


LINE = re.compile(r"\[METRICS\](handler_\w+)\.Count:([\d.e+-]+)\|#([^|]*)\|")


def versioned(model_dir: Path, version: str) -> DoublingHandler:
    """A handler whose metrics are told from others' by their version, and reported by nobody but a test."""
    handler = DoublingHandler()
    handler.worker_context = context(model_dir, {})
    handler.worker_context.manifest = {"model": {"modelVersion": version}}
    handler.initialize(handler.worker_context)
    handler.reporter.stop()
    return handler


def metrics_of(caplog: pytest.LogCaptureFixture, version: str) -> dict[str, float]:
    """What the lines in the log amount to: metric and its labels beside the model's -> sum."""
    totals: dict[str, float] = {}
    for match in filter(None, (LINE.search(record.getMessage()) for record in caplog.records)):
        name, value, labels = match.groups()
        model, of_version, *own = labels.split(",")
        assert model == "ModelName:model"
        if of_version == f"ModelVersion:{version}":
            key = " ".join([name, *own])
            totals[key] = totals.get(key, 0) + float(value)
    return totals


def test_metrics_and_answers_name_the_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ts.metrics"):
        handler = versioned(tmp_path, "2.0-untrained")
        answers = serve(handler, [b"2", b"secret", b"{", number_by_grpc(2)], [*[{}] * 3, test_grpc_inference.HEADERS])
        handler.reporter.report()
    assert {answer.headers["X-Model-Version"] for answer in answers} == {"2.0-untrained"}
    assert metrics_of(caplog, "2.0-untrained")["handler_items_total"] == 2


def test_answers_of_an_archive_without_a_version_name_none(handler: DoublingHandler) -> None:
    (answer,) = serve(handler, [b"2"])
    assert "X-Model-Version" not in answer.headers


def test_metrics_count_requests_by_outcome_and_micro_batches_by_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each hook takes a time of its own, so that each is found in its own metric and in no other."""
    handler = versioned(tmp_path, "1.0-counted")
    slow = {"decode": 0.01, "collate": 0.02, "forward": 0.04, "split": 0.03}

    def taking(name: str, seconds: float) -> None:
        hook = getattr(handler, name)

        def slowly(*given: Any) -> Any:
            time.sleep(seconds)
            return hook(*given)

        monkeypatch.setattr(handler, name, slowly)

    for name, seconds in slow.items():
        taking(name, seconds)
    lists = [b'{"instances": [{"number": 2}, {"number": "x"}]}', b'{"instances": [{"number": "x"}]}']
    with caplog.at_level(logging.INFO, "ts.metrics"):
        started_s = time.perf_counter()
        answers = serve(handler, [b"4", b"6", b"1", b"secret", b"", *lists])
        elapsed_s = time.perf_counter() - started_s
        serve(handler, [b"2"], [{"X-Model-Metadata": "1"}])
        handler.reporter.report()
    assert [answer.status for answer in answers] == [200, 200, 200, 422, 400, 200, 422]
    totals = metrics_of(caplog, "1.0-counted")
    assert totals["handler_requests_total Outcome:success"] == 4
    assert totals["handler_requests_total Outcome:fail"] == 3
    # Of those with a result alone: a refusal comes at once.
    assert totals["handler_request_seconds_count"] == 4
    executions = {key: value for key, value in totals.items() if key.startswith("handler_executions_total")}
    assert executions == {"handler_executions_total Size:1": 1, "handler_executions_total Size:3": 1}
    seconds_of = {key: value for key, value in totals.items() if key.startswith("handler_execution_seconds")}
    for phase, hook in {"input": "collate", "infer": "forward", "output": "split"}.items():
        for size in (1, 3):
            assert seconds_of[f"handler_execution_seconds_total Size:{size} Phase:{phase}"] >= slow[hook]
    # All of it ran one after the other.
    assert len(seconds_of) == 6
    assert sum(seconds_of.values()) <= elapsed_s
    whole = slow["decode"] + 2 * (slow["collate"] + slow["forward"] + slow["split"])
    for outcome, count in {"success": 4, "fail": 3}.items():
        assert count * whole <= totals[f"handler_request_seconds_total Outcome:{outcome}"] <= count * elapsed_s
    # One of the two micro-batches waited for the other; nobody's decoding or run is in it.
    queue_s = totals["handler_queue_seconds_total"]
    assert slow["collate"] + slow["forward"] <= queue_s <= 4 * elapsed_s - 4 * (slow["decode"] + slow["forward"])


def test_docstring_of_batch_handler_holds_a_task_that_runs(tmp_path: Path) -> None:
    documented = inspect.getdoc(BatchHandler) or ""
    _, start, rest = documented.partition("    import numpy as np\n")
    code, end, _ = rest.partition("\nHooks, in the order")
    assert start
    assert end
    namespace: dict[str, Any] = {"__name__": "doubling"}
    exec(compile(textwrap.dedent(start + code), "doubling.py", "exec"), namespace)  # noqa: S102
    handler = started(namespace["Doubling"](), tmp_path, {})
    answers = serve(handler, [b'{"number": 2}', b"21", b"many", b'{"instances": [{"number": 3}, {"number": null}]}'])
    assert [answer.status for answer in answers] == [200, 200, 422, 200]
    assert [answers[0].body, answers[1].body] == [4.0, 42.0]
    assert answers[2].body["message"] == "number: must be a number."
    assert answers[3].body["predictions"][0] == 6.0
    assert answers[3].body["predictions"][1]["error"]["type"] == "CorruptInput"
