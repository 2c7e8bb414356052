"""The report: what is found, what the table says, and what the JSON keeps."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from load.measure.exchange import Exchange, Verdict
from load.soak.ledger import Ledger
from load.soak.report import Held, Outcome, Setting, as_json, findings, held, table
from load.soak.resources import JAVA, Sample, slope_mb_per_min

SETTING = Setting("both", 1, 1, 1, 100.0, 24, 70.0, {"m-classic": 2, "m-adaptive": 1}, {"m-classic": 48})


def sample(at_s: float = 0.0, name: str = "m-classic", rss_mb: float = 500.0, **more: int) -> Sample:
    return Sample(at_s, name, 7, rss_mb, more.get("descriptors", 10), more.get("threads", 20))


def process(name: str = "m-classic", slope: float = 0.0, rise: float = 0.0, **end: int) -> Held:
    return Held(name, sample(name=name), sample(name=name, **end), slope, rise)


def good(*, kills: int = 1) -> Ledger:
    """A killed worker that came back, and every request answered."""
    ledger = Ledger()
    for phase in ("steady", "kills"):
        ledger.phase = phase
        for number in range(10):
            exchange = Exchange(number, number, number + 0.25, 200, verdict=Verdict.RIGHT)
            ledger.ended("m-classic", ledger.sent("m-classic"), exchange)
    for number in range(kills):
        kill = ledger.killed("m-classic", 7, 100.0)
        kill.noticed_s, kill.answered_s, kill.ready_s = 100.2, 106.5 + 2 * number, 106.0
    return ledger


def outcome(ledger: Ledger | None = None, *processes: Held) -> Outcome:
    return Outcome(SETTING, ledger or good(), Counter(stalled=2), processes or (process(), process(JAVA)))


def with_exchange(status: int, verdict: Verdict | None = None) -> Ledger:
    ledger = good()
    error = "TimeoutError" if status == 0 else None
    ledger.ended("m-classic", ledger.sent("m-classic"), Exchange(1, 1, 2, status, error=error, verdict=verdict))
    return ledger


def in_flight() -> Ledger:
    ledger = good()
    ledger.sent("m-classic")
    return ledger


def not_back() -> Ledger:
    ledger = good()
    ledger.killed("m-classic", 8, 200.0)
    return ledger


def held_back() -> Ledger:
    ledger = good()
    ledger.phase = "steady"
    for _ in range(10):
        ledger.held_back("m-classic")
    return ledger


def test_good_run_has_no_findings() -> None:
    assert findings(outcome()) == []


@pytest.mark.parametrize(
    ("made", "finding"),
    [
        (lambda: outcome(with_exchange(0)), "1 unanswered: TimeoutError 1"),
        (lambda: outcome(in_flight()), "1 unanswered: 1 were still in flight at the end"),
        (lambda: outcome(with_exchange(200, Verdict.SWAPPED)), "1 crossed: answers that belong to another request"),
        (lambda: outcome(with_exchange(200, Verdict.WRONG)), "1 wrong: answers that are no canary's"),
        (lambda: outcome(with_exchange(500)), "1 answers of status 500 that nothing excuses"),
        (lambda: outcome(with_exchange(400)), "1 answers of status 400 that nothing excuses"),
        (lambda: outcome(not_back()), "m-classic: no 200 after its worker 8 was killed"),
        (lambda: outcome(good(kills=0)), "0 kills that the model came back from, 1 are wanted"),
        (lambda: outcome(held_back()), "the steady phase held back 10 of 20 requests: it is no steady load"),
        (lambda: outcome(Ledger()), "nothing was answered with 200"),
        (lambda: replace(outcome(), problems=["the generator failed: KeyError()"]), "the generator failed: KeyError()"),
        (
            lambda: outcome(None, process(slope=11.0, rise=66.0)),
            "m-classic: memory grows by 11.0 MB/min, 66 MB in all; at most 10 MB/min, or 60 MB, are allowed",
        ),
        (
            lambda: outcome(None, process(JAVA, descriptors=35)),
            "java: 25 descriptors more at the end than at the start, at most 24 are allowed",
        ),
        (
            lambda: outcome(None, process(threads=45)),
            "m-classic: 25 threads more at the end than at the start, at most 24 are allowed",
        ),
    ],
)
def test_what_must_not_be_is_found(made: Callable[[], Outcome], finding: str) -> None:
    assert finding in findings(made())
    assert f"FOUND: {finding}" in table(made())


@pytest.mark.parametrize(
    "process_held",
    [
        process(slope=200.0, rise=59.0),  # a short run's noise
        process(slope=9.0, rise=80.0),
        process(JAVA, slope=60.0, rise=240.0),
        process(descriptors=34, threads=44),
    ],
)
def test_growth_within_its_bound_is_no_finding(process_held: Held) -> None:
    assert findings(outcome(None, process_held)) == []


def test_status_of_overload_is_no_finding() -> None:
    assert findings(outcome(with_exchange(503))) == findings(outcome(with_exchange(504))) == []


def test_table_gives_counts_recovery_and_resources() -> None:
    lines = [line.split() for line in table(outcome(good(kills=3), process(), process(JAVA, slope=1.5))).splitlines()]
    assert ["steady", "m-classic", "10", "10", *"000000000", "0.25"] in lines
    assert ["all", "20", "20", *"000000000", "0.25"] in lines
    # Of 6.5, 8.5 and 10.5 s.
    assert ["m-classic", "3", "8.5", "10.5", "6.0"] in lines
    assert ["java", "500", "500", "+1.5", "10", "10", "20", "20"] in lines
    text = table(outcome())
    assert "capacity 100/s (closed loop of 24 clients, the same mix); load 70/s, 70 % of it" in text
    assert "misbehaving clients: stalled 2" in text
    assert text.endswith("nothing unanswered, crossed, wrong or grown")


def test_json_keeps_everything() -> None:
    kept = json.loads(json.dumps(as_json(outcome(with_exchange(503)))))
    assert kept["setting"]["capacity_per_s"] == 100.0
    steady, kills, total = kept["traffic"]
    assert (steady["phase"], kills["phase"], total["phase"]) == ("steady", "kills", "all")
    assert total["statuses"] == {"200": 20, "503": 1}
    assert total["verdicts"] == {"right": 20}
    assert kept["kills"][0]["recovery_s"] == 6.5
    assert kept["processes"][0]["start"]["rss_mb"] == 500.0
    assert kept["findings"] == []


def test_slope_is_of_the_steady_phase_without_its_first_third() -> None:
    # 30 MB a minute until 40 s, then 6; a kill at 120 s makes another process of it.
    growing = [
        sample(at_s=second, rss_mb=500 + 0.5 * min(second, 40) + 0.1 * max(0, second - 40)) for second in range(121)
    ]
    killed = [sample(at_s=second, rss_mb=100.0) for second in range(121, 180)]
    (found,) = held([*growing, *killed], 0.0, 120.0)
    assert found.slope_mb_per_min == pytest.approx(6.0)
    assert found.rise_mb == pytest.approx(8.0)
    assert (found.start.rss_mb, found.end.rss_mb) == (500.0, 100.0)


def test_slope_of_one_moment_is_none() -> None:
    assert slope_mb_per_min([]) == slope_mb_per_min([sample()]) == slope_mb_per_min([sample(), sample()]) == 0.0
