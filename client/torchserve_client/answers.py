"""The answers of `predict` in a file: none is lost, none is asked for twice, and each is that of its input.

    answers.jsonl: {"input": NAME, "key": KEY, "answer": ...} or {"input": NAME, "key": KEY, "error": {...}}

    open -> locked, every line checked -> match -> has, write

An answer is that of an input of the same name and key. `match` removes errors, and a last line that a kill cut off, so
that they are asked for again; an answer whose input has another content, model or options by now is set aside in
answers.jsonl.old; all others stay.
"""

import os
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Self

import orjson

from torchserve_client.errors import ClientError, InvalidPayload
from torchserve_client.inputs import Input, Keys, shown

# The beginning of every line, by which a line that was cut off is distinguished from a file of another program.
START = b'{"input":'
# Suffix of the file for answers that are set aside.
ASIDE = ".old"


class Answers:
    """A jsonl file of answers, written to from several threads of one process."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        """Read a file that is locked; `open` makes one.

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
        # Whether the file may stay as it is; for each of its lines, whether it has an answer.
        self._is_clean = True
        self._has_answer = bytearray()
        # An input's name -> the number of the line with its answer, and the key.
        self._by_name: dict[str, tuple[int, str]] = {}
        self._scan()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Create or open the file, locked until it is closed.

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
        """Compare the answers with the inputs as they are now.

        Args:
            inputs: the inputs; their content is read only where there are answers to compare.
            keys: makes the inputs' keys.

        Returns:
            The number of inputs.

        Raises:
            InvalidPayload: the inputs cannot be read.
            OSError: the file cannot be written.
        """
        count = 0
        aside: set[int] = set()
        for each in inputs:
            count += 1
            number, key = self._by_name.get(each.name, (-1, ""))
            if number >= 0 and _key(each, keys) == key:
                self.earlier += 1
            elif number >= 0:
                aside.add(number)
                del self._by_name[each.name]
        if aside or not self._is_clean:
            self._rewrite(aside)
        return count

    def has(self, name: str, key: str) -> bool:
        """Return whether there is an answer to the input of this name and key."""
        return name in self._by_name and self._by_name[name][1] == key

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
            record = _record(line)
            is_whole = line.endswith(b"\n")
            if record is None and (is_whole or not line.startswith(START[: len(line)])):
                raise InvalidPayload(f"{shown(self.path)}: line {number + 1} is no answer of ours; name another file")
            # A kill may have cut the last line off.
            name, key, has_answer = record or ("", "", False)
            self._has_answer.append(has_answer)
            if has_answer:
                self._by_name[name] = number, key
            self._is_clean = self._is_clean and has_answer and is_whole

    def _rewrite(self, aside: set[int]) -> None:
        """Write the file anew, without errors and what is set aside, and put it in its place in one rename."""
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
                    if self._has_answer[number] and number not in aside:
                        new.write(line)
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


def _key(each: Input, keys: Keys) -> str:
    try:
        return keys.of(each.content())
    except OSError:
        # It fails again when it is sent.
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
    # Files of version 0.1 have no keys.
    key = record.get("key")
    return record["input"], key if isinstance(key, str) else "", "answer" in record


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
