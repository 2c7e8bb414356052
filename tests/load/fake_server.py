"""A server of known latencies on a real socket, in a thread of its own."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Counting:
    """Answers every request after a while, and knows how many were in flight at most."""

    def __init__(self, delay_s: float) -> None:
        self.most = 0
        self._delay_s = delay_s
        self._in_flight = 0

    async def answer(self, _request: web.Request) -> web.Response:
        """Answer one request."""
        self._in_flight += 1
        self.most = max(self.most, self._in_flight)
        await asyncio.sleep(self._delay_s)
        self._in_flight -= 1
        return web.Response()


@contextmanager
def serving(answer: Answer, *, path: str = "/predictions/m", metrics: Callable[[], str] | None = None) -> Iterator[str]:
    """A server in a thread; gives its address.

    Args:
        answer: to POST on `path`.
        path: of the prediction.
        metrics: what /metrics says.
    """
    started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def told(_request: web.Request) -> web.Response:
        return web.Response(text=metrics() if metrics else "")

    async def serve() -> None:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post(path, answer)
        app.router.add_get("/metrics", told)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        is_over = asyncio.Event()
        started.set_result((f"http://{host}:{port}", asyncio.get_running_loop(), is_over))
        await is_over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    url, loop, is_over = started.result(10)
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join()
