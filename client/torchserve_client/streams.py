"""An answer in pieces: text as the server generates it, and in the end the whole answer.

Opened (status, headers, bytes as they arrive) -> server-sent events -> Stream: pieces of text, then Stream.answer
"""

from collections.abc import Iterable, Iterator
from typing import Any, Self

import orjson

from torchserve_client.errors import NoConnection, of_status
from torchserve_client.payloads import parsed, reason
from torchserve_client.transport import Incoming, Opened

MEDIA_TYPE = "text/event-stream"
# The kind of an event that names none.
MESSAGE = "message"
# The field of an event that is a piece and nothing else.
TEXT = "text"


def events(chunks: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield kind and data of each event of an answer; its bytes may be cut anywhere, lines end with LF or CRLF."""
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
                    yield kind, b"\n".join(data)
                kind, data = MESSAGE, []


class Stream(Iterator[str]):
    """Yields pieces of text; joined they are the text of the answer.

    It ends with the last piece. Closing it before has the server stop working on the answer.
    """

    def __init__(self, opened: Opened) -> None:
        """Read an answer whose status is 2xx."""
        self._opened = opened
        self._pieces = self._read()
        # The whole answer as JSON.
        self._answer: bytes | None = None

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
        if self._answer is None:
            raise ValueError("the answer is there when all of its pieces are read")
        return orjson.loads(self._answer)

    def close(self) -> None:
        """Release the connection."""
        self._opened.close()

    def _read(self) -> Iterator[str]:
        if not self._opened.head.headers.get("Content-Type", "").startswith(MEDIA_TYPE):
            # A server that knows no pieces sends the whole answer.
            self._answer = self._opened.read().body
            return
        try:
            for kind, data in events(self._opened.chunks):
                document = parsed(data)
                if kind != MESSAGE:
                    code = document.get("code") if isinstance(document, dict) else None
                    code = code if isinstance(code, int) else 500
                    raise of_status(code, *reason(Incoming(code, data)))
                if isinstance(document, dict) and document.keys() == {TEXT}:
                    yield str(document[TEXT])
                else:
                    self._answer = data
        finally:
            self._opened.close()
        if self._answer is None:
            raise NoConnection("the connection was lost before the answer was complete", was_sent=True)
