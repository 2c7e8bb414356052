"""Relays the bytes of a connection to a process, whose library of gRPC takes no connection from another one."""

import asyncio
from collections.abc import Callable
from typing import Any


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
