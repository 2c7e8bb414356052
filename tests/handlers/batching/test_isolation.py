"""A slow request does not delay others in an adaptive worker, which exchanges, decodes and expires meanwhile."""

import threading
import weakref
from typing import Any

import pytest

from handlers.batching.arrivals import LARGE_BYTES, LEAST_THREADS
from handlers.protocol.requests import Payload, Request
from tests.handlers.batching.frontend import Frontend
from tests.handlers.batching.gated import TIMEOUT_S, GatedHandler, Start, ThreadedHandler, state, wait_for, write_list


@pytest.fixture(params=[GatedHandler, ThreadedHandler])
def handler(request: pytest.FixtureRequest, start: Start) -> GatedHandler:
    return start(request.param, {"max_request_items": 100, "max_groups": 1})


SLOW = b"slow" + b"21".rjust(LARGE_BYTES)


@pytest.mark.parametrize(
    ("slow", "answer"),
    [
        (SLOW, 42.0),
        # Small texts, of which there are many.
        (write_list(*["slow" + "21".rjust(LARGE_BYTES // 4)] * 8), {"predictions": [42.0] * 8}),
    ],
)
def test_request_that_is_long_in_decoding_delays_nobody_and_expires_meanwhile(
    handler: GatedHandler, slow: bytes, answer: Any
) -> None:
    handler.slow_gate.clear()
    with Frontend(handler) as frontend:
        patient = frontend.submit(slow)
        late = frontend.submit(SLOW, X_Timeout_Ms="150")
        for _ in range(4):
            assert frontend.send(b"2").body == 4
        assert late.result(TIMEOUT_S).status == 504
        assert not patient.done()
        handler.module.batches.clear()
        handler.slow_gate.set()
        assert patient.result(TIMEOUT_S).body == answer
        assert frontend.send(b"6").body == 12
    # Decoded items of the expired request do not run.
    ran = [number for batch in handler.module.batches for number in batch]
    assert ran.count(21.0) == (1 if answer == 42.0 else 8)
    assert handler.forgets()


def test_list_takes_half_of_the_decode_threads_and_leaves_the_others_to_who_comes_later(start: Start) -> None:
    handler = start(ThreadedHandler)
    handler.slow_gate.clear()
    with Frontend(handler) as frontend:
        many = frontend.submit(write_list(*["slow21"] * 10))
        wait_for(lambda: handler.decoding == LEAST_THREADS // 2)
        for _ in range(4):
            assert frontend.send(b"2").body == 4
        assert handler.decoding == LEAST_THREADS // 2
        assert not many.done()
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

    def step() -> None:
        before = len(taken)
        steps.release()
        wait_for(lambda: len(taken) > before)

    taken: list[Any] = []
    steps = threading.Semaphore(0)
    handler = start(Stepped, {"decode_threads": 1})
    with Frontend(handler) as frontend:
        answers = [frontend.submit(b"2") for _ in range(LEAST_THREADS)]
        wait_for(lambda: len(taken) == LEAST_THREADS)
        for priority in ("3", "1", "2"):
            answers.append(frontend.submit(f"1{priority}".encode(), X_Priority=priority))
            wait_for(lambda: state(handler).waiting_items == len(answers))
        for _ in range(3):
            step()
        steps.release(len(answers))
        assert taken[LEAST_THREADS:] == [b"11", b"12", b"13"]
        assert [answer.result(TIMEOUT_S).status for answer in answers] == [200] * len(answers)


def test_request_over_its_budget_is_413_and_costs_the_engine_nothing(handler: GatedHandler) -> None:
    with Frontend(handler) as frontend:
        handler.module.batches.clear()
        # Odd and even numbers are separate groups.
        together = frontend.submit_together([(write_list(2, 3, "x"), {}), (write_list(4, 6), {}), (b"8", {})])
        over, fine, good = (answer.result(TIMEOUT_S) for answer in together)
    assert (over.status, {each["error"]["type"] for each in over.body["predictions"]}) == (413, {"WorkTooLarge"})
    assert (fine.body, good.body) == ({"predictions": [8.0, 12.0]}, 16.0)
    assert not {2.0, 3.0} & {number for batch in handler.module.batches for number in batch}
    assert handler.forgets()


class Body(str):
    """A client's body; a weak reference shows when it is freed."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("is_threaded", [False, True])
def test_worker_keeps_no_body_of_a_request_that_is_decoded(start: Start, is_threaded: bool) -> None:
    class Noting(GatedHandler):
        decodes_in_threads = is_threaded

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
