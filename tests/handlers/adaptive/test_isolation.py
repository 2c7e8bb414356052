"""One client's request does not keep an adaptive worker from another's: it looks, decodes and expires meanwhile."""

import json
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from handlers.adaptive.decoder import LARGE_BYTES, LEAST_THREADS
from handlers.adaptive.fail_fast import Guard
from handlers.adaptive.in_flight import InFlightRequest
from handlers.errors import EXPIRED
from handlers.pipeline.slots import Slot
from handlers.protocol.requests import Payload, Request
from tests.handlers.adaptive.frontend import Frontend
from tests.handlers.adaptive.gated import TIMEOUT_S, GatedHandler, StreamedHandler, ThreadedHandler, started, wait_for


def listed(*values: Any) -> bytes:
    return json.dumps({"instances": [{"number": value} for value in values]}).encode()


def test_worker_looks_for_newcomers_while_the_engine_runs_for_a_lone_client(tmp_path: Path) -> None:
    handler = started(GatedHandler, tmp_path, {"max_instances": 100}, max_batch_items=1)
    with Frontend(handler) as frontend:
        # So many that a worker which finds nobody beside a lone client stops fetching.
        for _ in range(40):
            assert frontend.send(b"2").body == 4
        handler.gate.clear()
        # More than a lone client's request may be for the frontend's own thread to run it.
        first = frontend.submit(listed(*range(0, 200, 2)))
        wait_for(lambda: handler.worker.state.running_batches == 1)
        exchanges = frontend.exchanges
        wait_for(lambda: frontend.exchanges >= exchanges + 5)
        # Hears at once that it cannot be served, while the engine stands.
        hurried = frontend.submit(b"4", X_Timeout_Ms="1")
        assert hurried.result(TIMEOUT_S).body["type"] == "Overloaded"
        assert not first.done()
        handler.gate.set()
        assert first.result(TIMEOUT_S).status == 200
    assert handler.forgets()


def test_request_expires_while_a_long_micro_batch_has_the_engine(tmp_path: Path) -> None:
    handler = started(GatedHandler, tmp_path, max_batch_items=1)
    with Frontend(handler) as frontend:
        handler.gate.clear()
        first, late = frontend.submit_together([(b"2", {"x_priority": "1"}), (b"4", {"x_timeout_ms": "300"})])
        assert late.result(TIMEOUT_S).body["type"] == "QueueTimeout"
        assert not first.done()
        handler.gate.set()
        assert first.result(TIMEOUT_S).body == 4
    assert [4.0] not in handler.module.batches
    assert handler.forgets()


@pytest.mark.parametrize("kind", [GatedHandler, ThreadedHandler])
def test_request_expires_while_it_is_decoded_and_what_was_decoded_goes_nowhere(
    kind: type[GatedHandler], tmp_path: Path
) -> None:
    handler = started(kind, tmp_path)
    handler.slow_gate.clear()
    with Frontend(handler) as frontend:
        late = frontend.submit(b"slow" + b"21".rjust(LARGE_BYTES), X_Timeout_Ms="300")
        assert late.result(TIMEOUT_S).body["type"] == "QueueTimeout"
        assert frontend.send(b"2").body == 4
        handler.slow_gate.set()
        assert frontend.send(b"6").body == 12
    assert [21.0] not in handler.module.batches
    assert handler.forgets()


LOCK = threading.Lock()


class SlowlyListed(ThreadedHandler):
    """Counts how many of its threads are decoding what says slow."""

    decoding = 0

    def decode(self, payload: Payload) -> float:
        if isinstance(payload.value, dict) and payload.value["number"] == "slow":
            with LOCK:
                self.decoding += 1
            assert self.slow_gate.wait(TIMEOUT_S)
            with LOCK:
                self.decoding -= 1
            return 21.0
        return super().decode(payload)


