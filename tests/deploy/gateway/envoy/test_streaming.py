"""Answers in pieces pass as they come; one that has begun is neither tried again nor counted against its node."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import requests

from deploy.gateway.envoy.clusters import RESETS
from tests.deploy.gateway.envoy.harness import TIMEOUT_S, Gateway, wait
from tests.deploy.gateway.envoy.stand_ins import StandIn

EVENTS = "text/event-stream"


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


def opened(gateway: Gateway, node: StandIn, **headers: str) -> tuple[requests.Response, Iterator[bytes]]:
    """Return an answer whose first piece has come, and the pieces that follow."""
    named = {"X-Do": "stream", "Accept": EVENTS, **headers}
    node.chunks.put(b"data: 1\n\n")
    answer = gateway.ask("POST", "/predictions/m", data=b"x", headers=named, stream=True)
    pieces = answer.iter_content(chunk_size=None)
    assert next(pieces) == b"data: 1\n\n"
    return answer, pieces


def test_pieces_arrive_one_by_one_and_are_one_line_of_the_log(gateway: Gateway, node: StandIn) -> None:
    answer, pieces = opened(gateway, node, **{"X-Request-Id": "in-pieces"})
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, EVENTS)
    for number in range(5):
        # The node sends the next one when this one is here.
        node.chunks.put(b"data: %d\n\n" % number)
        assert next(pieces) == b"data: %d\n\n" % number
    assert gateway.in_flight() == 1
    node.chunks.put(b"")
    assert list(pieces) == []
    wait(lambda: gateway.in_flight() == 0)
    line = gateway.logged(request_id="in-pieces")
    assert (line["status"], line["attempts"], line["node"]) == (200, 1, node.name)


def test_stream_that_breaks_is_not_tried_again_nor_is_its_node_left_out(gateway: Gateway, node: StandIn) -> None:
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


def test_client_that_leaves_is_seen_by_the_node(gateway: Gateway, node: StandIn) -> None:
    node.left.clear()
    answer, _ = opened(gateway, node)
    answer.close()
    assert node.left.wait(TIMEOUT_S)
    wait(lambda: gateway.in_flight() == 0)
    assert "failed_outlier_check" not in gateway.clusters()
