"""A server that does nothing: python empty_server.py, prints its port, answers every request with {}.

The least that HTTP/1.1 with keep-alive and Content-Length needs, so that the generator is what costs.
"""

import asyncio
from typing import cast

HEAD_END, LENGTH = b"\r\n\r\n", b"content-length:"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class Empty(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._missing = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to answer."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Answer every request that is whole."""
        self._data += data
        while True:
            if self._missing < 0:
                end = self._data.find(HEAD_END)
                if end < 0:
                    return
                head = bytes(self._data[:end]).lower()
                self._missing = int(head.split(LENGTH, 1)[1].split(b"\r\n", 1)[0]) if LENGTH in head else 0
                del self._data[: end + len(HEAD_END)]
            if len(self._data) < self._missing:
                return
            del self._data[: self._missing]
            self._missing = -1
            self._transport.write(ANSWER)


async def main() -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(Empty, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
