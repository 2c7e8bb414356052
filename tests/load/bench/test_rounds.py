"""How many rounds a part's time allows, and what is measured in them."""

from collections import defaultdict
from itertools import count

import pytest

from load.bench import rounds as module
from load.bench.__main__ import BENCHMARKS, main
from load.bench.rounds import Rounds, Series, measure_in_turn


@pytest.mark.parametrize(
    ("durations_s", "ends_s", "expected"),
    [
        ([5, 5, 5], 15, ["round 1/3", "round 2/3", "round 3/3"]),
        ([5, 5, 5], 14.9, ["round 1/3", "round 2/3"]),
        # The longest so far says how long the next one takes.
        ([2, 8, 1], 15, ["round 1/3", "round 2/3"]),
        # One round is always made: a table needs a value of each figure.
        ([5, 5, 5], 0, ["round 1/3"]),
    ],
)
def test_rounds_end_before_one_that_would_end_too_late(
    durations_s: list[float], ends_s: float, expected: list[str]
) -> None:
    passed_s: list[float] = []
    made = []
    for each in Rounds(3, ends_s, lambda: sum(passed_s)):
        made.append(str(each))
        passed_s.append(durations_s[each.number - 1])
    assert made == expected


def test_rounds_without_an_end_are_all_made_as_often_as_asked() -> None:
    rounds = Rounds(2)
    assert [each.number for each in rounds] == [each.number for each in rounds] == [1, 2]


def test_measure_in_turn_keeps_a_value_a_round_in_the_order_of_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "wait_idle", lambda: 0.0)
    kept: Series = defaultdict(list)
    value = count(1)
    measure_in_turn(Rounds(2), "texts", {"stock": lambda: next(value), "ours": lambda: 10.0 * next(value)}, kept)
    assert kept == {"stock": [1, 3], "ours": [20, 40]}


def test_benchmarks_unknown_name_is_a_usage_error_that_lists_the_parts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["adaptive"])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "unknown: adaptive" in said
    assert all(name in said for name in BENCHMARKS)


@pytest.mark.parametrize("arguments", [["--minutes", "0"], ["--seconds", "0"], ["--rounds", "0"]])
def test_benchmarks_of_no_time_are_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["texts", *arguments])
    assert left.value.code == 2
    assert "more than 0" in capsys.readouterr().err


def test_benchmarks_get_the_rounds_that_their_time_allows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Rounds] = []

    def part(*, rounds: Rounds, duration_s: float, is_markdown: bool) -> str:
        given.append(rounds)
        return f"{duration_s:g} s, {is_markdown}"

    monkeypatch.setitem(BENCHMARKS, "texts", part)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    assert main(["texts", "--rounds", "5", "--seconds", "3", "--minutes", "2"]) == 0
    assert [(each.most, each.ends_s) for each in given] == [(5, 220.0)]
    said = capsys.readouterr()
    assert said.out == "3 s, False\n\n"
    assert said.err == "bench: texts took 0.0 minutes\n"
