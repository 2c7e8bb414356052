"""The servers of an archive: uvicorn with the limits of one that has no proxy in front, and gRPC.

load -> Replica -> run: HTTP and gRPC until a signal, then until they are idle or late
"""

import asyncio
import ctypes
import logging
import os
import resource
import select
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import uvicorn
import uvloop

from deploy.frontend.replica import Metrics, Replica
from deploy.serve.connection import Protocol
from deploy.serve.limits import HostLimits
from deploy.serve.process import NotServed, Process

BACKLOG = 2048
UNDER_WAY_S = 0.2  # seconds in which connections that clients have begun complete
SO_ATTACH_FILTER = 26  # Linux's option; a line of its programs has a code, two jumps and a number
# Load byte 13 of TCP's header; keep SYN and ACK; if SYN alone is left, drop the packet, else keep all of it.
DROP_SYN = ((0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))


class Series(NamedTuple):
    labels: tuple[str, ...]
    samples: dict[tuple[str, ...], float]

    def add_or_update(self, value: float, labels: Sequence[str]) -> None:
        """Add to the sample of these labels. Only the reporter's thread calls it."""
        self.samples[tuple(labels)] = self.samples.get(tuple(labels), 0.0) + value


def load(options: Any, limits: HostLimits) -> Any:
    """Load the archive of the command line; return its `deploy.serve.app.Host`."""
    logging.basicConfig(format="%(levelname)s %(name)s %(message)s", level=logging.WARNING)
    # Its one line about a failure is the command's; uvicorn's are about clients.
    for name in ("handlers.base", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    metrics = Metrics(lambda _, labels: Series(labels, {}))
    replica = Replica(str(options.archive), threads=options.threads, gpu=options.gpu, metrics=metrics)
    # It imports `handlers`, which is the archive's own now.
    from deploy.serve.app import Host  # noqa: PLC0415

    return Host(replica, options.archive, metrics, limits)


def run(host: Any, listener: socket.socket, options: Any, limits: HostLimits, process: Process) -> None:
    # Each connection is a file.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Protocol.limits, Protocol.memory = limits, host.memory
    uvloop.run(_run(host, listener, options, limits, process))


async def _run(host: Any, listener: socket.socket, options: Any, limits: HostLimits, process: Process) -> None:
    config = uvicorn.Config(
        host, http=Protocol, ws="none", log_config=None, access_log=False, server_header=False, date_header=False,
        timeout_keep_alive=limits.keep_alive_s, backlog=BACKLOG, proxy_headers=False,
    )  # fmt: skip
    server, asked, loop = uvicorn.Server(config), asyncio.Event(), asyncio.get_running_loop()
    try:
        grpc_server = None if options.grpc_port is None else await _start_grpc(host, options, limits)
        listener.listen(BACKLOG)
    except (OSError, RuntimeError) as error:
        raise NotServed(f"cannot listen on {options.host}: {error}; set --port and --grpc-port to free ones") from None
    process.drain_s, process.stop = limits.drain_s, lambda: loop.call_soon_threadsafe(asked.set)
    _print_summary(host.summary(), options.host, listener.getsockname()[1])
    serving = asyncio.create_task(server.serve([listener]))
    await asyncio.wait({serving, waiting := asyncio.ensure_future(asked.wait())}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    host.models.is_draining = Protocol.is_ending = True
    ends_s = loop.time() + limits.drain_s
    await asyncio.sleep(min(limits.notice_s, limits.drain_s))
    # Clients in its backlog are connected: all are accepted before the listener closes, while no further one connects.
    _stop_connecting(listener)
    await asyncio.sleep(UNDER_WAY_S)
    while select.select([listener], [], [], 0)[0] and loop.time() < ends_s:
        await asyncio.sleep(0)
    for each in server.servers:
        each.close()
    server.config.timeout_graceful_shutdown = max(0.1, ends_s - loop.time())
    if grpc_server:
        host.calls = asyncio.ensure_future(grpc_server.stop(max(0.0, ends_s - loop.time())))
    server.should_exit = True
    await serving


def _stop_connecting(listener: socket.socket) -> None:
    """Let the kernel drop the first packet of each further connection: the client's kernel sends it again later."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in DROP_SYN))
    with suppress(OSError):  # a kernel without such filters
        program = struct.pack("HP", len(DROP_SYN), ctypes.addressof(code))
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


async def _start_grpc(host: Any, options: Any, limits: HostLimits) -> Any:
    from deploy.serve.rpc import start  # noqa: PLC0415 - gRPC is not always served

    address = f"[{options.host}]" if ":" in options.host else options.host
    return await start(host.models, f"{address}:{options.grpc_port}", limits)


def _print_summary(rows: dict[str, str], host: str, port: int) -> None:
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    path = f"{url}/predictions/{rows['Model'].partition(' ')[0]}"
    for name, value in {**rows, "URL": path, "Try": f"curl -T FILE {path}", "Stop": f"kill {os.getpid()}"}.items():
        print(f"{name:10} {value}", flush=True)
