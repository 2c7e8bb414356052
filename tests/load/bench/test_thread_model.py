"""The simulation against what can be worked out by hand: where one part is all there is, throughput is its inverse."""

from dataclasses import replace

import pytest

from load.bench.thread_model import ADAPTIVE, CLASSIC, CORES, ENGINE, FRONTEND, GIL, Costs, Deployment, simulate

# A request costs nothing at all but what a test adds.
NOTHING = Costs(
    client_s=0, java_s=0, java_thread_s=0, python_s=0, decode_s=0, decode_serial=0, pass_s=0, item_s=0, engine_serial=0
)
MODES = (CLASSIC, ADAPTIVE)


def deployment(mode: str, threads: int, **other: float) -> Deployment:
    return replace(Deployment(mode, threads, batch_size=16, delay_s=0.0), **other)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
def test_python_alone_gains_nothing_from_threads(mode: str) -> None:
    costs = replace(NOTHING, python_s=0.01)
    for threads in (1, 16):
        found = simulate(costs, deployment(mode, threads))
        assert found.per_s == pytest.approx(100, rel=0.02)
        assert found.busy[GIL] == pytest.approx(1, abs=0.02)
    assert found.limit == GIL
    assert found.busy[CORES] == pytest.approx(1 / 16, rel=0.02)


@pytest.mark.parametrize("mode", MODES)
def test_frontends_thread_of_a_worker_is_one(mode: str) -> None:
    found = simulate(replace(NOTHING, java_thread_s=0.01), deployment(mode, 16))
    assert found.per_s == pytest.approx(100, rel=0.02)
    assert found.limit == FRONTEND


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("serial", "gains"), [(0.0, {1: 1, 2: 2, 16: 16}), (0.5, {1: 1, 2: 4 / 3}), (1.0, {1: 1})])
def test_engine_gains_from_threads_what_amdahl_says(mode: str, serial: float, gains: dict[int, float]) -> None:
    costs = replace(NOTHING, item_s=0.01, engine_serial=serial)
    # Two streams of an adaptive worker share the threads: each has half, and there are two of them.
    for threads, gain in gains.items():
        found = simulate(costs, deployment(mode, threads))
        if mode == CLASSIC or serial == 0:
            assert found.per_s == pytest.approx(100 * gain, rel=0.05)
            assert found.busy[ENGINE] == pytest.approx(1, abs=0.02)
        else:
            assert found.per_s >= 100 * gain * 0.98


def test_streams_hide_what_is_serial_in_a_pass() -> None:
    costs = replace(NOTHING, item_s=0.01, engine_serial=0.5)
    classic, adaptive = (simulate(costs, deployment(mode, 2)).per_s for mode in MODES)
    assert classic == pytest.approx(133, rel=0.05)
    assert adaptive == pytest.approx(200, rel=0.05)


@pytest.mark.parametrize("mode", MODES)
def test_one_thread_does_everything_one_after_the_other(mode: str) -> None:
    costs = Costs(
        client_s=0.001, java_s=0.001, java_thread_s=0.001, python_s=0.002, decode_s=0.002, decode_serial=0.5,
        pass_s=0.0, item_s=0.003, engine_serial=0.1,
    )  # fmt: skip
    found = simulate(costs, deployment(mode, 1))
    assert found.per_s == pytest.approx(100, rel=0.03)
    assert found.busy[CORES] == pytest.approx(1, abs=0.01)


def test_batch_pays_once_for_a_pass() -> None:
    costs = replace(NOTHING, pass_s=0.16, item_s=0.01)
    assert simulate(costs, deployment(CLASSIC, 1)).per_s == pytest.approx(16 / 0.32, rel=0.05)


def test_classic_worker_decodes_and_runs_by_turns_an_adaptive_one_at_once() -> None:
    # 16 items: 0.16 s of decoding, which 16 threads do in 0.01 s, then as long again for a pass of one thread.
    costs = replace(NOTHING, decode_s=0.01, item_s=0.01 / 16, engine_serial=1.0)
    classic = simulate(costs, deployment(CLASSIC, 16)).per_s
    adaptive = simulate(costs, deployment(ADAPTIVE, 17)).per_s
    assert classic == pytest.approx(16 / 0.02, rel=0.05)
    assert adaptive > 1.4 * classic


def test_workers_have_a_lock_of_python_each() -> None:
    costs = replace(NOTHING, python_s=0.01)
    assert simulate(costs, deployment(CLASSIC, 16, workers=4)).per_s == pytest.approx(400, rel=0.05)


def test_threads_that_others_have_are_gone() -> None:
    costs = replace(NOTHING, item_s=0.01)
    assert simulate(costs, deployment(CLASSIC, 2, taken=1)).per_s == pytest.approx(100, rel=0.05)
