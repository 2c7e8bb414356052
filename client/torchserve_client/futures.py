"""A FuturesClient makes many requests at once, each of which is a future.

    submit -> a place in flight (waited for, or refused) -> thread -> Client.predict -> Future

Results come in any order; `concurrent.futures.as_completed` and `wait` work on what `submit` returns. An exception
inside the `with` block, Ctrl-C among them, cancels the requests that have not begun and cuts those that have: no thread
outlives the block.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from torchserve_client.client import Client
from torchserve_client.errors import Closed, QueueFull

T = TypeVar("T")


class BoundedPool:
    """Threads that run calls: so many at a time, and so many that wait for one."""

    def __init__(self, max_workers: int, max_queue_items: int) -> None:
        """Start no thread yet.

        Args:
            max_workers: most calls that run at a time.
            max_queue_items: most calls that wait for a thread.

        Raises:
            ValueError: a limit leaves no place.
        """
        if max_workers < 1 or max_queue_items < 0:
            raise ValueError("max_workers must be at least 1, max_queue_items at least 0")
        self._limit = max_workers + max_queue_items
        self._places = threading.BoundedSemaphore(self._limit)
        self._executor = ThreadPoolExecutor(max_workers, thread_name_prefix="predict")
        self._in_flight: set[Future[Any]] = set()

    def submit(self, call: Callable[[], T], wait_s: float | None = None) -> "Future[T]":
        """Run a call in the background.

        Args:
            call: what is run; its result or error is the future's.
            wait_s: most seconds to wait for a place while all are taken; None waits as long as it takes.

        Raises:
            QueueFull: there was no place.
            Closed: the pool has been closed.
        """
        if not self._places.acquire(timeout=wait_s):
            raise QueueFull(f"{self._limit} requests are in flight already")
        try:
            future = self._executor.submit(call)
        except RuntimeError as error:
            self._places.release()
            raise Closed("the futures client is closed") from error
        self._in_flight.add(future)
        # A future that is cancelled calls this too.
        future.add_done_callback(self._done)
        return future

    def _done(self, future: "Future[Any]") -> None:
        self._in_flight.discard(future)
        self._places.release()

    def close(self, *, wait: bool = True) -> None:
        """Take no more calls; wait for everything that was submitted, where that is asked for."""
        self._executor.shutdown(wait=wait)

    def abort(self, cut: Callable[[], None]) -> None:
        """Cancel the calls that have not begun, and have those cut that have; none runs any more at the end."""
        in_flight = list(self._in_flight)
        self._executor.shutdown(wait=False, cancel_futures=True)
        cut()
        self._executor.shutdown(wait=True)
        for future in in_flight:
            if future.cancelled():
                # The executor forgets what it cancels; whoever waits for it in another thread must hear of it.
                future.set_running_or_notify_cancel()


class FuturesClient:
    """Asks a client for predictions in the background, a bounded number at a time."""

    def __init__(self, client: Client, max_workers: int = 8, max_queue_items: int = 64) -> None:
        """Start no thread yet.

        Args:
            client: sends the requests; an exception inside the `with` block closes it.
            max_workers: most requests that are at the server at a time.
            max_queue_items: most requests that wait here until one of those is answered.

        Raises:
            ValueError: a limit leaves no place.
        """
        self.client = client
        self.max_workers = max_workers
        self._pool = BoundedPool(max_workers, max_queue_items)

    def submit(self, model: str, payload: Any, **options: Any) -> "Future[Any]":
        """Ask in the background; wait first while max_workers + max_queue_items requests are in flight.

        Args:
            model, payload, options: the same as those of `Client.predict`.

        Returns:
            A future with the result or the error of `Client.predict`.

        Raises:
            Closed: the block has been left.
        """
        return self._submit(model, payload, options, None)

    def submit_nowait(self, model: str, payload: Any, **options: Any) -> "Future[Any]":
        """Ask in the background, like `submit`, but never wait.

        Args:
            model, payload, options: the same as those of `Client.predict`.

        Raises:
            QueueFull: max_workers + max_queue_items requests are in flight.
            Closed: the block has been left.
        """
        return self._submit(model, payload, options, 0)

    def _submit(self, model: str, payload: Any, options: dict[str, Any], wait_s: float | None) -> "Future[Any]":
        return self._pool.submit(lambda: self.client.predict(model, payload, **options), wait_s)

    def close(self) -> None:
        """Wait for everything that was submitted, and take no more; the client stays open."""
        self._pool.close()

    def abort(self) -> None:
        """Cancel the requests that have not begun, cut those that have, and close the client."""
        self._pool.abort(self.client.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
