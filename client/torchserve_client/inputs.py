"""The inputs of `predict`, read one at a time to bound memory.

    folder of files | file of lines -> inputs by name
    model, options, content         -> Keys: a key of each input

A name is the place of an input, and changes when a line is inserted before it. A key is a hash of the input, the model
and the options, which determine the answer.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NoReturn

import orjson

from torchserve_client.errors import InvalidPayload

KEY_BYTES = 16  # bytes of a key: two of a billion inputs have equal keys with a probability of 10^-21 (birthday bound)


@dataclass(frozen=True, slots=True)
class Input:
    name: str  # a file's path in its folder, or a line's number from 1 on
    value: Path | str  # the file, or the line

    def content(self) -> bytes:
        """Return the bytes to send; raise OSError if the file cannot be read."""
        return self.value.encode() if isinstance(self.value, str) else self.value.read_bytes()


def read_inputs(path: Path, excluded: Collection[Path] = ()) -> Iterator[Input]:
    """Yield a folder's files, except hidden and excluded ones, or a file's lines; InvalidPayload or OSError."""
    return _files(path.resolve(), excluded) if path.is_dir() else _lines(path)


def _files(root: Path, excluded: Collection[Path]) -> Iterator[Input]:
    def fail(error: OSError) -> NoReturn:
        raise error

    # Links to folders could lead back here: `walk` does not follow them.
    for where, folders, names in os.walk(root, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(where, name)
            if not name.startswith(".") and file not in excluded and file.is_file():
                yield Input(printable(file.relative_to(root).as_posix()), file)


def _lines(path: Path) -> Iterator[Input]:
    words = f"{printable(path)}: neither a folder nor a file of UTF-8 lines"
    if path.exists() and not path.is_file():
        raise InvalidPayload(words)  # a pipe can be read only once, and `predict` reads inputs twice
    try:
        # Not splitlines(), which also splits at form feeds and U+2028, unlike the line numbers of editors.
        with path.open(encoding="utf-8-sig") as text:
            for number, line in enumerate(text, 1):
                if line.strip():
                    yield Input(str(number), line.removesuffix("\n"))
    except OSError as error:
        raise InvalidPayload(f"{printable(path)}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidPayload(words) from error


class Keys:
    def __init__(self, model: str, options: Mapping[str, object]) -> None:
        """Hash the common part of all keys: the model's name and its options, which are valid JSON."""
        common = orjson.dumps([model, dict(options)], option=orjson.OPT_SORT_KEYS)
        self._hash = blake2b(b"%d:%b" % (len(common), common), digest_size=KEY_BYTES)

    def make(self, content: bytes) -> str:
        whole = self._hash.copy()
        whole.update(content)
        return whole.hexdigest()


def printable(path: str | Path) -> str:
    r"""Return a path as valid text: bytes that are not UTF-8 become \xe9."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
