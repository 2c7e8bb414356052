"""The generator against a server of a few lines."""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from aiohttp import web

from load.closed_loop import ClosedLoop
from load.summary import Summary

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

SLOW_S = 0.2


def generate(answer: Answer, **settings: float) -> Summary:
    """Run a closed loop against a server that lives as long as the loop."""

    async def session() -> Summary:
        app = web.Application()
        app.router.add_post("/", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            return await loop_for(f"http://{host}:{port}/", **settings).generate()
        finally:
            await runner.cleanup()

    return asyncio.run(session())


def loop_for(url: str, *, clients: float = 2, duration_s: float = 0.3, timeout_s: float = 10) -> ClosedLoop:
    return ClosedLoop(
        url, [b"a", b"b", b"c"], int(clients), duration_s, content_type="text/x-test", timeout_s=timeout_s
    )


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
    assert summary.latencies_s[0] >= 0.01
    assert summary.throughput_per_s <= 4 / 0.01
    assert set(bodies) == {b"a", b"b", b"c"}
    assert types == {"text/x-test"}


def test_loop_of_many_clients_keeps_as_many_requests_in_flight_and_no_more() -> None:
    in_flight, most = 0, 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0.02)
        in_flight -= 1
        return web.Response()

    generate(answer, clients=7)
    assert most == 7


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
    assert summary.completed == summary.statuses[200] == len(summary.latencies_s)
    assert summary.latencies_s[0] >= 0.02


def test_loop_with_answers_slower_than_the_window_counts_one_each() -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(SLOW_S)
        return web.Response()

    summary = generate(answer, clients=3, duration_s=0.01)
    assert summary.completed == 3
    assert 0 < summary.throughput_per_s <= 3 / SLOW_S


def test_loop_with_requests_that_time_out_counts_them_as_unanswered() -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(SLOW_S)
        return web.Response()

    summary = generate(answer, clients=1, duration_s=0.01, timeout_s=0.05)
    assert (summary.completed, summary.failures) == (0, {0: 1})


def test_loop_without_a_server_ends_and_does_not_spin() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        started_s = time.monotonic()
        summary = loop_for(f"http://127.0.0.1:{unused.getsockname()[1]}/", clients=1).run()
    assert summary.completed == 0
    assert set(summary.failures) == {0}
    assert summary.failures[0] <= 4
    assert time.monotonic() - started_s < 5
