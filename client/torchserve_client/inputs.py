"""The inputs of `predict`, read one at a time: never all of them are in memory.

    folder of files | file of lines -> inputs by name
    model, options, content         -> Keys: a key of each input

A name says where an input is, and changes when a line is inserted before it. A key is a hash of what decides its
answer: the input, the model and the options.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NoReturn

import orjson

from torchserve_client.errors import InvalidPayload

# Bytes of a key: among a billion inputs, two have the same with a probability of 10^-21 (birthday bound).
KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class Input:
    """One input."""

    name: str  # a file's path in its folder, or a line's number from 1 on
    value: Path | str  # the file, or the line

    def content(self) -> bytes:
        """Return what is sent.

        Raises:
            OSError: the file cannot be read.
        """
        return self.value.encode() if isinstance(self.value, str) else self.value.read_bytes()


def inputs_of(path: Path, own: Collection[Path] = ()) -> Iterator[Input]:
    """Yield the files of a folder, but hidden ones and `own`, or the lines of a file, but empty ones; in a fixed order.

    Raises:
        InvalidPayload: there is no such file or folder, or the file is not UTF-8.
        OSError: a folder cannot be read.
    """
    return _files(path.resolve(), own) if path.is_dir() else _lines(path)


def _files(root: Path, own: Collection[Path]) -> Iterator[Input]:
    def fail(error: OSError) -> NoReturn:
        raise error

    # Links to folders could lead back here: `walk` does not follow them.
    for where, folders, names in os.walk(root, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(where, name)
            if not name.startswith(".") and file not in own and file.is_file():
                yield Input(shown(file.relative_to(root).as_posix()), file)


def _lines(path: Path) -> Iterator[Input]:
    words = f"{shown(path)}: neither a folder nor a file of UTF-8 lines"
    if path.exists() and not path.is_file():
        # A pipe can be read once, and inputs are gone through twice.
        raise InvalidPayload(words)
    try:
        # Not splitlines(): a form feed or U+2028 within a text would count as its end, and editors number otherwise.
        with path.open(encoding="utf-8-sig") as text:
            for number, line in enumerate(text, 1):
                if line.strip():
                    yield Input(str(number), line.removesuffix("\n"))
    except OSError as error:
        raise InvalidPayload(f"{shown(path)}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidPayload(words) from error


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
