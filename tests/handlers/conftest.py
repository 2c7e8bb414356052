from collections.abc import Iterator

import pytest

from tests.handlers.serving import STARTED


def _end_handlers() -> Iterator[None]:
    """End the threads of what the test or its module's fixtures have started: a busy core ends its process later."""
    before = len(STARTED)
    yield
    while len(STARTED) > before:
        service = vars(STARTED.pop()).get("service")
        if hasattr(service, "core"):
            service.core.close()
        if service is not None and service.reporter._thread.ident is not None:
            service.reporter.stop()


_of_a_module = pytest.fixture(autouse=True, scope="module")(_end_handlers)
_of_a_test = pytest.fixture(autouse=True)(_end_handlers)
