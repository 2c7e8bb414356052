"""What stands in for nodes and for the control process where the test is of Envoy's configuration itself."""

import asyncio
import hashlib
import json
import queue
import socket
import threading
from collections import Counter
from contextlib import suppress
from typing import Any

from aiohttp import web

from deploy.nodes.node import Node

READY = {"workers": [{"id": "9000", "status": "READY"}]}


class Server:
    """An aiohttp application on a free port of loopback, in a thread of its own."""

    def __init__(self, application: web.Application) -> None:
        self._application = application
        self._loop = asyncio.new_event_loop()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(10)

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._runner = web.AppRunner(self._application, access_log=None, shutdown_timeout=0)
        self._loop.run_until_complete(self._runner.setup())
        self._loop.run_until_complete(web.SockSite(self._runner, self._socket).start())
        started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    def close(self) -> None:
        """Close its port and reset its connections, as a process that is killed does."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)


class StandIn:
    """A node: its inference port tells what it got, its management port says READY of `models`.

    A request with the header X-Do is treated as that says: `wait` until `release` is set, `die` resets the connection,
    `stream` answers with what `say` is told, or NAME of `answers`, which is (status, headers, body).
    """

    def __init__(self, name: str, models: set[str]) -> None:
        self.name, self.models = name, models
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.release = threading.Event()
        self.arrived = threading.Event()
        self.seen: Counter[str] = Counter()
        self.checks: list[dict[str, str]] = []
        self.said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.left = threading.Event()
        inference = web.Application(client_max_size=1 << 30)
        inference.router.add_route("*", "/{path:.*}", self._infer)
        management = web.Application()
        management.router.add_get("/models/{path:.*}", self._describe)
        self.inference, self.management = Server(inference), Server(management)

    @property
    def node(self) -> Node:
        def url(port: int) -> str:
            return f"http://127.0.0.1:{port}"

        return Node(
            name=self.name,
            inference=url(self.inference.port),
            management=url(self.management.port),
            metrics=url(self.management.port),
        )

    def say(self, chunk: bytes | None) -> None:
        """Send a chunk of the answer that streams; nothing at all ends it, None resets its connection."""
        self.said.put(chunk)

    def close(self) -> None:
        self.release.set()
        self.inference.close()
        self.management.close()

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen[request.path] += 1
        self.arrived.set()
        what = request.headers.get("X-Do", "")
        if what in ("die", f"die-{self.name}"):
            assert request.transport is not None
            request.transport.abort()
        if what == "wait":
            while not self.release.is_set():
                await asyncio.sleep(0.01)
        if what == "stream":
            return await self._stream(request)
        if what in self.answers:
            status, headers, text = self.answers[what]
            return web.Response(status=status, headers=headers, body=text)
        return told(request, body, self.name)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Answer in chunks, as TorchServe does where a worker says ts_stream_next."""
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "ts_stream_next": "true"})
        answer.enable_chunked_encoding()
        transport = request.transport
        assert transport is not None
        try:
            await answer.prepare(request)
            while True:
                if transport.is_closing():
                    raise ConnectionResetError
                with suppress(queue.Empty):
                    chunk = self.said.get_nowait()
                    if chunk is None:
                        transport.abort()
                    if not chunk:
                        return answer
                    await answer.write(chunk)
                await asyncio.sleep(0.005)
        except (ConnectionResetError, asyncio.CancelledError):
            self.left.set()
            raise

    async def _describe(self, request: web.Request) -> web.Response:
        self.checks.append({name.lower(): value for name, value in request.headers.items()})
        if request.match_info["path"] not in self.models:
            return web.Response(status=404)
        return web.Response(text=json.dumps([READY], indent=2), content_type="application/json")


def control() -> Server:
    """Tell what the control process would have got."""
    application = web.Application(client_max_size=1 << 30)

    async def answer(request: web.Request) -> web.Response:
        return told(request, await request.read(), "control")

    application.router.add_route("*", "/{path:.*}", answer)
    return Server(application)


def told(request: web.Request, body: bytes, name: str) -> web.Response:
    """Tell a request: in JSON, or for the gRPC bridge in a header, with the body sent back as it is."""
    told: dict[str, Any] = {
        "by": name,
        "method": request.method,
        "path": request.path_qs,
        "headers": {header.lower(): value for header, value in request.headers.items()},
        "bytes": len(body),
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    headers = {"X-Model-Version": "1.0", "X-Told": json.dumps(told)}
    if request.content_type == "application/x-protobuf":
        return web.Response(body=body, headers=headers, content_type="application/x-protobuf")
    headers["Server-Timing"] = 'decode;dur=1.61, wait;dur=2.40, forward;dur=178.20, encode;dur=0.04, batch;desc="8"'
    return web.json_response(told, headers=headers)
