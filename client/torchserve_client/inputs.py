"""The inputs of `predict`, read one at a time: never all of them are in memory.

    folder of files | file of lines -> Source: inputs by name, of one shard or all, read anew with each iteration
    model, options, content         -> Keys: a key of each input

A name says where an input is, and changes when a line is inserted before it. A key is a hash of what decides its
answer: the input, the model and the options.

A shard is one of several shares, so that as many runs do the work of one. An input belongs to exactly one shard, by a
hash of its name alone: the shards are disjoint, together they are everything, and a file that is added later moves no
other. Of a million inputs in 16 shards, each has 62,500 give or take 250 (the binomial's standard deviation).
"""

import os
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import orjson

from torchserve_client.errors import InvalidPayload

# Bytes of a key: among a billion inputs, two have the same with a probability of 10^-21 (birthday bound).
KEY_BYTES = 16
# Most shards of one input: as many as an Indexed Job of Kubernetes has with full parallelism.
MOST_SHARDS = 100_000
# Bytes of a name's hash: its remainder by any number of shards is even but for 10^-14.
NAME_BYTES = 8


@dataclass(frozen=True, slots=True)
class Input:
    """One input.

    Attributes:
        name: a file's path in its folder, or a line's number from 1 on.
        value: the file, or the line.
    """

    name: str
    value: Path | str

    def content(self) -> bytes:
        """Return what is sent.

        Raises:
            OSError: the file cannot be read.
        """
        return self.value.encode() if isinstance(self.value, str) else self.value.read_bytes()


@dataclass(frozen=True, slots=True)
class Shard:
    """A share of the inputs: the one of this index, from 0 on, of so many."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read "3/16".

        Raises:
            ValueError: it is not of this form, or there is no such shard.
        """
        if not (match := re.fullmatch(r"([0-9]{1,7})/([0-9]{1,7})", text)):
            raise ValueError(f"{text!r} is not INDEX/COUNT, as in 3/16")
        index, count = int(match[1]), int(match[2])
        if not 1 <= count <= MOST_SHARDS:
            raise ValueError(f"of {count} shards there are none: 1 to {MOST_SHARDS}")
        if index >= count:
            raise ValueError(f"of {count} shards there is no {index}: 0 to {count - 1}")
        return cls(index, count)

    def has(self, name: str) -> bool:
        """Return whether an input belongs to this shard.

        Args:
            name: of the input, as `predict` writes it: a file's path in its folder with "/", or a line's number. Two
                spellings of the same characters (Unicode's NFC and NFD, which macOS changes into) are one name.
        """
        written = unicodedata.normalize("NFC", name).encode()
        return int.from_bytes(blake2b(written, digest_size=NAME_BYTES).digest(), "big") % self.count == self.index

    def file(self, folder: Path) -> Path:
        """Return the file of a folder that holds the answers of this shard."""
        width = len(str(self.count))
        return folder / f"shard-{self.index:0{width}}-of-{self.count}.jsonl"


@dataclass(frozen=True, slots=True)
class Source:
    """The inputs of a folder, in the order of their names, or of a file of lines; each iteration reads them anew.

    Attributes:
        path: the folder or the file.
        lines: the open file; None of a folder.
        own: names of files of the folder that are no inputs.
        shard: the one whose inputs these are; None for all of them.
    """

    path: Path
    lines: IO[bytes] | None = None
    own: frozenset[str] = frozenset()
    shard: Shard | None = None

    def __iter__(self) -> Iterator[Input]:
        """Read from the start; a pass ends before the next one begins.

        Raises:
            InvalidPayload: the file is not UTF-8.
        """
        every = self._below(self.path, "") if self.lines is None else self._numbered(self.lines)
        return (each for each in every if self.shard is None or self.shard.has(each.name))

    def _below(self, folder: Path, prefix: str) -> Iterator[Input]:
        """Walk, with no more in memory than the names of one folder and of those above it."""
        with os.scandir(folder) as entries:
            # A folder of a link could lead back here. With its "/" it stands where the paths of its files would.
            found = [
                entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "")
                for entry in entries
                if not entry.name.startswith(".") and (entry.is_dir(follow_symlinks=False) or entry.is_file())
            ]
        for name in sorted(found):
            if name.endswith("/"):
                yield from self._below(folder / name[:-1], prefix + name)
            elif prefix + name not in self.own:
                yield Input(shown(prefix + name), folder / name)

    def _numbered(self, file: IO[bytes]) -> Iterator[Input]:
        file.seek(0)
        # Not splitlines(): a form feed or U+2028 within a text would count as its end, and editors number otherwise.
        with os.fdopen(os.dup(file.fileno()), encoding="utf-8-sig") as text:
            try:
                for number, line in enumerate(text, 1):
                    if line.strip():
                        yield Input(str(number), line.removesuffix("\n"))
            except UnicodeDecodeError as error:
                words = "neither a folder nor a file of UTF-8 lines"
                raise InvalidPayload(f"{shown(self.path)}: {words}") from error


@contextmanager
def source(path: Path, own: frozenset[str] = frozenset(), shard: Shard | None = None) -> Iterator[Source]:
    """Open what is asked about, until the end of the block.

    Args:
        path: a folder, in which every file at any depth is one input and hidden ones are left out; or a file of UTF-8
            text, in which every line is one input and empty ones are left out.
        own, shard: as of `Source`.

    Raises:
        InvalidPayload: there is no such file or folder.
    """
    if path.is_dir():
        yield Source(path, own=own, shard=shard)
        return
    with ExitStack() as stack:
        try:
            file: IO[bytes] = stack.enter_context(path.open("rb"))
        except OSError as error:
            raise InvalidPayload(f"{shown(path)}: {error.strerror}") from error
        if not path.is_file():
            # A pipe can be read once, and it is gone through twice.
            copy = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(file, copy)
            file = copy
        yield Source(path, file, shard=shard)


class Keys:
    """Makes the keys of one model's inputs."""

    def __init__(self, model: str, options: Mapping[str, Any]) -> None:
        """Take what all inputs have in common: the model's name, and its options, which JSON can hold."""
        common = orjson.dumps([model, dict(options)], option=orjson.OPT_SORT_KEYS)
        self._hash = blake2b(b"%d:%b" % (len(common), common), digest_size=KEY_BYTES)

    def of(self, content: bytes) -> str:
        """Return the key of an input by what is sent of it."""
        whole = self._hash.copy()
        whole.update(content)
        return whole.hexdigest()


def shown(path: str | Path) -> str:
    r"""Return a path as text that can be written: bytes of it that are not UTF-8 stand as \xe9."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