def test_list_takes_half_of_the_decode_threads_and_leaves_the_others_to_who_comes_later(tmp_path: Path) -> None:
    handler = started(SlowlyListed, tmp_path)
    assert isinstance(handler, SlowlyListed)
    handler.slow_gate.clear()
    with Frontend(handler) as frontend:
        many = frontend.submit(listed(*["slow"] * 10))
        wait_for(lambda: handler.decoding == LEAST_THREADS // 2)
        time.sleep(0.05)
        assert handler.decoding == LEAST_THREADS // 2
        for _ in range(4):
            assert frontend.send(b"2").body == 4
        assert not many.done()
        handler.slow_gate.set()
        assert many.result(TIMEOUT_S).body == {"predictions": [42.0] * 10}
    assert handler.forgets()


def test_list_of_many_small_texts_is_decoded_apart_from_the_frontends_thread(tmp_path: Path) -> None:
    class Noting(GatedHandler):
        def decode(self, payload: Payload) -> float:
            names.add(threading.current_thread().name)
            return super().decode(payload)

    names: set[str] = set()
    handler = started(Noting, tmp_path)
    with Frontend(handler) as frontend:
        names.clear()
        assert frontend.send(listed(*["2".rjust(LARGE_BYTES // 4)] * 8)).body == {"predictions": [4.0] * 8}
        assert names == {"decode"}
        names.clear()
        assert frontend.send(listed(1, 2)).body == {"predictions": [2.0, 4.0]}
        assert "decode" not in names


@pytest.mark.parametrize("kind", [GatedHandler, ThreadedHandler, StreamedHandler])
def test_request_over_its_budget_is_413_and_costs_the_engine_nothing(kind: type[GatedHandler], tmp_path: Path) -> None:
    handler = started(kind, tmp_path, {"max_groups": 1})
    with Frontend(handler) as frontend:
        handler.module.batches.clear()
        # Odd and even ones are groups of their own.
        over, fine, good = (
            answer.result(TIMEOUT_S)
            for answer in frontend.submit_together([(listed(2, 3, "x"), {}), (listed(4, 6), {}), (b"8", {})])
        )
    assert (over.status, {each["error"]["type"] for each in over.body["predictions"]}) == (413, {"WorkTooLarge"})
    assert (fine.body, good.body) == ({"predictions": [8.0, 12.0]}, 16.0)
    assert not {2.0, 3.0} & {number for batch in handler.module.batches for number in batch}
    assert handler.forgets()


def test_worker_whose_engine_does_not_come_back_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_dead = threading.Event()
    monkeypatch.setattr(Guard.__init__, "__defaults__", (is_dead.set,))
    monkeypatch.setattr("handlers.base.RESPONSE_TIMEOUT_S", 0.5)
    handler = started(GatedHandler, tmp_path)
    frontend = Frontend(handler)
    frontend.start()
    handler.gate.clear()
    frontend.submit(b"2")
    assert is_dead.wait(TIMEOUT_S)
    handler.gate.set()
    frontend.abandon()


class Body(str):
    """What a client sent, whose end can be seen."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("is_threaded", [False, True])
def test_worker_keeps_no_body_of_a_request_that_is_decoded(tmp_path: Path, is_threaded: bool) -> None:
    class Noting(GatedHandler):
        decodes_in_threads = is_threaded

        def unpack(self, row: Any, headers: Any) -> Request:
            body = Body("2")
            bodies.append(weakref.ref(body))
            return Request((Payload({"number": body}),))

    bodies: list[weakref.ref[Body]] = []
    handler = started(Noting, tmp_path)
    handler.gate.clear()
    with Frontend(handler) as frontend:
        answer = frontend.submit(b"2")
        wait_for(lambda: handler.worker.state.running_batches == 1)
        wait_for(lambda: [body() for body in bodies] == [None])
        assert not answer.done()
        handler.gate.set()
        assert answer.result(TIMEOUT_S).body == 4


def test_request_that_fails_while_a_thread_decodes_keeps_its_error() -> None:
    request = InFlightRequest(id="1", request=Request(()), slots=[Slot("payload")], arrived_s=0)
    decoding = request.slots[0]
    request.fail(EXPIRED)
    decoding.outcome = "decoded"
    assert [slot.outcome for slot in request.slots] == [EXPIRED]
