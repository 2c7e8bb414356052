"""Requests do not wait for others: a slow one delays none, and a micro-batch's are answered as their items end."""

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from handlers.batching.arrivals import LARGE_BYTES, LEAST_THREADS
from handlers.engines import Arrays, Engine, Listener, Outputs
from handlers.pipeline.values import Inputs
from handlers.protocol.requests import Payload, Request
from tests.handlers.batching.frontend import Frontend
from tests.handlers.batching.gated import TIMEOUT_S, GatedHandler, Start, ThreadedHandler, state, wait_for, write_list


@pytest.fixture(params=[GatedHandler, ThreadedHandler])
def handler(request: pytest.FixtureRequest, start: Start) -> Any:
    return start(request.param, {"max_request_items": 100})


SLOW = b"slow" + b"21".rjust(LARGE_BYTES)
MANY = write_list(*["slow" + "21".rjust(LARGE_BYTES // 4)] * 8)


@pytest.mark.parametrize(("slow", "answer"), [(SLOW, 42.0), (MANY, {"predictions": [42.0] * 8})])
def test_request_that_is_long_in_decoding_delays_nobody_and_expires(handler: Any, slow: bytes, answer: Any) -> None:
    handler.slow_gate.clear()
    with Frontend(handler) as frontend:
        patient, late = frontend.submit(slow), frontend.submit(SLOW, X_Timeout_Ms="150")
        for _ in range(4):
            assert frontend.send(b"2").body == 4
        assert late.result(TIMEOUT_S).status == 504 and not patient.done()
        handler.module.batches.clear()
        handler.slow_gate.set()
        assert (patient.result(TIMEOUT_S).body, frontend.send(b"6").body) == (answer, 12)
    assert sum(batch.count(21.0) for batch in handler.module.batches) == 1  # equal items run once
    assert handler.forgets()


def test_list_takes_half_of_the_decode_threads_and_leaves_the_others_to_who_comes_later(start: Start) -> None:
    handler = start(ThreadedHandler)
    handler.slow_gate.clear()
    with Frontend(handler) as frontend:
        many = frontend.submit(write_list(*["slow21"] * 10))
        wait_for(lambda: len(handler.decoding) == LEAST_THREADS // 2)
        for _ in range(4):
            assert frontend.send(b"2").body == 4
        assert len(handler.decoding) == LEAST_THREADS // 2 and not many.done()
        handler.slow_gate.set()
        assert many.result(TIMEOUT_S).body == {"predictions": [42.0] * 10}
    assert handler.forgets()


def test_free_decode_thread_takes_the_first_priority_before_what_waits_longer(start: Start) -> None:
    class Stepped(ThreadedHandler):
        def decode(self, payload: Payload) -> float:
            if payload.value != self.sample().value:
                taken.append(payload.value)
                assert steps.acquire(timeout=TIMEOUT_S)
            return super().decode(payload)

    taken, steps = list[Any](), threading.Semaphore(0)
    handler = start(Stepped, {"decode_threads": 1})
    with Frontend(handler) as frontend:
        answers = [frontend.submit(b"2") for _ in range(LEAST_THREADS)]
        wait_for(lambda: len(taken) == LEAST_THREADS)
        for priority in ("3", "1", "2"):
            answers.append(frontend.submit(f"1{priority}".encode(), X_Priority=priority))
            wait_for(lambda: state(handler).waiting_items == len(answers))
        for count in range(1, 4):
            steps.release()
            wait_for(lambda: len(taken) >= LEAST_THREADS + count)  # noqa: B023
        steps.release(len(answers))
        assert taken[LEAST_THREADS:] == [b"11", b"12", b"13"]
        assert [answer.result(TIMEOUT_S).status for answer in answers] == [200] * len(answers)


def test_lists_that_have_all_decode_threads_let_a_later_request_pass(start: Start) -> None:
    class Stepped(ThreadedHandler):
        def decode(self, payload: Payload) -> float:
            value = payload.value["number"] if isinstance(payload.value, dict) else payload.value
            if value != self.sample().value:
                taken.append(value)
                assert steps.acquire(timeout=TIMEOUT_S)
            return super().decode(payload)

    taken, steps = list[Any](), threading.Semaphore(0)
    handler = start(Stepped, {"decode_threads": LEAST_THREADS})
    with Frontend(handler) as frontend:
        lists = [frontend.submit(write_list(*range(first, first + 4))) for first in (10, 20)]
        wait_for(lambda: len(taken) == LEAST_THREADS)
        later = frontend.submit(b"2")
        wait_for(lambda: state(handler).in_flight == 3)
        steps.release()
        wait_for(lambda: len(taken) == LEAST_THREADS + 1)
        steps.release(100)
        assert later.result(TIMEOUT_S).body == 4
        assert [each.result(TIMEOUT_S).status for each in lists] == [200, 200]
    # Their deadlines are earlier.
    assert ([*map(bool, taken[:4])], taken[4]) == ([True] * 4, b"2")


class Body(str):
    """A client's body; a weak reference shows when it is freed."""


@pytest.mark.parametrize("is_threaded", [False, True])
def test_worker_keeps_no_body_of_a_request_that_is_decoded(start: Start, is_threaded: bool) -> None:
    class Noting(GatedHandler):
        inputs = Inputs(frozenset({"number"}), in_threads=is_threaded)

        def unpack(self, row: Any, headers: Any) -> Request:
            body = Body("2")
            bodies.append(weakref.ref(body))
            return Request((Payload({"number": body}),))

    bodies: list[weakref.ref[Body]] = []
    handler = start(Noting)
    handler.gate.clear()
    with Frontend(handler) as frontend:
        answer = frontend.submit(b"2")
        handler.wait(running=1)
        wait_for(lambda: [body() for body in bodies] == [None])
        assert not answer.done()
        handler.gate.set()
        assert answer.result(TIMEOUT_S).body == 4


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


# A micro-batch costs far more than its items, so all that wait share one.
SHARED = [(1, 0.02), (1000, 0.021)]


def test_request_is_answered_when_the_last_of_its_items_has_ended_and_not_with_its_micro_batch(start: Start) -> None:
    handler = start(ReportingHandler, took=SHARED)
    with Frontend(handler) as frontend:
        answers = frontend.submit_together([b"2", write_list(4, 6), b"8"])
        for place, (turns, body) in enumerate(((2, 4), (1, {"predictions": [8, 12]}), (1, 16))):
            handler.turns.release(turns)
            assert answers[place].result(TIMEOUT_S).body == body
            assert not any(later.done() for later in answers[place + 1 :])
    assert handler.batches == [[2, 4, 6, 8]]


def test_micro_batch_that_fails_keeps_the_answers_it_gave_and_tries_the_others_again(start: Start) -> None:
    handler = start(ReportingHandler, took=SHARED)
    handler.turns.release(100)
    with Frontend(handler) as frontend:
        answers = frontend.send_together(b"2", b"700", b"666", b"800")
    assert [answer.status for answer in answers] == [200, 200, 500, 200]
    assert [answers[index].body for index in (0, 1, 3)] == [4, 1400, 1600]
    # An item with an answer does not run again; the others run in halves, down to the item at fault.
    assert handler.batches[0] == [2, 666, 700, 800]
    assert not any(2 in batch for batch in handler.batches[1:]) and [666] in handler.batches
