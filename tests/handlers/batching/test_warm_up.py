"""An adaptive worker that is back soon: little runs before it is ready, and the rest while nobody waits."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from handlers.protocol.requests import Payload
from tests.handlers.batching.frontend import Frontend
from tests.handlers.batching.gated import TIMEOUT_S, GatedHandler, StreamedHandler, started, state, wait_for


def test_streams_rehearse_every_size_while_nobody_waits_and_the_engine_is_theirs_alone(tmp_path: Path) -> None:
    handler = started(StreamedHandler, tmp_path, warm_up_s=60)
    # Each of the two streams runs one to eight, and the whole engine one to seven; all three ran one to be ready.
    wait_for(lambda: len(handler.module.batches) >= 26 and not state(handler).running_batches)
    assert sorted(map(len, handler.module.batches)) == sorted([*range(1, 9)] * 2 + [*range(1, 8)] + [1] * 3)
    with Frontend(handler) as frontend:
        assert frontend.send(b"2").body == 4
    assert handler.forgets()


def test_request_goes_before_what_is_left_of_a_rehearsal(tmp_path: Path) -> None:
    handler = started(GatedHandler, tmp_path, warm_up_s=60)
    handler.gate.clear()
    handler.wait(running=1)
    with Frontend(handler) as frontend:
        answer = frontend.submit(b"1000")
        handler.wait(running=1, waiting=1)
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
            handler = started(kind, tmp_path, warm_up_s=60)
            wait_for(partial(lambda count: len(caplog.records) == count, number + 1))
            with Frontend(handler) as frontend:
                assert frontend.send(b"2").body == 4
    assert "a bug" not in caplog.text
