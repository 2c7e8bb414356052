"""Streams of an engine, and when work on them is done."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.scheduling.batch_selection import MicroBatch
from handlers.scheduling.latency_model import LatencyModel
from handlers.scheduling.streams import Streams, done_in_s

WIDE, NARROW = LatencyModel([(10, 0.1), (100, 1.0)]), LatencyModel([(10, 0.2), (100, 2.0)])


def streams(count: int = 2) -> Streams:
    return Streams(WIDE, NARROW, count)


def test_streams_give_a_lone_item_the_whole_engine_and_several_a_stream_each() -> None:
    ours = streams()
    assert ours.is_wide(items=1)
    assert not ours.is_wide(items=2)
    ours.begin(MicroBatch((), 10, 0.2), 0.0, is_wide=False)
    assert not ours.is_wide(items=1)
    assert ours.free == 1
    ours.begin(MicroBatch((), 10, 0.3), 0.1, is_wide=False)
    assert ours.free == 0
    assert ours.next_end_s == pytest.approx(0.2)
    assert ours.residuals_s(0.15) == pytest.approx([0.05, 0.25])


def test_streams_have_none_free_beside_a_micro_batch_that_takes_the_whole_engine() -> None:
    ours = streams()
    running = ours.begin(MicroBatch((), 10, 0.2), 0.0, is_wide=True)
    assert ours.free == 0
    assert ours.residuals_s(0.05) == pytest.approx([0.15, 0.15])
    ours.end(running, 0.2, is_telling=True)
    assert ours.free == 2
    assert ours.residuals_s(0.2) == [0.0, 0.0]


def test_streams_learn_each_width_apart_and_only_from_what_is_telling() -> None:
    wide, narrow = LatencyModel([(10, 0.1)]), LatencyModel([(10, 0.2)])
    ours: Streams = Streams(wide, narrow, 2)
    for _ in range(20):
        ours.end(ours.begin(MicroBatch((), 10, 0.2), 0.0, is_wide=False), 0.4, is_telling=True)
        ours.end(ours.begin(MicroBatch((), 10, 0.2), 0.0, is_wide=True), 9.0, is_telling=False)
    assert narrow.predict_s(10) == pytest.approx(0.4, rel=0.05)
    assert wide.predict_s(10) == pytest.approx(0.1)


def test_one_stream_is_the_whole_engine() -> None:
    ours: Streams = Streams(WIDE)
    assert ours.is_wide(items=5)
    assert ours.narrow is WIDE


@pytest.mark.parametrize(
    ("busy_s", "work_s", "micro_batches", "done_s"),
    [
        ([0.5], 1.0, 4, 1.5),
        ([0.0, 0.0], 1.0, 1, 1.0),
        ([0.0, 0.0], 1.0, 2, 0.5),
        ([0.0, 0.0], 1.5, 3, 1.0),
        ([0.0, 3.0], 1.0, 2, 1.0),
        ([0.2, 0.3], 0.0, 0, 0.0),
    ],
)
def test_work_is_done_when_its_last_micro_batch_ends(
    busy_s: list[float], work_s: float, micro_batches: int, done_s: float
) -> None:
    assert done_in_s(busy_s, work_s, micro_batches) == pytest.approx(done_s)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=4), st.floats(0.01, 10), st.integers(1, 20))
def test_work_is_done_no_sooner_than_all_streams_together_could_and_no_later_than_one_alone(
    busy_s: list[float], work_s: float, micro_batches: int
) -> None:
    done_s = done_in_s(busy_s, work_s, micro_batches)
    assert done_s >= min(busy_s) + work_s / len(busy_s) - 1e-9 or done_s >= min(busy_s) + work_s / micro_batches - 1e-9
    assert done_s <= min(busy_s) + work_s + 1e-9
