"""An adaptive worker that is back soon: little runs before it is ready, and the rest while nobody waits."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from handlers.archive_files import Build
from handlers.pipeline.warm_up import Allowed, Rehearsal
from handlers.protocol.requests import Payload
from tests.handlers.adaptive.frontend import Frontend
from tests.handlers.adaptive.gated import SCHEDULING, TIMEOUT_S, GatedHandler, StreamedHandler, started, wait_for
from tests.handlers.serving import DoublingHandler, context


def initialized(handler: GatedHandler, model_dir: Path, **scheduling: Any) -> GatedHandler:
    """A handler that measures what it takes, unlike that of `started`."""
    settings = {"max_items": 8, "scheduling": {**SCHEDULING, **scheduling}}
    handler.worker_context = context(model_dir, settings, batch_size=64)
    handler.worker_context.model_yaml_config["continuousBatching"] = True
    handler.initialize(handler.worker_context)
    return handler


def test_worker_that_comes_back_runs_one_item_and_knows_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CACHE_DIR", raising=False)
    (tmp_path / "build.json").write_text(Build("0123", "none", False, {}).to_json())
    first = initialized(GatedHandler(), tmp_path)
    assert {len(batch) for batch in first.module.batches} == {1, 8}
    again = initialized(GatedHandler(), tmp_path)
    assert {len(batch) for batch in again.module.batches} == {1}
    (remembered,) = (tmp_path / ".cache").iterdir()
    remembered.write_text("{")
    anew = initialized(GatedHandler(), tmp_path)
    assert {len(batch) for batch in anew.module.batches} == {1, 8}


def test_streams_rehearse_every_size_while_nobody_waits_and_the_engine_is_theirs_alone(tmp_path: Path) -> None:
    handler = started(StreamedHandler, tmp_path, warm_up_s=5)
    assert isinstance(handler, StreamedHandler)
    # Each of the two streams runs one to eight, and the whole engine one; all three ran one to be ready.
    wait_for(lambda: len(handler.module.batches) >= 20 and not handler.worker.state.running_batches)
    assert sorted(map(len, handler.module.batches)) == sorted([*range(1, 9)] * 2 + [1] + [1] * 3)
    with Frontend(handler) as frontend:
        assert frontend.send(b"2").body == 4
    assert handler.forgets()


def test_request_goes_before_what_is_left_of_a_rehearsal(tmp_path: Path) -> None:
    handler = started(GatedHandler, tmp_path, warm_up_s=60)
    handler.gate.clear()
    wait_for(lambda: handler.worker.state.running_batches == 1)
    with Frontend(handler) as frontend:
        answer = frontend.submit(b"1000")
        wait_for(lambda: handler.worker.state.waiting_items == 1)
        ran = len(handler.module.batches)
        handler.gate.set()
        assert answer.result(TIMEOUT_S).body == 2000
        # The step that was running, then the request.
        assert [1000.0] in handler.module.batches[ran : ran + 2]


def test_rehearsal_that_fails_is_left_out_and_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(GatedHandler):
        def samples(self) -> Any:
            return [Payload(b"666")]

    class Unsampled(GatedHandler):
        def samples(self) -> Any:
            raise LookupError("a bug")

    with caplog.at_level(logging.ERROR):
        for number, kind in enumerate((Failing, Unsampled)):
            handler = started(kind, tmp_path, warm_up_s=5)
            wait_for(partial(lambda count: len(caplog.records) == count, number + 1))
            with Frontend(handler) as frontend:
                assert frontend.send(b"2").body == 4
    assert "a bug" not in caplog.text


def test_rehearsal_ends_when_its_time_is_up(tmp_path: Path) -> None:
    handler = DoublingHandler()
    handler.worker_context = context(tmp_path, {})
    handler.initialize(handler.worker_context)
    samples = [Payload(b"1"), Payload(b"2")]
    rehearsal = Rehearsal([Allowed(handler, 3, 2, is_wide=True)], lambda: samples, 1.0)
    # Two fit by their tokens, though three would by their number.
    sizes = []
    while step := rehearsal.next_step():
        step.run()
        sizes.append(step.tokens)
    assert sizes == [1, 1, 2, 2]
    late = Rehearsal([Allowed(handler, 3, 2, is_wide=True)], lambda: samples, 1.0)
    assert late.next_step() is not None
    late.ended(1.0)
    assert late.next_step() is None
