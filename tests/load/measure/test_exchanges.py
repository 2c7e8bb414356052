"""Exchanges by column: what goes in comes out, and takes the memory that is said."""

import tracemalloc
from pathlib import Path

import orjson
import pytest

from load.measure.exchange import Exchange, Verdict
from load.measure.exchanges import Exchanges
from load.measure.rates import of_cycles
from load.measure.recording import Recording
from load.measure.summary import summarise
from load.runs.run_file import Run, StepResult
from load.runs.scenarios import closed

TIMING = 'decode;dur=1.61, wait;dur=2.40, forward;dur={:.2f}, encode;dur=0.04, batch;desc="8", more;dur=1.00'
SOME = [
    Exchange(1.0, 1.5, 2.25, 200, 3, 4, 5, 6, None, "forward;dur=1", Verdict.RIGHT),
    Exchange(2.0, 2.0, 3.0, 0, 0, 2**40, 2**40, 0, "TimeoutError"),
    Exchange(3.0, 3.0, 3.5, 503, verdict=Verdict.SWAPPED),
    Exchange(4.0, 4.0, 4.5, 0, error="generator: KeyError at expect.py:7", server_timing="안녕"),
    Exchange(5.0, 5.0, 5.5, 0, error="TimeoutError"),
]


def test_exchanges_come_out_as_they_went_in() -> None:
    exchanges = Exchanges(SOME)
    assert list(exchanges) == SOME
    assert [exchanges[at] for at in range(-5, 5)] == [SOME[at] for at in range(-5, 5)]
    for at in (slice(None), slice(2, None), slice(1, 4), slice(4, 1), slice(None, None, 2), slice(None, None, -1)):
        assert exchanges[at] == SOME[at]
    assert (len(exchanges), len(Exchanges()), list(Exchanges())) == (5, 0, [])
    with pytest.raises(IndexError):
        exchanges[5]
    exchanges.append(SOME[0])
    assert exchanges != Exchanges(SOME)
    assert exchanges[5] == SOME[0]


def test_exchanges_since_a_moment_are_rounded_to_the_microsecond() -> None:
    exchanges = Exchanges([Exchange(1.00000049, 1.5, 2.25, 200)])
    (moved,) = exchanges.since(1.0)
    assert (moved.due_s, moved.sent_s, moved.answered_s) == (0.0, 0.5, 1.25)
    assert exchanges[0].due_s == 1.00000049


def test_columns_are_those_of_the_file_and_are_read_again() -> None:
    columns = orjson.loads(b"".join(Exchanges(SOME).to_json()))
    assert columns["due_s"] == [1, 2, 3, 4, 5]
    assert columns["source"] == [4, 2**40, 0, 0, 0]
    assert columns["error"] == [None, "TimeoutError", None, "generator: KeyError at expect.py:7", "TimeoutError"]
    assert columns["server_timing"] == ["forward;dur=1", None, None, "안녕", None]
    assert columns["verdict"] == ["right", None, "swapped", None, None]
    assert Exchanges.of_columns(columns) == Exchanges(SOME)
    assert set(map(tuple, orjson.loads(b"".join(Exchanges().to_json())).values())) == {()}
    # More than one piece of each column.
    many = Exchanges([*SOME] * 3000)
    assert Exchanges.of_columns(orjson.loads(b"".join(many.to_json()))) == many


@pytest.mark.parametrize("wrong", [None, {}, {"due_s": []}, [], "text"])
def test_columns_that_are_none_are_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="no columns of exchanges"):
        Exchanges.of_columns(wrong)


def memory(count: int, out: Path) -> tuple[int, int]:
    """Most bytes that a run takes from its first request to its file, and what is said of it."""
    tracemalloc.start()
    try:
        recording = Recording(opens_s=0.0, closes_s=count / 1e3)
        for number in range(count):
            at = number / 1e3
            recording.add(Exchange(at, at, at + 0.1, 200, server_timing=TIMING.format(number)))
        summary = summarise(recording, of_cycles)
        step = StepResult.of(closed(1), summary, recording, None, repeat=1, started_at="", latency_threshold_ms=None)
        Run("m", "", "m", "", {}, {}, [], [step]).save(out)
        return tracemalloc.get_traced_memory()[1], recording.exchanges.memory_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_memory_of_a_run_from_its_requests_to_its_file_is_what_is_said(name: str, tmp_path: Path) -> None:
    # Histograms and remembered headers are the same for both, some 4 MB.
    (few, _), (most, said) = memory(10_000, tmp_path / name), memory(40_000, tmp_path / name)
    assert (most - few) / 30_000 < said / 40_000 < 250
