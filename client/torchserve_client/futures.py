"""Many requests at once, each a concurrent.futures.Future.

    submit -> wait for a free slot -> thread -> Client.predict -> Future

`submit` returns futures for `concurrent.futures.as_completed` and `wait`. An exception inside the `with` block, such as
Ctrl-C, cancels waiting requests and ends running ones: no thread outlives the block.
"""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from torchserve_client.client import Client
from torchserve_client.errors import Closed


class FuturesClient:
    """Requests predictions in the background, with a bounded number in flight."""

    def __init__(self, client: Client, max_workers: int = 8, max_queue_items: int = 64) -> None:
        """Prepare the threads; `submit` starts them.

        Args:
            client: sends the requests; an exception inside the `with` block closes it.
            max_workers: most requests at the server at a time.
            max_queue_items: most requests that wait in this process.

        Raises:
            ValueError: a limit is too small.
        """
        if max_workers < 1 or max_queue_items < 0:
            limits = f"{max_workers} and {max_queue_items}"
            raise ValueError(f"max_workers must be at least 1 and max_queue_items at least 0, not {limits}")
        self.client = client
        self.max_workers = max_workers
        self._places = threading.BoundedSemaphore(max_workers + max_queue_items)
        self._executor = ThreadPoolExecutor(max_workers, thread_name_prefix="predict")
        self._in_flight: set[Future[Any]] = set()

    def submit(self, model: str, payload: object, **options: Any) -> "Future[Any]":
        """Request a prediction in the background; block while max_workers + max_queue_items requests are in flight.

        Args:
            model, payload, options: as in `Client.predict`.

        Returns:
            A future with the result or the error of `Client.predict`.

        Raises:
            Closed: `close` or `abort` was called.
        """
        self._places.acquire()
        try:
            future = self._executor.submit(self.client.predict, model, payload, **options)
        except RuntimeError as error:
            self._places.release()
            raise Closed("the futures client is closed") from error
        self._in_flight.add(future)
        future.add_done_callback(self._release)  # a cancelled future calls this, too
        return future

    def _release(self, future: "Future[Any]") -> None:
        self._in_flight.discard(future)
        self._places.release()

    def close(self) -> None:
        """Reject further requests and wait for the submitted ones; the client stays open."""
        self._executor.shutdown()

    def abort(self) -> None:
        """Cancel the waiting requests, end the running ones, and close the client."""
        in_flight = list(self._in_flight)
        self._executor.shutdown(wait=False, cancel_futures=True)
        self.client.close()
        self._executor.shutdown()
        for future in in_flight:
            if future.cancelled():
                # The executor drops cancelled futures without waking the threads that wait for them.
                future.set_running_or_notify_cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
