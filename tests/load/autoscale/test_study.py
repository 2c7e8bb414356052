"""A day with the rules that are shipped, and days that they must not be taken for.

The day is two hours long here, so its slopes are twelve times as steep as a real one's; `long` has all of it.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from load.__main__ import main
from load.autoscale.rules import Wishes
from load.autoscale.scaled_object import ScaledObject, read
from load.autoscale.simulation.cluster import Outage
from load.autoscale.simulation.outcome import Outcome
from load.autoscale.study import Plan, Scene, service, study
from load.runs.tuned import Tuned
from tests.load.autoscale.tuned import KNOWN, RULES, TUNE

PEAK = 6
SHIPPED = read(RULES.read_text(encoding="utf-8"))


@cache
def scene(hours: float = 2, outage: Outage | None = None) -> Scene:
    return Scene.of(Tuned.read(TUNE), Wishes(), Plan(PEAK, hours, outage=outage))


@cache
def shipped() -> Outcome:
    return scene().scaled(SHIPPED)


def by(name: str, threshold: float) -> ScaledObject:
    """The shipped rules, but for one trigger in place of theirs."""
    return replace(SHIPPED, triggers=(replace(SHIPPED.triggers[0], name=name, threshold=threshold),))


def test_shipped_rules_keep_the_target_for_less_than_the_peaks_replicas() -> None:
    assert shipped().share_in_target >= 0.99
    assert shipped().replica_hours < PEAK * 2


def test_replicas_for_the_mean_do_not_keep_the_target() -> None:
    """There is something to scale for."""
    assert scene().static(4).share_in_target < 0.95


def test_scaling_on_a_counter_never_comes_down() -> None:
    """As TorchServe's own example does (its issue 3286)."""
    outcome = scene().scaled(by("requests-total", 10_000))
    assert outcome.minutes[-1].asked_for == SHIPPED.max_replicas
    assert outcome.replica_hours > 2 * shipped().replica_hours
    # Once traffic goes down, which it does from 0.8 of the day on; a counter has more than enough by then.
    first = next(number for number, minute in enumerate(outcome.minutes) if minute.asked_for == SHIPPED.max_replicas)
    assert {minute.asked_for for minute in outcome.minutes[first:]} == {SHIPPED.max_replicas}
    wanted = [minute.asked_for for minute in shipped().minutes]
    assert wanted != sorted(wanted)


def test_scaling_on_the_processor_costs_more_than_the_peaks_replicas() -> None:
    """It is all in use for a batch of one, too: it says nothing of how full batches are."""
    outcome = scene().scaled(by("cpu", 0.8))
    assert outcome.share_in_target >= 0.99
    assert outcome.replica_hours > PEAK * 2


def test_two_batches_in_flight_are_no_target() -> None:
    """A full queue bounds what is in flight to about as many, so that the HPA never sees more than its tolerance."""
    two = replace(SHIPPED.triggers[0], threshold=2.0 * Tuned.read(TUNE).advice.batch_size)
    half = replace(SHIPPED, triggers=SHIPPED.triggers[:1])
    assert scene().scaled(half).share_in_target >= 0.98
    assert scene().scaled(replace(SHIPPED, triggers=(two,))).share_in_target < 0.5


def test_an_outage_of_prometheus_is_no_lack_of_traffic() -> None:
    """In the evening, for 24 minutes."""
    evening = Outage(0.7 * 7200, 0.9 * 7200)
    during = slice(int(evening.starts_s // 60) + 1, int(evening.ends_s // 60))
    kept = scene(outage=evening).scaled(SHIPPED)
    assert kept.share_in_target >= 0.99
    nulls = replace(SHIPPED, triggers=tuple(replace(each, ignores_nulls=True) for each in SHIPPED.triggers))
    lost = scene(outage=evening).scaled(nulls)
    assert min(minute.asked_for for minute in lost.minutes[during]) == SHIPPED.min_replicas
    assert min(minute.asked_for for minute in kept.minutes[during]) > SHIPPED.min_replicas
    assert lost.share_in_target < 0.9


def test_simulated_replica_holds_what_the_real_one_held() -> None:
    """No more: what the fitted curve leaves out is put on every batch."""
    assert scene().service.curve.per_item_ms >= service(Tuned.read(TUNE)).curve.per_item_ms
    slow = Scene.of(replace(KNOWN, held=replace(KNOWN.held, rate_per_s=60.0)), Wishes(), Plan(1, 0.1))  # type: ignore[type-var]
    assert slow.service.curve.per_item_ms > 1.2 * KNOWN.curve.per_item_ms


def test_command_draws_the_day_and_prints_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    KNOWN.save(tmp_path / "tune.json")
    page = tmp_path / "day.html"
    words = ["autoscale", str(tmp_path / "tune.json"), "--simulate", str(page), "--hours", "0.1", "--peak", "2"]
    assert main(words) == 0
    output = capsys.readouterr().out
    assert "| KEDA | " in output
    assert "| static, 2 for the peak | " in output
    html = page.read_text(encoding="utf-8")
    assert "m: replicas over a simulated day" in html
    assert "replicas that answer" in html


@pytest.mark.timeout(1800)
def test_whole_day_with_the_shipped_rules() -> None:
    whole = scene(24)
    made = study(whole, SHIPPED)
    assert made.keda.share_in_target >= 0.999
    assert made.keda.replica_s < 0.8 * made.peak.replica_s
    assert made.mean.share_in_target < 0.95
