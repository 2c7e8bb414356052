"""What a command line calls a load."""

import pytest

from load.errors import BadRange
from load.generate.closed_loop import ClosedLoop
from load.generate.open_loop import OpenLoop
from load.generate.pacers import Bursts, Constant, Poisson
from load.runs.scenarios import closed, grid, mlperf, numbers, opened, pacer_for, replay
from load.runs.search import Grid


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16", (16,)),
        ("1,2,4", (1, 2, 4)),
        ("1:64:x2", (1, 2, 4, 8, 16, 32, 64)),
        ("1:50:x2", (1, 2, 4, 8, 16, 32)),
        ("10:200:50", (10, 60, 110, 160)),
        ("2:5", (2, 3, 4, 5)),
        ("0.1:0.3:0.1", (0.1, 0.2, pytest.approx(0.3))),
        ("7:7", (7,)),
    ],
)
def test_numbers_of_a_range_are_listed(text: str, expected: tuple[float, ...]) -> None:
    assert numbers(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "a", "1,", "0", "-1", "1:", "1:2:3:4", "5:1", "1:8:x1", "1:8:0", "1:8:-1", "0:8:x2", "inf", "nan", "1:inf:0"],
)
def test_numbers_of_no_range_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadRange, match="write 16, 1,2,4 or 10:200:10 or 1:64:x2"):
        numbers(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("1:64", Grid(1, 64, 1)), ("10:200:5", Grid(10, 200, 5)), ("0.5:2:0.1", Grid(0.5, 2, 0.1))]
)
def test_grid_of_a_range_has_its_step(text: str, expected: Grid) -> None:
    assert grid(text) == expected


@pytest.mark.parametrize("text", ["7", "1,2", "a:b", "1:2:3:4", "0:5", "1:64:x2"])
def test_grid_of_no_range_is_refused(text: str) -> None:
    with pytest.raises(BadRange, match="cannot be searched"):
        grid(text)


def test_scenarios_of_mlperf_are_these_loads() -> None:
    def loads(name: str, clients: tuple[float, ...] = (), rates: tuple[float, ...] = ()) -> list[object]:
        return [step.load for step in mlperf(name, clients, rates, Poisson)]

    assert loads("SingleStream") == [ClosedLoop(1)]
    assert loads("MultiStream") == [ClosedLoop(1, samples=8)]
    assert loads("Server", rates=(10, 20)) == [OpenLoop(Poisson(10)), OpenLoop(Poisson(20))]
    assert loads("Offline") == [ClosedLoop(64)]
    assert loads("Offline", clients=(32,)) == [ClosedLoop(32)]
    with pytest.raises(BadRange, match="needs --rate"):
        loads("Server")


def test_distribution_by_name_makes_its_pacer() -> None:
    made = [pacer_for(name, 7, 4)(10.0) for name in ("poisson", "constant", "burst")]
    assert made == [Poisson(10, 7), Constant(10), Bursts(10, 4)]


def test_replay_of_microseconds_is_a_schedule() -> None:
    step = opened(replay(["1000", "", "3000\n"]))
    assert step.kind == "rate"
    assert step.value == pytest.approx(500)


@pytest.mark.parametrize("lines", [[], ["a"], ["-1", "5"], ["0"]])
def test_replay_of_no_schedule_is_refused(lines: list[str]) -> None:
    with pytest.raises(BadRange, match="microseconds, one a line"):
        replay(lines)


def test_concurrency_of_half_a_client_is_refused() -> None:
    with pytest.raises(BadRange, match=r"1\.5 is not a whole number"):
        closed(1.5)
