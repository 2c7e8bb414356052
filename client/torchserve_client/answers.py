"""The answers of `predict` in a file: none is lost, none is asked for twice, and each is that of its input.

    answers.jsonl: {"input": NAME, "key": KEY, "answer": ...} or {"input": NAME, "key": KEY, "error": {...}}

    Answers(path) -> locked, every line checked -> match -> has, write

An answer is that of an input of the same name and key. `match` removes errors, and a last line that a kill cut off, so
that they are asked for again; an answer whose input has another content, model or options by now is set aside in
answers.jsonl.old; all others stay.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Self

import orjson

from torchserve_client.errors import ClientError, InvalidPayload
from torchserve_client.inputs import Input, Keys, shown

# The beginning of every line, by which a line that was cut off is distinguished from a file of another program.
START = b'{"input":'


class Answers:
    """A jsonl file of answers, which this process alone writes to until it is closed."""

    def __init__(self, path: Path) -> None:
        """Create or open the file, lock it and read it.

        Raises:
            InvalidPayload: another run writes to the file, or it holds something else; it is left as it is.
            OSError: the file cannot be written.
        """
        self.path = path.resolve()
        #: The file for answers that are set aside.
        self.aside = self.path.with_name(f"{self.path.name}.old")
        #: Number of inputs that had an answer before, once `match` has found them.
        self.earlier = 0
        # An input's name -> the key of its answer.
        self._keys: dict[str, str] = {}
        self._file = _locked(self.path)
        try:
            self._is_clean = self._scan()
        except BaseException:
            self._file.close()
            raise

    def match(self, inputs: Iterable[Input], keys: Keys) -> int:
        """Compare the answers with the inputs as they are now; return the number of inputs.

        Raises:
            InvalidPayload: the inputs cannot be read.
            OSError: the file cannot be written.
        """
        count = 0
        outdated: set[str] = set()
        for each in inputs:
            count += 1
            if each.name in self._keys:
                try:
                    key = keys.of(each.content())
                except OSError:
                    # It fails again when it is sent.
                    key = ""
                if self._keys[each.name] == key:
                    self.earlier += 1
                else:
                    outdated.add(each.name)
        if outdated or not self._is_clean:
            self._rewrite(outdated)
        return count

    def has(self, name: str) -> bool:
        """Return whether the input of this name has had its answer before; `match` has compared their keys."""
        return name in self._keys

    def write(self, names: Sequence[str], keys: Sequence[str], outcomes: Sequence[Any]) -> None:
        """Write the outcomes of one request: each input's answer, or its ClientError."""
        made = []
        for name, key, outcome in zip(names, keys, outcomes, strict=True):
            is_error = isinstance(outcome, ClientError)
            value = {"error": outcome.to_json()} if is_error else {"answer": outcome}
            made.append(orjson.dumps({"input": name, "key": key, **value}, option=orjson.OPT_APPEND_NEWLINE))
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

    def _scan(self) -> bool:
        """Read the keys; return whether every line is whole and holds an answer."""
        self._file.seek(0)
        is_clean = True
        for number, line in enumerate(self._file, 1):
            record, is_whole = _record(line), line.endswith(b"\n")
            # A kill may have cut the last line off.
            if not record and (is_whole or not line.startswith(START[: len(line)])):
                raise InvalidPayload(f"{shown(self.path)}: line {number} is no answer of ours; name another file")
            if "answer" in record:
                # Files of version 0.1 have no keys.
                self._keys[record["input"]] = str(record.get("key", ""))
            is_clean = is_clean and is_whole and "answer" in record
        return is_clean

    def _rewrite(self, outdated: set[str]) -> None:
        """Write the file anew, without errors and what is set aside, and put it in its place in one rename."""
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            if outdated:
                with self.aside.open("ab") as aside:
                    aside.writelines(line for name, line in self._lines() if name in outdated)
            new = partial.open("w+b")
            try:
                _lock(new, self.path)
                shutil.copymode(self.path, partial)
                new.writelines(line for name, line in self._lines() if name not in outdated)
                new.flush()
                partial.replace(self.path)
            except BaseException:
                new.close()
                raise
        finally:
            partial.unlink(missing_ok=True)
        self._file.close()
        self._file = new
        for name in outdated:
            del self._keys[name]

    def _lines(self) -> Iterator[tuple[str, bytes]]:
        """Yield the name and the line of every answer."""
        self._file.seek(0)
        for line in self._file:
            if "answer" in (record := _record(line)):
                yield record["input"], line.rstrip(b"\n") + b"\n"


def _record(line: bytes) -> dict[str, Any]:
    """Parse a line; nothing is in it where it is not ours."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    is_ours = isinstance(record, dict) and isinstance(record.get("input"), str) and record.keys() & {"answer", "error"}
    return record if is_ours else {}


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
