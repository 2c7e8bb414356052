"""The messages between TorchServe's frontend and a worker.

TorchServe's own reader (ts/protocol/otf_message_handler.py) reads every field from the socket, some fifty calls per
request, and in continuous-batching mode every exchange contains every request in flight. This reader is buffered, and
skips a known request in one step; in classic mode every request is new. Version 0.12.0 is TorchServe's last, so its
format will not change:

    message    "I" request... -1
    request    id, (name, value)... -1, (name, content type, value)... -1      headers, then parameters
    answer     200, text, (id, content type, status, phrase, headers, body)... -1

If the client of a stream disconnects, later messages lack its request, and no answer may contain it. Of all other
requests TorchServe keeps those whose clients have left (`ContinuousBatching`), so they run.

Integers have 32 bits, signed, big-endian. A text or value is its length and its bytes. Headers of a response are their
number, then (name, value) each.
"""

import socket
import struct
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from io import BufferedReader
from typing import cast

from handlers.protocol.responses import Response
from handlers.protocol.wire import FORM_FIELDS

INTEGER = struct.Struct("!i")
PREDICT = b"I"  # first byte of a message
END = -1  # end of a list, instead of a length
OK = 200  # start of an answer
CHUNK_BYTES = 256 * 1024  # bytes of one read from the socket


class Disconnected(Exception):
    """The frontend has closed the connection: the model was unregistered, or TorchServe stops."""


class ProtocolError(Exception):
    """Not a message of TorchServe 0.12.0; the bytes after it have no meaning."""


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request that was not in flight before, as TorchServe's own reader returns it."""

    row: Mapping[str, bytes]  # values of the fields by name
    headers: Mapping[str, object]  # the request's, and {"content-type": ...} by field


class _Inbox:
    """Reads from a connection; every method raises Disconnected after its end."""

    def __init__(self, connection: socket.socket) -> None:
        self._stream = cast(BufferedReader, connection.makefile("rb", buffering=CHUNK_BYTES))
        self._skipped = memoryview(bytearray(CHUNK_BYTES))

    def integer(self) -> int:
        value: int = INTEGER.unpack(self.read(INTEGER.size))[0]
        return value

    def text(self) -> tuple[str, int] | None:
        """Return the next text and its length in bytes; None for END."""
        length = self.integer()
        return None if length == END else (self.read(length).decode(), length)

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise Disconnected
        return data

    def skip(self, size: int) -> None:
        while size:
            if not (skipped := self._stream.readinto(self._skipped[:size])):
                raise Disconnected
            size -= skipped

    def skip_parameters(self) -> int:
        """Skip the rest of a request's parameters, however many, and return their bytes."""
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
    def __init__(self, connection: socket.socket) -> None:
        """Use a connection on which the frontend awaits an answer."""
        self._connection = connection
        self._inbox = _Inbox(connection)
        self._sizes: dict[str, int] = {}  # bytes of each request in flight, after its id

    def receive(self, on_new: Callable[[str, NewRequest], None]) -> Collection[str]:
        """Wait for a message; call `on_new` for each new request and return all ids in flight, in its order."""
        inbox = self._inbox
        if inbox.read(len(PREDICT)) != PREDICT:
            raise ProtocolError("not a prediction")
        sizes: dict[str, int] = {}
        while (text := inbox.text()) is not None:
            id_ = text[0]
            known = self._sizes.get(id_)
            if known is None:
                new, sizes[id_] = self._read_request()
                on_new(id_, new)
            else:
                inbox.skip(known - INTEGER.size)  # the frontend does not change a request
                if inbox.integer() != END:
                    raise ProtocolError("a request has changed")
                sizes[id_] = known
        self._sizes = sizes
        return sizes.keys()

    def send(self, answers: Mapping[str, Response]) -> None:
        """Send responses by request id; after an answer without any, the frontend sends the new requests."""
        parts = [INTEGER.pack(OK), _encode(b"")]
        for id_, response in answers.items():
            parts += [_encode(id_.encode()), _encode(response.content_type.encode()), INTEGER.pack(response.status)]
            parts += [_encode(HTTPStatus(response.status).phrase.encode()), INTEGER.pack(len(response.headers))]
            for name, value in response.headers.items():
                parts += [_encode(name.encode()), _encode(value.encode())]
            parts.append(_encode(response.body))
        parts.append(INTEGER.pack(END))
        try:
            self._connection.sendall(b"".join(parts))
        except (BrokenPipeError, ConnectionResetError):
            raise Disconnected from None

    def _read_request(self) -> tuple[NewRequest, int]:
        """Read the rest of a new request; return it and the number of its bytes."""
        inbox, text = self._inbox, self._inbox.text
        headers: dict[str, object] = {}
        parts: dict[str, object] = {}
        row: dict[str, bytes] = {}
        size = 2 * INTEGER.size
        while (name := text()) is not None:
            value = _require(text())
            headers[name[0]] = value[0]
            size += 2 * INTEGER.size + name[1] + value[1]
        count = 0
        while (name := text()) is not None:
            content_type = _require(text())
            length = inbox.integer()
            parts[name[0]] = {"content-type": content_type[0]}
            row[name[0]] = inbox.read(length)
            size += 3 * INTEGER.size + name[1] + content_type[1] + length
            count += 1
            if count > FORM_FIELDS:
                # `unpack` rejects that many names, also if all fields have one name.
                row |= dict.fromkeys(map(str, range(count)), b"")
                size += inbox.skip_parameters()
                break
        return NewRequest(row, {**parts, **headers}), size


def serve_batches(
    connection: socket.socket,
    batch: Mapping[str, NewRequest],
    answer: Callable[[Mapping[str, NewRequest]], Mapping[str, Response]],
) -> None:
    """Answer a batch of classic mode, by request id, and those after it, until the frontend disconnects."""
    link = Link(connection)
    with suppress(Disconnected):
        while True:
            link.send(answer(batch))
            batch = received = dict[str, NewRequest]()  # no body is kept while the thread waits
            link.receive(received.__setitem__)


def _require(text: tuple[str, int] | None) -> tuple[str, int]:
    if text is None:
        raise ProtocolError("a name without a value")
    return text


def _encode(value: bytes) -> bytes:
    return INTEGER.pack(len(value)) + value
