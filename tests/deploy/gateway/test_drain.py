"""How long a node that is taken out is waited for, by what Envoy counts as in flight."""

import time

import pytest

from deploy.gateway.drain import wait_idle


@pytest.mark.parametrize(
    ("counts", "unanswered", "said"),
    [
        ([0], 0, ["the last answer is out"]),
        ([3, 1, 0], 0, ["3 requests are in flight; at most 0.5 s", "the last answer is out"]),
        # Clients that send on are given up when an answer may take no longer.
        ([2], 2, ["2 requests are in flight; at most 0.5 s", "2 requests have no answer after 0.5 s"]),
    ],
    ids=["idle", "long answer", "sends on"],
)
def test_node_is_waited_for_until_nothing_is_in_flight_or_an_answer_may_take_no_longer(
    counts: list[int], unanswered: int, said: list[str]
) -> None:
    words: list[str] = []
    left = iter(counts)
    began_s = time.monotonic()
    assert wait_idle(lambda: next(left, counts[-1]), words.append, notice_s=0.1, limit_s=0.5) == unanswered
    assert words == said
    assert 0.1 <= time.monotonic() - began_s < 5
