import threading
import weakref
from concurrent.futures import Future, as_completed, wait
from contextlib import nullcontext
from unittest.mock import Mock

import pytest

from tests.client.script import Server, client
from tests.tables import table
from tests.waiting import until
from torchserve_client import Closed, FuturesClient
from torchserve_client.transport import Request, Response


class Gate:
    def __init__(self) -> None:
        self.opened = threading.Event()
        self.inside = 0
        self.most_inside = 0
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Response:
        with self._lock:
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        assert self.opened.wait(10)
        with self._lock:
            self.inside -= 1
        return Response(200, b'"%s"' % request.body)


def test_submit_answers_every_request_and_never_sends_more_than_max_workers() -> None:
    gate = Gate()
    with FuturesClient(client(Server(gate)), max_workers=3, max_queue_items=20) as futures:
        submitted = {futures.submit("m", str(number)): str(number) for number in range(12)}
        until(lambda: gate.inside == 3)
        gate.opened.set()
        answers = {submitted[future]: future.result() for future in as_completed(submitted, timeout=10)}
    assert answers == {str(number): str(number) for number in range(12)}
    assert gate.most_inside == 3


def test_submit_waits_while_all_is_full_until_an_answer_or_a_cancelled_future_frees_a_place() -> None:
    gate, submitted, late = Gate(), threading.Event(), list[Future[object]]()
    with FuturesClient(client(Server(gate)), max_workers=1, max_queue_items=1) as futures:
        futures.submit("m", "a")
        waiting = futures.submit("m", "b")

        def submit() -> None:
            late.append(futures.submit("m", "c"))
            submitted.set()

        thread = threading.Thread(target=submit)
        thread.start()
        assert not submitted.wait(0.2)
        # Before the gate's own patience ends the first.
        assert waiting.cancel() and submitted.wait(5)
        gate.opened.set()
        assert [each.result(10) for each in (futures.submit("m", "d"), *late)] == ["d", "c"]
        thread.join()


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_error_in_the_block_cancels_what_waits_and_an_end_without_one_awaits_it(error: BaseException | None) -> None:
    asked = client(Server(gate := Gate()))
    closed = Mock(side_effect=gate.opened.set)
    asked.close = closed  # type: ignore[method-assign]
    futures, submitted = FuturesClient(asked, max_workers=1), list[Future[object]]()
    with nullcontext() if error is None else pytest.raises(KeyboardInterrupt), futures:
        submitted += [futures.submit("m", str(number)) for number in range(3)]
        until(lambda: gate.inside == 1)
        if error is not None:
            raise error
        gate.opened.set()
    # Those who wait for a cancelled one are woken.
    assert not wait(submitted, timeout=10).not_done
    assert [each.cancelled() for each in submitted] == [False, *[error is not None] * 2]
    assert (submitted[0].result(), closed.called) == ("0", error is not None)
    with pytest.raises(Closed, match="the futures client is closed"):
        futures.submit("m", "a")


@table((0, 0), (1, -1))
def test_limit_that_is_too_small_is_refused(workers: int, waiting: int) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        FuturesClient(client(Server(Gate())), workers, waiting)
    FuturesClient(client(Server(Gate())), 1, 0).close()


def test_result_is_kept_only_by_its_future() -> None:
    with FuturesClient(client(Server(lambda _: Response(200, b"1")))) as futures:
        future = futures.submit("m", "a")
        kept = weakref.ref(future)
    assert future.result() == 1
    del future
    assert kept() is None
