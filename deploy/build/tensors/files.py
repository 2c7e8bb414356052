"""Which file a model of tensors is, and which files belong to it. Nothing here reads a model, or imports torch.

weights: mnist.onnx, a folder, infer.py -> found -> ModelFile: the one file, of a known kind
mnist.onnx -> companions -> mnist.onnx.data, model.xml -> model.bin
"""

import mmap
import re
from dataclasses import dataclass
from pathlib import Path

from handlers.errors import InvalidConfig

# The function of a model in Python: the file's name, as handlers.engines.function loads it.
INFER = "infer.py"
SUFFIXES = (".onnx", ".xml", ".pt2", ".pt")
KINDS = f"{', '.join(SUFFIXES)} or {INFER}"

# An entry of a tensor's `external_data` in an ONNX file, a field of protobuf below 128 bytes: tag and length, the
# key `location`, the length of its value. https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
EXTERNAL = re.compile(rb"j[\x0d-\x7f]\n\x08location\x12([\x01-\x73])(?!\n)", re.DOTALL)


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
    """Read which files beside an ONNX file hold its tensors' data, without reading the tensors."""
    if not path.stat().st_size:
        return set()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = [(match.end(), match.end() + match[1][0]) for match in EXTERNAL.finditer(data)]
        return {data[start:end].decode(errors="replace") for start, end in found}
