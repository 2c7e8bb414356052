"""The core without a server: requests from other threads and event loops, cancelled requests, expiry and close."""

import asyncio
import threading
import time
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from deploy.hosts.frontend.replica import Replica
from deploy.hosts.frontend.routes import Models
from deploy.protocol import deep
from handlers.batching.arrivals import Arrivals
from handlers.batching.core import Core
from handlers.batching.engine import LatencyModel, Streams
from handlers.batching.pending import Pending, Submitted
from handlers.batching.policy import Policy
from handlers.batching.scheduler import Scheduler
from handlers.config import HandlerConfig
from handlers.continuous.exchanges import select_complete
from handlers.metrics import ABANDONED, Recorder
from handlers.protocol import wire
from handlers.protocol.requests import Cost, Payload, Request
from tests.handlers.batching.frontend import Frontend
from tests.handlers.batching.gated import TIMEOUT_S, GatedHandler, Start, ThreadedHandler, state, wait_for, write_list
from tests.handlers.serving import Patch

HEADERS = {"host": "localhost"}


@pytest.fixture(params=[GatedHandler, ThreadedHandler])
def handler(request: pytest.FixtureRequest, start: Start) -> GatedHandler:
    handler: GatedHandler = start(request.param, {"max_batch_items": 1})
    handler.service.reporter.stop()
    handler.service.reporter.recorder.drain()
    handler.module.batches.clear()
    return handler


def submit(core: Core, body: bytes, **headers: str) -> Submitted:
    (future,) = core.submit([(core.unpack({"body": body}, {**HEADERS, **headers}), time.perf_counter())])
    core.step()
    return future


def assert_cancelled(*futures: Any) -> None:
    for future in futures:
        with pytest.raises(CancelledError):
            future.result(TIMEOUT_S)


def count_abandoned(handler: GatedHandler) -> float:
    return sum(each.value for each in handler.service.reporter.recorder.drain() if each.counter == ABANDONED)


def test_replies_are_written_where_their_caller_wants_them(handler: GatedHandler) -> None:
    core, split, split_on = handler.service.core, handler.split, set[Any]()
    handler.split = lambda *given: split_on.add(threading.current_thread()) or split(*given)  # type: ignore[method-assign,func-returns-value]

    async def ask(body: bytes) -> tuple[int, bytes]:
        response = (await asyncio.wrap_future(submit(core, body)))()
        return response.status, response.body

    async def ask_all() -> list[tuple[int, bytes]]:
        return await asyncio.gather(*map(ask, (b"2", b"x", b"", write_list(4, 6))))

    good, bad, empty, listed = asyncio.run(ask_all())
    assert (good, bad[0], empty[0], listed) == ((200, b"4.0"), 422, 400, (200, b'{"predictions":[8.0,12.0]}'))
    assert split_on == {threading.main_thread()}
    assert handler.forgets()


@pytest.mark.parametrize("quick_s", [0.0, TIMEOUT_S])
def test_host_runs_quick_micro_batches_on_its_event_loop_and_others_on_threads(
    quick_s: float, start: Start, monkeypatch: Patch
) -> None:
    handler, ran_on = start(GatedHandler), set[bool]()
    forward = handler.forward
    loaded = SimpleNamespace(name="double", version="1.0", handler=handler)

    def noting(_: object, *given: Any) -> Any:
        ran_on.add(threading.current_thread() is threading.main_thread())
        return forward(*given)

    async def ask_all() -> list[tuple[int, bytes]]:
        return [each[:2] for each in await asyncio.gather(*(replica.predict(HEADERS, b"%d" % n) for n in range(8)))]

    with patch("deploy.hosts.frontend.replica.LoadedArchive", return_value=loaded):
        replica = Replica("", threads=0, gpu=None, metrics=None)
    with patch.object(GatedHandler, "forward", noting):
        monkeypatch.setattr("deploy.hosts.frontend.replica.QUICK_S", quick_s)
        assert asyncio.run(ask_all()) == [(200, b"%.1f" % (2 * number)) for number in range(8)]
    assert (True in ran_on) == (quick_s > 0)


