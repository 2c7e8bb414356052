"""The servers of an archive: uvicorn with the limits of one that has no proxy in front, and gRPC.

load -> Replica -> run: HTTP and gRPC until a signal, then until they are idle or late
"""

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deploy.frontend.http import GRPC_METHODS
from deploy.frontend.metrics import Metrics
from deploy.frontend.replica import Replica
from deploy.protocol.description import SERVICE
from deploy.serve.limits import Limits
from deploy.serve.process import NotServed, Process

BACKLOG = 2048
# The key of a request's scope: the tasks of its connection, which end with it.
RUNNING = "running"
# The states in which a connection waits.
HEAD, WRITE = "head", "write"
# Requests of a connection that wait for its first.
MOST_PIPELINED = 64
# Bytes around a byte of a body that comes in the smallest chunks.
CHUNK_BYTES = 8
# HealthCheckResponse of grpc.health.v1: its one field, as bytes.
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


class Series(NamedTuple):
    """The samples of one counter."""

    labels: tuple[str, ...]
    samples: dict[tuple[str, ...], float]

    def add_or_update(self, value: float, labels: Sequence[str]) -> None:
        """Add to the sample of these labels. Only the reporter's thread calls it."""
        self.samples[tuple(labels)] = self.samples.get(tuple(labels), 0.0) + value


class Joined:
    """A transport that sends an answer's head with its body: one call of the system in place of two."""

    def __init__(self, transport: Any) -> None:
        self._transport, self._head = transport, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send data; a head waits for the body, for `flush` or for the end."""
        if not self._head and data.startswith(b"HTTP/1.1") and not data.startswith(b"HTTP/1.1 100"):
            self._head = data
        elif self._head:
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Send a head that has no body."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """End the connection after all that was written."""
        self.flush()
        self._transport.close()


class Protocol(HttpToolsProtocol):  # type: ignore[misc]
    """A connection with limits; its requests are cancelled if it ends."""

    limits = Limits()

    def connection_made(self, transport: Any) -> None:
        """Wait for the first head, if there are not too many connections."""
        self._open: set[asyncio.Task[Any]] = set()
        # Bytes since the last message that are not a body: heads, trailers and chunks' lengths.
        self._extra = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        super().connection_made(Joined(transport))
        if len(self.connections) > self.limits.connections:
            transport.abort()
        else:
            self._wait(HEAD, self.limits.head_s)

    def data_received(self, data: bytes) -> None:
        """Refuse too many bytes around bodies; bytes between requests begin a head, too."""
        if self.cycle is None or self.cycle.response_complete:
            self._wait(HEAD, self.limits.head_s)
        self._extra += len(data)
        super().data_received(data)
        if self._extra > 2 * self.limits.head_bytes:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """Begin a head; uvicorn would read requests without end while it answers the first."""
        if len(self.pipeline) > MOST_PIPELINED:
            self.transport.abort()
            raise RuntimeError
        super().on_message_begin()
        self.scope[RUNNING] = self._open
        self._wait(HEAD, self.limits.head_s)

    def on_headers_complete(self) -> None:
        """End a head."""
        self._stop(HEAD)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count a part of a body."""
        self._extra = max(0, self._extra - (1 + CHUNK_BYTES) * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Go on reading: a large body has paused it, and then nothing would notice that the client leaves."""
        self._extra = 0
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """Send a head without a body, and read the rest of a refused body, so that its client reads the answer."""
        self.transport.flush()
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body:
            self._wait(HEAD, self.limits.head_s)

    def pause_writing(self) -> None:
        """Wait for a client that does not read its answer, but not for ever."""
        super().pause_writing()
        self._wait(WRITE, self.limits.body_s)

    def resume_writing(self) -> None:
        """Go on writing."""
        super().resume_writing()
        self._stop(WRITE)

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection, even if its client has not read its last answer."""
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel the requests of a client that has left."""
        self._stop(HEAD)
        self._stop(WRITE)
        super().connection_lost(error)
        self.pipeline.clear()
        for task in [*self._open]:
            task.cancel()

    def _wait(self, step: str, seconds: float) -> None:
        """End the connection if it does not go on within so many seconds."""
        if step not in self._timers:
            self._timers[step] = self.loop.call_later(seconds, self.transport.abort)

    def _stop(self, step: str) -> None:
        if timer := self._timers.pop(step, None):
            timer.cancel()


class _Server(uvicorn.Server):  # type: ignore[misc]
    def handle_exit(self, sig: int, frame: Any) -> None:
        """Leave signals to deploy.serve.__main__."""


def load(options: Any, limits: Limits) -> Any:
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


def run(host: Any, listener: socket.socket, options: Any, limits: Limits, process: Process) -> None:
    """Serve until the process is to stop."""
    # Each connection is a file.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Protocol.limits = limits
    uvloop.run(_run(host, listener, options, limits, process))


async def _run(host: Any, listener: socket.socket, options: Any, limits: Limits, process: Process) -> None:
    config = uvicorn.Config(
        host, http=Protocol, ws="none", log_config=None, access_log=False, server_header=False, date_header=False,
        timeout_keep_alive=limits.keep_alive_s, backlog=BACKLOG, proxy_headers=False,
    )  # fmt: skip
    server, asked, loop = _Server(config), asyncio.Event(), asyncio.get_running_loop()
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
    host.models.is_draining, ends_s = True, loop.time() + limits.drain_s
    await asyncio.sleep(min(limits.notice_s, limits.drain_s))
    server.config.timeout_graceful_shutdown = max(0.1, ends_s - loop.time())
    server.should_exit = True
    ends = [serving, *([grpc_server.stop(max(0.0, ends_s - loop.time()))] if grpc_server else [])]
    await asyncio.gather(*ends)


async def _start_grpc(host: Any, options: Any, limits: Limits) -> Any:
    """Start the Open Inference Protocol, and grpc.health.v1."""
    import grpc  # noqa: PLC0415

    from deploy.frontend.grpc import Service  # noqa: PLC0415

    most = host.models.body_bytes + 65536
    server = grpc.aio.server(
        options=[("grpc.max_receive_message_length", most), ("grpc.so_reuseport", 0)],
        maximum_concurrent_rpcs=limits.requests,
    )
    service = Service(host.models)

    async def check(_: bytes, __: Any) -> bytes:
        return NOT_SERVING if host.models.is_draining else SERVING

    methods = {
        name: grpc.unary_unary_rpc_method_handler(getattr(service, name), response_serializer=bytes)
        for name in GRPC_METHODS
    }
    health = {"Check": grpc.unary_unary_rpc_method_handler(check)}
    for name, handlers in ((SERVICE, methods), ("grpc.health.v1.Health", health)):
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    address = f"[{options.host}]" if ":" in options.host else options.host
    server.add_insecure_port(f"{address}:{options.grpc_port}")
    await server.start()
    return server


def _print_summary(rows: dict[str, str], host: str, port: int) -> None:
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    path = f"{url}/predictions/{rows['Model'].partition(' ')[0]}"
    for name, value in {**rows, "URL": path, "Try": f"curl -T FILE {path}", "Stop": f"kill {os.getpid()}"}.items():
        print(f"{name:10} {value}", flush=True)
