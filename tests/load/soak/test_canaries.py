"""Canaries: which are kept, and what is made of an answer."""

import json
from itertools import permutations

import pytest

from load.generate.inputs import Input
from load.measure.exchange import Verdict
from load.soak.canaries import TOLERANCES, Canaries, Canary, chosen
from load.soak.candidates import TASKS, candidates
from tests.load.soak.canary_server import MODEL, answer_to, canaries, canary


def vector(*numbers: float) -> Canary:
    return Canary(Input(b"{}"), list(numbers), 0.02)


def test_chosen_leaves_out_what_could_be_taken_for_another_or_for_nothing() -> None:
    far, near, other = vector(1.0, 0.0), vector(0.95, 0.0), vector(0.0, 1.0)
    zero = Canary(Input(b""), {"cat": 0.01}, 0.02)
    assert chosen([far, near, other, zero]) == [far, other]
    assert chosen([far, near, other], most=1) == [far]
    # A number that is missing counts as 0, so that the one may show the other's answer and not the other way round.
    one = Canary(Input(b""), {"cat": 0.9}, 0.003)
    more = Canary(Input(b""), {"cat": 0.9, "dog": 0.3}, 0.003)
    assert chosen([one, more]) == [one]
    assert chosen([more, one]) == [more]


def test_every_answer_of_another_request_is_crossed() -> None:
    known = canaries()
    bodies = [json.dumps(each.answer).encode() for each in known.by_model[MODEL]]
    for asked, answered in permutations(range(len(bodies)), 2):
        assert known.verdict(MODEL, asked, bodies[answered]) is Verdict.SWAPPED
    assert {known.verdict(MODEL, number, body) for number, body in enumerate(bodies)} == {Verdict.RIGHT}


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ([1.019] + 9 * [0.0], Verdict.RIGHT),
        ([1.03] + 9 * [0.0], Verdict.WRONG),
        ([0.0, 1.0] + 8 * [0.0], Verdict.SWAPPED),
        (answer_to("text 3"), Verdict.SWAPPED),
        (answer_to("no canary's text"), Verdict.WRONG),
        ([], Verdict.WRONG),
        ({}, Verdict.WRONG),
        (None, Verdict.WRONG),
    ],
)
def test_answer_is_judged_against_the_canaries_of_every_model(answer: object, verdict: Verdict) -> None:
    unit = [vector(*(float(place == number) for place in range(10))) for number in range(10)]
    known = Canaries({"vectors": unit, **canaries().by_model})
    assert known.verdict("vectors", 0, json.dumps(answer).encode()) is verdict


def test_answer_that_is_no_json_is_wrong() -> None:
    assert canaries().verdict(MODEL, 0, b"<html>") is Verdict.WRONG


def test_too_few_canaries_are_refused() -> None:
    with pytest.raises(ValueError, match="m: 1 canaries can be told apart, 8 are needed"):
        Canaries({MODEL: [canary("alone")]})


@pytest.mark.parametrize("task", TASKS)
def test_candidates_are_the_same_for_a_seed_and_unlike_each_other(task: str) -> None:
    made = candidates(task, 1)
    assert made == candidates(task, 1) != candidates(task, 2)
    assert len({each.body for each in made}) == len(made) == 160
    assert task in TOLERANCES
