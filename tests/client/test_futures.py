import threading
import weakref
from concurrent.futures import Future, as_completed

from tests.client.script import Server, client
from tests.waiting import until
from torchserve_client import FuturesClient
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


def test_result_is_kept_only_by_its_future() -> None:
    with FuturesClient(client(Server(lambda _: Response(200, b"1")))) as futures:
        future = futures.submit("m", "a")
        kept = weakref.ref(future)
    assert future.result() == 1
    del future
    assert kept() is None
