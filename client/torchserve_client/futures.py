"""Many requests at once, each a concurrent.futures.Future.

    submit -> waits for a place in flight -> thread -> Client.predict -> Future

`concurrent.futures.as_completed` and `wait` work on what `submit` returns. An exception inside the `with` block, Ctrl-C
among them, cancels the requests that have not begun and ends those that have: no thread outlives the block.
"""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from torchserve_client.client import Client
from torchserve_client.errors import Closed


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
        if max_workers < 1 or max_queue_items < 0:
            raise ValueError("max_workers must be at least 1, max_queue_items at least 0")
        self.client = client
        self.max_workers = max_workers
        self._places = threading.BoundedSemaphore(max_workers + max_queue_items)
        self._executor = ThreadPoolExecutor(max_workers, thread_name_prefix="predict")
        self._in_flight: set[Future[Any]] = set()

    def submit(self, model: str, payload: Any, **options: Any) -> "Future[Any]":
        """Ask in the background; wait first while max_workers + max_queue_items requests are in flight.

        Args:
            model, payload, options: the same as those of `Client.predict`.

        Returns:
            A future with the result or the error of `Client.predict`.

        Raises:
            Closed: the block has been left.
        """
        self._places.acquire()
        try:
            future = self._executor.submit(self.client.predict, model, payload, **options)
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

    def close(self) -> None:
        """Wait for everything that was submitted, and take no more; the client stays open."""
        self._executor.shutdown()

    def abort(self) -> None:
        """Cancel the requests that have not begun, end those that have, and close the client."""
        in_flight = list(self._in_flight)
        self._executor.shutdown(wait=False, cancel_futures=True)
        self.client.close()
        self._executor.shutdown()
        for future in in_flight:
            if future.cancelled():
                # The executor drops what it cancels; threads that wait for such a future must be woken.
                future.set_running_or_notify_cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
