"""The answers of `predict` in a file: none is lost or requested twice, and each belongs to its input.

    answers.jsonl: {"input": NAME, "key": KEY, "answer": ...} or {"input": NAME, "key": KEY, "error": {...}}

    Answers(path) -> lock the file, check every line -> match -> has, write

An answer belongs to the input with its name and key. `match` removes errors and an incomplete last line, so that these
inputs are requested again. It moves the answer of an input with a new content, model or options to answers.jsonl.old.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import orjson

from torchserve_client.errors import ClientError, InvalidPayload
from torchserve_client.files import replacing
from torchserve_client.inputs import Input, Keys, printable
from torchserve_client.locks import lock, open_locked
from torchserve_client.payloads import Json

START = b'{"input":'  # prefix of every line, which distinguishes an incomplete line from the file of another program


class Answers:
    """A JSON Lines file of answers, locked against other writers until it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.old_path = self.path.with_name(f"{self.path.name}.old")  # the file for outdated answers
        self.earlier = 0  # number of inputs with an answer from an earlier run; `match` sets it
        self._keys: dict[str, str] = {}  # an input's name -> the key of its answer
        self._file = open_locked(self.path, _held(self.path))
        try:
            self._is_clean = self._scan()
        except BaseException:
            self._file.close()
            raise

    def match(self, inputs: Iterable[Input], keys: Keys) -> int:
        """Compare the answers with the present inputs; return the number of inputs."""
        count = 0
        outdated: set[str] = set()
        for each in inputs:
            count += 1
            if each.name in self._keys:
                try:
                    key = keys.make(each.content())
                except OSError:
                    key = ""  # sending it fails too, and reports the error
                if self._keys[each.name] == key:
                    self.earlier += 1
                else:
                    outdated.add(each.name)
        if outdated or not self._is_clean:
            self._rewrite(outdated)
        return count

    def has(self, name: str) -> bool:
        """Return whether an input has an answer from an earlier run, with an equal key."""
        return name in self._keys

    def write(self, names: Sequence[str], keys: Sequence[str], outcomes: Sequence[object]) -> None:
        """Write the outcomes of one request: each input's answer, or its ClientError."""
        lines = []
        for name, key, outcome in zip(names, keys, outcomes, strict=True):
            value = {"error": outcome.to_json()} if isinstance(outcome, ClientError) else {"answer": outcome}
            lines.append(orjson.dumps({"input": name, "key": key, **value}, option=orjson.OPT_APPEND_NEWLINE))
        # Flushed, so that killing this process loses no more than the last line.
        self._file.write(b"".join(lines))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _scan(self) -> bool:
        """Read the keys; return whether every line is complete and contains an answer."""
        self._file.seek(0)
        is_clean = True
        for number, line in enumerate(self._file, 1):
            record, is_whole = _parse(line), line.endswith(b"\n")
            # The last line of a killed run may be incomplete.
            if not record and (is_whole or not line.startswith(START[: len(line)])):
                raise InvalidPayload(
                    f"{printable(self.path)}: line {number} is not an answer of `predict`; name another file"
                )
            if "answer" in record:
                self._keys[record["input"]] = str(record.get("key", ""))  # files of version 0.1 have no keys
            is_clean = is_clean and is_whole and "answer" in record
        return is_clean

    def _rewrite(self, outdated: set[str]) -> None:
        """Replace the file, in one rename, by one without errors and outdated answers."""
        if outdated:
            with self.old_path.open("ab") as old:
                old.writelines(line for name, line in self._lines() if name in outdated)
        with replacing(self.path) as partial:
            new = partial.open("x+b")
            try:
                lock(new, _held(self.path))
                shutil.copymode(self.path, partial)
                new.writelines(line for name, line in self._lines() if name not in outdated)
                new.flush()
            except BaseException:
                new.close()
                raise
        self._file.close()
        self._file = new
        for name in outdated:
            del self._keys[name]

    def _lines(self) -> Iterator[tuple[str, bytes]]:
        self._file.seek(0)
        for line in self._file:
            if "answer" in (record := _parse(line)):
                yield record["input"], line.rstrip(b"\n") + b"\n"


def _parse(line: bytes) -> Json:
    """Parse a line; return an empty dict for a line of another program."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    is_ours = isinstance(record, dict) and isinstance(record.get("input"), str) and record.keys() & {"answer", "error"}
    return record if is_ours else {}


def _held(path: Path) -> InvalidPayload:
    return InvalidPayload(f"{printable(path)}: another run writes to it; wait for it or name another file")
