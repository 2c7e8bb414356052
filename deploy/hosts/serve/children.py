"""A supervisor's view of its processes, and the relay of a connection to one, as gRPC's library takes none."""

import asyncio
import json
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.hosts.serve.doors import ALIVE
from deploy.hosts.serve.totals import PROCESSES
from torchserve_client.payloads import Json

DOUBTFUL = 2  # questions without an answer after which others get the new connections


@dataclass(eq=False)
class Child:
    number: int
    process: asyncio.subprocess.Process
    channel: socket.socket
    ready: asyncio.Future[Json]  # what it tells once it serves
    rpc: Path  # its socket of gRPC
    connections: int = 0
    given: int = 0  # connections since its start
    untaken: deque[socket.socket] = field(default_factory=deque)  # connections on their way to it
    was_told: bool = False  # whether it ends some
    is_serving: bool = False
    silent: int = 0  # questions since its last answer

    @property
    def end(self) -> str:
        code = self.process.returncode
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    @property
    def order(self) -> tuple[bool, int, int]:
        """Its place among others for a connection: one that answers first, then the fewest connections."""
        return self.silent > DOUBTFUL, self.connections, self.given

    def ask(self, most: int) -> bool:
        """Ask whether its event loop runs; kill it, and return False, if so many questions have no answer."""
        if self.silent >= most:
            self.process.kill()
            return False
        self.silent += 1
        with suppress(OSError):  # it does not read
            self.channel.send(ALIVE)
        return True

    def count_connection(self) -> None:
        self.connections += 1
        self.given += 1


def write_list(folder: Path, children: Sequence[Child]) -> bool:
    """Tell all processes which serve, by number; return whether one does."""
    pids = {each.number: each.process.pid for each in children if each.is_serving}
    with suppress(OSError):  # at the end, the folder is gone
        (new := folder / "processes.new").write_text(json.dumps(pids), encoding="utf-8")
        new.replace(folder / PROCESSES)
    return bool(pids)


FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0  # seconds before a process that has ended is started again


class Relay(asyncio.Protocol):
    """One direction's end of a relayed connection; `other` is the other end."""

    transport: asyncio.Transport
    other: "Relay | None" = None

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end, self._early = on_end, list[bytes]()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def join(self, other: "Relay") -> None:
        for here, there in ((self, other), (other, self)):
            here.other = there
            there.transport.writelines(here._early)
            here._early.clear()

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
        else:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()
        self._on_end()


def lengthen(pause_s: float) -> float:
    """Return the pause before the next start of a process that has not served."""
    return min(LONGEST_PAUSE_S, 2 * max(pause_s, FIRST_PAUSE_S))
