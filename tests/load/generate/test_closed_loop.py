"""The closed loop against a server of a few lines."""

import asyncio
import socket
import time
from collections import Counter

from aiohttp import web

from load.generate.attack import Attack
from load.generate.closed_loop import ClosedLoop
from load.generate.inputs import Inputs
from load.generate.target import Target
from load.generate.windows import Duration, Requests, Stability, Until
from load.measure.summary import Summary
from tests.load.fake_server import Answer, Counting, serving

SLOW_S = 0.2


def generate(
    answer: Answer, clients: int = 2, until: Until | None = None, timeout_s: float = 10, samples: int = 1
) -> Summary:
    with serving(answer) as url:
        return attack(f"{url}/predictions/m", ClosedLoop(clients, samples=samples), until, timeout_s).run()


def attack(url: str, load: ClosedLoop, until: Until | None = None, timeout_s: float = 10) -> Attack:
    inputs = Inputs.of([b"a", b"b", b"c"], "text/x-test")
    return Attack(Target(url, timeout_s=timeout_s), inputs, load, until or Duration(0.3))


def test_loop_against_a_good_server_counts_all_but_the_warm_up() -> None:
    bodies: Counter[bytes] = Counter()
    types: set[str] = set()

    async def answer(request: web.Request) -> web.Response:
        bodies[await request.read()] += 1
        types.add(request.content_type)
        await asyncio.sleep(0.01)
        return web.Response(text="fine")

    summary = generate(answer, clients=4)
    assert summary.statuses == {200: summary.completed}
    # Each client warms up with one request, and with more while others still do.
    assert 4 <= bodies.total() - summary.completed < bodies.total()
    assert summary.latencies.statistics_ms()["min"] >= 10
    assert summary.throughput_per_s <= 4 / 0.01
    assert (summary.sent_bytes, summary.received_bytes) == (summary.completed, 4 * summary.completed)
    assert set(bodies) == {b"a", b"b", b"c"}
    assert types == {"text/x-test"}
    assert summary.is_valid


def test_loop_of_many_clients_keeps_as_many_requests_in_flight_and_no_more() -> None:
    counting = Counting(0.02)
    generate(counting.answer, clients=7)
    assert counting.most == 7


def test_loop_keeps_its_connections() -> None:
    connections = set()

    async def answer(request: web.Request) -> web.Response:
        connections.add(request.transport)
        await asyncio.sleep(0.005)
        return web.Response()

    summary = generate(answer, clients=3)
    assert summary.completed > 10
    assert len(connections) == 3


def test_loop_with_a_share_of_500_leaves_them_out_of_the_latencies() -> None:
    asked = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if asked % 3 == 0:
            return web.Response(status=500)  # at once, so it would show as the smallest latency
        await asyncio.sleep(0.02)
        return web.Response()

    summary = generate(answer, clients=2)
    assert summary.statuses[500] > 0
    assert summary.failures == {500: summary.statuses[500]}
    assert summary.completed == summary.statuses[200] == summary.latencies.count
    assert summary.latencies.statistics_ms()["min"] >= 20


def test_loop_with_answers_slower_than_the_window_counts_one_each() -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(SLOW_S)
        return web.Response()

    summary = generate(answer, clients=3, until=Duration(0.01))
    assert summary.completed == 3
    assert 0 < summary.throughput_per_s <= 3 / SLOW_S


def test_loop_with_requests_that_time_out_counts_them_as_unanswered() -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(SLOW_S)
        return web.Response()

    summary = generate(answer, clients=1, until=Duration(0.01), timeout_s=0.05)
    assert (summary.completed, summary.failures) == (0, {0: 1})
    assert summary.errors.keys() <= {"TimeoutError", "ConnectionTimeoutError", "SocketTimeoutError"}


def test_loop_until_a_number_of_requests_ends_soon_after_them() -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(0.01)
        return web.Response()

    assert 20 <= generate(answer, clients=2, until=Requests(20)).completed < 40


def test_loop_against_a_steady_server_is_stable_after_three_windows_and_measures_those() -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(0.02)
        return web.Response()

    summary = generate(answer, until=Stability(interval_s=0.2, percentage=60, max_trials=20))
    assert summary.is_valid
    assert 0.6 <= summary.window_s < 1.0


def test_loop_against_a_server_that_slows_down_is_not_stable_and_says_so() -> None:
    asked = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.002 * 1.5 ** min(asked, 12))
        return web.Response()

    summary = generate(answer, clients=1, until=Stability(interval_s=0.1, percentage=1, max_trials=3))
    assert summary.invalid_reasons[0].startswith("not stable after 3 windows: ")


def test_loop_of_several_samples_a_query_waits_for_the_slowest() -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(0.05 if await request.read() == b"b" else 0.001)
        return web.Response()

    summary = generate(answer, clients=1, samples=3)
    assert summary.latencies.statistics_ms()["min"] >= 50
    # Three bodies of one byte are one query.
    assert summary.sent_bytes == 3 * summary.completed


def test_loop_without_a_server_ends_and_does_not_spin() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        started_s = time.monotonic()
        summary = attack(f"http://127.0.0.1:{unused.getsockname()[1]}/", ClosedLoop(1)).run()
    assert summary.completed == 0
    assert set(summary.failures) == {0}
    assert summary.failures[0] <= 4
    assert summary.errors == {"ClientConnectorError": summary.failures[0]}
    assert time.monotonic() - started_s < 5


def test_loop_with_a_body_of_several_megabytes_sends_all_of_it() -> None:
    sizes = set()

    async def answer(request: web.Request) -> web.Response:
        sizes.add(len(await request.read()))
        return web.Response()

    with serving(answer) as url:
        inputs = Inputs.of([bytes(3_000_000)])
        summary = Attack(Target(f"{url}/predictions/m"), inputs, ClosedLoop(1), Duration(0.05)).run()
    assert summary.failures == {}
    assert sizes == {3_000_000}
