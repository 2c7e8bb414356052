"""How long a node that is taken out is waited for, by what Envoy counts as in flight."""

import pytest

from deploy.gateway.drain import wait_idle

NOTICE_S, LIMIT_S = 5.0, 60.0


@pytest.mark.parametrize(
    ("in_flight", "unanswered", "ends_s"),
    [
        ({}, 0, 5),
        # Requests that are routed until the notice is over.
        ({0: 3, 4: 0}, 0, 5),
        # An answer that takes its time.
        ({0: 3, 20: 1, 30: 0}, 0, 30),
        # Clients that send on are given up when an answer may take no longer.
        ({0: 2}, 2, 65),
    ],
    ids=["idle", "routed until it is seen", "long answer", "sends on"],
)
def test_node_is_waited_for_until_nothing_is_in_flight_or_an_answer_may_take_no_longer(
    in_flight: dict[int, int], unanswered: int, ends_s: float
) -> None:
    now = [0.0]
    said: list[str] = []

    def count() -> int:
        return next((in_flight[second] for second in sorted(in_flight, reverse=True) if second <= now[0]), 0)

    def sleep(seconds: float) -> None:
        now[0] += seconds

    answered = wait_idle(
        count, said.append, notice_s=NOTICE_S, limit_s=LIMIT_S, clock=lambda: now[0], sleep=sleep
    )  # fmt: skip
    assert answered == unanswered
    assert now[0] == pytest.approx(ends_s, abs=0.2)
    assert said[-1] == ("2 requests have no answer after 60 s" if unanswered else "the last answer is out")
