from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.exports import staged


@pytest.fixture(scope="session")
def staged_example(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the contents of an example's archive, for both engines: made once, for tests that change nothing in it."""

    @cache
    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        staged(name, folder)
        return folder

    return make
