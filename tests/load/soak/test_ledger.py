"""The ledger: what is counted as answered, as lost, and as excused by a kill."""

import pytest

from load.measure.exchange import NO_ANSWER, Exchange, Verdict
from load.soak.ledger import Ledger


def exchange(status: int, sent_s: float = 10.0, answered_s: float = 10.5, verdict: Verdict | None = None) -> Exchange:
    error = "TimeoutError" if status == NO_ANSWER else None
    return Exchange(sent_s, sent_s, answered_s, status, source=3, error=error, verdict=verdict)


def entered(ledger: Ledger, *exchanges: Exchange, model: str = "m") -> None:
    for each in exchanges:
        ledger.ended(model, ledger.sent(model), each)


def test_requests_that_are_lost_or_in_flight_are_unanswered() -> None:
    ledger = Ledger()
    ledger.phase = "steady"
    entered(ledger, exchange(200, verdict=Verdict.RIGHT), exchange(NO_ANSWER), exchange(503))
    ledger.sent("m")
    total = ledger.total("m")
    assert (total.sent, total.unanswered, total.in_flight, ledger.in_flight["m"]) == (4, 2, 1, 1)
    assert (total.lost, total.statuses) == ({"TimeoutError": 1}, {200: 1, 503: 1})
    assert ledger.surprises == ["steady: m: no answer: TimeoutError, 0.50 s after it was sent"]


def test_answer_belongs_to_the_phase_of_its_request() -> None:
    ledger = Ledger()
    ledger.phase = "steady"
    phase = ledger.sent("m")
    ledger.phase = "kills"
    ledger.ended("m", phase, exchange(200))
    assert [(phase, account.sent, account.unanswered) for phase, _, account in ledger.accounts()] == [("steady", 1, 0)]


def test_crossed_and_wrong_answers_are_counted_and_described() -> None:
    ledger = Ledger()
    ledger.phase = "steady"
    entered(ledger, exchange(200, verdict=Verdict.SWAPPED), exchange(200, verdict=Verdict.WRONG))
    assert (ledger.total().crossed, ledger.total().wrong) == (1, 1)
    assert ledger.surprises[0] == "steady: m: the answer to canary 3 is swapped, 0.50 s after it was sent"


@pytest.mark.parametrize(
    ("status", "sent_s", "answered_s", "is_expected"),
    [
        (507, 99.0, 100.1, True),  # in flight as its worker was killed, at 100
        (500, 100.9, 101.0, True),  # handed to a worker that was just gone
        (500, 99.0, 99.9, False),  # answered before
        (507, 101.1, 101.2, False),  # sent long after
        (503, 50.0, 50.1, True),
        (504, 50.0, 50.1, True),
        (400, 99.0, 100.1, False),
        (502, 99.0, 100.1, False),
    ],
)
def test_status_is_expected_where_overload_or_a_kill_of_that_worker_excuses_it(
    status: int, sent_s: float, answered_s: float, is_expected: bool
) -> None:
    ledger = Ledger()
    ledger.killed("m", 1, 100.0)
    entered(ledger, exchange(status, sent_s, answered_s))
    assert ledger.total().unexpected.total() == (not is_expected)
    # Nobody else's worker was killed.
    entered(ledger, exchange(500, 99.0, 100.1), model="other")
    assert ledger.total("other").unexpected == {500: 1}


def test_recovery_is_from_the_kill_to_the_first_200_of_that_model_after_it_was_noticed() -> None:
    ledger = Ledger()
    kill = ledger.killed("m", 1, 100.0)
    entered(ledger, exchange(200, 99.9, 100.01))
    assert kill.recovery_s is None
    kill.noticed_s = 100.2
    entered(ledger, exchange(200, 100.3, 100.4), model="other")
    entered(ledger, exchange(503, 100.3, 100.4), exchange(200, 99.9, 107.5), exchange(200, 100.3, 109.0))
    assert kill.recovery_s == 7.5
