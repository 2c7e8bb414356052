"""Clients that misbehave, on a real socket: what they do to the server, and what is made of a slow reader's answer."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from load.generate.target import Target
from load.measure.exchange import Verdict
from load.soak import misbehaviour
from load.soak.ledger import Account, Ledger
from load.soak.misbehaviour import Misbehaviour
from load.soak.models import Subject
from tests.load.fake_server import Answer, serving
from tests.load.soak.canary_server import MODEL, answer_of, canaries

EMBEDDING = Subject(MODEL, "sentence_embedding", "classic", 1)
# For some tens of clients that take tenths of a second each.
DEADLINE_S = 30
KINDS = ("interrupted", "half-sent", "stalled", "slow reader")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten clients of each kind a second, whose answers take a tenth of a second to read."""
    tuning = misbehaviour.Tuning(
        interrupted_every_s=0.1, half_sent_every_s=0.1, stalled_every_s=0.1, slow_every_s=0.1, stall_s=0.3, pause_s=0.02
    )
    monkeypatch.setattr(misbehaviour, "TUNING", tuning)


def misbehaved(answer: Answer, is_enough: Callable[[Misbehaviour, Ledger], bool], timeout_s: float = 30.0) -> Account:
    async def go_on(url: str) -> Account:
        ledger = Ledger()
        target = Target(f"{url}/predictions/m", timeout_s=timeout_s)
        made = Misbehaviour([EMBEDDING], {MODEL: target}, canaries(), ledger, seed=1)
        is_over = asyncio.Event()
        going = asyncio.create_task(made.go_on(is_over))
        async with asyncio.timeout(DEADLINE_S):
            while not is_enough(made, ledger) and not going.done():
                await asyncio.sleep(0.01)
        is_over.set()
        await going
        assert set(made.counts) == set(KINDS)
        return ledger.total(MODEL)

    with serving(answer) as url:
        return asyncio.run(go_on(url))


def answered(count: int) -> Callable[[Misbehaviour, Ledger], bool]:
    return lambda made, ledger: set(made.counts) == set(KINDS) and ledger.total().sent >= count


@pytest.mark.usefixtures("hurried")
def test_server_sees_bodies_that_end_early_and_slow_readers_get_their_own_answers() -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        try:
            body = await request.read()
        except (ConnectionError, web.RequestPayloadError):
            seen.append("cut off")
            raise
        seen.append("list" if b"instances" in body else "whole")
        return web.json_response(answer_of(body))

    account = misbehaved(answer, lambda made, ledger: answered(5)(made, ledger) and len(set(seen)) == 3)
    assert set(seen) == {"cut off", "list", "whole"}
    assert account.verdicts == {Verdict.RIGHT: account.sent}
    assert account.unanswered == 0


async def rotated(request: web.Request) -> web.Response:
    """Everybody gets the next one's answer."""
    answers = answer_of(await request.read())
    if "predictions" in answers:
        first, *rest = answers["predictions"]
        answers["predictions"] = [*rest, first]
    return web.json_response(answers)


async def shortened(request: web.Request) -> web.Response:
    answers = answer_of(await request.read())
    if "predictions" in answers:
        answers["predictions"].pop()
    return web.json_response(answers)


async def cut_off(request: web.Request) -> web.StreamResponse:
    body = json.dumps(answer_of(await request.read())).encode()
    reply = web.StreamResponse(headers={"Content-Length": str(len(body))})
    await reply.prepare(request)
    await reply.write(body[: len(body) // 2])
    assert request.transport is not None
    request.transport.abort()
    return reply


async def swallowed(request: web.Request) -> web.Response:
    await request.read()
    await asyncio.sleep(60)
    return web.Response()


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (rotated, lambda account: account.crossed),
        (shortened, lambda account: account.wrong),
        (cut_off, lambda account: account.unanswered),
        (swallowed, lambda account: account.unanswered),
    ],
)
def test_slow_reader_sees_what_is_wrong_with_its_answer(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], what: Callable[[Account], int]
) -> None:
    account = misbehaved(answer, answered(3), timeout_s=3.0)
    assert what(account) == account.sent
    assert account.in_flight == 0
