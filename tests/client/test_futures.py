import threading
import weakref
from concurrent.futures import as_completed

from tests.client.script import Server, client
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
        gate.opened.set()
        answers = {submitted[future]: future.result() for future in as_completed(submitted, timeout=10)}
    assert answers == {str(number): str(number) for number in range(12)}
    assert gate.most_inside == 3


def test_submit_waits_while_all_is_full() -> None:
    gate = Gate()
    with FuturesClient(client(Server(gate)), max_workers=1, max_queue_items=0) as futures:
        futures.submit("m", "a")
        submitted = threading.Event()

        def submit() -> None:
            futures.submit("m", "b")
            submitted.set()

        thread = threading.Thread(target=submit)
        thread.start()
        assert not submitted.wait(0.2)
        gate.opened.set()
        assert submitted.wait(10)
        thread.join()


def test_cancelled_future_frees_its_place() -> None:
    gate = Gate()
    with FuturesClient(client(Server(gate)), max_workers=1, max_queue_items=1) as futures:
        futures.submit("m", "a")
        assert futures.submit("m", "b").cancel()
        kept = futures.submit("m", "c")
        gate.opened.set()
        assert kept.result(10) == "c"


def test_result_is_kept_only_by_its_future() -> None:
    with FuturesClient(client(Server(lambda _: Response(200, b"1")))) as futures:
        future = futures.submit("m", "a")
        kept = weakref.ref(future)
    assert future.result() == 1
    del future
    assert kept() is None
