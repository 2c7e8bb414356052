"""Equal items run once, and a cache keeps results: each client still gets its own response."""

import json
import tracemalloc
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.batching.equal_items import LARGE_BYTES, Cache, key_of
from handlers.metrics import CACHE_HITS, CACHE_MISSES
from handlers.pipeline.values import Results
from handlers.protocol.requests import Cost, Payload
from handlers.protocol.tensors import BF16
from handlers.tasks.stock import StockHandler
from tests.handlers.batching.gated import TIMEOUT_S, GatedHandler, Start, ThreadedHandler, write_list
from tests.handlers.batching.test_core import HEADERS, submit
from tests.tables import table

JSON = {**HEADERS, "content-type": "application/json"}
LARGE = LARGE_BYTES + 8


@pytest.fixture(params=[GatedHandler, ThreadedHandler])
def handler(request: pytest.FixtureRequest, start: Start) -> GatedHandler:
    handler: GatedHandler = start(request.param, {"max_batch_items": 2})
    handler.module.batches.clear()
    return handler


def hold(handler: GatedHandler) -> Any:
    """Let a micro-batch wait at the gate, so that all others wait together."""
    handler.gate.clear()
    busy = submit(handler.service.core, b"1000")
    handler.wait()
    return busy


def test_equal_items_that_wait_run_once_and_each_client_has_its_own_response(handler: GatedHandler) -> None:
    busy = hold(handler)
    alone, gone, listed, numbered = (
        submit(handler.service.core, body, **headers)
        for body, headers in [(b"2", {}), (b"2", {}), (write_list("2", 7, "2"), JSON), (b'{"number": 2}', JSON)]
    )
    handler.wait(waiting=6)
    handler.service.core.cancel(gone)
    handler.gate.set()
    bodies = [future.result(TIMEOUT_S)().body for future in (alone, listed, numbered)]
    assert bodies == [b"4.0", b'{"predictions":[4.0,14.0,4.0]}', b"4.0"]
    # The body b"2", the text "2" and the number 2 are not equal.
    assert sorted(number for batch in handler.module.batches[1:] for number in batch) == [2, 2, 2, 7]
    with pytest.raises(CancelledError):
        gone.result(TIMEOUT_S)
    assert busy.result(TIMEOUT_S)().status == 200
    assert handler.forgets()


def test_most_urgent_of_equal_items_decides_when_all_run(handler: GatedHandler) -> None:
    hold(handler)
    others = [submit(handler.service.core, b"%d" % number) for number in (1, 3, 5, 7, 9)]
    patient, urgent = (submit(handler.service.core, b"11", **{"X-Priority": level}) for level in ("3", "1"))
    handler.wait(waiting=7)
    handler.gate.set()
    assert [future.result(TIMEOUT_S)().status for future in (*others, patient, urgent)] == [200] * 7
    assert 11 in handler.module.batches[1] and sum(11 in batch for batch in handler.module.batches) == 1


def test_item_that_fails_is_each_waiting_clients_own_error_after_one_run(handler: GatedHandler) -> None:
    hold(handler)
    failed = [submit(handler.service.core, b"666") for _ in range(3)]
    handler.wait(waiting=3)
    handler.gate.set()
    assert [future.result(TIMEOUT_S)().status for future in failed] == [500] * 3
    assert handler.module.batches[1:] == [[666]]


def test_cache_answers_equal_items_without_a_run_and_counts_them(start: Start) -> None:
    handler = start(ThreadedHandler, {"cache_mib": 1})
    handler.service.reporter.stop()
    handler.service.reporter.recorder.drain()
    handler.module.batches.clear()
    with_option = write_list("2")[:-1] + b',"other":1}'
    lists = [write_list(*numbers) for numbers in (["2", "3"], ["3", "2"], ["2", "9"])]
    bodies = [b"2", b"2", b"3", *lists, b"x", b"x", with_option]
    core = handler.service.core
    responses = [submit(core, body, **(JSON if b"{" in body else {})).result(TIMEOUT_S)() for body in bodies]
    hits = [number for number, each in enumerate(responses) if each.headers.get("X-Cache") == "hit"]
    assert (hits, json.loads(responses[4].body)) == ([1, 4], {"predictions": [6.0, 4.0]})
    assert [each.status for each in responses] == [200] * 6 + [422, 422, 400]
    assert sorted(number for batch in handler.module.batches for number in batch) == [2, 2, 3, 3, 9]
    sums = {each.counter: each.value for each in handler.service.reporter.recorder.drain()}
    assert (sums[CACHE_HITS], sums[CACHE_MISSES]) == (4, 8)
    assert handler.forgets()


def test_request_of_cached_items_keeps_the_limits_and_the_checks_of_any_other(start: Start) -> None:
    handler = start(GatedHandler, {"cache_mib": 1, "max_request_tokens": 3})
    lists = [write_list(each) for each in (1, 3, 5, 7)]
    assert {submit(handler.service.core, each, **JSON).result(TIMEOUT_S)().status for each in lists} == {200}
    response = submit(handler.service.core, write_list(1, 3, 5, 7), **JSON).result(TIMEOUT_S)()
    assert b"max_request_tokens" in response.body
    assert submit(handler.service.core, lists[0], **JSON, **{"X-Priority": "none"}).result(TIMEOUT_S)().status == 400


