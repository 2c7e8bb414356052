"""A small HTTP server on a real socket, in a thread."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextmanager
def serving(answer: Answer, *, path: str = "/predictions/{model}") -> Iterator[str]:
    """Respond on a path until the end of the block; yield the address."""
    started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", path, answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        is_over = asyncio.Event()
        started.set_result((f"http://{host}:{port}", asyncio.get_running_loop(), is_over))
        await is_over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    url, loop, is_over = started.result(10)
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join()
