"""The options of `archive.sh` on precisions, checked before the build starts. Imports no library of models.

--precision int8 --calibrate PATH --validate PATH --min-agreement X -> PrecisionRequest -> checked for a model
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deploy.archives.precision.inputs import FEWEST, IMAGES, PAIRS, QUESTIONS, TASKS, TWO_GRAPHS, list_inputs
from deploy.models import Engine, ModelEntry
from handlers.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class PrecisionRequest:
    """The options on precisions."""

    precision: Literal["int8"] | None = None
    # A folder or file of inputs, from which int8 learns the ranges of activations.
    calibrate: Path | None = None
    # Inputs that compare precisions with fp32; None for a part of `calibrate`, or, without it, the examples' samples.
    validate: Path | None = None
    # The least agreement; None for the task's default.
    least: float | None = None

    def check(self, model: ModelEntry, engine: Engine) -> None:
        """Raise InvalidConfig if the model cannot have this precision, or inputs are missing."""
        if self.precision is None:
            if self.validate is not None and (model.handler not in TASKS or engine == "torch"):
                raise InvalidConfig(f"{model.name}: --validate: this archive has no precision to prove")
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
            raise InvalidConfig(f"{model.name}: --precision int8 needs OpenVINO: leave out --engine torch")
        if self.calibrate is None:
            raise InvalidConfig(
                f"{model.name}: --precision int8 needs --calibrate {_describe_inputs(model)}, at least {FEWEST} and "
                "preferably some hundred such as clients send; int8 learns the ranges of activations from them"
            )
        self._check_paths(model)

    def _check_paths(self, model: ModelEntry) -> None:
        given = {"--calibrate": self.calibrate, "--validate": self.validate}
        paths = {option: path for option, path in given.items() if path is not None}
        for option, path in paths.items():
            if model.handler in IMAGES and path.is_file():
                raise InvalidConfig(f"{model.name}: {option} {path}: expected a folder of images, received a file")
        if len(paths) == 2 and len({path.resolve() for path in paths.values()}) == 1:
            raise InvalidConfig(
                f"{model.name}: --validate has the inputs of --calibrate: a proof needs inputs that int8 has not seen"
            )
        for path in paths.values():
            list_inputs(path)

    def identity(self) -> str:
        """Return a text that changes with the options and with any input."""
        paths = [None if path is None else _identify(path) for path in (self.calibrate, self.validate)]
        return repr((self.precision, self.least, *paths))


def read_processor(path: Path = Path("/proc/cpuinfo")) -> str:
    """Name the machine's instructions that decide the arithmetic of a precision; empty if they are unknown."""
    try:
        with path.open(encoding="utf-8") as file:
            line = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return ""
    return " ".join(sorted(flag for flag in line.split() if flag.startswith(("amx_", "avx"))))


def _describe_inputs(model: ModelEntry) -> str:
    if model.handler in IMAGES:
        return "FOLDER, of images"
    if model.handler in QUESTIONS:
        return 'FILE, of lines {"question": ..., "context": ...}'
    if model.handler in PAIRS:
        return 'FILE, of lines {"query": ..., "document": ...}'
    return "FILE, of texts, one a line, or FOLDER, of texts"


def _identify(path: Path) -> list[tuple[str, int, int]]:
    files = [each.value for each in list_inputs(path) if isinstance(each.value, Path)] if path.is_dir() else [path]
    root = path if path.is_dir() else path.parent
    found = [(file.relative_to(root).as_posix(), file.stat()) for file in files]
    return [(name, status.st_size, status.st_mtime_ns) for name, status in found]
