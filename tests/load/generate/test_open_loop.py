"""The open loop against servers of known latency: schedule, coordinated omission, what is not valid."""

import asyncio
import time
from collections.abc import Iterator

import pytest
from aiohttp import web

from load.generate import precise_loop
from load.generate.attack import Attack, Load
from load.generate.closed_loop import ClosedLoop
from load.generate.inputs import Inputs
from load.generate.open_loop import OpenLoop
from load.generate.pacers import Bursts, Constant, Pacer, Poisson
from load.generate.target import Target
from load.generate.windows import Duration
from load.measure.exchange import Verdict
from load.measure.recording import Recording
from load.measure.summary import Summary
from tests.load.fake_server import Answer, Counting, serving

STALL_S = 2.0


def attack(url: str, load: OpenLoop, duration_s: float, warm_up_s: float = 0.2) -> Attack:
    target = Target(f"{url}/predictions/m", timeout_s=10)
    # What the machine does to the generator meanwhile is not what is tested.
    return Attack(target, Inputs.of([b"{}"]), load, Duration(duration_s), warm_up_s, max_lag_ms=200)


def generate(answer: Answer, pacer: Pacer, duration_s: float) -> Summary:
    with serving(answer) as url:
        return attack(url, OpenLoop(pacer), duration_s).run()


def stalls_once(at: int) -> Answer:
    """A server that answers in 5 ms, and stands still for all when it has seen so many requests."""
    seen, stands_until_s = 0, 0.0

    async def answer(request: web.Request) -> web.Response:
        nonlocal seen, stands_until_s
        seen += 1
        if seen == at:
            stands_until_s = time.monotonic() + STALL_S
        await asyncio.sleep(0.005 + max(0.0, stands_until_s - time.monotonic()))
        return web.Response()

    return answer


def test_open_loop_sends_at_its_rate_whatever_the_latency() -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(0.3)
        return web.Response()

    summary = generate(answer, Constant(100), 1.0)
    assert sum(summary.statuses.values()) == pytest.approx(100, abs=2)
    assert summary.throughput_per_s == pytest.approx(100, rel=0.15)
    assert 300 <= summary.latency_ms(50) < 400


def test_open_loop_of_bursts_sends_them_together() -> None:
    arrivals: list[float] = []

    async def answer(request: web.Request) -> web.Response:
        arrivals.append(time.monotonic())
        return web.Response()

    generate(answer, Bursts(20, 5), 0.9)
    groups = [arrivals[start : start + 5] for start in range(0, len(arrivals) - 4, 5)]
    assert len(groups) >= 3
    assert all(group[-1] - group[0] < 0.1 for group in groups)


def test_stall_of_two_seconds_shows_in_the_p99_of_an_open_loop_and_hides_from_a_closed_one() -> None:
    summary = generate(stalls_once(at=30), Poisson(50, seed=1), 4.0)
    # Everybody who was due in these two of four seconds waited, the last of them hardly: a half, and evenly.
    assert summary.latency_ms(99) > 1700
    assert 300 < summary.latency_ms(75) < 1700
    assert summary.latency_ms(25) < 300
    assert summary.is_valid

    with serving(stalls_once(at=130)) as url:
        target = Target(f"{url}/predictions/m")
        closed = Attack(target, Inputs.of([b"{}"]), ClosedLoop(1), Duration(4.0)).run()
    assert closed.latencies.statistics_ms()["max"] > 1900
    assert closed.latency_ms(99) < 300


def test_limit_of_requests_in_flight_is_kept_and_makes_the_run_invalid() -> None:
    counting = Counting(0.2)
    with serving(counting.answer) as url:
        summary = attack(url, OpenLoop(Constant(100), max_in_flight=3), 0.9, warm_up_s=0).run()
    assert counting.most == 3
    throttled, unsent, late = summary.invalid_reasons
    assert "requests waited because the limit of requests in flight was reached" in throttled
    assert "were never sent" in unsent
    assert "the generator fell behind" in late
    assert summary.requests == sum(summary.statuses.values()) + int(unsent.split(" ")[0])
    # What waited to be sent has waited: the latency tells, although the server took 200 ms for each.
    assert summary.latencies.statistics_ms()["max"] > 300


