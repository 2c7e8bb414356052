"""The traffic on a real socket: a server that answers, crosses, swallows, hangs up or fails is told apart."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import count

import pytest
from aiohttp import web

from load.generate.target import Target
from load.measure.exchange import Verdict
from load.soak.ledger import Account, Ledger
from load.soak.traffic import TUNING, Traffic
from tests.load.fake_server import Answer, serving
from tests.load.soak.canary_server import MODEL, SUBJECT, answer_of, canaries

EVERY = 7
RATE_PER_S = 200.0


async def right(request: web.Request) -> web.Response:
    return web.json_response(answer_of(await request.read()))


def sometimes(other: Answer) -> Answer:
    """Every seventh request is answered otherwise."""
    numbers = count()

    async def answer(request: web.Request) -> web.StreamResponse:
        return await (right if next(numbers) % EVERY else other)(request)

    return answer


async def crossed(request: web.Request) -> web.Response:
    asked = int(json.loads(await request.read())["text"].split()[1])
    return web.json_response(answer_of(json.dumps({"text": f"text {(asked + 1) % 12}"}).encode()))


async def nobodys(_request: web.Request) -> web.Response:
    return web.json_response([])


async def swallowed(_request: web.Request) -> web.Response:
    await asyncio.sleep(60)
    return web.Response()


async def hung_up(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def failed(_request: web.Request) -> web.Response:
    return web.Response(status=500)


def soaked(answer: Answer, send: Callable[[Traffic, Ledger], Awaitable[None]], timeout_s: float = 30.0) -> Account:
    with serving(answer) as url:
        ledger = Ledger()
        target = Target(f"{url}/predictions/m", timeout_s=timeout_s)
        asyncio.run(_sent(Traffic([SUBJECT], {MODEL: target}, canaries(), ledger, seed=1), ledger, send))
    return ledger.total(MODEL)


async def _sent(traffic: Traffic, ledger: Ledger, send: Callable[[Traffic, Ledger], Awaitable[None]]) -> None:
    await send(traffic, ledger)


async def open_loop(traffic: Traffic, ledger: Ledger) -> None:
    """Until 70 requests were sent."""
    is_over = asyncio.Event()
    async with traffic.session() as session:
        sending = asyncio.create_task(traffic.open_loop(session, RATE_PER_S, is_over))
        while ledger.total().sent < 70 and not sending.done():
            await asyncio.sleep(0.01)
        is_over.set()
        await sending


@pytest.mark.parametrize(
    ("otherwise", "what"),
    [
        (right, lambda account: account.verdicts[Verdict.RIGHT]),
        (crossed, lambda account: account.crossed),
        (nobodys, lambda account: account.wrong),
        (swallowed, lambda account: account.lost["TimeoutError"]),
        (hung_up, lambda account: account.lost["ServerDisconnectedError"]),
        (failed, lambda account: account.unexpected[500]),
    ],
)
def test_every_request_is_accounted_for(otherwise: Answer, what: Callable[[Account], int]) -> None:
    account = soaked(sometimes(otherwise), open_loop, timeout_s=2.0)
    assert account.in_flight == 0
    few = -(-account.sent // EVERY)
    assert what(account) == (account.sent if otherwise is right else few)
    assert account.verdicts[Verdict.RIGHT] == account.sent - (0 if otherwise is right else few)
    assert account.unanswered == (few if otherwise in (swallowed, hung_up) else 0)


def test_request_that_is_in_flight_at_the_end_is_unanswered_and_no_more_than_allowed_are_in_flight() -> None:
    async def given_up(traffic: Traffic, ledger: Ledger) -> None:
        async with traffic.session() as session:
            sending = asyncio.create_task(traffic.open_loop(session, 2000.0, asyncio.Event()))
            while not ledger.total().held_back and ledger.total().sent <= 2 * TUNING.in_flight:
                await asyncio.sleep(0.01)
            sending.cancel()
            await asyncio.wait([sending])

    account = soaked(swallowed, given_up)
    assert account.sent == account.unanswered == account.in_flight == TUNING.in_flight


def test_closed_loop_measures_what_the_server_can_do() -> None:
    async def slow(request: web.Request) -> web.Response:
        await asyncio.sleep(0.1)
        return await right(request)

    rates: list[float] = []

    async def closed_loop(traffic: Traffic, _ledger: Ledger) -> None:
        async with traffic.session() as session:
            rates.append(await traffic.closed_loop(session, 4, 0.2, 2.0))

    account = soaked(slow, closed_loop)
    # 4 clients of at least 100 ms each cannot do more than 40 a second, and half of that on a machine that stalls.
    assert 20 <= rates[0] <= 42
    assert account.unanswered == 0
    assert account.verdicts[Verdict.RIGHT] == account.sent
