"""The messages between TorchServe's frontend and a worker, read and written by the worker itself.

TorchServe's own reader (ts/protocol/otf_message_handler.py) reads every field from the socket by itself, some fifty
calls a request, and in continuous-batching mode the frontend sends every request in flight again in every exchange.
Here reads are buffered, and a request that is known is passed over in one step. Version 0.12.0 is TorchServe's last, so
its format will not change:

    message    "I" request... -1
    request    id, (name, value)... -1, (name, content type, value)... -1      headers, then parameters
    answer     200, text, (id, content type, status, phrase, headers, body)... -1

A request whose client has gone comes no more, and must not be answered.

Integers are of 32 bits, signed, big-endian; a text or value is its length and its bytes; headers of an answer are their
number, then (name, value) each.
"""

import socket
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from io import BufferedReader
from typing import Any, cast

from handlers.protocol.responses import Reply
from handlers.protocol.rows import MOST_FIELDS

INTEGER = struct.Struct("!i")
PREDICT, END, OK = b"I", -1, 200
# Bytes that are read from the socket at once.
CHUNK_BYTES = 256 * 1024


class Disconnected(Exception):
    """The frontend is gone: the model was unregistered, or TorchServe stops."""


class ProtocolError(Exception):
    """What came is no message of TorchServe 0.12.0; nothing after it can be understood."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that was not in flight before, as TorchServe's own reader returns it."""

    row: Mapping[str, bytes]  # the value of each field by its name
    headers: Mapping[str, Any]  # the request's, and for each field {"content-type": as sent}


class _Inbox:
    """Reads from the stream of a connection; every method raises Disconnected if it has ended."""

    def __init__(self, connection: socket.socket) -> None:
        self._stream = cast(BufferedReader, connection.makefile("rb", buffering=CHUNK_BYTES))
        self._skipped = memoryview(bytearray(CHUNK_BYTES))

    def integer(self) -> int:
        """Read the next integer."""
        value: int = INTEGER.unpack(self.read(INTEGER.size))[0]
        return value

    def text(self) -> tuple[str, int] | None:
        """Read a text and return it with its length in bytes; None where END stands in its place."""
        length = self.integer()
        return None if length == END else (self.read(length).decode(), length)

    def read(self, size: int) -> bytes:
        """Read the next bytes."""
        data = self._stream.read(size)
        if len(data) < size:
            raise Disconnected
        return data

    def skip(self, size: int) -> None:
        """Pass over bytes."""
        while size:
            if not (skipped := self._stream.readinto(self._skipped[:size])):
                raise Disconnected
            size -= skipped

    def skip_parameters(self) -> int:
        """Pass over the rest of a request's parameters, which may be many, and return how many bytes they were."""
        read, size = self._stream.read, 0
        try:
            while (length := INTEGER.unpack(read(INTEGER.size))[0]) != END:
                for _ in ("content type", "value"):
                    size += INTEGER.size + len(read(length))
                    (length,) = INTEGER.unpack(read(INTEGER.size))
                size += INTEGER.size + len(read(length))
        except struct.error:
            raise Disconnected from None
        return size


class Link:
    """One worker's connection to the frontend."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over a connection on which the frontend awaits an answer."""
        self._connection = connection
        self._inbox = _Inbox(connection)
        # Bytes of each request in flight, behind its id.
        self._sizes: dict[str, int] = {}

    def receive(self, take: Callable[[str, Sent], None]) -> Collection[str]:
        """Wait for the next message, and return the ids of all requests in flight, in the frontend's order.

        `take` is called with the id of each request that was not in the last message, and with the request.
        """
        inbox = self._inbox
        if inbox.read(len(PREDICT)) != PREDICT:
            raise ProtocolError("not a prediction")
        sizes: dict[str, int] = {}
        while (text := inbox.text()) is not None:
            id_ = text[0]
            known = self._sizes.get(id_)
            if known is None:
                sent, sizes[id_] = self._request()
                take(id_, sent)
            else:
                # What the frontend holds does not change: a request that does not end here is no message of its.
                inbox.skip(known - INTEGER.size)
                if inbox.integer() != END:
                    raise ProtocolError("a request has changed")
                sizes[id_] = known
        self._sizes = sizes
        return sizes.keys()

    def send(self, answers: Mapping[str, Reply]) -> None:
        """Answer requests by their ids; none is an answer too: the frontend sends what has come meanwhile."""
        parts = [INTEGER.pack(OK), _field(b"")]
        for id_, reply in answers.items():
            parts += [_field(id_.encode()), _field(reply.content_type.encode()), INTEGER.pack(reply.status)]
            parts += [_field(HTTPStatus(reply.status).phrase.encode()), INTEGER.pack(len(reply.headers))]
            for name, value in reply.headers.items():
                parts += [_field(name.encode()), _field(value.encode())]
            parts.append(_field(reply.body))
        parts.append(INTEGER.pack(END))
        try:
            self._connection.sendall(b"".join(parts))
        except (BrokenPipeError, ConnectionResetError):
            raise Disconnected from None

    def _request(self) -> tuple[Sent, int]:
        """Read the rest of a new request; return it and how many bytes that were."""
        inbox, text = self._inbox, self._inbox.text
        headers: dict[str, Any] = {}
        parts: dict[str, Any] = {}
        row: dict[str, bytes] = {}
        size = 2 * INTEGER.size
        while (name := text()) is not None:
            value = _some(text())
            headers[name[0]] = value[0]
            size += 2 * INTEGER.size + name[1] + value[1]
        count = 0
        while (name := text()) is not None:
            content_type = _some(text())
            length = inbox.integer()
            parts[name[0]] = {"content-type": content_type[0]}
            row[name[0]] = inbox.read(length)
            size += 3 * INTEGER.size + name[1] + content_type[1] + length
            count += 1
            if count > MOST_FIELDS:
                # It is refused for its fields, also if all have one name.
                row |= dict.fromkeys(map(str, range(count)), b"")
                size += inbox.skip_parameters()
                break
        return Sent(row, {**parts, **headers}), size


def _some(text: tuple[str, int] | None) -> tuple[str, int]:
    if text is None:
        raise ProtocolError("a name without a value")
    return text


def _field(value: bytes) -> bytes:
    return INTEGER.pack(len(value)) + value
