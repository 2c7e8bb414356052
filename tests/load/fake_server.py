"""Small HTTP servers on real sockets, in one thread."""

import asyncio
import functools
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from aiohttp import web

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="loop of tests", daemon=True).start()
    return loop


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run in the event loop of all servers, in a separate thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result(60)


class Server:
    def __init__(self, handler: Handler, path: str = "/{path:.*}") -> None:
        self._handler, self._path = handler, path
        self.port = 0
        self.open()

    def open(self) -> None:
        """Listen; after `close`, on the same port."""
        self._socket = socket.create_server(("127.0.0.1", self.port))
        self.port = self._socket.getsockname()[1]
        application = web.Application(client_max_size=1 << 30)
        application.router.add_route("*", self._path, self._handler)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.01)

        run(self._runner.setup())
        run(web.SockSite(self._runner, self._socket).start())

    def close(self) -> None:
        """Close the port and reset its connections, as a process that is killed does."""

        async def end() -> None:
            # A connection accepted while its server closes would never be closed.
            asyncio.get_running_loop().remove_reader(self._socket)
            await asyncio.sleep(0.01)
            await self._runner.cleanup()

        if self._runner.server is not None:
            run(end())


@contextmanager
def serving(answer: Handler, *, path: str = "/predictions/{model}") -> Iterator[str]:
    """Respond on a path until the end of the block; yield the address."""
    server = Server(answer, path)
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.close()
