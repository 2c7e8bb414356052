"""An answer that has begun is neither tried again nor counted against its node."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import requests

from deploy.gateway.envoy.clusters import RESETS
from tests.deploy.gateway.envoy.harness import Gateway, wait
from tests.deploy.gateway.envoy.stand_ins import StandIn


@pytest.fixture(autouse=True)
def alone(gateway: Gateway) -> Iterator[None]:
    """The first node gets all requests."""
    first, second = gateway.nodes
    gateway.serve(draining=frozenset({second.name}))
    wait(lambda: gateway.served_by("/predictions/m") == {first.name})
    yield
    gateway.restore()


@pytest.fixture
def node(gateway: Gateway) -> StandIn:
    return gateway.nodes[0]


def test_answer_that_breaks_off_is_not_tried_again_nor_is_its_node_left_out(gateway: Gateway, node: StandIn) -> None:
    def broken(_: int) -> int:
        answer = gateway.ask("POST", "/predictions/m", headers={"X-Do": "break"}, stream=True)
        with suppress(requests.RequestException):
            return len(list(answer.iter_content(chunk_size=None)))
        return -1

    before, times = gateway.attempts(), RESETS + 1
    with ThreadPoolExecutor(times) as threads:
        assert set(threads.map(broken, range(times))) == {-1}
    assert gateway.attempts() == before + times
    assert "failed_outlier_check" not in gateway.clusters()
    assert gateway.status("/predictions/m") == 200
