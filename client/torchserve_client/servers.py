"""The addresses of servers that serve the same: which one is asked next, and which one is left out for a while.

    call -> next_url -> the answer: settled(url)                     it is asked in its turn
                     -> no connection, 404, 503: failed(url)         it is left out for a pause, and then tried again

They are asked in turn. While all of them are left out, they are asked in turn all the same: nothing is given up here,
only put in an order.
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how long a server is left out."""

    # Seconds after a first failure: as long as a full queue takes to have room again.
    first_pause_s: float = 0.5
    # Seconds after many: as long as a request may be lost on finding out that a server is still gone.
    longest_pause_s: float = 15.0
    # Seconds for connecting, where another server could take the request: TCP's first retransmission comes after one.
    connect_s: float = 5.0


TUNING = Tuning()


class Servers:
    """Deals requests out to servers; threads may share it."""

    def __init__(
        self, urls: Sequence[str], tuning: Tuning = TUNING, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take the addresses, each of which is asked in its turn.

        Args:
            urls: one or more.
            tuning: how long one is left out.
            clock: tells the time in seconds.

        Raises:
            ValueError: there is no address.
        """
        # The same address twice is one server.
        self.urls = tuple(dict.fromkeys(url.rstrip("/") for url in urls))
        if not self.urls:
            raise ValueError("no address of a server")
        self._tuning = tuning
        self._clock = clock
        # Address -> when it was asked last, as the number of a request.
        self._turns = dict.fromkeys(self.urls, 0)
        # Address -> when its pause ends and how long it was, while it is left out.
        self._pauses: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def next_url(self, tried: Collection[str] = ()) -> str:
        """Choose the address for a request.

        Args:
            tried: addresses that this request need not be sent to again, while there are others.
        """
        with self._lock:
            now_s = self._clock()
            left = [url for url in self.urls if url not in tried] or list(self.urls)
            ready = [url for url in left if self._pauses.get(url, (now_s, 0.0))[0] <= now_s]
            chosen = min(ready or left, key=self._turns.__getitem__)
            self._turns[chosen] = max(self._turns.values()) + 1
            if not ready:
                return chosen
            if chosen in self._pauses:
                # One request finds out whether it is there again; meanwhile it is left out, for twice as long.
                pause_s = min(self._tuning.longest_pause_s, 2 * self._pauses[chosen][1])
                self._pauses[chosen] = (now_s + pause_s, pause_s)
            return chosen

    def settled(self, url: str) -> None:
        """Say that a server answers; it is asked in its turn again."""
        with self._lock:
            self._pauses.pop(url, None)

    def failed(self, url: str) -> None:
        """Say that a server does not answer, or not what the others would; it is left out for a while."""
        with self._lock:
            # Requests that were in flight together fail together, and that is one failure: the first of them counts.
            pause_s = self._tuning.first_pause_s
            self._pauses.setdefault(url, (self._clock() + pause_s, pause_s))
