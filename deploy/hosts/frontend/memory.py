"""The bytes that a process holds for its clients: one limit for all requests of all its ports.

a request's first byte -> Hold.take, with each piece and with what a body inflates to -> Hold.free behind the answer
"""

import asyncio
import time
from collections.abc import Callable

MEMORY_BYTES = 256 << 20  # by default
PATIENCE_S = 2.0  # seconds for which a client may be slow while others need the memory
WAITING_SHARE = 0.75  # of the memory, for requests that are not complete


class Memory:
    def __init__(self, most_bytes: int = MEMORY_BYTES) -> None:
        self.most_bytes, self.held_bytes = most_bytes, 0
        self.waiting: dict[Hold, float] = {}  # those that wait for their clients, and since when: the oldest first


class Hold:
    """The bytes of one request, or of an answer that its client does not read."""

    __slots__ = ("_give_up", "_memory", "is_given_up", "size")

    def __init__(self, memory: Memory) -> None:
        self._memory, self.size, self.is_given_up = memory, 0, False

    def wait(self, give_up: Callable[[], object]) -> None:
        """Wait for the client from now on; `give_up` ends that in favour of others."""
        self._give_up = give_up
        self._memory.waiting.setdefault(self, time.monotonic())

    def go_on(self) -> None:
        """Wait for the client no longer."""
        self._memory.waiting.pop(self, None)

    def take(self, size: int) -> bool:
        """Hold more bytes, or fewer; False if they do not fit even where clients that are slow for long give way."""
        memory = self._memory
        # Clients that are waited for leave a part to the others.
        most_bytes = memory.most_bytes * (WAITING_SHARE if self in memory.waiting else 1.0)
        while size > 0 and memory.held_bytes + size > most_bytes:
            oldest, since_s = next(iter(memory.waiting.items()), (self, 0.0))
            if oldest is self or time.monotonic() < since_s + PATIENCE_S:
                return False
            oldest.free()
            oldest.is_given_up = True
            oldest._give_up()  # noqa: SLF001
        self.size += size
        memory.held_bytes += size
        return True

    def free(self) -> None:
        self.go_on()
        self._memory.held_bytes -= self.size
        self.size = 0


def expire(deadline: asyncio.Timeout) -> None:
    """End what waits within a deadline."""
    if not deadline.expired():
        deadline.reschedule(0.0)
