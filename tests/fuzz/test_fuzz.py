"""A short run of the fuzzer against every task in this process."""

import logging
from collections.abc import Iterator

import pytest

from tests.fuzz import in_process
from tests.fuzz.child import no_note
from tests.fuzz.kinds import KINDS
from tests.fuzz.report import lines
from tests.fuzz.run import Fuzzer, batches_from

SEED = 1


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """`initialize` sets levels for a worker's lifetime; a test's is shorter."""
    levels = {name: logging.getLogger(name).level for name in (None, "ts.metrics")}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.parametrize("mode", in_process.MODES)
def test_texts_nothing_that_a_client_sends_is_anybody_elses_affair(mode: str) -> None:
    fuzz("text_classification", mode, 200)


def test_images_nothing_that_a_client_sends_is_anybody_elses_affair() -> None:
    fuzz("image_classification", "adaptive", 60)


@pytest.mark.clock
@pytest.mark.parametrize("mode", in_process.MODES)
@pytest.mark.parametrize("task", list(KINDS))
def test_nothing_that_a_client_sends_is_anybody_elses_affair(task: str, mode: str) -> None:
    fuzz(task, mode, 200)


def fuzz(task: str, mode: str, count: int) -> None:
    with in_process.started(task, mode) as target:
        fuzzer = Fuzzer(KINDS[task], target, SEED, mode, no_note)
        outcome = fuzzer.run(batches_from(0), lambda sent: sent / count)
    assert not lines(outcome, SEED)
    assert outcome.bodies == count
