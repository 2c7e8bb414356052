from collections import Counter

import pytest

from tests.client.script import Server, Step, Time, failed, ok
from torchserve_client import Client, NoConnection
from torchserve_client.retry import RetryPolicy
from torchserve_client.transport import Outgoing

A, B, C = "http://a", "http://b", "http://c"
GONE = NoConnection("nothing answers", was_sent=False)
LOST = NoConnection("the connection was lost before the answer came", was_sent=True)


class Farm:
    """Servers of which some do not do: each call is seen with the address that it went to."""

    def __init__(self, **wrong: Step) -> None:
        self.wrong: dict[str, Step] = dict(wrong)
        self.time = Time()
        self.server = Server(lambda request: self.wrong.get(host(request), ok(host(request))))

    def client(self, *urls: str, retry: RetryPolicy | None = None) -> Client:
        return Client(
            urls, transport=self.server, clock=self.time.clock, sleep=self.time.sleep, dice=lambda: 1.0, retry=retry
        )

    @property
    def asked(self) -> list[str]:
        """The hosts that were asked since the last look."""
        seen = [host(request) for request in self.server.sent]
        self.server.sent.clear()
        return seen


def host(request: Outgoing) -> str:
    return request.url.split("/")[2]


def test_requests_go_round() -> None:
    farm = Farm()
    client = farm.client(A, B, C + "/", A + "/")
    assert Counter(client.predict("m", "x") for _ in range(9)) == {"a": 3, "b": 3, "c": 3}
    assert farm.server.sent[0].url.endswith("/predictions/m")


@pytest.mark.parametrize("step", [GONE, LOST, failed(404, "ModelNotFoundException", "Model not found: m")])
def test_server_that_is_gone_costs_no_request_and_no_pause_and_is_tried_again_later(step: Step) -> None:
    farm = Farm(b=step)
    client = farm.client(A, B)
    assert [client.predict("m", "x") for _ in range(6)] == ["a"] * 6
    assert farm.time.slept == []
    assert Counter(farm.asked) == {"a": 6, "b": 1}
    # Once in each pause, and the pauses grow.
    for _ in range(600):
        farm.time.now_s += 0.1
        assert client.predict("m", "x") == "a"
    assert 3 <= farm.asked.count("b") <= 10
    farm.wrong.clear()
    farm.time.now_s += 15
    assert {client.predict("m", "x") for _ in range(4)} == {"a", "b"}


def test_server_that_refuses_is_left_out_after_a_pause_of_the_request() -> None:
    farm = Farm(b=failed(503, "QueueFull", "full"))
    client = farm.client(A, B)
    # A request that is refused waits, as with one server, and goes to the other.
    assert [client.predict("m", "x") for _ in range(6)] == ["a"] * 6
    assert farm.asked.count("b") == 1
    assert len(farm.time.slept) == 1


def test_request_that_may_run_once_is_sent_to_no_other_when_its_connection_is_lost() -> None:
    farm = Farm(a=LOST, b=LOST)
    with pytest.raises(NoConnection):
        farm.client(A, B, retry=RetryPolicy(is_repeatable=False)).predict("m", "x")
    assert len(farm.asked) == 1
