"""The simulation against formulas that are not its own, and what must hold of any day."""

from dataclasses import replace
from math import factorial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from load.autoscale.rules import Wishes, derive
from load.autoscale.scaled_object import read, render
from load.autoscale.simulation.cluster import Cluster, Keda, Start
from load.autoscale.simulation.hpa import Autoscaler
from load.autoscale.simulation.outcome import Outcome
from load.autoscale.simulation.replica import Service
from load.autoscale.simulation.traffic import Day, Step, typical
from load.runs.tune import Curve
from tests.load.autoscale.tuned import KNOWN

# 100 ms a request, one after the other; nobody is refused.
ALONE = Service(Curve(0, 100), 1, 0, 10**9, 1, 10)
# 5 ms an item and 20 ms a batch, as KNOWN.
BATCHES = Service(Curve(5, 20), 8, 0.001, 18, 0.75, 0.2)


def steady(rate_per_s: float, length_s: float) -> Day:
    return Day(length_s, rate_per_s, rate_per_s, 0)


def run(service: Service, day: Day, replicas: int = 1, seed: int = 1) -> Outcome:
    return Cluster(service, None, Start(replicas, 0)).run(day.arrivals(seed))


def scaled(day: Day, cold_start_s: float = 30, seed: int = 1) -> Outcome:
    rules = read(render(derive(KNOWN, Wishes(max_replicas=6)), "x"))
    return Cluster(BATCHES, Keda(Autoscaler(rules)), Start(2, cold_start_s)).run(day.arrivals(seed))


# -- formulas ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [0.3, 0.5, 0.8])
def test_one_server_waits_as_pollaczek_and_khinchine_say(load: float) -> None:
    """M/D/1: s + load * s / (2 * (1 - load))."""
    expected_s = 0.1 + load * 0.1 / (2 * (1 - load))
    assert run(ALONE, steady(10 * load, 15_000)).mean_latency_s == pytest.approx(expected_s, rel=0.03)


@pytest.mark.parametrize(("servers", "offered"), [(1, 0.5), (3, 2.0), (5, 6.0)])
def test_servers_without_a_queue_refuse_as_erlang_says(servers: int, offered: float) -> None:
    """M/G/c/c, whatever the service takes: Erlang's B."""
    powers = [offered**number / factorial(number) for number in range(servers + 1)]
    outcome = run(replace(ALONE, queue_size=0), steady(10 * offered, 4_000), servers)
    assert outcome.refused / outcome.arrivals == pytest.approx(powers[-1] / sum(powers), rel=0.04)


@pytest.mark.parametrize("load", [0.2, 0.6, 0.95])
def test_requests_in_flight_are_rate_times_latency(load: float) -> None:
    """Little's law, of those that were admitted; saturated it answers 8 in 60 ms."""
    outcome = run(BATCHES, steady(load * 8 / 0.06, 300))
    admitted_per_s = (outcome.arrivals - outcome.refused) / outcome.lasted_s
    assert outcome.in_flight_s / outcome.lasted_s == pytest.approx(admitted_per_s * outcome.mean_latency_s, rel=1e-6)


def test_saturated_replica_answers_full_batches_and_refuses_the_rest() -> None:
    outcome = run(BATCHES, steady(400, 60))
    assert outcome.answered / outcome.lasted_s == pytest.approx(8 / 0.06, rel=0.01)
    assert outcome.engine_s / outcome.lasted_s == pytest.approx(0.75, rel=0.01)
    # Who is admitted finds 18 waiting at most: the batch that runs, two more, and its own.
    assert outcome.mean_latency_s < 4 * 0.06


def test_lone_requests_wait_for_nobody_but_the_delay() -> None:
    outcome = run(replace(BATCHES, max_batch_delay_s=0.05), steady(0.2, 2_000))
    assert outcome.mean_latency_s == pytest.approx(0.05 + 0.025, rel=0.02)


def test_adaptive_replica_answers_in_time_or_not_at_all() -> None:
    outcome = run(replace(BATCHES, is_adaptive=True, queue_size=0), steady(400, 60))
    assert outcome.refused > 0
    assert outcome.in_target == outcome.answered
    assert outcome.answered / outcome.lasted_s == pytest.approx(8 / 0.06, rel=0.02)


# -- what always holds -------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    least=st.floats(1, 60),
    most=st.floats(60, 500),
    step=st.floats(1, 400),
    cold_start_s=st.floats(0, 120),
    seed=st.integers(0, 99),
)
def test_every_request_is_answered_or_refused_once(
    least: float, most: float, step: float, cold_start_s: float, seed: int
) -> None:
    """Whatever comes, while replicas come and go; drained ones leave nobody without an answer."""
    day = Day(200, least, most, 120, Step(40, 60, step))
    outcome = scaled(day, cold_start_s, seed)
    arrivals = sum(map(len, day.arrivals(seed)))
    assert outcome.arrivals == arrivals == outcome.answered + outcome.refused
    assert outcome.in_target <= outcome.answered
    assert arrivals == sum(minute.arrivals for minute in outcome.minutes)
    assert outcome.in_target == sum(minute.in_target for minute in outcome.minutes)
    assert outcome.replica_s >= 2 * outcome.lasted_s - 1e-6


def test_more_replicas_answer_no_fewer_in_time() -> None:
    shares = [run(BATCHES, steady(380, 60), replicas).share_in_target for replicas in (1, 2, 3, 4, 6)]
    assert shares == sorted(shares)
    assert shares[0] < 0.5
    assert shares[-1] > 0.99


def test_longer_cold_starts_answer_fewer_in_time() -> None:
    day = typical(100, 4, 900)
    shares = [scaled(day, cold_start_s).share_in_target for cold_start_s in (0, 60, 240)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]


def test_replicas_that_go_are_paid_for_until_they_are_drained() -> None:
    """Two all the time, and none more: traffic is a twentieth of what one holds."""
    outcome = scaled(steady(5, 1200))
    assert outcome.replica_s == pytest.approx(2 * outcome.lasted_s)
    busy = scaled(Day(2400, 5, 300, 600))
    most = max(minute.replicas for minute in busy.minutes)
    assert most > 3
    assert busy.minutes[-2].asked_for < most


def test_day_has_its_tenfold_peak_its_step_and_its_number_of_requests() -> None:
    day = typical(20, 8, 7200)
    rates = [day.rate_per_s(second) for second in range(7200)]
    assert day.most_per_s / day.least_per_s == 10
    assert max(rates) == pytest.approx(160, rel=0.01)
    assert day.rate_per_s(0.4 * 7200) - day.rate_per_s(0.4 * 7200 - 1) == pytest.approx(40, abs=0.2)
    assert sum(map(len, day.arrivals(3))) == pytest.approx(sum(rates), rel=0.01)
