"""Holds the exchanges of a run by column: some 70 bytes each and the text of its Server-Timing, not 410 as objects.

Exchange -> append -> columns -> an Exchange again, where one is looked at
                              -> JSON of run.json, and back
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import orjson

from load.measure.exchange import Exchange, Verdict

# Names of run.json's columns, in the order of Exchange's fields, and what the numbers among them are kept as.
NUMBERS = {
    "due_s": "d",
    "sent_s": "d",
    "answered_s": "d",
    "status": "i",
    "client": "q",
    "source": "q",
    "sent_bytes": "q",
    "received_bytes": "q",
}
TEXTS = ("error", "server_timing", "verdict")
TIMES = ("due_s", "sent_s", "answered_s")
VERDICTS = (None, *Verdict)
# Digits of a time in run.json: microseconds.
DIGITS = 6
# Bytes of memory that an exchange takes, and each byte of its Server-Timing: what the columns hold, an eighth that they
# grow by at a time, and the times once more in a stored step. 205 were measured with a text of 103.
EXCHANGE_BYTES, TIMING_BYTES = 100, 1.125
# Values that are turned into JSON at a time, so that they are never all objects at once.
CHUNK = 4096


class Exchanges(Sequence[Exchange]):
    """Exchanges in the order of their answers; one that is looked at is made anew."""

    def __init__(self, exchanges: Iterable[Exchange] = ()) -> None:
        """Take exchanges in."""
        self._numbers: dict[str, array[Any]] = {name: array(code) for name, code in NUMBERS.items()}
        # Few texts stand for all errors, a number for each of them; 0 is none.
        self._errors: list[str | None] = [None]
        self._error = array("H")
        self._verdict = array("b")
        # Texts one behind the other, and where each ends; an empty one is none.
        self._timings = bytearray()
        self._timing_end = array("q")
        for each in exchanges:
            self.append(each)

    def append(self, each: Exchange) -> None:
        """Add an exchange at the end."""
        for name, column in self._numbers.items():
            column.append(getattr(each, name))
        self._error.append(self._code(each.error))
        self._verdict.append(VERDICTS.index(each.verdict))
        if each.server_timing:
            # What is not UTF-8 in a header, JSON could not hold.
            self._timings += each.server_timing.encode("utf-8", "replace")
        self._timing_end.append(len(self._timings))

    @property
    def memory_bytes(self) -> int:
        """Most memory that these will have taken when they are written."""
        return round(EXCHANGE_BYTES * len(self) + TIMING_BYTES * len(self._timings))

    def since(self, moment_s: float) -> "Exchanges":
        """Return the same with times in seconds from a moment on, to the microsecond; the other columns are shared."""
        made = Exchanges()
        made.__dict__.update(self.__dict__)
        made._numbers = dict(self._numbers)
        for name in TIMES:
            times = np.round(np.frombuffer(self._numbers[name]) - moment_s, DIGITS)
            made._numbers[name] = array("d", times.tobytes())
        return made

    def to_json(self) -> Iterator[bytes]:
        """Yield the columns as JSON, {name: [value, ...], ...}, in pieces that are written one after the other."""
        yield b"{"
        for place, name in enumerate((*NUMBERS, *TEXTS)):
            yield b"%b%b:[" % (b"," if place else b"", orjson.dumps(name))
            for start in range(0, len(self), CHUNK):
                values = orjson.dumps(self._values(name, start), option=orjson.OPT_SERIALIZE_NUMPY)
                yield (b"," if start else b"") + values[1:-1]
            yield b"]"
        yield b"}"

    @classmethod
    def of_columns(cls, columns: Any) -> "Exchanges":
        """Read what `to_columns` gave, from JSON.

        Raises:
            ValueError: it is something else.
        """
        try:
            rows = zip(*(columns[name] for name in (*NUMBERS, *TEXTS)), strict=True)
            return cls(
                Exchange(*row[:-1], verdict=None if row[-1] is None else Verdict(row[-1]))  # type: ignore[misc]
                for row in rows
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"no columns of exchanges: {type(error).__name__}") from error

    def _values(self, name: str, start: int) -> Any:
        """Return a chunk of a column, as orjson takes it."""
        if name in NUMBERS:
            return np.frombuffer(self._numbers[name], self._numbers[name].typecode)[start : start + CHUNK]
        return [getattr(each, name) for each in self[start : start + CHUNK]]

    def _code(self, error: str | None) -> int:
        if error not in self._errors:
            self._errors.append(error)
        return self._errors.index(error)

    def __len__(self) -> int:
        return len(self._error)

    def __iter__(self) -> Iterator[Exchange]:
        return self._between(0, len(self))

    @overload
    def __getitem__(self, at: int) -> Exchange: ...

    @overload
    def __getitem__(self, at: slice) -> list[Exchange]: ...

    def __getitem__(self, at: int | slice) -> Exchange | list[Exchange]:
        """Make one exchange, or a list of them."""
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            return list(self._between(start, stop))[::step] if step > 0 else list(self)[at]
        place = range(len(self))[at]
        return next(self._between(place, place + 1))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Exchanges) and len(self) == len(other) and all(map(Exchange.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def _between(self, start: int, stop: int) -> Iterator[Exchange]:
        """Make the exchanges from one place on to before another, one after the other."""
        errors, timings = self._errors, self._timings
        columns = (*self._numbers.values(), self._error, self._timing_end, self._verdict)
        # Views, since slices would be copies; while one is there, nothing can be appended.
        views = [memoryview(column)[start:stop] for column in columns]
        begins = self._timing_end[start - 1] if start else 0
        for *row, error, ends, verdict in zip(*views, strict=True):
            timing = timings[begins:ends].decode() if ends > begins else None
            yield Exchange(*row, errors[error], timing, VERDICTS[verdict])  # type: ignore[call-arg]
            begins = ends
