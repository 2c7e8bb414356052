"""The files of an archive: the builder records them, and the worker checks that it finds exactly these.

builder: packed files -> sums -> Build -> build.json
worker:  build.json -> Build, its folder -> sums -> equal, or InvalidConfig with the files' names
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib.machinery import all_suffixes
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath

from handlers.aliases import Json
from handlers.errors import InvalidConfig
from handlers.proofs import Proof, read_proofs

logger = logging.getLogger(__name__)

# The version of build.json, of settings, of metrics and of the names that hosts in Python import. It counts up with
# each change that older archives do not have.
FORMAT = 5
BUILD = "build.json"
CONFIG = "model-config.yaml"
# Programs that PyTorch runs in place of OpenVINO's graph, beside a checkpoint's safetensors.
TORCH_FILES = frozenset({"model.pt", "model.pt2"})
LABEL = "label.json"  # `Build.label` as a file, from the builder that converted the model
GRAPH = "model.xml"  # the exported graph for OpenVINO in fp32; its weights are in a .bin
INT8_GRAPH = "model-int8.xml"  # the graph in int8, if the archive was built with it
PROOFS = "proofs.json"  # `Build.proofs` as a file, from the builder that measured them
VECTOR_SPACE = "vector-space.txt"  # the identity of a model's vectors, without the precision
FIDELITY = "fidelity.json"  # `Build.fidelity` as a file
# The folder of a checkpoint, or of other files named as weights; it is not on the worker's import path.
CHECKPOINT = "checkpoint"
HASHING_THREADS = 4  # SHA-256 releases the GIL. Two or three files of weights are most of an archive.
MOST_NAMES = 5  # the most files of a kind that a message names; it counts the others


@dataclass(frozen=True, slots=True)
class Build:
    fingerprint: str  # a hash of all inputs; archives with equal fingerprints are equal
    weights: str  # their source
    is_folder: bool  # whether it was built as a folder for development, in which code and settings may be edited
    # SHA-256 of every file by its path in the archive, except build.json and the manifest, which torch-model-archiver
    # and a rollout write later.
    files: Mapping[str, str]
    # Properties of a converted model: engine, precision, and the difference of its answers from the original's.
    label: Mapping[str, str | float] = field(default_factory=dict)
    # Agreement with fp32 by precision, as `handlers.proofs.Proof.to_json` returns it.
    proofs: Mapping[str, Json] = field(default_factory=dict)
    # Agreement of the answers in fp32 with the model's own, and the settings that this needs.
    fidelity: Mapping[str, object] = field(default_factory=dict)
    made_with: str = ""  # the version of torchserve-batching
    requirements: Sequence[str] = ()  # packages that the task needs beside this project's
    options: Sequence[str] = ()  # those of `archive`; a path below the folder of the state, or /NAME for another
    inputs: str = ""  # a hash of the weights and options, which is a part of the fingerprint

    def to_json(self) -> str:
        """Return the text of build.json, which contains its format and a sum over itself."""
        content = {**asdict(self), "format": FORMAT}
        return json.dumps({**content, "sum": _sum(content)})

    @classmethod
    def from_json(cls, text: bytes) -> "Build":
        content = json.loads(text)
        if not isinstance(content, dict) or content.pop("sum", None) != _sum(content):
            raise ValueError("its checksum does not match")
        if (found := content.pop("format", 1)) != FORMAT:
            problem = f"this archive has format {found}, and its handlers need format {FORMAT}"
            raise InvalidConfig(f"{problem}: build it again with torchserve-batching archive")
        try:
            return cls(**content)
        except TypeError:
            raise ValueError("it has other fields") from None


def _sum(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def hash_files(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the SHA-256 of files by their names, without those that cannot be read."""
    names = sorted(files)
    with ThreadPoolExecutor(HASHING_THREADS, "sums") as pool:
        found = zip(names, pool.map(lambda name: _sha256(files[name]), names), strict=True)
        return {name: value for name, value in found if value is not None}


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def check(folder: Path, *, is_torch_unread: bool = False) -> str | None:
    """Compare a folder with its build.json: return its fingerprint, None after edits; reject added code or weights."""
    try:
        build = Build.from_json((folder / BUILD).read_bytes())
    except FileNotFoundError:
        logger.warning("This archive has no %s, which a build writes: its files are not checked", BUILD)
        return None
    except InvalidConfig:
        raise
    except (OSError, ValueError) as error:
        raise InvalidConfig(_rejection({"changed": [BUILD]})) from error
    if missing := find_missing(build.requirements):
        raise InvalidConfig(
            f"the archive's requirements are not installed in the worker's environment: {', '.join(missing)}"
        )
    unread = {name for name in build.files if _is_torch(name)} if is_torch_unread and GRAPH in build.files else set()
    found = hash_files({name: folder / name for name in build.files.keys() - unread})
    found |= {name: build.files[name] for name in unread if (folder / name).is_file()}
    problems = {
        "changed": [name for name, value in found.items() if value != build.files[name]],
        "missing": sorted(build.files.keys() - found.keys()),
        "not built": sorted(name for name in _names(folder) - build.files.keys() if _is_read(name)),
    }
    edits = {kind: [name for name in names if build.is_folder and _is_source(name)] for kind, names in problems.items()}
    rejected = {kind: [name for name in names if name not in edits[kind]] for kind, names in problems.items()}
    if any(rejected.values()):
        raise InvalidConfig(_rejection(rejected))
    if any(edits.values()):
        logger.warning("This folder was edited since it was built: %s", _listed(edits))
        return None
    return build.fingerprint


