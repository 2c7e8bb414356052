"""The durations of a batch, as metrics count them and Server-Timing tells them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from handlers.metrics import Recorder
from handlers.pipeline import flow
from handlers.pipeline.flow import Pipeline
from handlers.protocol.responses import OneItem
from tests.handlers.serving import DoublingHandler, Patch, started

# Each step takes another time, so that none can stand for another.
TAKES_S = {"decode": 1, "prepare": 2, "collate": 4, "forward": 8, "split": 16, "pack": 32}
PARTS = ("input", "infer", "output")


def test_durations_of_each_step_are_counted_and_told_as_that_steps(tmp_path: Path, monkeypatch: Patch) -> None:
    handler, recorder, now_s = started(DoublingHandler(), tmp_path, {"threads": 1}), Recorder(), [0.0]
    recorder.drain()

    def slow(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def step(*arguments: Any) -> Any:
            now_s[0] += TAKES_S[name]
            return function(*arguments)

        monkeypatch.setattr(owner, name, step)

    monkeypatch.setattr(flow, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    for name in TAKES_S:
        slow(OneItem if name == "pack" else handler, name)
    rows = [({"body": body}, {"host": "x"}) for body in (b"1", b"2", b"3", b"secret")]
    responses = Pipeline(handler, recorder).answer(rows)
    assert [response.status for response in responses] == [200, 200, 200, 422]
    # 1 and 3 run from 6 s to 18 s, then 2 until 30 s; both are split until 62 s, and each response takes 32 s.
    timing = "decode;dur={}.00, wait;dur={}.00, forward;dur={}.00, encode;dur=32000.00, batch;desc={}"
    expected = [(3000, 0, 12000, '"2"'), (3000, 12000, 12000, '"1"'), (3000, 0, 12000, '"2"'), (1000, 0, 0, '"0"')]
    assert [response.headers["Server-Timing"] for response in responses] == [timing.format(*each) for each in expected]
    counted = {
        **{"requests_total success": 3, "outcome_seconds_total success": 94 + 126 + 158, "encode_seconds_sum": 4 * 32},
        **{"requests_total fail": 1, "outcome_seconds_total fail": 190, "encode_seconds_count": 4, "items_total": 3},
        **{"item_errors_total CorruptInput": 1, "request_seconds_sum": 94 + 126 + 158, "request_seconds_count": 3},
        **{"worker_wait_seconds_total": 3 + 15 + 3, "engine_wait_seconds_sum": 12, "engine_wait_seconds_count": 3},
        **{"decode_seconds_sum": 3 * 3 + 1, "decode_seconds_count": 4, "forward_seconds_sum": 24},
        **{"forward_seconds_count": 2, "batch_size_sum": 3, "batch_size_count": 2},
        **{f"executions_total {size}": 1 for size in (1, 2)},
        **{f"execution_seconds_total {n} {part}": s for n in (1, 2) for part, s in zip(PARTS, (4, 8, 16), strict=True)},
    }
    samples = [each for each in recorder.drain() if not each.counter.name.endswith("_bucket")]
    found = {" ".join((each.counter.name, *each.labels)): each.value for each in samples}
    assert found == {f"handler_{name}": value for name, value in counted.items()}
