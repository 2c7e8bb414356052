"""The pinned measurements of `make bench ONLY=threads`, and what is made of measurements. Nothing is measured here."""

import json

import pytest

from load.bench import threads
from load.bench.cost import PARTS
from load.bench.thread_model import ADAPTIVE, CLASSIC


def pinned() -> threads.Measurements:
    return threads.Measurements.from_json(threads.PINNED.read_text(encoding="utf-8"))


def test_pinned_measurements_name_their_processor_and_hold_every_model_in_both_modes() -> None:
    found = pinned()
    assert "cores" in found.processor
    assert any(figure.measured for figure in found.figures.values())
    assert set(found.figures) == {(name, mode) for name in threads.NAMES for mode in (CLASSIC, ADAPTIVE)}
    assert json.loads(found.to_json()) == json.loads(threads.PINNED.read_text(encoding="utf-8"))
    assert threads.Measurements.from_json(found.to_json()) == found


def test_pinned_predictions_grow_with_threads_and_no_part_is_busier_than_always() -> None:
    for (name, mode), figure in pinned().figures.items():
        few, many = (threads.predicted(name, figure, mode, count) for count in (1, 16))
        # More threads lose nothing; 16 of them do at most 16 times as much.
        assert 0.95 * few.per_s <= many.per_s <= 16.5 * few.per_s, (name, mode)
        assert all(0 <= share <= 1.02 for share in many.busy.values()), (name, mode, many.busy)


def test_table_has_a_prediction_for_each_number_of_threads_and_the_ratio_where_it_was_measured() -> None:
    found = pinned()
    columns, rows = threads.table(found)
    assert all(len(row) == len(columns) for row in rows)
    assert len(rows) == len(found.figures)
    for row, ((name, mode), figure) in zip(rows, found.figures.items(), strict=True):
        for count in threads.TUNING.threads:
            cell = row[columns.index(f"{count} thread{'s' if count > 1 else ''}")]
            assert ("(" in cell) == (count in figure.measured)
            if count in figure.measured:
                per_s, taken = figure.measured[count]
                ratio = threads.predicted(name, figure, mode, count, taken).per_s / per_s
                assert f"({ratio:.2f})" in cell


@pytest.mark.parametrize(("other_s", "share"), [(5.0, 0.0), (0.0, 1.0), (2.5, 0.5), (6.0, 0.0)])
def test_serial_share_is_what_the_second_thread_does_not_halve(other_s: float, share: float) -> None:
    assert threads.serial_share(10.0, other_s) == pytest.approx(share)


def seen(**parts: float) -> threads.Seen:
    return threads.Seen(1000.0, 0.0, dict.fromkeys(PARTS, 0.0) | parts, client_us=50, java_us=100, java_thread_us=40)


def test_costs_of_a_text_decode_under_the_lock_of_python() -> None:
    engine = threads.Engine(pass_s=None, item_s=None, serial=1.0, decode_serial=None)
    costs = threads.costs_of(seen(unpack=10, decode=20, engine=30, rest=5, unexplained=7), engine)
    held = [costs.python_s, costs.decode_s, costs.item_s, costs.java_s, costs.java_thread_s]
    assert held == pytest.approx([35e-6, 0.0, 30e-6, 60e-6, 40e-6])


def test_costs_of_an_image_decode_beside_and_passes_are_those_measured_alone() -> None:
    engine = threads.Engine(pass_s=0.001, item_s=0.002, serial=0.1, decode_serial=0.25)
    costs = threads.costs_of(seen(unpack=10, decode=800, engine=3000), engine)
    assert [costs.python_s, costs.decode_s, costs.decode_serial] == pytest.approx([10e-6, 800e-6, 0.25])
    assert (costs.pass_s, costs.item_s, costs.engine_serial) == (0.001, 0.002, 0.1)