def test_deep_health_is_that_of_the_engine_and_a_full_queue_changes_nothing(start: Start, monkeypatch: Patch) -> None:
    handler = start(GatedHandler, {"max_batch_items": 1}, max_queue_items=2)
    with patch("deploy.hosts.frontend.replica.LoadedArchive", return_value=SimpleNamespace(
        name="double", version="1.0", handler=handler)):  # fmt: skip
        replica = Replica("", threads=0, gpu=None, metrics=None)
    models = Models({"double": replica.answer}, None, 1000)
    assert deep.SAMPLE == wire.SAMPLE
    monkeypatch.setattr(deep, "KEPT_S", 0.0)
    monkeypatch.setattr("deploy.hosts.frontend.replica.QUICK_S", 0.0)  # the gate would stop the event loop

    async def look() -> tuple[str, list[int]]:
        assert await models.check("double") == {"double": ""}
        handler.module.batches.clear()
        handler.gate.clear()
        tasks = [asyncio.ensure_future(replica.predict(HEADERS, b"2"))]
        while not state(handler).running_batches:
            await asyncio.sleep(0.001)
        tasks += [asyncio.ensure_future(replica.predict(HEADERS, b"%d" % n)) for n in (4, 6, 8)]
        while state(handler).waiting_items < 2:
            await asyncio.sleep(0.001)
        # It goes before those that wait, and all probes share it.
        probes = [asyncio.ensure_future(models.check("double")) for _ in range(3)]
        while state(handler).waiting_items < 3:
            await asyncio.sleep(0.001)
        assert state(handler).in_flight <= 5
        handler.gate.set()
        assert [*(each["double"] for each in await asyncio.gather(*probes))] == ["", "", ""]
        statuses = [each.status for each in await asyncio.gather(*tasks)]
        # A micro-batch that hangs, and then an input after which every pass fails.
        handler.gate.clear()
        hanging = asyncio.ensure_future(replica.predict(HEADERS, b"2"))
        monkeypatch.setattr(deep, "ANSWER_S", 0.05)
        hung = (await models.check("double"))["double"]
        handler.gate.set()
        assert (await hanging).status == 200
        monkeypatch.setattr(deep, "ANSWER_S", TIMEOUT_S)
        assert await models.check("double") == {"double": ""}
        with patch.object(GatedHandler, "forward", side_effect=RuntimeError("poisoned")):
            assert (await replica.predict(HEADERS, b"2")).status == 500
            failing = (await models.check("double"))["double"]
        return "; ".join((hung, failing)), sorted(statuses)

    problems, statuses = asyncio.run(look())
    assert problems == "its own sample had no answer in 0.05 s; its own sample returned 500"
    assert statuses == [200, 200, 200, 503] and handler.module.batches[:3] == [[2], [1], [4]]


def test_deep_health_asks_the_engine_although_its_sample_is_in_the_cache(start: Start, monkeypatch: Patch) -> None:
    handler = start(GatedHandler, {"cache_mib": 1})
    monkeypatch.setattr(deep, "KEPT_S", 0.0)
    loaded = SimpleNamespace(name="double", version="1.0", handler=handler)
    with patch("deploy.hosts.frontend.replica.LoadedArchive", return_value=loaded):
        models = Models({"double": Replica("", threads=0, gpu=None, metrics=None).answer}, None, 1000)

    async def look() -> list[str]:
        found = [(await models.check("double"))["double"] for _ in range(2)]
        with patch.object(GatedHandler, "forward", side_effect=RuntimeError("poisoned")):
            return [*found, (await models.check("double"))["double"]]

    assert asyncio.run(look()) == ["", "", "its own sample returned 500"]


def test_waiting_request_that_is_cancelled_never_runs_and_a_running_one_is_dropped(handler: GatedHandler) -> None:
    core = handler.service.core
    handler.gate.clear()
    handler.slow_gate.clear()
    with patch.object(handler, "split", wraps=handler.split) as split:
        futures = [submit(core, body) for body in (b"2", b"4")]
        handler.wait(running=1, waiting=1)
        if isinstance(handler, ThreadedHandler):
            futures.append(submit(core, b"slow6"))
        futures.append(submit(core, b"8"))
        for future in (*futures[:-1], futures[0]):
            core.cancel(future)
        handler.gate.set()
        handler.slow_gate.set()
        assert futures.pop().result(TIMEOUT_S)().body == b"16.0"
        wait_for(handler.forgets)
    assert_cancelled(*futures)
    assert (handler.module.batches, [[*call.args[1]] for call in split.mock_calls]) == ([[2], [8]], [[8]])
    assert count_abandoned(handler) == len(futures)


def test_request_that_is_cancelled_before_its_reply_is_written_leaves_nothing(handler: GatedHandler) -> None:
    future = submit(handler.service.core, b"2")
    future.result(TIMEOUT_S)
    assert not handler.forgets()
    handler.service.core.cancel(future)
    assert handler.forgets()


def test_time_of_a_micro_batch_that_was_halved_is_not_that_of_its_size(start: Start) -> None:
    handler = start(GatedHandler, {"max_batch_items": 2})
    handler.module.capacity = 1
    with patch.object(Scheduler, "finish", autospec=True, side_effect=Scheduler.finish) as finish:
        for body in (b"2", write_list(4, 6)):
            submit(handler.service.core, body).result(TIMEOUT_S)
    assert [call.kwargs["is_typical"] for call in finish.mock_calls] == [True, False]


