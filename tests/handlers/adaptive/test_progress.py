"""Requests that share a micro-batch are answered as each of them ends."""

import json
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from handlers.adaptive.shared_state import State
from handlers.scheduling.latency_model import LatencyModel
from tests.handlers.adaptive.frontend import Frontend
from tests.handlers.adaptive.gated import TIMEOUT_S, wait_for
from tests.handlers.adaptive.spelling import FAILURE, SpellingHandler, asking, started
from tests.handlers.serving import Answer

SHORT, LONG = "ab", "abcdefghij"


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[SpellingHandler]:
    handler = started(tmp_path)
    yield handler
    handler.speller.go()


def forgets(handler: SpellingHandler) -> bool:
    return handler.worker.state == State(0, 0, 0, 0)


def together(frontend: Frontend, *texts: str | list[str]) -> list[Future[Answer]]:
    bodies = [
        asking(text) if isinstance(text, str) else json.dumps({"instances": [{"text": t} for t in text]}).encode()
        for text in texts
    ]
    return frontend.submit_together([(body, {}) for body in bodies])


def test_request_is_answered_when_its_item_ends_and_not_with_its_micro_batch(handler: SpellingHandler) -> None:
    with Frontend(handler) as frontend:
        handler.speller.hold()
        short, long = together(frontend, SHORT, LONG)
        handler.speller.step(len(SHORT))
        assert short.result(TIMEOUT_S).body == {"spelled": SHORT}
        assert not long.done()
        handler.speller.go()
        assert long.result(TIMEOUT_S).body == {"spelled": LONG}
    assert handler.speller.batches == [[SHORT, LONG]]
    assert forgets(handler)


def test_request_of_several_items_is_answered_when_the_last_of_them_has_ended(handler: SpellingHandler) -> None:
    with Frontend(handler) as frontend:
        handler.speller.hold()
        both, long = together(frontend, [SHORT, SHORT + SHORT], LONG)
        handler.speller.step(len(SHORT))
        wait_for(lambda: handler.speller.steps >= len(SHORT))
        assert not both.done()
        handler.speller.step(len(SHORT))
        assert both.result(TIMEOUT_S).body == {"predictions": [{"spelled": SHORT}, {"spelled": SHORT + SHORT}]}
        assert not long.done()
        handler.speller.go()
        assert long.result(TIMEOUT_S).body == {"spelled": LONG}
    assert forgets(handler)


def test_item_of_which_nothing_is_told_is_answered_with_its_micro_batch(handler: SpellingHandler) -> None:
    with Frontend(handler) as frontend:
        answers = together(frontend, SHORT.upper(), LONG.upper())
        assert [each.result(TIMEOUT_S).body["spelled"] for each in answers] == [SHORT.upper(), LONG.upper()]
    assert forgets(handler)


def test_micro_batch_that_fails_keeps_the_answers_it_gave_and_tries_the_others_again(handler: SpellingHandler) -> None:
    bad = LONG[:4] + FAILURE + LONG[5:]
    with Frontend(handler) as frontend:
        answers = [each.result(TIMEOUT_S) for each in together(frontend, SHORT, LONG, bad, LONG[:6])]
    assert [answer.status for answer in answers] == [200, 200, 500, 200]
    assert [answer.body.get("spelled") for answer in answers] == [SHORT, LONG, None, LONG[:6]]
    assert sorted(handler.speller.batches[0]) == sorted([SHORT, LONG, bad, LONG[:6]])
    # Who has an answer is not run again, the others are, in halves, down to the one at fault.
    assert not any(SHORT in batch for batch in handler.speller.batches[1:])
    assert [bad] in handler.speller.batches
    assert forgets(handler)


def test_latency_model_learns_the_whole_micro_batch_though_its_items_ended_before(
    handler: SpellingHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[float, float]] = []
    monkeypatch.setattr(LatencyModel, "observe", lambda _, tokens, seconds: told.append((tokens, seconds)))
    handler.speller.pace_s = 0.01
    with Frontend(handler) as frontend:
        for each in together(frontend, SHORT, LONG):
            each.result(TIMEOUT_S)
    ((tokens, seconds),) = told
    assert tokens == 2
    assert seconds >= 0.01 * len(LONG)
