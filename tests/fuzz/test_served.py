"""A short run against a TorchServe: nothing that is odd about HTTP, forms or bodies is anybody else's affair."""

from collections.abc import Iterator

import pytest

from deploy.server import Server
from tests.fuzz import in_process, served
from tests.fuzz.report import lines

TASK, BODIES, SEED = "text_classification", 300, 1

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served.serving([TASK]) as running:
        yield running


@pytest.mark.parametrize("mode", in_process.MODES)
def test_served_nothing_that_a_client_sends_is_anybody_elses_affair(server: Server, mode: str) -> None:
    outcome = served.fuzz(server, TASK, mode, SEED, lambda: lambda sent: sent / BODIES)
    assert not lines(outcome, SEED)
    assert outcome.bodies == BODIES
