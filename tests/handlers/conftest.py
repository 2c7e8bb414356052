from collections.abc import Iterator

import pytest

from tests.handlers.serving import STARTED


def _end_handlers() -> Iterator[None]:
    """End the threads of what the test or its module's fixtures have started: a busy core ends its process later."""
    before = len(STARTED)
    yield
    while len(STARTED) > before:
        started = vars(STARTED.pop())
        if "core" in started:
            started["core"].close()
        if "reporter" in started and started["reporter"]._thread.ident is not None:
            started["reporter"].stop()


_of_a_module = pytest.fixture(autouse=True, scope="module")(_end_handlers)
_of_a_test = pytest.fixture(autouse=True)(_end_handlers)
