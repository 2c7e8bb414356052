"""A short run against every task in this process, and what was found before, sent again."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import in_process
from tests.fuzz.checks import problems
from tests.fuzz.child import no_note
from tests.fuzz.kinds import KINDS
from tests.fuzz.report import FOUND, lines
from tests.fuzz.run import Fuzzer, Target, batches_from
from tests.fuzz.sent import from_json

SEED = 1


@pytest.fixture(autouse=True, scope="module")
def _logging() -> Iterator[None]:
    """`initialize` sets levels for a worker's lifetime; a test's is shorter."""
    levels = {name: logging.getLogger(name).level for name in (None, "ts.metrics")}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture(scope="module")
def targets() -> Iterator[Callable[[str, str], Target]]:
    """A handler for each task and mode, started once."""
    with ExitStack() as stack:
        yield cache(lambda task, mode: stack.enter_context(in_process.started(task, mode)))


@pytest.mark.parametrize(
    ("task", "mode", "count"),
    [
        ("text_classification", "classic", 200),
        ("text_classification", "adaptive", 200),
        ("image_classification", "adaptive", 60),
        *(pytest.param(task, mode, 200, id=f"{task}-{mode}") for task in KINDS for mode in in_process.MODES),
    ],
)
def test_nothing_that_a_client_sends_is_anybody_elses_affair(
    targets: Callable[[str, str], Target], task: str, mode: str, count: int
) -> None:
    fuzzer = Fuzzer(KINDS[task], targets(task, mode), SEED, mode, no_note)
    outcome = fuzzer.run(batches_from(0), lambda sent: sent / count)
    assert not lines(outcome, SEED)
    assert outcome.bodies == count


@pytest.mark.parametrize("mode", in_process.MODES)
@pytest.mark.parametrize("path", sorted(FOUND.glob("*.json")), ids=lambda path: path.stem)
def test_what_was_found_stays_mended(targets: Callable[[str, str], Target], path: Path, mode: str) -> None:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    kind, sent = KINDS[document["task"]], from_json(document)
    fuzzer = Fuzzer(kind, targets(kind.name, mode), SEED, mode, no_note)
    for decodes in (True, False):
        answer, wrong = fuzzer.beside_neighbours(sent, decodes=decodes)
        assert not wrong
        assert not list(problems(sent, answer, is_adaptive=mode == "adaptive"))
        assert answer.seconds < kind.budget_s
        if (expected := document["expected"]) is not None:
            assert answer.status == expected["status"], answer.body[:500]
            assert expected["type"] in (None, json.loads(answer.body).get("type"))
