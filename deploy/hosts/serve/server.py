"""The servers of an archive: uvicorn with the limits of one that has no proxy in front, and gRPC.

load -> Replica -> run: HTTP and gRPC until a signal, then until they are idle or late
"""

import asyncio
import gc
import logging
import os
import resource
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
import uvloop

from deploy.command import say
from deploy.hosts.frontend.replica import Metrics, Replica
from deploy.hosts.serve.connection import Protocol
from deploy.hosts.serve.doors import BACKLOG, UNDER_WAY_S, Given, Member, Port
from deploy.hosts.serve.limits import HostLimits
from deploy.hosts.serve.process import NotServed, Process
from deploy.hosts.serve.totals import Totals
from deploy.loader import check_installed, check_together

Door = Port | Given


class Series(NamedTuple):
    labels: tuple[str, ...]
    samples: dict[tuple[str, ...], float]

    def add_or_update(self, value: float, labels: Sequence[str]) -> None:
        """Add to the sample of these labels. Only the reporter's thread calls it."""
        self.samples[tuple(labels)] = self.samples.get(tuple(labels), 0.0) + value


def load(options: Any, limits: HostLimits, member: Member | None) -> Any:
    """Load the archives of the command line; return its `deploy.hosts.serve.app.Host`."""
    who = f"process {member.number}: " if member else ""
    logging.basicConfig(format=f"{who}%(levelname)s %(name)s %(message)s", level=logging.WARNING)
    # Its one line about a failure is the command's; uvicorn's are about clients.
    for name in ("handlers.base", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    metrics = Metrics(lambda _, labels: Series(labels, {}))
    if options.store is not None:
        return _load_store(options, limits, metrics)
    check_together(options.archives)
    replicas = {}
    for each in options.archives:
        options.archive = each  # an error names it
        replica = Replica(str(each), threads=options.threads, gpu=options.gpu, metrics=metrics)
        replicas[each] = replica
    # It imports `handlers`, which is the archive's own now.
    from deploy.hosts.serve.app import Host  # noqa: PLC0415

    totals = Totals(metrics, member and member.file)
    totals.start()
    return Host(replicas, totals, limits)


def _load_store(options: Any, limits: HostLimits, metrics: Any) -> Any:
    """Return the host of a folder, whose archives have the `handlers` of this installation."""
    from deploy.hosts.serve.app import Host  # noqa: PLC0415
    from deploy.hosts.serve.store import Store  # noqa: PLC0415

    def load_one(archive: Path, loaded: list[Path]) -> Replica:
        check_installed(archive)
        check_together([*loaded, archive])
        try:
            return Replica(str(archive), threads=options.threads, gpu=options.gpu, metrics=metrics)
        except SystemExit as error:
            raise RuntimeError("its code called exit") from error  # it would end the process and all other models

    store = Store(
        options.store, load_one, most_bytes=options.most_memory, load_s=limits.load_s, may_manage=limits.management
    )
    return Host({}, Totals(metrics, None), limits, store)


def run(host: Any, door: Door, options: Any, limits: HostLimits, process: Process) -> None:
    # Each connection is a file.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Protocol.limits, Protocol.memory = limits, host.memory
    # Objects of modules and models live for ever; to look through them took 50 ms of all clients, every few seconds.
    gc.collect()
    gc.freeze()
    uvloop.run(_run(host, door, options, limits, process))


async def _run(host: Any, door: Door, options: Any, limits: HostLimits, process: Process) -> None:
    config = uvicorn.Config(
        host, http=Protocol, ws="none", log_config=None, access_log=False, server_header=False, date_header=False,
        timeout_keep_alive=limits.keep_alive_s, backlog=BACKLOG, proxy_headers=False,
    )  # fmt: skip
    server, asked, loop = uvicorn.Server(config), asyncio.Event(), asyncio.get_running_loop()
    left = asyncio.Event()
    try:
        grpc_server = None if options.grpc_port is None else await _start_grpc(host, door, options, limits)
        for each in door.listeners:
            each.listen(BACKLOG)
    except (OSError, RuntimeError) as error:
        raise NotServed(f"cannot listen on {options.host}: {error}; set --port and --grpc-port to free ones") from None
    process.drain_s, process.stop = limits.drain_s, lambda: loop.call_soon_threadsafe(asked.set)
    if isinstance(door, Port):
        print_summary(host.summary(), options.host, door.listeners[0].getsockname()[1])
    serving = asyncio.create_task(server.serve(door.listeners))
    await door.open(server, left.set, {**host.summary(), **(await host.measure() if door.measures else {})})
    waiting = [asyncio.ensure_future(each.wait()) for each in (asked, left)]
    await asyncio.wait({serving, *waiting}, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    Protocol.is_ending = True
    ends_s = loop.time() + limits.drain_s
    if left.is_set():
        # Its successor serves: each client's next response ends the connection, and the client makes another.
        while server.server_state.connections and loop.time() < ends_s and not asked.is_set():
            await asyncio.sleep(UNDER_WAY_S)
        ends_s = loop.time() + limits.drain_s
    else:
        host.models.is_draining = True
        await asyncio.sleep(min(limits.notice_s, limits.drain_s))
        await door.close(ends_s)
    for each in server.servers:
        each.close()
    server.config.timeout_graceful_shutdown = max(0.1, ends_s - loop.time())
    if grpc_server:
        host.calls = asyncio.ensure_future(grpc_server.stop(max(0.0, ends_s - loop.time())))
    server.should_exit = True
    await serving
    with suppress(OSError):
        host.totals.write()


async def _start_grpc(host: Any, door: Door, options: Any, limits: HostLimits) -> Any:
    from deploy.hosts.serve.rpc import start  # noqa: PLC0415 - gRPC is not always served

    if isinstance(door, Given):
        return await start(host.models, f"unix:{door.member.rpc}", limits, host.log)
    address = f"[{options.host}]" if ":" in options.host else options.host
    return await start(host.models, f"{address}:{options.grpc_port}", limits, host.log)


def print_summary(rows: dict[str, str], host: str, port: int) -> None:
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    path = f"{url}/predictions/{rows['Model'].partition(' ')[0]}"
    call = rows.pop("Try", "curl -T FILE")
    for name, value in {**rows, "URL": path, "Try": f"{call} {path}", "Stop": f"kill {os.getpid()}"}.items():
        say(f"{name:10} {value}")
