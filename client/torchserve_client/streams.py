"""An answer in pieces: text as the server generates it, and in the end the whole answer.

Opened (status, headers, bytes as they arrive) -> server-sent events -> Stream: pieces of text, then Stream.answer
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Self

import orjson

from torchserve_client.errors import ClientError, NoConnection, of_status
from torchserve_client.replies import parsed
from torchserve_client.transport import Opened

MEDIA_TYPE = "text/event-stream"
# The kind of an event that names none.
MESSAGE = "message"
# The field of an event that is a piece and nothing else.
TEXT = "text"


class Event(NamedTuple):
    """One server-sent event.

    Attributes:
        kind: "message" where the event does not say.
        data: its lines of data, joined.
    """

    kind: str
    data: bytes


def events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events of an answer whose bytes may be cut anywhere; lines end with LF or CRLF."""
    rest, kind, data = b"", MESSAGE, list[bytes]()
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            # Comments, and fields that mean nothing here, are left out.
            name, _, value = line.removesuffix(b"\r").partition(b":")
            value = value.removeprefix(b" ")
            if name == b"event":
                kind = value.decode("utf-8", "replace")
            elif name == b"data":
                data.append(value)
            elif not line.removesuffix(b"\r"):
                if data:
                    yield Event(kind, b"\n".join(data))
                kind, data = MESSAGE, []


class Stream(Iterator[str]):
    """Yields pieces of text; joined they are the text of the answer.

    It ends with the last piece. Closing it before has the server stop working on the answer.
    """

    def __init__(self, opened: Opened) -> None:
        """Read an answer whose status is 2xx."""
        self._opened = opened
        self._pieces = self._read()
        self._answer: Any = None
        self._has_answer = False

    def __next__(self) -> str:
        """Wait for the next piece.

        Raises:
            StopIteration: there is none; `answer` is there.
            Rejected, Unavailable, ServerFailed: the server cannot go on.
            NoConnection, DeadlineExceeded, Closed: the connection was lost, or time was up, before the end.
        """
        return next(self._pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def answer(self) -> Any:
        """The whole answer, as `Client.predict` returns it, once all pieces are read.

        Raises:
            ValueError: they are not, or there was an error.
        """
        if not self._has_answer:
            raise ValueError("the answer is there when all of its pieces are read")
        return self._answer

    def close(self) -> None:
        """Release the connection."""
        self._opened.close()

    def _read(self) -> Iterator[str]:
        try:
            if not self._opened.headers.get("Content-Type", "").startswith(MEDIA_TYPE):
                # A server that knows no pieces sends the whole answer.
                self._end(b"".join(self._opened.chunks))
            else:
                for event in events(self._opened.chunks):
                    if event.kind != MESSAGE:
                        raise _error(event)
                    document = orjson.loads(event.data)
                    if isinstance(document, dict) and document.keys() == {TEXT}:
                        yield str(document[TEXT])
                    else:
                        self._end(event.data)
        finally:
            self._opened.close()
        if not self._has_answer:
            raise NoConnection("the connection was lost before the answer was complete", was_sent=True)

    def _end(self, content: bytes) -> None:
        self._answer, self._has_answer = orjson.loads(content), True


def _error(event: Event) -> ClientError:
    error = parsed(event.data)
    if not isinstance(error, dict):
        error = {}
    code = error.get("code")
    return of_status(code if isinstance(code, int) else 500, str(error.get("type", "")), str(error.get("message", "")))
