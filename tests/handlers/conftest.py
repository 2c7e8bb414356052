import logging
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.exports import staged


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """`initialize` sets levels for a worker's lifetime; a test's is shorter."""
    levels = {name: logging.getLogger(name).level for name in (None, "ts.metrics")}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture(scope="session")
def staged_example(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """What the archive of an example holds, for both engines: made once, for tests that change nothing in it."""

    @cache
    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        staged(name, folder)
        return folder

    return make
