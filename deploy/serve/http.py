"""uvicorn's protocol with the limits of a server that has no proxy in front."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# The key of a request's scope: the tasks of its connection, which end with it.
RUNNING = "running"


class Protocol(HttpToolsProtocol):  # type: ignore[misc]
    """A connection: its head has a limit of bytes and of seconds, and its requests are cancelled if it ends."""

    #: Bytes of the head of a request, seconds in which it must come, and connections at once.
    head_bytes, head_s, most_connections = 65536, 30.0, 1024

    def connection_made(self, transport: Any) -> None:
        """Wait for the first head, if there are not too many connections."""
        self._open: set[asyncio.Task[Any]] = set()
        self._head = 0
        self._timer: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            transport.abort()
        else:
            self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Refuse a head of too many bytes."""
        if self._timer is not None:
            self._head += len(data)
        super().data_received(data)
        if self._timer is not None and self._head > self.head_bytes:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        self.scope[RUNNING] = self._open
        if self._timer is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        """End a head."""
        self._end_head()
        super().on_headers_complete()

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel the requests of a client that has left."""
        self._end_head()
        super().connection_lost(error)
        for task in [*self._open]:
            task.cancel()

    def _expect_head(self) -> None:
        self._head, self._timer = 0, self.loop.call_later(self.head_s, self.transport.abort)

    def _end_head(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
