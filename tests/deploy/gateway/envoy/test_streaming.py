"""Answers in pieces pass a real Envoy as they come; a begun one is neither tried again nor counted against its node."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from deploy.gateway.settings import Limits, Settings
from tests.deploy.gateway.envoy.harness import TIMEOUT_S, Gateway, fleet, wait

EVENTS = "text/event-stream"
# More broken connections in a row than a node may have (clusters.HEALTH.resets).
BROKEN = 6


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    settings = Settings(limits=Limits(unresponsive_s=2.0))
    with Gateway(Path(tmp_path_factory.mktemp("streaming")), settings, nodes=1) as gateway:
        yield gateway


def opened(gateway: Gateway) -> requests.Response:
    """An answer that has begun."""
    return gateway.ask("POST", "/predictions/m", data=b"x", headers={"X-Do": "stream", "Accept": EVENTS}, stream=True)


def in_flight(gateway: Gateway) -> int:
    """What Envoy says of it, which the control process shows, and a departure waits for."""
    found = 0
    for cluster in gateway.clusters()["cluster_statuses"]:
        for host in cluster.get("host_statuses", []):
            if cluster["name"] == "m":
                stats = {stat["name"]: int(stat.get("value", 0)) for stat in host["stats"]}
                found += stats["rq_active"]
    return found


def logged(gateway: Gateway, count: int) -> list[dict[str, Any]]:
    def lines() -> list[dict[str, Any]]:
        return [line for line in gateway.log() if line["path"] == "/predictions/m"]

    wait(lambda: len(lines()) >= count)
    return lines()[-count:]


@pytest.mark.parametrize(
    ("accept", "arrives"),
    [(EVENTS, EVENTS), (f"application/json, {EVENTS};q=0.9", f"application/json, {EVENTS};q=0.9"), ("*/*", None)],
)
def test_accept_arrives_at_a_node_where_it_asks_for_pieces(gateway: Gateway, accept: str, arrives: str | None) -> None:
    told = gateway.told("POST", "/predictions/m", data=b"x", headers={"Accept": accept})
    assert told["headers"].get("accept") == arrives


def test_chunks_arrive_one_by_one_as_the_node_sends_them(gateway: Gateway) -> None:
    (node,) = gateway.nodes
    answer = opened(gateway)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, EVENTS)
    chunks = answer.iter_content(chunk_size=None)
    for number in range(5):
        # The node says the next one when this one is here.
        node.say(b"data: %d\n\n" % number)
        assert next(chunks) == b"data: %d\n\n" % number
    assert in_flight(gateway) == 1
    node.say(b"")
    assert list(chunks) == []
    wait(lambda: in_flight(gateway) == 0)


def test_stream_that_breaks_is_not_tried_again_nor_is_its_node_left_out(gateway: Gateway) -> None:
    (node,) = gateway.nodes
    seen = node.seen["/predictions/m"]
    for _ in range(BROKEN):
        answer = opened(gateway)
        chunks = answer.iter_content(chunk_size=None)
        node.say(b"data: 1\n\n")
        assert next(chunks) == b"data: 1\n\n"
        node.say(None)
        with pytest.raises(requests.RequestException):
            list(chunks)
    assert node.seen["/predictions/m"] == seen + BROKEN
    assert "failed_outlier_check" not in json.dumps(gateway.clusters())
    assert gateway.ask("POST", "/predictions/m", data=b"x").status_code == 200


def test_client_that_leaves_is_seen_by_the_node(gateway: Gateway) -> None:
    (node,) = gateway.nodes
    node.left.clear()
    answer = opened(gateway)
    node.say(b"data: 1\n\n")
    assert next(answer.iter_content(chunk_size=None)) == b"data: 1\n\n"
    answer.close()
    assert node.left.wait(TIMEOUT_S)
    wait(lambda: in_flight(gateway) == 0)
    assert "failed_outlier_check" not in json.dumps(gateway.clusters())


def test_node_that_drains_keeps_a_stream_that_has_begun_until_its_end(gateway: Gateway) -> None:
    (node,) = gateway.nodes
    answer = opened(gateway)
    chunks = answer.iter_content(chunk_size=None)
    node.say(b"data: 1\n\n")
    assert next(chunks) == b"data: 1\n\n"
    try:
        gateway.write(fleet(gateway.nodes, gateway.models, draining=frozenset({node.name})))
        wait(lambda: gateway.ask("POST", "/predictions/m", data=b"x").status_code == 503)
        assert in_flight(gateway) == 1
        node.say(b"data: 2\n\n")
        assert next(chunks) == b"data: 2\n\n"
        node.say(b"")
        assert list(chunks) == []
        wait(lambda: in_flight(gateway) == 0)
    finally:
        gateway.write(fleet(gateway.nodes, gateway.models))
        wait(lambda: gateway.ask("POST", "/predictions/m", data=b"x").status_code == 200)


def test_stream_is_one_line_of_the_access_log_when_it_ends(gateway: Gateway) -> None:
    (node,) = gateway.nodes
    before = len([line for line in gateway.log() if line["path"] == "/predictions/m"])
    answer = opened(gateway)
    node.say(b"data: 1\n\n")
    node.say(b"")
    assert answer.content == b"data: 1\n\n"
    (line,) = logged(gateway, before + 1)[before:]
    assert (line["status"], line["attempts"], line["node"]) == (200, 1, node.name)