def find_missing(requirements: Iterable[str]) -> list[str]:
    """Return the requirements that this environment does not meet, each with the installed version of its package."""
    return [f"{each}{found}" for each in requirements if (found := _describe_missing(each)) is not None]


def _describe_missing(requirement: str) -> str | None:
    from packaging.requirements import Requirement  # noqa: PLC0415 - only for archives that have any

    wanted = Requirement(requirement)
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        return ""
    return None if wanted.specifier.contains(found, prereleases=True) else f" (installed is {found})"


def find_checkpoint(folder: Path) -> Path:
    """Return the folder of weights in an archive; InvalidConfig if the archive has none."""
    found = folder / CHECKPOINT
    if not found.is_dir():
        raise InvalidConfig(f"this archive has no {CHECKPOINT}/, the folder of weights: build it again with --weights")
    return found


def load_build(folder: Path) -> Build | None:
    """Read the archive's build.json; None if it cannot be read."""
    try:
        return Build.from_json((folder / BUILD).read_bytes())
    except (OSError, ValueError):
        return None


def load_proofs(folder: Path) -> dict[str, Proof]:
    """Read the archive's proofs by precision; none if its build.json cannot be read."""
    build = load_build(folder)
    return read_proofs(build.proofs) if build else {}


def read_vector_space(folder: Path) -> str:
    """Return the identity of the archive's vectors; "" if it has none."""
    path = folder / VECTOR_SPACE
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def _names(folder: Path) -> set[str]:
    """Return every file's path in the archive, without those that TorchServe and Python add."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir())
    return {path.as_posix() for path in paths if not _is_added(path)}


def _is_added(path: Path) -> bool:
    """Whether a running worker has added the file: compiled Python, or the environment of `useVenv: true`."""
    return (path.parent.name == "__pycache__" and path.suffix == ".pyc") or path.parts[0] == "venv"


def _is_torch(name: str) -> bool:
    """Whether only PyTorch reads the file."""
    path = PurePosixPath(name)
    return name in TORCH_FILES or (path.parts[0] == CHECKPOINT and path.suffix == ".safetensors")


def _is_read(name: str) -> bool:
    return _is_code(name) or PurePosixPath(name).parts[0] == CHECKPOINT


def _is_source(name: str) -> bool:
    """Whether developers edit such a file in place, instead of building the archive again."""
    return name == CONFIG or (_is_code(name) and PurePosixPath(name).parts[0] != CHECKPOINT)


def _is_code(name: str) -> bool:
    return name.endswith(tuple(all_suffixes()))


def _rejection(problems: Mapping[str, Iterable[str]]) -> str:
    return f"the archive's files differ from its build: {_listed(problems)}; copy it again, or build it with --force"


def _listed(problems: Mapping[str, Iterable[str]]) -> str:
    parts = []
    for kind, names in problems.items():
        first, others = [*names][:MOST_NAMES], [*names][MOST_NAMES:]
        if first:
            parts.append(f"{kind}: {', '.join(first)}" + (f" and {len(others)} more" if others else ""))
    return "; ".join(parts)