def test_generator_that_is_kept_from_sending_marks_its_run_invalid_by_how_much() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response()

    async def hog(_recording: Recording) -> None:
        await asyncio.sleep(0.5)
        time.sleep(0.5)
        await asyncio.sleep(60)

    with serving(answer) as url:
        run = attack(url, OpenLoop(Constant(200)), 1.0)
        summary = run.summarise(precise_loop.run(run.generate(Recording(), hog)))
    (reason,) = [each for each in summary.invalid_reasons if "fell behind" in each]
    late_ms = float(reason.split("was sent ")[1].split(" ms")[0])
    # Requests were due all through the half second.
    assert 400 < late_ms < 700


def test_open_loop_that_is_stopped_keeps_what_it_has() -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(0.01)
        return web.Response()

    async def stop(recording: Recording) -> None:
        await asyncio.sleep(0.6)
        recording.stop()

    with serving(answer) as url:
        run = attack(url, OpenLoop(Constant(50)), 60.0)
        started_s = time.monotonic()
        summary = run.summarise(precise_loop.run(run.generate(Recording(), stop)))
    assert time.monotonic() - started_s < 4
    assert summary.is_interrupted
    assert 5 < summary.completed < 40


def test_open_loop_at_a_slow_rate_does_not_wait_for_the_next_request() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response()

    started_s = time.monotonic()
    summary = generate(answer, Constant(0.01), 0.3)
    assert time.monotonic() - started_s < 5
    assert summary.invalid_reasons == ("no good answer",)


def test_timer_of_the_precise_loop_is_late_by_far_less_than_a_millisecond() -> None:
    async def lateness_s() -> list[float]:
        late = []
        for number in range(60):
            wanted_s = 0.001 + number * 17e-6
            started_s = time.perf_counter()
            await asyncio.sleep(wanted_s)
            late.append(time.perf_counter() - started_s - wanted_s)
        return sorted(late)

    # A plain epoll loop is half a millisecond late in the middle; others may use this machine, so not the mean.
    late_s = precise_loop.run(lateness_s())
    assert late_s[len(late_s) // 4] < 0.00035
    assert late_s[0] >= 0


@pytest.mark.parametrize("load", [OpenLoop(Constant(100)), ClosedLoop(2), ClosedLoop(1, samples=2)], ids=str)
def test_exception_of_a_send_is_a_failed_request_and_the_run_goes_on(load: Load) -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(0.01)
        return web.Response(body=await request.read())

    def judge(source: int, body: bytes) -> Verdict:
        if body == b"b":
            raise KeyError("a bug of ours")
        return Verdict.RIGHT

    with serving(answer) as url:
        target = Target(f"{url}/predictions/m", timeout_s=10, check=judge)
        summary = Attack(target, Inputs.of([b"a", b"b"]), load, Duration(1.0), max_lag_ms=200).run()
    (error,) = summary.errors
    assert error.startswith("generator: KeyError at test_open_loop.py:")
    failed = summary.errors[error]
    assert summary.failures == {0: failed}
    # It goes on after the first one; of a query of two, one is always wrong.
    assert failed > 1
    assert bool(summary.completed) == (load != ClosedLoop(1, samples=2))
    assert f"{failed} requests failed in the generator itself" in summary.invalid_reasons


def test_schedule_that_breaks_ends_the_run_with_its_error() -> None:
    class Broken(Constant):
        def due_s(self) -> Iterator[float]:
            yield from (0.0, 0.1, 0.2)
            raise LookupError("a bug of ours")

    started_s = time.monotonic()
    with serving(Counting(0).answer) as url, pytest.raises(LookupError, match="a bug of ours"):
        attack(url, OpenLoop(Broken(10)), 60.0).run()
    assert time.monotonic() - started_s < 10
