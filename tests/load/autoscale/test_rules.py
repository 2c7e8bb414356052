"""KEDA's rules: numbers from measurements, the YAML that is shipped, and the command that writes it."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from load.__main__ import main
from load.autoscale import signals
from load.autoscale.rules import Wishes, derive
from load.autoscale.scaled_object import read, render
from load.autoscale.simulation.hpa import TOLERANCE
from load.errors import BadRange, BadRun, NotPossible
from load.runs.tune import Point
from load.runs.tuned import Tuned
from tests.load.autoscale.tuned import KNOWN, RULES, TUNE


def test_shipped_rules_are_what_the_command_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that its first lines name, typed where the repository is."""
    shipped = RULES.read_text(encoding="utf-8")
    (command,) = (line.strip("# ") for line in shipped.splitlines() if "python -m load autoscale" in line)
    *words, _, out = command.removeprefix("python -m load ").split()
    assert RULES.as_posix().endswith(out)
    monkeypatch.chdir(RULES.parents[4])
    copy = tmp_path / "rules.yaml"
    assert main([*words, "--out", str(copy)]) == 0
    assert copy.read_text(encoding="utf-8").replace(copy.as_posix(), out) == shipped


def test_targets_come_from_the_measurement() -> None:
    """Half of 8 in flight; nine tenths of 45 ms in 60; the whole part of the rate that was held."""
    targets = {trigger.name: trigger.target for trigger in derive(KNOWN, Wishes()).triggers}
    assert targets == {"in-flight": 4, "busy": 67, "refusals": 100}


def test_two_workers_have_twice_in_hand_and_an_adaptive_engine_is_busy_all_the_time() -> None:
    targets = {trigger.name: trigger.target for trigger in derive(replace(KNOWN, workers=2), Wishes()).triggers}
    assert targets == {"in-flight": 8, "busy": 135, "refusals": 100}
    adaptive = {trigger.name: trigger for trigger in derive(KNOWN, Wishes(is_adaptive=True)).triggers}
    assert adaptive["busy"].target == 90
    assert "handler_engine_busy_seconds_total" in adaptive["busy"].query


@pytest.mark.parametrize(
    ("cold_start_s", "stabilization_s"),
    [(None, 300), (75, 300), (120, 480)],
)
def test_replicas_stay_for_five_minutes_or_four_cold_starts(cold_start_s: float | None, stabilization_s: int) -> None:
    rules = derive(KNOWN, Wishes(cold_start_s=cold_start_s))
    assert rules.stabilization_s == stabilization_s
    assert rules.cold_start_s == (cold_start_s or 50)


def test_targets_are_whole_numbers_that_fallback_can_multiply() -> None:
    """KEDA's fallback cuts a threshold off at the point: 0.75 would become 0, and the fallback no replica."""
    for trigger in read(RULES.read_text(encoding="utf-8")).triggers:
        assert trigger.threshold == int(trigger.threshold) >= 1


def test_a_saturated_engine_is_beyond_the_tolerance_of_its_target() -> None:
    """Within a tenth of its target the HPA does nothing: a target of 0.95 of what is possible would never be passed."""
    for tuned in (KNOWN, Tuned.read(TUNE)):
        busy = next(trigger for trigger in derive(tuned, Wishes()).triggers if trigger.name == "busy")
        most = max(tuned.points, key=lambda point: point.batch_size)
        assert most.forward_ms is not None
        assert 100 * most.forward_ms / most.batch_ms / busy.target > 1 + TOLERANCE


def test_shipped_rules_never_scale_to_zero_and_take_no_answer_for_no_answer() -> None:
    rules = read(RULES.read_text(encoding="utf-8"))
    assert rules.min_replicas >= 1
    assert rules.keeps_current
    assert rules.fallback_replicas is not None
    assert rules.min_replicas <= rules.fallback_replicas <= rules.max_replicas
    assert not any(trigger.ignores_nulls for trigger in rules.triggers)
    assert [trigger.name for trigger in rules.triggers] == ["in-flight", "busy", "refusals"]


def test_model_with_dots_is_found_by_its_clusters() -> None:
    """Envoy's statistics have underscores for the dots, and backslashes are doubled in PromQL's strings."""
    assert signals.clusters("resnet-152") == 'envoy_cluster_name=~"resnet-152(/.+)?"'
    assert signals.clusters("v1.5+x") == r'envoy_cluster_name=~"v1_5\\+x(/.+)?"'


def test_what_cannot_be_scaled_is_refused() -> None:
    with pytest.raises(NotPossible, match="tune found no rate at which m keeps 200 ms"):
        derive(replace(KNOWN, held=None), Wishes())
    with pytest.raises(NotPossible, match="does not say in Server-Timing"):
        derive(replace(KNOWN, points=[Point(8, 60)]), Wishes())
    with pytest.raises(BadRange, match="--min-replicas 0 --max-replicas 20"):
        Wishes(min_replicas=0)
    with pytest.raises(BadRange, match="--min-replicas 3 --max-replicas 2"):
        Wishes(min_replicas=3, max_replicas=2)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (("kind",), "ScaledJob", "ScaledJob is no ScaledObject"),
        (("spec",), {}, "no ScaledObject as `python -m load autoscale` writes them"),
        (("spec", "triggers"), [{"type": "cpu", "name": "c"}], "trigger c: only prometheus with an AverageValue"),
    ],
)
def test_other_objects_are_not_simulated(field: tuple[str, ...], value: object, message: str) -> None:
    document = yaml.safe_load(render(derive(KNOWN, Wishes()), "x"))
    *path, last = field
    place = document
    for name in path:
        place = place[name]
    place[last] = value
    with pytest.raises(BadRun, match=message):
        read(yaml.safe_dump(document))


def test_tune_is_stored_and_read_back(tmp_path: Path) -> None:
    KNOWN.save(tmp_path / "tune.json")
    assert Tuned.read(tmp_path / "tune.json") == KNOWN


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "holds no result of `python -m load tune --out`"),
        ("not json", "holds no result of `python -m load tune --out`"),
        (None, "cannot read"),
        ("other schema", "is of schema load-tune/0, this program reads load-tune/1"),
    ],
)
def test_what_is_no_tune_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, message: str
) -> None:
    path = tmp_path / "tune.json"
    if text == "other schema":
        replace(KNOWN, schema="load-tune/0").save(path)
    elif text is not None:
        path.write_text(text, encoding="utf-8")
    assert main(["autoscale", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
