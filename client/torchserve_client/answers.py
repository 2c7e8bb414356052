"""Lists what to ask for, and keeps the answers in a file: none is lost, and none is asked for twice.

    folder of files | file of lines -> inputs, each with a name -> requests of one file or of several lines
    answers.jsonl: {"input": NAME, "answer": ...} or {"input": NAME, "error": {"code", "type", "message"}}

A line is written at once and whole. `Answers.open` cuts a last line that a kill left half-written, drops errors so that
they are asked for again, and knows the names that have an answer.
"""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import orjson

from torchserve_client.errors import ClientError, InvalidPayload

# Every line begins so: a line that does not is of somebody else's file, and no half-written one of ours.
START = b'{"input":'


@dataclass(frozen=True, slots=True)
class Request:
    """One request that is still to be sent.

    Attributes:
        names: its inputs' names: a file's path in its folder, or a line's number from 1 on.
        payload: what is sent: a path, or a list of lines.
    """

    names: tuple[str, ...]
    payload: Path | list[str]


def requests(source: Path, answered: set[str], lines: int) -> list[Request]:
    """List the requests that are still to be sent, in order.

    Args:
        source: a folder, in which every file at any depth is one input and hidden ones are left out; or a file of UTF-8
            text, in which every line is one input and empty ones are left out.
        answered: names of the inputs that are left out.
        lines: most lines that one request holds.

    Returns:
        One request for each file of a folder, or for each `lines` lines of a file.

    Raises:
        InvalidPayload: there is no such file or folder, it is empty, or the file is not UTF-8.
    """
    found = _files(source) if source.is_dir() else _lines(source)
    if not found:
        raise InvalidPayload(f"{source}: nothing in it to predict")
    wanted = [(name, value) for name, value in found if name not in answered]
    if source.is_dir():
        return [Request((name,), source / value) for name, value in wanted]
    groups = [wanted[start : start + lines] for start in range(0, len(wanted), lines)]
    return [Request(tuple(name for name, _ in group), [value for _, value in group]) for group in groups]


def _files(folder: Path) -> list[tuple[str, str]]:
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    names = sorted(path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts))
    return [(name, name) for name in names]


def _lines(path: Path) -> list[tuple[str, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidPayload(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidPayload(f"{path}: neither a folder nor a file of UTF-8 lines") from error
    # Not splitlines(): a form feed or U+2028 within a text would count as its end, and editors number otherwise.
    return [(str(number), line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


class Answers:
    """A jsonl file of answers, appended to from several threads."""

    def __init__(self, path: Path, answered: set[str]) -> None:
        """Append to a file; `open` checks what it holds first.

        Args:
            path: the jsonl file.
            answered: names of the inputs that it has answers to.
        """
        self.path = path
        self.answered = answered
        self._file = path.open("ab")
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Start the file, or go on with it.

        Args:
            path: the jsonl file; it need not exist.

        Raises:
            InvalidPayload: the file holds something else; it is left as it is.
            OSError: the file cannot be written.
        """
        kept: list[bytes] = []
        answered: set[str] = set()
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        for number, line in enumerate(lines, 1):
            name = _answered(line)
            is_cut_off = number == len(lines) and line.startswith(START[: len(line)])
            if name is None and not is_cut_off:
                raise InvalidPayload(f"{path}: line {number} is no answer of ours; name another file")
            if name and name not in answered:
                kept.append(line + b"\n")
                answered.add(name)
        content = b"".join(kept)
        if lines and content != path.read_bytes():
            partial = path.with_name(f".{path.name}.{os.getpid()}")
            partial.write_bytes(content)
            partial.replace(path)
        return cls(path, answered)

    def write(self, names: Sequence[str], outcomes: Sequence[Any]) -> None:
        """Write the outcomes of one request.

        Args:
            names: the inputs' names.
            outcomes: for each input its answer, or the ClientError that it ended with.
        """
        made = []
        for name, outcome in zip(names, outcomes, strict=True):
            is_error = isinstance(outcome, ClientError)
            value = {"error": outcome.to_json()} if is_error else {"answer": outcome}
            made.append(orjson.dumps({"input": name, **value}, option=orjson.OPT_APPEND_NEWLINE))
        with self._lock:
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


def _answered(line: bytes) -> str | None:
    """Return the name of the input that a line answers; "" where it holds an error, None where it is not ours."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("input"), str):
        return None
    if "answer" in record:
        return str(record["input"])
    return "" if "error" in record else None
