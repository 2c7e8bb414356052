"""gRPC: the Open Inference Protocol and grpc.health.v1, with the limits of a server that has no proxy in front.

a call -> its message, in time -> deploy.hosts.frontend.grpc.Service -> the answer has left

gRPC's library takes a message whole, and tells nothing of one that is under way. So a call that waits for long counts
as a whole message; if there is no memory for it, it is rejected. Health answers for the server without a message, and
so has no limit to fill; a message may name a model.
"""

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from deploy.hosts.frontend.grpc import REPOSITORY_METHODS, Service, fail
from deploy.hosts.frontend.memory import Hold, expire
from deploy.hosts.frontend.routes import Models
from deploy.hosts.serve.access_log import AccessLog, id_of
from deploy.hosts.serve.limits import HostLimits
from deploy.protocol import messages_pb2
from deploy.protocol.rejections import BUSY, LATE, Rejection
from handlers.protocol.statuses import INVALID_ARGUMENT, meaning_of
from handlers.protocol.wire import GRPC_METHODS, SERVICE

UNKNOWN = grpc.StatusCode.NOT_FOUND.value[0]
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"  # HealthCheckResponse of grpc.health.v1: its one field, as bytes
MOST_STREAMS = 100  # calls at once of a connection
CALL_BYTES = 20480  # of a call besides its message, as measured
HEAD_BYTES = 65536  # of a message besides its tensors
SLOW_S = 0.25  # seconds from which a call counts as a whole message


class Waiting(NamedTuple):
    """A call whose message is not complete."""

    hold: Hold
    since_s: float


class Calls:
    """The calls of a port, and the limits of their messages' bytes and seconds."""

    def __init__(self, models: Models, limits: HostLimits, log: AccessLog | None = None) -> None:
        self._models, self._body_s, self._log = models, limits.body_s, log
        self.message_bytes = models.body_bytes + HEAD_BYTES
        self._waiting: dict[asyncio.Timeout, Waiting] = {}  # the oldest first

    def handler(self, method: Any) -> Any:
        """Make the handler of a method: as of a stream of messages, so that the first is read here."""

        async def call(_: Any, context: Any) -> bytes:
            began_s, sizes = time.perf_counter(), [0, 0]
            sent = dict(context.invocation_metadata()).get("x-request-id", "")
            request_id = id_of(sent if isinstance(sent, str) else "")
            try:
                return await answer(context, sizes)
            finally:
                context.set_trailing_metadata((*(context.trailing_metadata() or ()), ("x-request-id", request_id)))
                if self._log is not None:
                    self._log.note_call(context, f"/{SERVICE}/{method.__name__}", sizes, request_id, began_s)

        async def answer(context: Any, sizes: list[int]) -> bytes:
            hold = Hold(self._models.memory)
            context.add_done_callback(lambda _: hold.free())
            try:
                message = await self._read(hold, context)
            except TimeoutError:
                late = LATE.saying(f"The message was not complete after {self._body_s:g} s.")
                return _rejected(context, BUSY if hold.is_given_up else late)
            if message is grpc.aio.EOF:
                return fail(context, INVALID_ARGUMENT, "The call has no message.")
            written: bytes = await method(message, context)
            sizes[:] = len(message), len(written)
            return written if hold.take(len(written)) else _rejected(context, BUSY)

        return grpc.stream_unary_rpc_method_handler(call, response_serializer=bytes)

    async def check(self, _: Any, context: Any) -> bytes:
        """Answer grpc.health.v1 about the server, or about a model, which is asked."""
        hold, message = Hold(self._models.memory), b""
        context.add_done_callback(lambda _: hold.free())
        with suppress(TimeoutError):
            message = await self._read(hold, context)
        try:
            name = messages_pb2.CheckRequest.FromString(message).service if isinstance(message, bytes) else ""
        except DecodeError:
            return fail(context, INVALID_ARGUMENT, "The message is not a valid HealthCheckRequest.")
        if name in ("", SERVICE):
            return NOT_SERVING if self._models.is_draining else SERVING
        if name not in self._models.names:
            return fail(context, UNKNOWN, f"unknown service {name[:100]}: expected a model's name")
        return NOT_SERVING if any((await self._models.check(name)).values()) else SERVING

    async def _read(self, hold: Hold, context: Any) -> Any:
        async with asyncio.timeout(None) as deadline:
            if not hold.take(CALL_BYTES):
                hold.is_given_up = True
                raise TimeoutError
            self._waiting[deadline] = Waiting(hold, asyncio.get_running_loop().time())
            try:
                return await context.read()
            finally:
                del self._waiting[deadline]
                hold.go_on()
                hold.take(CALL_BYTES - hold.size)

    async def watch(self) -> None:
        """End calls that wait for too long, and count those that wait for long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SLOW_S / 2)
            for deadline, (hold, since_s) in [*self._waiting.items()]:
                if since_s > loop.time() - SLOW_S:
                    break
                if since_s < loop.time() - self._body_s:
                    expire(deadline)
                elif hold.size == CALL_BYTES:
                    hold.wait(partial(expire, deadline))
                    if not hold.take(self.message_bytes):
                        hold.is_given_up = True
                        expire(deadline)


async def start(models: Models, address: str, limits: HostLimits, log: AccessLog | None = None) -> Any:
    """Start the server of gRPC; RuntimeError if the address is not free."""
    calls, service = Calls(models, limits, log), Service(models)
    options = {
        **{"grpc.max_receive_message_length": calls.message_bytes, "grpc.so_reuseport": 0},
        **{"grpc.max_allowed_incoming_connections": limits.connections, "grpc.max_concurrent_streams": MOST_STREAMS},
        **{"grpc.max_connection_idle_ms": 1000 * limits.keep_alive_s, "grpc.http2.bdp_probe": 0},
        # A client that does not read its answers holds their memory; others open another connection.
        "grpc.max_connection_age_ms": 1000 * limits.keep_alive_s,
        "grpc.max_connection_age_grace_ms": max(1, int(1000 * (limits.body_s + limits.drain_s))),
    }
    names = (*GRPC_METHODS, *(REPOSITORY_METHODS if models.repository else ()))
    methods = {name: calls.handler(getattr(service, name)) for name in names}
    health = {"Check": grpc.stream_unary_rpc_method_handler(calls.check)}
    server = grpc.aio.server(options=[*options.items()])
    for name, handlers in ((SERVICE, methods), ("grpc.health.v1.Health", health)):
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    server.add_insecure_port(address)
    await server.start()
    server.watching = asyncio.create_task(calls.watch())  # lives as long
    return server


def _rejected(context: Any, rejection: Rejection) -> bytes:
    return fail(context, meaning_of(rejection.status).grpc, rejection.message)
