"""Reads what is sent: bodies from files, folders and lists.

photograph.jpg     one request, typed by its name
texts.txt          one request a line, text/plain
requests.jsonl     one request a line, application/json
request.json       one request, unless it is perf_analyzer's list: {"data": [{"TORCHSERVE_INPUT": [PATH]}, ...]},
                   whose paths are relative to the current folder or its own
folder/            every file in it by these rules, in the order of their names; hidden ones are left out
"""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from load.errors import LoadError

TYPES = {
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".bmp": "image/bmp",
    ".json": "application/json",
    ".jsonl": "application/json",
    ".txt": "text/plain; charset=utf-8",
}
BY_LINE = (".jsonl", ".txt")
ANY_TYPE = "application/octet-stream"
PERF_ANALYZER_KEY = "TORCHSERVE_INPUT"


@dataclass(frozen=True, slots=True)
class Input:
    """The body of a request, its media type, and the file's name; "texts.txt:3" is a line."""

    body: bytes
    content_type: str = ANY_TYPE
    name: str = ""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that may be sent, at least one; `seed` mixes them at random, None sends them in turn."""

    items: Sequence[Input]
    seed: int | None = None

    @classmethod
    def of(cls, bodies: Iterable[bytes], content_type: str = ANY_TYPE) -> "Inputs":
        """Make inputs of bodies, to be sent in turn; the name of each is its number."""
        return cls(tuple(Input(body, content_type, str(number)) for number, body in enumerate(bodies)))

    def order(self, client: int) -> Iterator[int]:
        """Yield the numbers of the inputs as a client sends them, without end and the same every time."""
        if self.seed is None:
            # Every client begins with another input.
            return ((client + sent) % len(self.items) for sent in count())
        chance = random.Random(f"{self.seed}/{client}")
        return (chance.randrange(len(self.items)) for _ in count())


def read(paths: Iterable[Path], content_type: str | None = None) -> tuple[Input, ...]:
    """Read files and folders; `content_type` is that of all inputs, None takes it from the files' names.

    Raises:
        LoadError: a file cannot be read, or there is nothing to send.
    """
    items = tuple(item for path in paths for item in _read(path))
    if not items:
        raise LoadError("there is nothing to send: name a file or folder with --input that is not empty")
    return items if content_type is None else tuple(replace(item, content_type=content_type) for item in items)


def _read(path: Path) -> Iterator[Input]:
    try:
        if path.is_dir():
            for each in sorted(path.rglob("*")):
                if each.is_file() and not any(part.startswith(".") for part in each.relative_to(path).parts):
                    yield from _read(each)
            return
        body = path.read_bytes()
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror}") from error
    suffix = path.suffix.lower()
    content_type = TYPES.get(suffix, ANY_TYPE)
    if suffix in BY_LINE:
        lines = ((number, line.strip()) for number, line in enumerate(body.splitlines(), 1))
        yield from (Input(line, content_type, f"{path.name}:{number}") for number, line in lines if line)
    elif suffix == ".json" and (listed := _perf_analyzer(path, body)) is not None:
        for each in listed:
            yield from _read(each)
    else:
        yield Input(body, content_type, path.name)


def _perf_analyzer(path: Path, body: bytes) -> list[Path] | None:
    """Return the files that perf_analyzer's list of inputs names; None where the file is no such list."""
    try:
        content = json.loads(body)
    except ValueError as error:
        raise LoadError(f"{path} is not JSON: {error}") from error
    if not (isinstance(content, dict) and set(content) == {"data"} and isinstance(content["data"], list)):
        return None
    entries = list(_flat(content["data"]))
    if not any(isinstance(entry, dict) and PERF_ANALYZER_KEY in entry for entry in entries):
        return None
    named = []
    for entry in entries:
        files = entry.get(PERF_ANALYZER_KEY) if isinstance(entry, dict) else None
        if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
            raise LoadError(f'{path}: every entry of "data" must be {{"{PERF_ANALYZER_KEY}": [PATH, ...]}}')
        named += [Path(file) if Path(file).exists() else path.parent / file for file in files]
    return named


def _flat(values: list[Any]) -> Iterator[Any]:
    """Yield all entries; perf_analyzer groups them into sequences by a further list."""
    for value in values:
        if isinstance(value, list):
            yield from _flat(value)
        else:
            yield value
