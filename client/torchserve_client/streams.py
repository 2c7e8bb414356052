"""An answer in pieces: text as the server generates it, and in the end the whole.

Opened (status, headers, bytes as they come) -> events -> Stream: pieces of text ... -> Stream.answer
"""

from collections.abc import Iterator
from typing import Any, Self

import orjson

from torchserve_client.errors import ClientError, NoConnection, of_status
from torchserve_client.events import MESSAGE, Event, Events
from torchserve_client.transport import Opened

MEDIA_TYPE = "text/event-stream"
# The field of an event that is a piece and nothing else.
TEXT = "text"


class Stream(Iterator[str]):
    """Yields pieces of text; joined they are the text of the answer.

    It ends by itself with the last piece. Whoever wants no more closes it: the server then works no further for it.
    """

    def __init__(self, opened: Opened) -> None:
        """Take over an answer whose status says that it is one."""
        self._opened = opened
        self._pieces = self._read()
        self._answer: Any = None
        self._has_answer = False

    def __next__(self) -> str:
        """Wait for the next piece.

        Raises:
            StopIteration: there is none; `answer` is there.
            Rejected, Unavailable, ServerFailed: the server says that it cannot go on.
            NoConnection, DeadlineExceeded, Closed: the connection was lost, or time was up, before the end.
        """
        return next(self._pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def answer(self) -> Any:
        """The whole answer, as `Client.predict` has it, once all pieces are read.

        Raises:
            ValueError: they are not, or there was an error.
        """
        if not self._has_answer:
            raise ValueError("the answer is there when all of its pieces are read")
        return self._answer

    def close(self) -> None:
        """Let go of the connection, whatever was read."""
        self._opened.close()

    def _read(self) -> Iterator[str]:
        events = Events()
        try:
            if not self._opened.headers.get("Content-Type", "").startswith(MEDIA_TYPE):
                # A server that knows nothing of pieces sends the whole.
                self._end(b"".join(self._opened.chunks))
            else:
                for chunk in self._opened.chunks:
                    for event in events.add(chunk):
                        if (piece := self._piece(event)) is not None:
                            yield piece
        finally:
            self._opened.close()
        if not self._has_answer:
            raise NoConnection("the connection was lost before the answer was whole", was_sent=True)

    def _piece(self, event: Event) -> str | None:
        """Return the text of an event; None where it is the answer.

        Raises:
            ClientError: the event is an error.
        """
        if event.kind != MESSAGE:
            raise _error(event)
        said = orjson.loads(event.data)
        if isinstance(said, dict) and said.keys() == {TEXT}:
            return str(said[TEXT])
        self._end(event.data)
        return None

    def _end(self, content: bytes) -> None:
        self._answer, self._has_answer = orjson.loads(content), True


def _error(event: Event) -> ClientError:
    try:
        said = orjson.loads(event.data)
    except orjson.JSONDecodeError:
        said = None
    if not isinstance(said, dict):
        said = {}
    code = said.get("code")
    return of_status(code if isinstance(code, int) else 500, str(said.get("type", "")), str(said.get("message", "")))
