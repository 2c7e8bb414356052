"""The pure parts of `make bench`: rounds, their order and end, ratios, the table, the command line."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, cast

import orjson
import pytest

from deploy.models import ROOT
from load import LoadError
from load.bench import __main__ as program
from load.bench import rounds
from load.bench.__main__ import PARTS, Part, main
from load.bench.contender import Contender, Figures
from load.bench.rounds import Bench, Comparison, Results, Row, compare_with_peers
from load.generate import ClosedLoop, Load, OpenLoop
from load.schedules import Poisson
from tests import pages
from tests.tables import table


class Fake(NamedTuple):
    name: str
    rates: Iterator[float]
    called: list[str]
    loads: list[Load]

    def run(self, load: Load, _duration_s: float, _warm_up_s: float) -> Figures:
        self.called.append(self.name)
        self.loads.append(load)
        return Figures(next(self.rates), 1.0, 1.0)


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "is_idle", lambda _timeout_s: True)


def fakes(called: list[str], **rates: list[float]) -> list[Contender]:
    return [cast(Contender, Fake(name, iter(values), called, [])) for name, values in rates.items()]


def test_rounds_turn_the_order_and_compare_within_each_round(tmp_path: Path) -> None:
    called: list[str] = []
    contenders = fakes(called, ours=[10.0, 30.0, 20.0], theirs=[2.0, 10.0, 10.0])
    results = Bench(tmp_path).measure([Comparison(ClosedLoop(16), contenders)])
    assert called == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    row = results.row("images/s", ClosedLoop(16), "ours", "theirs")
    # The median of the ratios; the ratio of the medians is 2.
    assert row.cells() == ("images/s", "20.0 (10.0..30.0)", "theirs", "10.0 (2.0..10.0)", "3.00 (2.00..5.00)")


def test_peers_have_the_same_loads_and_poisson_arrivals_at_a_share_of_what_the_best_holds(tmp_path: Path) -> None:
    # 1, 16 and 48 clients, then Poisson arrivals.
    contenders = fakes([], ours=[1.0, 4.0, 40.0, 1.0], theirs=[2.0, 2.0, 50.0, 2.0])
    rows = list(compare_with_peers(Bench(tmp_path, rounds=1), {"network": contenders}, "rows/s"))
    loads = [*map(ClosedLoop, (1, 16, 48)), OpenLoop(Poisson(40.0, seed=1))]
    assert [cast(Fake, each).loads for each in contenders] == [loads, loads]
    clients = [f"network, {load}, rows/s" for load in ("1 client", "16 clients", "48 clients")]
    poisson = [f"network, Poisson at 80% of the best, {each} in ms" for each in ("p50", "p99")]
    assert [row.cells()[0] for row in rows] == [*clients, *poisson]
    assert [row.cells()[-1] for row in rows[:3]] == ["0.50", "2.00", "0.80"]


@table(
    ([5, 5, 5], 15, 3),
    ([5, 5, 5], 14.9, 2),
    # The longest round so far predicts the next one.
    ([2, 8, 1], 15, 2),
    # The table needs at least one round.
    ([5, 5, 5], 0, 1),
)
def test_late_round_is_left_out(durations_s: list[float], ends_s: float, made: int, tmp_path: Path) -> None:
    passed_s: list[float] = []
    bench = Bench(tmp_path, ends_s=ends_s, clock=lambda: sum(passed_s))
    for number in bench:
        passed_s.append(durations_s[number - 1])
    assert (len(passed_s), bool(bench.remarks)) == (made, made < 3)


def broken(_bench: Bench) -> Iterator[Row]:
    raise LoadError("no such peer")


def whole(bench: Bench) -> Iterator[Row]:
    assert 0 < bench.ends_s - bench.clock() <= 60
    results = Results({("1 client", name): [Figures(3.0, 1.0, 1.0)] for name in ("a", "b")})
    yield results.row("1 client, images/s", "1 client", "a", "b")


def test_every_part_names_a_function() -> None:
    for part in PARTS.values():
        module, _, name = part.place.partition(":")
        assert callable(getattr(import_module(module), name))


def test_part_that_cannot_be_measured_leaves_the_others_and_the_table_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = {"resnet": Part(f"{__name__}:broken"), "texts": Part(f"{__name__}:whole")}
    monkeypatch.setattr(program, "PARTS", PARTS | parts)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    table = tmp_path / "build" / "bench.json"
    words = ["resnet", "texts", "--minutes", "1", "--classifier", "mobilenet-v2", "--json", str(table)]
    assert main(words) == 1
    printed = capsys.readouterr().out
    assert "1 client, images/s" in printed
    assert "resnet: not measured: no such peer" in printed
    (row,) = orjson.loads(table.read_bytes())["rows"]
    assert (row["measured"], row["ratio"]["median"]) == ("1 client, images/s", 1.0)


def test_readme_shows_figures_of_results_json() -> None:
    tables = orjson.loads((ROOT / "docs" / "results.json").read_bytes())
    titled = [
        {row["title"]: row for row in table["rows"] if "title" in row} for table in tables if table["part"] == "bench"
    ]
    rows, left = pages.table(pages.read("README.md"))[: len(titled[0])], dict(titled[0])
    by_medians = {(row["theirs"]["median"], row["ours"]["median"]): title for title, row in left.items()}
    for _, theirs, ours, ratio, others, _ in rows:
        shown = [float(re.split("[ x]", cell.rpartition(": ")[2])[0]) for cell in (theirs, ours)]
        # A reader who divides the two figures gets the ratio.
        title = by_medians[shown[0], shown[1]]
        row = left.pop(title)
        same = [row, *(each[title] for each in titled[1:] if title in each)]
        quotients = [float(f"{each['ours']['median'] / each['theirs']['median']:.2g}") for each in same]
        assert [float(each) for each in re.findall(r"([\d.]+)x", f"{ratio} {others}")] == quotients
    assert left == {}
    (hosts,) = ({row["measured"]: row for row in table["rows"]} for table in tables if table["part"] == "hosts")
    kinds = ("start to first response, s", "PSS in MB", "1 client, p50 in ms")
    by_host = pages.table(pages.read("README.md").partition("| host |")[2].join(["| host |", ""]))
    for cells, side in zip(by_host, ("theirs", "ours"), strict=False):
        shown = [float(cell.split()[0]) for cell in cells[3:]]
        medians = [hosts[f"sentence-embedding, {kind}"][side]["median"] for kind in kinds]
        assert shown == pytest.approx(medians, rel=0.02)


def test_readme_compares_with_peers_as_the_results_do() -> None:
    results = pages.table(pages.read("docs/reference/results.md").partition("## Peers")[2])
    rows = ([cell.split("; ")[1] for cell in row[1:]] for row in results if row[0].endswith("1; 16; 48 clients"))
    small, real, (texts, one, _, best) = rows
    shown = pages.table(pages.read("README.md").partition("## Comparison")[2].partition("## ")[0])
    assert [row[1:] for row in shown] == [[*small, ""], [*real, ""], [texts, one, "", "", "", best]]


@pytest.mark.parametrize("arguments", [["adaptive"], ["--rounds", "0"], ["--seconds", "0"], ["--minutes", "0"]])
def test_bad_command_line_is_one_line_and_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("bench: ")
