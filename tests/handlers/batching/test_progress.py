"""Requests that share a micro-batch are answered as each of them ends."""

import json
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.handlers.batching.frontend import Frontend
from tests.handlers.batching.gated import TIMEOUT_S, wait_for
from tests.handlers.batching.spelling import FAILURE, SpellingHandler, asking, started
from tests.handlers.serving import Answer

SHORT, LONG = "ab", "abcdefghij"


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[SpellingHandler]:
    handler = started(tmp_path)
    yield handler
    handler.speller.go()
    handler.wait_until_idle()


def together(frontend: Frontend, *texts: str | list[str]) -> list[Future[Answer]]:
    bodies = [
        asking(text) if isinstance(text, str) else json.dumps({"instances": [{"text": t} for t in text]}).encode()
        for text in texts
    ]
    return frontend.submit_together([(body, {}) for body in bodies])


def test_request_is_answered_when_the_last_of_its_items_has_ended_and_not_with_its_micro_batch(
    handler: SpellingHandler,
) -> None:
    with Frontend(handler) as frontend:
        handler.speller.hold()
        short, both, long = together(frontend, SHORT, [SHORT, SHORT + SHORT], LONG)
        handler.speller.step(len(SHORT))
        assert short.result(TIMEOUT_S).body == {"spelled": SHORT}
        wait_for(lambda: handler.speller.steps >= len(SHORT))
        assert not both.done()
        handler.speller.step(len(SHORT))
        assert both.result(TIMEOUT_S).body == {"predictions": [{"spelled": SHORT}, {"spelled": SHORT + SHORT}]}
        assert not long.done()
        handler.speller.go()
        assert long.result(TIMEOUT_S).body == {"spelled": LONG}
    assert [sorted(batch) for batch in handler.speller.batches] == [sorted([SHORT, SHORT, SHORT + SHORT, LONG])]


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
