"""What `archive.sh` was asked for of precisions, checked before anything takes long. Imports no library of models.

--precision int8 --calibrate PATH --validate PATH --min-agreement X -> PrecisionRequest -> checked for a model
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deploy.build.precision.inputs import FEWEST, IMAGES, PAIRS, QUESTIONS, TASKS, TWO_GRAPHS, listed
from deploy.models import Engine, ModelEntry
from handlers.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class PrecisionRequest:
    """What was asked for.

    Attributes:
        precision: what the archive is to carry beside fp32; None for nothing.
        calibrate: a folder or file of the inputs that int8 learns the ranges of activations from.
        validate: those that precisions are held against fp32 with; None for a part of the former, or, without it, for
            the samples that the examples have.
        least: the agreement below which a precision is not to be served; None for the task's own.
    """

    precision: Literal["int8"] | None = None
    calibrate: Path | None = None
    validate: Path | None = None
    least: float | None = None

    def check(self, model: ModelEntry, engine: Engine) -> None:
        """Check that a model can have it.

        Raises:
            InvalidConfig: it cannot, or inputs are missing; one line says what to give.
        """
        if self.precision is None:
            if self.validate is not None and (model.handler not in TASKS or engine == "torch"):
                raise InvalidConfig(f"{model.name}: --validate: there is no precision of this archive to prove")
            self._check_paths(model)
            return
        if model.handler == "translation":
            raise InvalidConfig(
                f"{model.name}: translation runs in int8 by itself: `precision` of its model-config.yaml, --min-chrf"
            )
        tasks = [task for task in TASKS if task not in TWO_GRAPHS]
        if model.handler not in tasks:
            raise InvalidConfig(f"{model.name}: --precision int8 is for {', '.join(tasks)}; this is {model.handler}")
        if engine == "torch":
            raise InvalidConfig(f"{model.name}: --precision int8 is OpenVINO's: leave out --engine torch")
        if self.calibrate is None:
            raise InvalidConfig(
                f"{model.name}: --precision int8 needs --calibrate {_needed(model)}, at least {FEWEST} and best "
                "some hundred of what clients send; the ranges of activations are learnt from them"
            )
        self._check_paths(model)

    def _check_paths(self, model: ModelEntry) -> None:
        given = {"--calibrate": self.calibrate, "--validate": self.validate}
        paths = {option: path for option, path in given.items() if path is not None}
        for option, path in paths.items():
            if model.handler in IMAGES and path.is_file():
                raise InvalidConfig(f"{model.name}: {option} {path}: images come as a folder of them, not as a file")
        if len(paths) == 2 and len({path.resolve() for path in paths.values()}) == 1:
            raise InvalidConfig(
                f"{model.name}: --validate has the inputs of --calibrate: what int8 has seen proves nothing"
            )
        for path in paths.values():
            listed(path)

    def identity(self) -> str:
        """Give a text that changes whenever what was asked for, or an input, may have."""
        paths = [None if path is None else _identity(path) for path in (self.calibrate, self.validate)]
        return repr((self.precision, self.least, *paths))


def processor(path: Path = Path("/proc/cpuinfo")) -> str:
    """Name the instructions of the machine that decide what a precision computes; nothing where nobody says."""
    try:
        with path.open(encoding="utf-8") as file:
            line = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return ""
    return " ".join(sorted(flag for flag in line.split() if flag.startswith(("amx_", "avx"))))


def _needed(model: ModelEntry) -> str:
    if model.handler in IMAGES:
        return "FOLDER, of images"
    if model.handler in QUESTIONS:
        return 'FILE, of lines {"question": ..., "context": ...}'
    if model.handler in PAIRS:
        return 'FILE, of lines {"query": ..., "document": ...}'
    return "FILE, of texts, one a line, or FOLDER, of texts"


def _identity(path: Path) -> list[tuple[str, int, int]]:
    files = [each.value for each in listed(path) if isinstance(each.value, Path)] if path.is_dir() else [path]
    root = path if path.is_dir() else path.parent
    found = [(file.relative_to(root).as_posix(), file.stat()) for file in files]
    return [(name, status.st_size, status.st_mtime_ns) for name, status in found]
