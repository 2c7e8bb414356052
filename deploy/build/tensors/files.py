"""Which file a model of tensors is, and which files belong to it. Nothing here reads a model, or imports torch.

weights: mnist.onnx, a folder, infer.py -> found -> ModelFile: the one file, of a known kind
mnist.onnx -> companions -> mnist.onnx.data, model.xml -> model.bin
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from handlers.errors import InvalidConfig

# The function of a model in Python: the file's name, as handlers.engines.function loads it.
INFER = "infer.py"
SUFFIXES = (".onnx", ".xml", ".pt2", ".pt")
KINDS = f"{', '.join(SUFFIXES)} or {INFER}"

# Where tensors with external data stand in an ONNX file: message -> number of a field -> the message in it.
# https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
_MESSAGES = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
    "tensor": {13: "entry"},
}
# Types of a protobuf field as they are written, and how many bytes those of a fixed size have.
_VARINT, _DELIMITED = 0, 2
_FIXED = {1: 8, 5: 4}


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The file that a model is.

    Attributes:
        path: of one of SUFFIXES, or infer.py.
        beside: what goes into the archive with infer.py, by its path from there; nothing where infer.py was named
            itself.
    """

    path: Path
    beside: tuple[Path, ...] = ()

    @property
    def is_function(self) -> bool:
        """Whether it is Python code."""
        return self.path.name == INFER


def model_file(path: Path) -> ModelFile:
    """Find the model that a path names, a file or a folder with one.

    Raises:
        InvalidConfig: it is of no known kind, or the folder holds none or more than one.
    """
    if not path.is_dir():
        if path.suffix == ".py" and path.name != INFER:
            raise InvalidConfig(f"{path.name}: the function of a model stands in {INFER}")
        if path.name != INFER and path.suffix not in SUFFIXES:
            raise InvalidConfig(f"{path.name} is no model of tensors: {KINDS} is needed")
        return ModelFile(path)
    if (path / INFER).is_file():
        return ModelFile(path / INFER, tuple(file.relative_to(path) for file in files_of(path)))
    there = [file for file in sorted(path.iterdir()) if file.suffix in SUFFIXES and file.is_file()]
    if len(there) != 1:
        names = ", ".join(file.name for file in there) or "none"
        raise InvalidConfig(f"{path.name}/ must hold one model ({KINDS}); it has {names}")
    return ModelFile(there[0])


def files_of(folder: Path) -> list[Path]:
    """List the files of a folder, wherever below it they lie; hidden ones and compiled Python are none of them."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in found if not any(map(_is_left_out, path.relative_to(folder).parts))]


def _is_left_out(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


def companions(path: Path) -> list[Path]:
    """List the files that a model's own file is not whole without."""
    if path.suffix == ".xml":
        return [path.with_suffix(".bin")]
    if path.suffix == ".onnx":
        return [path.parent / name for name in sorted(_external_data(path))]
    return []


def _external_data(path: Path) -> set[str]:
    """Read which files beside an ONNX file hold its tensors' data; of what is no such file, none."""
    with path.open("rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return set(_locations(data, 0, len(data), "model"))
        except (ValueError, IndexError):
            # It is empty, or broken; whoever converts it says so.
            return set()


def _locations(data: mmap.mmap, start: int, end: int, message: str) -> Iterator[str]:
    for number, first, last in _fields(data, start, end):
        inner = _MESSAGES[message].get(number)
        if inner == "entry":
            key, value = (bytes(data[a:b]).decode() for _, a, b in _fields(data, first, last))
            if key == "location":
                yield value
        elif inner is not None:
            yield from _locations(data, first, last, inner)


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Walk over a message: the number of each field that has a length, and where its content lies."""
    while start < end:
        tag, start = _varint(data, start)
        kind = tag & 7
        if kind == _VARINT:
            _, start = _varint(data, start)
        elif kind == _DELIMITED:
            length, start = _varint(data, start)
            yield tag >> 3, start, min(start + length, end)
            start += length
        elif kind in _FIXED:
            start += _FIXED[kind]
        else:
            raise ValueError(kind)


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # the last byte of a number has no upper bit
            return value, at