def test_request_expires_although_no_one_looks(start: Start, monkeypatch: Patch) -> None:
    # Only the request itself says when to look.
    monkeypatch.setattr("handlers.batching.core.CHECK_S", 600.0)
    handler = start(GatedHandler, {"max_batch_items": 1})
    core = handler.service.core
    handler.module.batches.clear()
    handler.gate.clear()
    busy = submit(core, b"2")
    handler.wait()
    assert submit(core, b"4", **{"X-Timeout-Ms": "50"}).result(TIMEOUT_S)().status == 504
    assert not busy.done()
    handler.gate.set()
    assert (busy.result(TIMEOUT_S)().body, handler.module.batches) == (b"4.0", [[2]])


def test_core_that_is_closed_has_cancelled_what_it_had_and_ended_its_threads(handler: GatedHandler) -> None:
    core, before = handler.service.core, {*threading.enumerate()}
    handler.gate.clear()
    futures = [submit(core, body) for body in (b"2", b"4")]
    handler.wait(waiting=1)
    closing = threading.Thread(target=core.close)
    closing.start()
    assert_cancelled(*futures)
    handler.gate.set()
    closing.join(TIMEOUT_S)
    with pytest.raises(RuntimeError, match="closed"):
        submit(core, b"6")
    assert handler.module.batches == [[2]]
    assert {thread.name for thread in before - {*threading.enumerate()}} == {"decode", "engine", "watch"}


def test_request_that_expires_while_the_core_closes_is_cancelled(start: Start, monkeypatch: Patch) -> None:
    handler, may_cancel = start(ThreadedHandler), threading.Event()
    core, cancel = handler.service.core, handler.service.core.cancel

    def cancel_late(submitted: Submitted) -> None:
        assert may_cancel.wait(TIMEOUT_S)
        cancel(submitted)

    monkeypatch.setattr(core, "cancel", cancel_late)
    (watching,) = (thread for thread in threading.enumerate() if thread.name == "watch" and thread in core._threads)
    handler.slow_gate.clear()
    future, closing = submit(core, b"slow2"), threading.Thread(target=core.close)
    closing.start()
    watching.join(TIMEOUT_S)
    # Its time is up before `close` cancels it, and the server's thread notices.
    future._pending.expires_s = 0.0
    core.step(lambda _: 1)
    may_cancel.set()
    assert_cancelled(future)
    handler.slow_gate.set()
    closing.join(TIMEOUT_S)


def test_request_that_is_missing_from_the_next_exchange_never_runs(handler: GatedHandler) -> None:
    with Frontend(handler) as frontend:
        handler.gate.clear()
        busy = frontend.submit(b"2")
        handler.wait()
        gone, kept = frontend.submit(b"4"), frontend.submit(b"6")
        handler.wait(waiting=2)
        frontend.leave(gone)
        wait_for(lambda: state(handler).in_flight == 2)
        handler.gate.set()
        assert [busy.result(TIMEOUT_S).body, kept.result(TIMEOUT_S).body] == [4, 12]
    assert (handler.module.batches, count_abandoned(handler)) == ([[2], [6]], 1)


def test_rejection_waits_for_its_time_when_another_answer_leaves() -> None:
    in_flight = {name: Submitted(Pending.of(Request(()), 0.0)) for name in ("rejected", "answered", "running")}
    for name in ("rejected", "answered"):
        in_flight[name]._pending.is_complete = True
    in_flight["rejected"]._pending.retry_after_s = 1.0
    assert select_complete(in_flight, with_rejected=False) == ["answered"]
    assert select_complete(in_flight, with_rejected=True) == ["rejected", "answered"]


def test_length_of_a_request_is_estimated_by_its_bytes_once_others_are_decoded() -> None:
    scheduler = Scheduler(Policy(max_latency_s=10.0, max_items=8), Streams(LatencyModel([(1, 0.1), (8, 0.4)])))
    arrivals = Arrivals(scheduler, Recorder(), HandlerConfig())
    first, later, again = (
        Pending.of(Request(tuple(Payload(b"x" * size) for size in sizes)), 0.0) for sizes in ([10], [100, 1], [100])
    )
    arrivals.admit(first)
    first.slots[0].cost = Cost(length=20)
    arrivals.end_decoding(first.slots)
    arrivals.admit(later)
    assert later.work == 202
    # The latest item has a tenth of the weight: 2 tokens a byte become 1.9.
    first.slots[0].cost = Cost(length=10)
    arrivals.end_decoding(first.slots)
    arrivals.admit(again)
    assert again.work == pytest.approx(190)
