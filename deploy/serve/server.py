"""The servers of an archive: uvicorn with the limits of one that has no proxy in front, and gRPC.

load -> Replica -> run: HTTP and gRPC until a signal, then until they are idle or late
"""

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import uvicorn
import uvloop
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deploy.frontend.http import GRPC_METHODS
from deploy.frontend.replica import Metrics, Replica
from deploy.protocol.description import SERVICE
from deploy.serve.process import NotServed, Process
from deploy.settings_file import Origin

BACKLOG = 2048
RUNNING = "running"  # the key of a request's scope: the tasks of its connection, which end with it
HEAD, WRITE = "head", "write"  # the states in which a connection waits
MOST_PIPELINED = 64  # requests of a connection that wait for its first
CHUNK_BYTES = 8  # bytes around a byte of a body that comes in the smallest chunks
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"  # HealthCheckResponse of grpc.health.v1: its one field, as bytes


Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Limits:
    """Limits. A body's bytes are the archive's `max_body_bytes`."""

    connections: Annotated[int, Field(ge=1)] = 1024  # of HTTP, and of gRPC; one more is closed
    requests: Annotated[int, Field(ge=1)] = 1024  # that run or wait; one more gets 503
    head_bytes: Annotated[int, Field(ge=1024)] = 8192  # of a request's path, query and headers
    head_s: Seconds = 30.0  # in which they must come
    body_s: Seconds = 60.0  # in which a body must come, and in which an answer must be read
    keep_alive_s: Annotated[int, Field(ge=1)] = 330  # of an idle connection: longer than the gateway's
    notice_s: Seconds = 5.0  # from SIGTERM, in which new requests are still served
    drain_s: Seconds = 60.0  # from SIGTERM to the end
    cors: tuple[Origin, ...] = ()  # origins of web pages that may call from a browser


class Series(NamedTuple):
    labels: tuple[str, ...]
    samples: dict[tuple[str, ...], float]

    def add_or_update(self, value: float, labels: Sequence[str]) -> None:
        """Add to the sample of these labels. Only the reporter's thread calls it."""
        self.samples[tuple(labels)] = self.samples.get(tuple(labels), 0.0) + value


class Joined:
    """A transport that sends a whole answer by one call of the system, in place of one for its head and its body."""

    def __init__(self, transport: Any) -> None:
        self._transport, self._parts = transport, list[bytes]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Keep a part of an answer until `flush`; a client waits for 100 Continue."""
        self._parts.append(data)
        if data.startswith(b"HTTP/1.1 100"):
            self.flush()

    def flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.writelines(parts)

    def close(self) -> None:
        """End the connection after the answer."""
        self.flush()
        self._transport.close()


class Protocol(HttpToolsProtocol):  # type: ignore[misc]
    """A connection with limits; its requests are cancelled if it ends."""

    limits = Limits()
    _is_in_head = False

    def connection_made(self, transport: Any) -> None:
        """Wait for the first head, if there are not too many connections."""
        self._open: set[asyncio.Task[Any]] = set()
        self._extra = 0  # bytes since the last message that are not a body: heads, trailers and chunks' lengths
        self._timers: dict[str, asyncio.TimerHandle] = {}
        super().connection_made(Joined(transport))
        if len(self.connections) > self.limits.connections:
            transport.abort()
        else:
            self._wait(HEAD, self.limits.head_s)

    def data_received(self, data: bytes) -> None:
        """Refuse too many bytes around bodies; bytes between requests begin a head, too."""
        self._extra += len(data)
        super().data_received(data)
        if self._is_in_head or self.cycle is None or self.cycle.response_complete:
            self._wait(HEAD, self.limits.head_s)
        if self._extra > 2 * self.limits.head_bytes:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """Begin a head; uvicorn would read requests without end while it answers the first."""
        if len(self.pipeline) > MOST_PIPELINED:
            self.transport.abort()
            raise RuntimeError
        super().on_message_begin()
        self.scope[RUNNING], self._is_in_head = self._open, True

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._stop(HEAD)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._extra = max(0, self._extra - (1 + CHUNK_BYTES) * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Go on reading: a large body has paused it, and then nothing would notice that the client leaves."""
        self._extra = 0
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """Send the answer, and read the rest of a refused body, so that its client reads the answer."""
        self.transport.flush()
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body:
            self._wait(HEAD, self.limits.head_s)

    def pause_writing(self) -> None:
        """Wait for a client that does not read its answer, but not for ever."""
        super().pause_writing()
        self._wait(WRITE, self.limits.body_s)

    def resume_writing(self) -> None:
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

    options_of_core = {
        **{"grpc.max_receive_message_length": host.models.body_bytes + 65536, "grpc.so_reuseport": 0},
        **{"grpc.max_allowed_incoming_connections": limits.connections},
        **{"grpc.max_connection_idle_ms": 1000 * limits.keep_alive_s},
    }
    server = grpc.aio.server(options=[*options_of_core.items()], maximum_concurrent_rpcs=limits.requests)
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
