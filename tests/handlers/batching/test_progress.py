"""Requests that share a micro-batch are answered when their items end, and not with the micro-batch."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handlers.engines import Arrays, Engine, Listener, Outputs
from tests.handlers.batching.frontend import Frontend
from tests.handlers.batching.gated import TIMEOUT_S, GatedHandler, start_handler, write_list


class ReportingHandler(GatedHandler):
    """Ends the items of a micro-batch in ascending order, each when a test releases `turns`; 666 is a bug."""

    def load(self) -> Engine:
        self.turns, self.batches = threading.Semaphore(0), list[list[float]]()
        return super().load()

    def forward_reporting(self, inputs: Arrays, items: Sequence[Any], ended: Listener) -> Outputs:
        doubles = 2 * inputs["numbers"]
        self.batches.append(sorted(items))
        for index in np.argsort(doubles).tolist():
            assert self.turns.acquire(timeout=TIMEOUT_S)
            if items[index] == 666:
                raise LookupError("a bug")
            ended(index, {"doubles": doubles[index : index + 1]})
        return {"doubles": doubles}


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[ReportingHandler]:
    # A micro-batch costs far more than its items, so all that wait share one.
    handler = start_handler(ReportingHandler, tmp_path, took=[(1, 0.02), (1000, 0.021)])
    assert isinstance(handler, ReportingHandler)
    yield handler
    handler.turns.release(100)


def test_request_is_answered_when_the_last_of_its_items_has_ended_and_not_with_its_micro_batch(
    handler: ReportingHandler,
) -> None:
    with Frontend(handler) as frontend:
        first, both, last = frontend.submit_together([(b"2", {}), (write_list(4, 6), {}), (b"8", {})])
        handler.turns.release(2)
        assert first.result(TIMEOUT_S).body == 4
        assert not both.done()
        handler.turns.release()
        assert both.result(TIMEOUT_S).body == {"predictions": [8, 12]}
        assert not last.done()
        handler.turns.release()
        assert last.result(TIMEOUT_S).body == 16
    assert handler.batches == [[2, 4, 6, 8]]


def test_micro_batch_that_fails_keeps_the_answers_it_gave_and_tries_the_others_again(handler: ReportingHandler) -> None:
    handler.turns.release(100)
    with Frontend(handler) as frontend:
        sent = frontend.submit_together([(body, {}) for body in (b"2", b"700", b"666", b"800")])
        answers = [each.result(TIMEOUT_S) for each in sent]
    assert [answer.status for answer in answers] == [200, 200, 500, 200]
    assert [answers[index].body for index in (0, 1, 3)] == [4, 1400, 1600]
    # An item with an answer does not run again; the others run in halves, down to the item at fault.
    assert handler.batches[0] == [2, 666, 700, 800]
    assert not any(2 in batch for batch in handler.batches[1:])
    assert [666] in handler.batches
