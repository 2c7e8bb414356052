"""Reads server-sent events as they come. Pure.

bytes, cut anywhere -> Events.add -> the events that are whole by now
"""

from dataclasses import dataclass, field
from typing import NamedTuple

# What an event is of that names no kind.
MESSAGE = "message"


class Event(NamedTuple):
    """One event.

    Attributes:
        kind: "message" where it does not say.
        data: its lines of data, joined.
    """

    kind: str
    data: bytes


@dataclass(slots=True)
class Events:
    """The events of one answer; lines end with LF or CRLF, and are kept until they do."""

    _rest: bytes = b""
    _kind: str = MESSAGE
    _data: list[bytes] = field(default_factory=list)

    def add(self, content: bytes) -> list[Event]:
        """Take the bytes that come next; return the events that they make whole, maybe none."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        found = []
        for line in lines:
            name, _, value = line.removesuffix(b"\r").partition(b":")
            value = value.removeprefix(b" ")
            if name == b"event":
                self._kind = value.decode("utf-8", "replace")
            elif name == b"data":
                self._data.append(value)
            elif not line.removesuffix(b"\r"):
                if self._data:
                    found.append(Event(self._kind, b"\n".join(self._data)))
                self._kind, self._data = MESSAGE, []
            # What else a line says, a comment above all, means nothing here.
        return found
