"""Which of several servers that serve the same models is asked next, and which one is left out for a while."""

import threading
import time
from collections.abc import Callable, Collection, Sequence

# Seconds that a server is left out after a failure: at first as long as a full queue takes to have room again; the
# pause doubles while the server fails, up to what a request may be late for finding out that it is back.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0


class Servers:
    """Chooses a server for each request, in turn; threads may share it.

    While all servers are left out, they are asked in turn all the same.
    """

    def __init__(self, urls: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        """Start with every server in its turn.

        Args:
            urls: one or more addresses; the same address twice is one server.
            clock: returns the time in seconds.

        Raises:
            ValueError: there is no address.
        """
        self.urls = tuple(dict.fromkeys(url.rstrip("/") for url in urls))
        if not self.urls:
            raise ValueError("no address of a server")
        self._clock = clock
        # Address -> number of the request that it was last asked for.
        self._turns = dict.fromkeys(self.urls, 0)
        # Address -> when its pause ends, and how long the pause is, while the server is left out.
        self._pauses: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def next_url(self, tried: Collection[str] = ()) -> str:
        """Choose the address for a request.

        Args:
            tried: addresses to avoid while there are others.
        """
        with self._lock:
            now_s = self._clock()
            left = [url for url in self.urls if url not in tried] or list(self.urls)
            ready = [url for url in left if self._pauses.get(url, (now_s, 0.0))[0] <= now_s]
            chosen = min(ready or left, key=self._turns.__getitem__)
            self._turns[chosen] = max(self._turns.values()) + 1
            if ready and chosen in self._pauses:
                # This request finds out whether the server is back; other requests leave it out meanwhile.
                pause_s = min(LONGEST_PAUSE_S, 2 * self._pauses[chosen][1])
                self._pauses[chosen] = (now_s + pause_s, pause_s)
            return chosen

    def succeeded(self, url: str) -> None:
        """Ask a server in its turn again."""
        with self._lock:
            self._pauses.pop(url, None)

    def failed(self, url: str) -> None:
        """Leave a server out for a while."""
        with self._lock:
            # Requests that were in flight together fail together: the first of them counts.
            self._pauses.setdefault(url, (self._clock() + FIRST_PAUSE_S, FIRST_PAUSE_S))
