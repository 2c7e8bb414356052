"""The servers of an archive from start to end."""

import asyncio
import os
import signal
import socket
from typing import Any

import uvicorn

from deploy.serve.app import Host
from deploy.serve.http import Protocol
from deploy.serve.settings import Limits

CHECK_S = 0.05
BACKLOG = 2048


class _Server(uvicorn.Server):  # type: ignore[misc]
    def handle_exit(self, sig: int, frame: Any) -> None:
        """Leave signals to `run`."""


async def run(host: Host, listener: socket.socket, options: Any, limits: Limits) -> None:
    """Serve until SIGTERM or SIGINT; a second one ends the process at once."""
    kind: Any = type("Limited", (Protocol,), {})
    kind.head_bytes, kind.head_s, kind.most_connections = limits.head_bytes, limits.head_s, limits.connections
    config = uvicorn.Config(
        host, http=kind, ws="none", loop="uvloop", log_config=None, access_log=False, server_header=False,
        timeout_keep_alive=limits.keep_alive_s, backlog=BACKLOG, proxy_headers=False, date_header=False,
    )  # fmt: skip
    server, asked, loop = _Server(config), asyncio.Event(), asyncio.get_running_loop()
    grpc_server = None
    if options.grpc_port is not None:
        from deploy.serve.grpc import start  # noqa: PLC0415

        grpc_server = await start(host, f"{options.host}:{options.grpc_port}")
    serving = asyncio.create_task(server.serve([listener]))
    await asyncio.sleep(0)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: os._exit(1) if asked.is_set() else asked.set())
    await asyncio.wait({serving, waiting := asyncio.ensure_future(asked.wait())}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    host.is_draining, ends_s = True, loop.time() + limits.drain_s
    await asyncio.sleep(min(limits.notice_s, limits.drain_s))
    while host.running and loop.time() < ends_s:
        await asyncio.sleep(CHECK_S)
    if grpc_server is not None:
        await grpc_server.stop(max(0.0, ends_s - loop.time()))
    server.config.timeout_graceful_shutdown = max(1, int(ends_s - loop.time()))
    server.should_exit = True
    await serving
