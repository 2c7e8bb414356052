from collections.abc import Callable

import pytest

from tests.client.script import Script, Server, Step, Time, client, failed, ok
from tests.tables import table
from torchserve_client import NoConnection, RetryPolicy, Unavailable
from torchserve_client.transport import Request

REFUSED = NoConnection("nothing answers", was_sent=False)
LOST = NoConnection("lost", was_sent=True)
FULL = failed(503, "ServiceUnavailableException", "Model has no worker")


def predict(steps: list[Step], policy: RetryPolicy | None = None) -> tuple[object, Script, Time]:
    time, script = Time(), Script(*steps)
    return client(script, time, policy).predict("m", "text"), script, time


@table(*((step, True) for step in (REFUSED, LOST, FULL)), *((step, False) for step in (REFUSED, FULL)))
def test_predict_tries_again_what_never_ran_or_may_run_twice(step: Step, is_repeatable: bool) -> None:
    answer, script, time = predict([step, step, ok("done")], RetryPolicy(is_repeatable=is_repeatable))
    assert (answer, len(script.sent)) == ("done", 3)
    assert time.slept == pytest.approx([0.1, 0.2])
    with pytest.raises(NoConnection, match="lost"):
        predict([LOST, ok("never")], RetryPolicy(is_repeatable=False))


def test_retry_after_is_waited_for_and_jitter_comes_on_top_unless_the_deadline_is_before() -> None:
    _, _, time = predict([failed(503, **{"Retry-After": "7"}), ok("done")])
    assert time.slept == pytest.approx([7.1])
    # An adaptive worker's own header is finer.
    _, _, time = predict([failed(503, **{"Retry-After": "2", "Retry-After-Ms": "1500"}), ok("done")])
    assert time.slept == pytest.approx([1.6])
    # Neither has numbers.
    _, _, time = predict([failed(503, **{"Retry-After": "soon", "Retry-After-Ms": "1e3"}), ok("done")])
    assert time.slept == pytest.approx([0.1])
    time = Time()
    with pytest.raises(Unavailable, match="busy"):
        client(Script(failed(503, "", "busy", **{"Retry-After": "61"})), time).predict("m", "text")
    assert time.slept == []


def test_every_try_says_and_gets_what_is_left_of_one_deadline() -> None:
    time = Time()

    def slow(step: Step) -> Callable[[Request], Step]:
        def answer(_: Request) -> Step:
            time.now_s += 2
            return step

        return answer

    server = Server(slow(FULL))
    with pytest.raises(Unavailable):
        client(server, time).predict("m", "text", timeout_s=7)
    # 2 s per try, pauses of 0.1, 0.2 and 0.4 s: a fourth try begins at 6.7 s, another pause of 0.8 s is too long.
    left_ms = [int(request.headers["X-Timeout-Ms"]) for request in server.sent]
    assert left_ms == pytest.approx([7000, 4900, 2700, 300], abs=1)
