"""The file of a model of tensors, and the files that belong to it. No model is read, and torch is not imported.

weights: mnist.onnx, a folder, infer.py -> find_model_file -> ModelFile: the one file, of a known kind
mnist.onnx -> find_companions -> mnist.onnx.data; model.xml -> model.bin
"""

import mmap
import re
from dataclasses import dataclass
from pathlib import Path

from deploy.archives.task_file import list_files
from handlers.errors import InvalidConfig

INFER = "infer.py"  # the file of a model that is a Python function, as handlers.engines.function loads it
SUFFIXES = (".onnx", ".xml", ".pt2", ".pt")
KINDS = f"{', '.join(SUFFIXES)} or {INFER}"

# An entry of a tensor's `external_data` in an ONNX file, as protobuf in less than 128 bytes: tag and length, the key
# `location`, the length of its value. https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
EXTERNAL = re.compile(rb"j[\x0d-\x7f]\n\x08location\x12([\x01-\x73])(?!\n)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ModelFile:
    path: Path  # has one of SUFFIXES, or is infer.py
    # The files of infer.py's folder, by their paths in it; empty if infer.py itself was named.
    beside: tuple[Path, ...] = ()

    @property
    def is_function(self) -> bool:
        return self.path.name == INFER


def find_model_file(path: Path) -> ModelFile:
    """Find the model of a path; InvalidConfig for a file of another kind, or a folder without exactly one model."""
    if not path.is_dir():
        if path.suffix == ".py" and path.name != INFER:
            raise InvalidConfig(f"{path.name}: the function of a model must be in {INFER}; rename the file")
        if path.name != INFER and path.suffix not in SUFFIXES:
            raise InvalidConfig(f"{path.name} is not a model of tensors; expected {KINDS}")
        return ModelFile(path)
    if (path / INFER).is_file():
        return ModelFile(path / INFER, tuple(file.relative_to(path) for file in list_files(path)))
    there = [file for file in sorted(path.iterdir()) if file.suffix in SUFFIXES and file.is_file()]
    if len(there) != 1:
        names = ", ".join(file.name for file in there) or "none"
        raise InvalidConfig(f"{path.name}/ must contain one model ({KINDS}); it has {names}")
    return ModelFile(there[0])


def find_companions(path: Path) -> list[Path]:
    """Find the other files of a model: an .xml's .bin, an ONNX file's external data."""
    if path.suffix == ".xml":
        return [path.with_suffix(".bin")]
    if path.suffix == ".onnx":
        return [path.parent / name for name in sorted(_list_external_data(path))]
    return []


def _list_external_data(path: Path) -> set[str]:
    """List the files with an ONNX file's tensors, without reading the tensors."""
    if not path.stat().st_size:
        return set()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = [(match.end(), match.end() + match[1][0]) for match in EXTERNAL.finditer(data)]
        return {data[start:end].decode(errors="replace") for start, end in found}