def test_items_whose_results_may_differ_do_not_share_unless_the_owner_says_so(start: Start) -> None:
    class Random(GatedHandler):
        results = Results(is_repeatable=False)

    ran = []
    for kind, settings in ((Random, {}), (Random, {"share_equal": True}), (GatedHandler, {"share_equal": False})):
        handler = start(kind, {"max_batch_items": 8, **settings})
        hold(handler)
        futures = [submit(handler.service.core, b"2") for _ in range(3)]
        handler.wait(waiting=3)
        handler.module.batches.clear()
        handler.gate.set()
        assert {future.result(TIMEOUT_S)().body for future in futures} == {b"4.0"}
        ran.append(handler.module.batches[-1])
    assert ran == [[2, 2, 2], [2], [2, 2, 2]]
    assert not StockHandler.results.is_repeatable


ZEROS = np.zeros(LARGE, np.uint8)
ONE = ZEROS.copy()
ONE[LARGE // 3] = 1
DIFFERENT = table(
    ("a number, a truth and a text", [1, 1.0, True, "1", b"1", -0.0, 0.0]),
    ("numbers in a list", [[1, 2], [[1, 2]], [1, 2.0], [1], (1, 2)]),
    ("names of inputs", [{"a": "x"}, {"b": "x"}, {"a": b"x"}, {"a": "x", "b": ""}]),
    ("shapes and datatypes", [np.zeros(shape, kind) for shape in ((2, 3), (6,)) for kind in ("f4", "i4", "f8", BF16)]),
    ("numbers and tensors", [np.float32(1), np.ones(1, np.float32), np.ones((), np.float64), np.int32(1)]),
    ("texts in tensors", [np.array(texts, object) for texts in (["a", "b"], ["ab", ""], [b"a", "b"])]),
    ("bytes behind the sample", [bytes(ONE), bytes(ZEROS), bytes(ZEROS[:-1]), bytearray(ONE)[:-1]]),
    ("large tensors", [ZEROS, ONE, ZEROS.view(np.int8), ZEROS.reshape(2, -1)]),
    ("large texts", ["a" * LARGE, "a" * (LARGE // 3) + "b" + "a" * (LARGE - LARGE // 3 - 1)]),
)


@DIFFERENT
def test_values_that_a_task_can_tell_apart_have_different_keys(name: str, values: list[Any]) -> None:
    for is_kept in (True, False):
        keys = [key_of(Payload(value), is_kept=is_kept) for value in values]
        assert None not in keys and len({*keys}) == len(values), name
        assert keys == [key_of(Payload(value), is_kept=not is_kept) for value in values]


def test_options_and_unknown_objects_have_no_equal_key() -> None:
    keys = [key_of(Payload("a", options)) for options in ({}, {"top_k": 1}, {"top_k": True}, {"top_k": 1.0})]
    assert len({*keys}) == 4 and keys[1] == key_of(Payload("a", {"top_k": 1}))
    unknown = object()
    assert {key_of(Payload(value)) for value in (unknown, {"a": unknown}, [unknown])} == {None}  # type: ignore[arg-type]
    assert key_of(Payload("a", unknown)) is None


def test_value_that_changes_later_keeps_its_key() -> None:
    for value in (bytearray(8), bytearray(LARGE), np.zeros(8), np.zeros(LARGE), {"a": np.zeros(4)}):
        key = key_of(Payload(value))
        target = value["a"] if isinstance(value, dict) else value
        target[0] = 1
        assert key != key_of(Payload(value))
        target[0] = 0
        assert key == key_of(Payload(value))


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 300_000)), max_size=40))
def test_cache_keeps_the_latest_results_within_its_bytes(used: list[tuple[int, int]]) -> None:
    cache, order = Cache(2**20), list[int]()
    for number, size in used:
        key = f"{number}"
        if (found := cache.get(key)) is None:
            cache.put(key, {"vector": np.full(size, number, np.uint8)[::2], "name": key}, Cost(length=number + 1))
            found = cache.get(key)
        if found is not None:
            assert (found[0]["name"], found[1].length) == (key, number + 1)
            assert {*found[0]["vector"].tolist()} <= {number}
            order = [each for each in order if each != number] + [number]
    kept = [number for number in order if cache.get(f"{number}") is not None]
    assert kept == order[len(order) - len(kept) :]
    assert cache._bytes <= 2**20


def test_bytes_of_a_cache_are_those_that_python_allocates() -> None:
    cache, batch = Cache(4 * 2**20), np.zeros((64, 4096), np.float32)
    tracemalloc.start()
    try:
        for number in range(2000):
            cache.put(key_of(Payload({"text": f"{number}" * 50}), is_kept=False), batch[number % 64], Cost())
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 2 * 2**20 < held < 4 * 2**20
    cache.put("large", np.zeros(2**21), Cost())
    cache.put("unknown", lambda: None, Cost())
    assert cache.get("large") is cache.get("unknown") is None
