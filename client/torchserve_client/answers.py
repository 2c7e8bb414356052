"""Keeps the answers of `predict` in a file: none is lost, none is asked for twice, and each is that of its input.

    answers.jsonl: {"input": NAME, "key": KEY, "answer": ...} or {"input": NAME, "key": KEY, "error": {...}}

    open -> locked, every line checked -> match -> names put right -> has, write

A line is written at once and whole. `open` lets nobody else write to the file. `match` holds it against the inputs as
they are now, by their keys: errors and a last line that a kill left half-written go, so that they are asked for again;
an answer whose input has another name by now gets that; one whose name belongs to another input by now is set aside
in answers.jsonl.old; all others stay.
"""

import os
import re
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Self

import orjson

from torchserve_client.errors import ClientError, InvalidPayload
from torchserve_client.inputs import Input, Keys, shown

# Every line begins so: a line that does not is of somebody else's file, and no half-written one of ours.
START = b'{"input":'
# What is set aside goes to a file of this name behind that of the answers.
ASIDE = ".old"
_NAME = re.compile(rb'\{"input":"(?:[^"\\]|\\.)*"')


class Answers:
    """A jsonl file of answers, written to from several threads of one process."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        """Take a file that is locked; `open` makes one.

        Args:
            path: the jsonl file.
            file: the same, open to read and to append.

        Raises:
            InvalidPayload: the file holds something else; it is left as it is.
        """
        self.path = path
        #: Number of inputs that had an answer before, once `match` has found them.
        self.earlier = 0
        self._file = file
        self._write_lock = threading.Lock()
        # Whether the file needs no change for its own sake, and of each of its lines whether it stays.
        self._is_clean = True
        self._stays = bytearray()
        self._by_name, self._by_key = _Index(), _Index()
        # Answers that no input has taken yet, by key.
        self._left: Counter[str] = Counter()
        self._scan()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Start the file, or go on with it; nobody else may write to it until it is closed.

        Args:
            path: the jsonl file; it need not exist.

        Raises:
            InvalidPayload: another run writes to the file, or it holds something else; it is left as it is.
            OSError: the file cannot be written.
        """
        path = path.resolve()
        file = _locked(path)
        try:
            return cls(path, file)
        except BaseException:
            file.close()
            raise

    def match(self, inputs: Iterable[Input], keys: Keys) -> int:
        """Hold the answers against the inputs as they are now, and put their names right in the file.

        Args:
            inputs: what is asked about; their content is read only where there are answers to hold against it.
            keys: makes the inputs' keys.

        Returns:
            The number of inputs.

        Raises:
            InvalidPayload: the inputs cannot be read.
            OSError: the file cannot be written.
        """
        count = 0
        renamed: dict[int, str] = {}
        claimed, taken = bytearray(len(self._stays)), bytearray(len(self._stays))
        for each in inputs:
            count += 1
            own = self._by_name.of(each.name)
            for number in own:
                claimed[number] = True
            key = _key(each, keys) if self._by_key else ""
            answer = self._by_key.take(key, own)
            if answer is not None:
                taken[answer] = True
                if answer not in own:
                    renamed[answer] = each.name
                self._left[key] += 1
        self.earlier = sum(taken)
        aside = {number for number in range(len(taken)) if claimed[number] and not taken[number]}
        if renamed or aside or not self._is_clean:
            self._rewrite(renamed, aside)
        self._by_name, self._by_key = _Index(), _Index()
        return count

    def has(self, key: str) -> bool:
        """Return whether there is an answer to an input of this key; each answer is that of one input."""
        if not self._left.get(key):
            return False
        self._left[key] -= 1
        return True

    def write(self, names: Sequence[str], keys: Sequence[str], outcomes: Sequence[Any]) -> None:
        """Write the outcomes of one request.

        Args:
            names, keys: those of its inputs.
            outcomes: for each input its answer, or the ClientError that it ended with.
        """
        made = []
        for name, key, outcome in zip(names, keys, outcomes, strict=True):
            is_error = isinstance(outcome, ClientError)
            value = {"error": outcome.to_json()} if is_error else {"answer": outcome}
            made.append(orjson.dumps({"input": name, "key": key, **value}, option=orjson.OPT_APPEND_NEWLINE))
        with self._write_lock:
            # The system has it before the next one starts: a kill of this process cuts the last line at most.
            self._file.write(b"".join(made))
            self._file.flush()

    def close(self) -> None:
        """Close the file; everything is written already."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _scan(self) -> None:
        """Learn which lines hold which answers."""
        self._file.seek(0)
        for number, line in enumerate(self._file):
            self._stays.append(False)
            record = _record(line)
            if record is None:
                if not line.endswith(b"\n") and line.startswith(START[: len(line)]):
                    self._is_clean = False
                    return
                raise InvalidPayload(f"{shown(self.path)}: line {number + 1} is no answer of ours; name another file")
            name, key, is_answer = record
            is_again = is_answer and any(self._by_key.has(key, same) for same in self._by_name.of(name))
            if not line.endswith(b"\n") or not is_answer or is_again:
                self._is_clean = False
            if is_answer and not is_again:
                self._stays[number] = True
                self._by_name.add(name, number)
                if key:
                    self._by_key.add(key, number)

    def _rewrite(self, renamed: dict[int, str], aside: set[int]) -> None:
        """Write the file anew, under another name, which takes its place at once.

        Args:
            renamed: number of a line -> the name that its input has now.
            aside: numbers of the lines that go to the other file.
        """
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            if aside:
                with self.path.with_name(self.path.name + ASIDE).open("ab") as other:
                    other.writelines(line for number, line in self._numbered() if number in aside)
            new = partial.open("w+b")
            try:
                _lock(new, self.path)
                shutil.copymode(self.path, partial)
                for number, line in self._numbered():
                    if self._stays[number] and number not in aside:
                        new.write(_named(line, renamed[number]) if number in renamed else line)
                new.flush()
                partial.replace(self.path)
            except BaseException:
                new.close()
                raise
        finally:
            partial.unlink(missing_ok=True)
        self._file.close()
        self._file = new

    def _numbered(self) -> Iterator[tuple[int, bytes]]:
        self._file.seek(0)
        return ((number, line.rstrip(b"\n") + b"\n") for number, line in enumerate(self._file))


class _Index:
    """Finds numbers of lines by a text; nearly always there is one, which takes no set."""

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._others: dict[str, set[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._first)

    def add(self, text: str, number: int) -> None:
        """Add a line."""
        if self._first.setdefault(text, number) != number:
            self._others.setdefault(text, set()).add(number)

    def of(self, text: str) -> list[int]:
        """Return the lines of a text."""
        return [self._first[text], *self._others.get(text, ())] if text in self._first else []

    def has(self, text: str, number: int) -> bool:
        """Return whether a line is one of a text's."""
        return self._first.get(text) == number or number in self._others.get(text, ())

    def take(self, text: str, preferred: Iterable[int]) -> int | None:
        """Remove a line of a text, one of those that are preferred if it can be; None where there is none."""
        if text not in self._first:
            return None
        taken = next((number for number in preferred if self.has(text, number)), self._first[text])
        others = self._others.get(text)
        if not others:
            del self._first[text]
        elif taken == self._first[text]:
            self._first[text] = others.pop()
        else:
            others.remove(taken)
        return taken


def _key(each: Input, keys: Keys) -> str:
    try:
        return keys.of(each.content())
    except OSError:
        # Whoever sends it will say so.
        return ""


def _record(line: bytes) -> tuple[str, str, bool] | None:
    """Return a line's name and key, and whether it holds an answer or an error; None where it is not ours."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("input"), str):
        return None
    if "answer" not in record and "error" not in record:
        return None
    # Files of version 0.1 have no keys: nobody knows what was asked.
    key = record.get("key")
    return record["input"], key if isinstance(key, str) else "", "answer" in record


def _named(line: bytes, name: str) -> bytes:
    """Put another name into a line; its answer stays as it is, byte by byte."""
    return _NAME.sub(lambda _: START + orjson.dumps(name), line, count=1)


def _locked(path: Path) -> IO[bytes]:
    while True:
        file = path.open("a+b")
        try:
            _lock(file, path)
            # Between opening and locking, the run that held it may have put another file in its place.
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def _lock(file: IO[bytes], path: Path) -> None:
    """Lock a file until it is closed, or its process ends in whatever way; Windows has no such lock."""
    if sys.platform == "win32":
        return
    import fcntl  # noqa: PLC0415

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidPayload(f"{shown(path)}: another run writes to it; wait for it, or name another file") from None
