"""When an adaptive worker answers: tables, and a frontend with an engine in simulated time."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from handlers.adaptive.response_timing import TUNING, ResponseTiming, Situation
from handlers.scheduling.running_mean import RunningMean

WINDOW, ENOUGH_S = 64, 0.25
COST_S, DECODE_S = 0.001, 0.002
CAME_S = 10.0
GAP_ENDS_S = CAME_S + TUNING.gap_costs * COST_S
RUN_ENDS_S = 10.02
WATCH_S = CAME_S + TUNING.watch_s


def timing() -> ResponseTiming:
    """One that knows what things cost, and has seen a micro-batch since its last fetch."""
    cost, decode = (RunningMean(seconds, TUNING.latest_weight) for seconds in (COST_S, DECODE_S))
    ours = ResponseTiming(WINDOW, ENOUGH_S, cost, decode)
    ours.came(CAME_S, 1)
    ours.micro_batch_ended()
    return ours


FETCH_S = RUN_ENDS_S - COST_S - DECODE_S


def running(in_flight: int, complete: int, ends_s: float = RUN_ENDS_S, **further: float) -> Situation:
    """A micro-batch takes the whole engine."""
    return Situation(in_flight, complete, stream_ends_s=ends_s, is_stream_free=False, **further)  # type: ignore[arg-type]


def refused(in_flight: int, complete: int, since_s: float) -> Situation:
    """One of those that are complete was refused."""
    return running(in_flight, complete, refused=1, oldest_refusal_s=since_s)


SITUATIONS = {
    "lone request, answered": (Situation(1, 1), -inf),
    "everything refused": (running(3, 3, refused=3, oldest_refusal_s=CAME_S), -inf),
    "everything answered while the engine runs for nobody": (running(2, 2), -inf),
    "lone request, running, window of its own": (running(WINDOW, 0), inf),
    "answers, nothing else to do": (Situation(4, 1, decoding=3), -inf),
    "answers, engine at work": (running(8, 4), GAP_ENDS_S),
    "answers, engine about to work": (Situation(8, 4, queued_s=0.05), GAP_ENDS_S),
    "refusal, engine at work": (refused(3, 1, CAME_S - 0.04), CAME_S - 0.04 + TUNING.refusal_s),
    "refusal of just now, engine at work for long": (
        replace(refused(3, 1, CAME_S), stream_ends_s=CAME_S + 1),
        WATCH_S,
    ),
    "refusals, many": (
        replace(running(40, 20, CAME_S + 1), complete=6, refused=6, oldest_refusal_s=CAME_S - 0.05),
        CAME_S - 0.05 + 6 * TUNING.refusal_cost_s / TUNING.refusal_share,
    ),
    "refusals, more than can be slowed down": (
        replace(running(50, 50, CAME_S + 1), complete=45, refused=45, oldest_refusal_s=CAME_S - 0.05),
        CAME_S - 0.05 + TUNING.longest_refusal_s,
    ),
    "refusals, window crowded": (
        replace(running(60, 40, CAME_S + 1), complete=40, refused=40, oldest_refusal_s=CAME_S - 0.04),
        CAME_S - 0.04 + TUNING.refusal_s,
    ),
    "refusal, others being decoded": (
        Situation(3, 1, refused=1, oldest_refusal_s=CAME_S - 0.048, decoding=2),
        CAME_S - 0.048 + TUNING.refusal_s,
    ),
    "refusal with answers": (refused(8, 4, CAME_S), GAP_ENDS_S),
    "engine soon free": (running(4, 0), FETCH_S),
    "engine soon free, window full": (running(WINDOW, 0), inf),
    "engine soon free, enough queued": (running(4, 0, queued_s=ENOUGH_S), WATCH_S),
    "engine soon free, some decoded still": (running(4, 0, decoding=1), WATCH_S),
    "engine at work for long": (running(4, 0, CAME_S + 1), WATCH_S),
    "engine should be free already": (running(4, 0, CAME_S - 1), GAP_ENDS_S),
    "a stream free": (Situation(4, 0, stream_ends_s=RUN_ENDS_S), (CAME_S + RUN_ENDS_S) / 2),
    "a stream free, those of the other in flight alone": (Situation(1, 1, stream_ends_s=RUN_ENDS_S), -inf),
    "a stream free, some decoded still": (Situation(4, 0, stream_ends_s=RUN_ENDS_S, decoding=1), WATCH_S),
    "engine idle, slow decoding": (Situation(4, 0, decoding=4), CAME_S + TUNING.idle_fetch_s),
    "engine idle, slow decoding, window full": (Situation(WINDOW, 0, decoding=8), inf),
}


@pytest.mark.parametrize(("situation", "due_s"), SITUATIONS.values(), ids=SITUATIONS.keys())
def test_exchange_in_each_situation_is_due_when_the_table_says(situation: Situation, due_s: float) -> None:
    assert timing().due_s(situation) == pytest.approx(due_s)


def test_exchange_that_fetched_is_the_only_fetch_of_its_micro_batch() -> None:
    ours = timing()
    situation = running(4, 0)
    ours.goes(FETCH_S, situation)
    ours.came(FETCH_S + COST_S, 1)
    assert ours.due_s(situation) == FETCH_S + COST_S + TUNING.watch_s
    ours.micro_batch_ended()
    assert ours.due_s(situation) < FETCH_S + COST_S + TUNING.watch_s


def test_exchange_with_a_free_stream_fetches_twice_a_micro_batch_each_time_halfway_to_its_end() -> None:
    ours = timing()
    free, fetched_s = Situation(4, 0, stream_ends_s=RUN_ENDS_S), []
    while (due_s := ours.due_s(free)) < RUN_ENDS_S:
        ours.goes(due_s, free)
        ours.came(due_s, 1)
        fetched_s.append(due_s)
    assert fetched_s == pytest.approx([10.01, 10.015])
    ours.micro_batch_ended()
    assert ours.due_s(free) < RUN_ENDS_S


def test_fetch_that_brings_nobody_is_made_rarer_and_one_that_does_more_often_again() -> None:
    ours = timing()
    situation = running(1, 0)

    def fetches(micro_batches: int, newcomers: int) -> int:
        count, came_s = 0, CAME_S
        ours.came(came_s, 0)
        for _ in range(micro_batches):
            ours.micro_batch_ended()
            if (due_s := ours.due_s(situation)) < came_s + TUNING.watch_s:
                count += 1
                ours.goes(due_s, situation)
                came_s = due_s + COST_S
                ours.came(came_s, newcomers)
        return count

    assert fetches(20, newcomers=0) < 10
    assert fetches(10 * TUNING.fetch_probe, newcomers=0) == 10
    fetches(4 * TUNING.fetch_probe, newcomers=2)
    assert fetches(10, newcomers=2) == 10


def test_exchange_cost_is_learned_from_answer_to_next_rows() -> None:
    ours = timing()
    for number in range(50):
        ours.goes(11.0 + number, Situation(4, 1))
        ours.came(11.005 + number, 1)
    assert ours.cost_s.value == pytest.approx(0.005, rel=0.01)


def test_exchange_cost_is_not_learned_from_waiting_for_a_client() -> None:
    ours = timing()
    ours.goes(11.0, Situation(1, 1))
    ours.came(500.0, 1)
    assert ours.cost_s.value == COST_S


def ready(in_flight: int, queued_s: float, **further: float) -> Situation:
    """The engine is idle, and has so much to do."""
    return Situation(in_flight, 0, queued_s=queued_s, **further)  # type: ignore[arg-type]


def test_frontends_thread_runs_for_a_lone_client_that_fetches_found_no_other_beside() -> None:
    ours, situation = timing(), ready(1, TUNING.lone_s)
    assert not ours.most_here(situation)
    for _ in range(10):
        ours.use.observe(0.0)
    assert ours.most_here(situation)
    assert not ours.most_here(ready(1, 2 * TUNING.lone_s))
    assert not ours.most_here(ready(2, TUNING.lone_s))
    assert not ours.most_here(running(1, 0))
    for _ in range(TUNING.fetch_probe):
        ours.micro_batch_ended()
    assert not ours.most_here(situation)


def test_frontends_thread_runs_for_any_number_what_takes_no_longer_than_a_fetch() -> None:
    ours = timing()
    assert ours.most_here(ready(WINDOW, TUNING.quick_s)) == WINDOW / 2
    assert ours.most_here(ready(TUNING.quick_items, COST_S)) == TUNING.quick_items
    assert not ours.most_here(ready(WINDOW, 1.1 * TUNING.quick_s))
    assert not ours.most_here(ready(4, COST_S, streamed=1))
    assert not ours.most_here(running(4, 0))
    assert not ours.most_here(Situation(4, 4))


def test_watch_that_brings_somebody_tells_that_fetches_do_and_one_that_does_not_tells_nothing() -> None:
    ours, situation = timing(), running(1, 0, CAME_S + 1)
    for _ in range(20):
        due_s = ours.due_s(situation)
        ours.goes(due_s, situation)
        ours.came(due_s, 0)
    assert ours.use.value == 1
    ours.use.observe(0.0)
    before = ours.use.value
    ours.goes(ours.due_s(situation), situation)
    ours.came(ours.due_s(situation), 1)
    assert ours.use.value > before


def test_watch_of_a_costly_exchange_is_rarer() -> None:
    cost_s = 0.02
    ours = ResponseTiming(WINDOW, ENOUGH_S, RunningMean(cost_s, TUNING.latest_weight))
    ours.came(CAME_S, 1)
    assert ours.due_s(running(4, 0, CAME_S + 1)) == CAME_S + TUNING.watch_costs * cost_s


@dataclass
class Traffic:
    """What comes, and what it meets.

    Attributes:
        gaps_s: between arrivals.
        run_s: of every micro-batch of up to four.
        decode_s: of every request.
        refused: the arrivals that are refused, by number.
    """

    gaps_s: Sequence[float]
    run_s: float
    decode_s: float
    refused: frozenset[int] = frozenset()


STEP_S = 0.0002
EXCHANGE_S = 5 * STEP_S
BATCH_ITEMS = 4


@dataclass
class Simulation:
    """A frontend, a window, an engine; in steps of a fifth of what an exchange costs.

    Attributes:
        exchanges_s: when the worker answered.
        runs_s: when each micro-batch began and ended.
        delays_s: for each request, how long it was complete before it was answered.
    """

    traffic: Traffic
    timing: ResponseTiming = field(default_factory=lambda: ResponseTiming(WINDOW, ENOUGH_S))
    exchanges_s: list[float] = field(default_factory=list)
    runs_s: list[tuple[float, float]] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)
    _in_flight: set[int] = field(default_factory=set)
    _decoding: dict[int, float] = field(default_factory=dict)
    _ready: list[int] = field(default_factory=list)
    _running: list[int] = field(default_factory=list)
    _complete: dict[int, float] = field(default_factory=dict)
    _engine_ends_s: float | None = None

    def run(self) -> "Simulation":
        """Until everybody is answered."""
        waiting = list(enumerate(accumulate(self.traffic.gaps_s)))
        now_s, comes_s, is_frontends_turn = 0.0, 0.0, True
        while len(self.delays_s) < len(self.traffic.gaps_s):
            now_s += STEP_S
            assert now_s < 100, "somebody is never answered"
            self._work(now_s)
            if is_frontends_turn:
                arrived = [number for number, at_s in waiting if at_s <= now_s]
                if now_s < comes_s or not (self._in_flight or arrived):
                    continue
                newcomers = arrived[: WINDOW - len(self._in_flight)]
                waiting = waiting[len(newcomers) :]
                self._come(newcomers, now_s)
            situation = self._situation()
            is_frontends_turn = self.timing.due_s(situation) <= now_s
            if is_frontends_turn:
                self.timing.goes(now_s, situation)
                self._answer(now_s, with_refused=self.timing.refusal_due_s(situation) <= now_s)
                comes_s = now_s + EXCHANGE_S
        return self

    def most_exchanges_of_a_micro_batch(self) -> int:
        """While it ran."""
        return max(sum(start <= at_s < end for at_s in self.exchanges_s) for start, end in self.runs_s)

    def _work(self, now_s: float) -> None:
        for number in [number for number, ends_s in self._decoding.items() if ends_s <= now_s]:
            del self._decoding[number]
            self._ready.append(number)
            self.timing.decoded(self.traffic.decode_s)
        if self._engine_ends_s is not None and self._engine_ends_s <= now_s:
            self._complete.update(dict.fromkeys(self._running, now_s))
            self._engine_ends_s = None
            self.timing.micro_batch_ended()
        if self._engine_ends_s is None and self._ready:
            self._running, self._ready = self._ready[:BATCH_ITEMS], self._ready[BATCH_ITEMS:]
            self._engine_ends_s = now_s + self.traffic.run_s
            self.runs_s.append((now_s, self._engine_ends_s))

    def _come(self, newcomers: Sequence[int], now_s: float) -> None:
        self.timing.came(now_s, len(newcomers))
        self._in_flight.update(newcomers)
        for number in newcomers:
            if number in self.traffic.refused:
                self._complete[number] = now_s
            else:
                self._decoding[number] = now_s + self.traffic.decode_s

    def _situation(self) -> Situation:
        refused_s = [self._complete[number] for number in self._complete.keys() & self.traffic.refused]
        return Situation(
            in_flight=len(self._in_flight),
            complete=len(self._complete),
            refused=len(refused_s),
            oldest_refusal_s=min(refused_s, default=inf),
            stream_ends_s=inf if self._engine_ends_s is None else self._engine_ends_s,
            is_stream_free=self._engine_ends_s is None,
            queued_s=self.traffic.run_s * len(self._ready) / BATCH_ITEMS,
            decoding=len(self._decoding),
        )

    def _answer(self, now_s: float, *, with_refused: bool) -> None:
        self.exchanges_s.append(now_s)
        answered = [number for number in self._complete if with_refused or number not in self.traffic.refused]
        self.delays_s += [now_s - self._complete.pop(number) for number in answered]
        self._in_flight -= set(answered)


TRAFFIC = st.builds(
    Traffic,
    gaps_s=st.lists(st.sampled_from([0.0, 0.0005, 0.003, 0.02, 0.2]), min_size=1, max_size=30),
    run_s=st.sampled_from([0.005, 0.03, 0.12]),
    decode_s=st.sampled_from([0.0, 0.001, 0.01, 0.05]),
)


@given(TRAFFIC)
def test_exchanges_of_any_traffic_are_at_most_three_a_micro_batch_and_the_watches(traffic: Traffic) -> None:
    simulated = Simulation(traffic).run()
    assert simulated.most_exchanges_of_a_micro_batch() <= 3 + int(traffic.run_s / TUNING.watch_s)
    assert max(simulated.delays_s) <= traffic.run_s + TUNING.idle_fetch_s


@given(TRAFFIC, st.sets(st.integers(0, 29), min_size=5))
@example(Traffic([0.0, 0.0, 0.0, 0.0, 0.0, 0.003, 0.02, 0.02], run_s=0.03, decode_s=0.01), {0, 1, 2, 6, 7})
def test_exchanges_of_an_overload_stay_few_and_its_refusals_timely(traffic: Traffic, refused: set[int]) -> None:
    simulated = Simulation(replace(traffic, refused=frozenset(refused))).run()
    if simulated.runs_s:
        most = 3 + int(traffic.run_s / TUNING.refusal_s) + int(traffic.run_s / TUNING.watch_s)
        assert simulated.most_exchanges_of_a_micro_batch() <= most
    paced_s = len(refused) * TUNING.refusal_cost_s / TUNING.refusal_share
    longest_s = max(TUNING.refusal_s, min(TUNING.longest_refusal_s, paced_s))
    assert max(simulated.delays_s) <= longest_s + 0.01


def test_exchanges_of_a_saturated_worker_are_about_two_a_micro_batch() -> None:
    chosen = random.Random(1)
    simulated = Simulation(Traffic([chosen.expovariate(100) for _ in range(400)], 0.05, 0.002)).run()
    assert 1 <= len(simulated.exchanges_s) / len(simulated.runs_s) <= 2.2


def test_first_piece_goes_at_once_and_further_ones_together_after_a_while() -> None:
    timing = ResponseTiming(window=64, enough_s=1.0)
    timing.came(10.0, 1)
    nothing = timing.due_s(running(3, 0, ends_s=20.0, streamed=2))
    first = timing.due_s(running(3, 0, ends_s=20.0, streamed=2, pieces=1, first_pieces=1))
    further = timing.due_s(running(3, 0, ends_s=20.0, streamed=2, pieces=2))
    assert 10.0 < first <= 10.0 + TUNING.gap_costs * timing.cost_s.value
    assert further == pytest.approx(10.0 + TUNING.piece_s)
    assert first < further < nothing


def test_pieces_wait_longer_where_an_exchange_costs_more() -> None:
    timing = ResponseTiming(window=64, enough_s=1.0)
    for _ in range(100):
        timing.goes(0.0, Situation(in_flight=2, complete=1))
        timing.came(0.05, 0)
    talking = Situation(in_flight=2, complete=0, stream_ends_s=9.0, is_stream_free=False, streamed=2, pieces=2)
    assert timing.due_s(talking) == pytest.approx(0.05 + TUNING.piece_costs * 0.05, rel=0.01)


def test_lone_client_that_wants_its_answer_in_pieces_is_no_work_of_the_frontends_thread() -> None:
    timing = ResponseTiming(window=64, enough_s=1.0)
    while timing.use.value >= TUNING.least_use:
        timing.use.observe(0.0)
    assert timing.most_here(Situation(in_flight=1, complete=0))
    assert not timing.most_here(Situation(in_flight=1, complete=0, streamed=1))
