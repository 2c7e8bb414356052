"""Where a server's connections come from: its own port, or the supervisor of several processes."""

import asyncio
import ctypes
import json
import os
import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from torchserve_client.payloads import Json

MEMBER = "SERVE_MEMBER"  # the variable of the environment that makes a process one of several
GIVEN, LEAVE, LAST = b"g", b"l", b"e"  # from the supervisor: a connection; serve these to their end; no more come
SHED = b"s"  # with a number: end so many connections with their next response
ALIVE = b"a"  # from and to the supervisor: a question whether the event loop runs, and its answer
TAKEN = b"+"  # to the supervisor: a connection has come
ENDED = b"-"  # to the supervisor: a connection has ended; any other message is JSON, once the process is ready
MESSAGE_BYTES = 65536
BACKLOG = 2048
UNDER_WAY_S = 0.2  # seconds in which connections that clients have begun complete
SO_ATTACH_FILTER = 26  # Linux's option; a line of its programs has a code, two jumps and a number
# Load byte 13 of TCP's header; keep SYN and ACK; if SYN alone is left, drop the packet, else keep all of it.
DROP_SYN = ((0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))


class Port:
    """A port of this process alone."""

    measures = False

    def __init__(self, listener: socket.socket) -> None:
        self.listeners = [listener]

    async def open(self, server: Any, leave: Callable[[], None], told: Json) -> None:
        """Do nothing: uvicorn accepts the connections."""

    async def close(self, ends_s: float) -> None:
        await drain_backlog(self.listeners[0], ends_s, lambda: asyncio.sleep(0))


class Member(NamedTuple):
    """The facts that the supervisor tells a process of several."""

    number: int  # from 1; a successor may have its predecessor's
    channel: int  # the file number of the socket between them
    cores: list[int]  # its own processor cores; empty for all
    folder: str  # of the server's files: its gRPC socket and the counters of each process
    measures: bool  # whether it must tell how much of a request is Python's

    @classmethod
    def of_environment(cls) -> Self | None:
        """Return what this process was told, if it is one of several."""
        text = os.environ.pop(MEMBER, "")
        return cls(*json.loads(text)) if text else None

    @property
    def file(self) -> Path:
        return Path(self.folder) / f"{self.number}.json"

    @property
    def rpc(self) -> Path:
        return Path(self.folder) / f"{self.number}.sock"


class Given:
    """The connections that a supervisor gives to this process of several."""

    listeners: tuple[socket.socket, ...] = ()

    def __init__(self, member: Member) -> None:
        self.member, self.measures = member, member.measures
        self._channel = socket.socket(fileno=member.channel)
        self._channel.setblocking(False)
        self._is_last = asyncio.Event()

    async def open(self, server: Any, leave: Callable[[], None], told: Json) -> None:
        """Take connections from now on; `leave` is called if they shall be served to their end, or none comes."""
        while not server.started:
            await asyncio.sleep(0.01)
        loop, protocol = asyncio.get_running_loop(), server.config.http_protocol_class
        protocol.on_end = lambda: self.send(ENDED)

        def make() -> Any:
            return protocol(config=server.config, server_state=server.server_state, app_state=server.lifespan.state)

        def receive() -> None:
            with suppress(BlockingIOError):
                while True:
                    message, files = self._receive()
                    for each in files:
                        self.send(TAKEN)
                        task = loop.create_task(loop.connect_accepted_socket(make, socket.socket(fileno=each)))
                        self._tasks.add(task)
                        task.add_done_callback(self._tasks.discard)
                    if message == ALIVE:
                        self.send(ALIVE)
                    if message.startswith(SHED):
                        protocol.surplus = int(message[1:])
                    if message in (LAST, b""):  # empty: the supervisor has ended
                        self._is_last.set()
                    if message in (LEAVE, b""):
                        leave()
                    if not message:
                        loop.remove_reader(self._channel)
                        return

        self._tasks = set[asyncio.Task[Any]]()
        loop.add_reader(self._channel, receive)
        self.send(json.dumps(told).encode())

    def _receive(self) -> tuple[bytes, list[int]]:
        """Receive a message and the connection that comes with it; an empty one from a supervisor that has ended."""
        try:
            message, files, _, _ = socket.recv_fds(self._channel, MESSAGE_BYTES, 1)
        except ConnectionResetError:
            return b"", []
        return message, files

    def send(self, message: bytes) -> None:
        with suppress(OSError):  # the supervisor has ended
            self._channel.send(message)

    async def close(self, ends_s: float) -> None:
        """Wait until no further connection comes."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(ends_s):
                await self._is_last.wait()


async def drain_backlog(listener: socket.socket, ends_s: float, accept: Callable[[], Any]) -> None:
    """Accept the connections of clients that are connected, while no further one connects."""
    _stop_connecting(listener)
    await asyncio.sleep(UNDER_WAY_S)
    while select.select([listener], [], [], 0)[0] and asyncio.get_running_loop().time() < ends_s:
        await accept()


def _stop_connecting(listener: socket.socket) -> None:
    """Let the kernel drop the first packet of each further connection: the client's kernel sends it again later."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in DROP_SYN))
    with suppress(OSError):  # a kernel without such filters
        program = struct.pack("HP", len(DROP_SYN), ctypes.addressof(code))
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
