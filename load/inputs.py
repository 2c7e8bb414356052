"""Reads the bodies to send from files, folders and lists.

photograph.jpg     one request, with the media type of its name
texts.txt          one request per line, text/plain
requests.jsonl     one request per line, application/json
request.json       one request
folder/            every file in it by these rules, in the order of their names, except hidden ones
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from load import LoadError

TYPES = {
    **{f".{suffix}": f"image/{suffix}" for suffix in ("jpeg", "png", "webp", "gif", "bmp")},
    ".jpg": "image/jpeg",
    ".json": "application/json",
    ".jsonl": "application/json",
    ".txt": "text/plain; charset=utf-8",
}
ANY_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Input:
    """The body of a request, its media type, and the name of its file; "texts.txt:3" is a line."""

    body: bytes
    content_type: str = ANY_TYPE
    name: str = ""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs to send, at least one."""

    items: Sequence[Input]

    @classmethod
    def of(cls, bodies: Iterable[bytes], content_type: str = ANY_TYPE) -> "Inputs":
        return cls(tuple(Input(body, content_type, str(number)) for number, body in enumerate(bodies)))

    def order(self, client: int) -> Iterator[int]:
        """Yield the numbers of the inputs in turn, endlessly; clients begin with different ones."""
        return ((client + sent) % len(self.items) for sent in count())


def read(paths: Iterable[Path], content_type: str | None = None) -> Inputs:
    """Read files and folders; `content_type` None means the media type of each file's name."""
    try:
        items = tuple(item for path in paths for item in _read(path))
    except OSError as error:
        raise LoadError(f"cannot read {error.filename}: {error.strerror}") from error
    if not items:
        raise LoadError("--input contains nothing to send: name a file or folder that is not empty")
    return Inputs(tuple(replace(item, content_type=content_type or item.content_type) for item in items))


def _read(path: Path) -> Iterator[Input]:
    if path.is_dir():
        for each in sorted(path.rglob("*")):
            if each.is_file() and not any(part.startswith(".") for part in each.relative_to(path).parts):
                yield from _read(each)
        return
    body, suffix = path.read_bytes(), path.suffix.lower()
    content_type = TYPES.get(suffix, ANY_TYPE)
    if suffix in (".jsonl", ".txt"):
        lines = ((number, line.strip()) for number, line in enumerate(body.splitlines(), 1))
        yield from (Input(line, content_type, f"{path.name}:{number}") for number, line in lines if line)
    else:
        yield Input(body, content_type, path.name)
