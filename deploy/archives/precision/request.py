"""Comparisons of a build with its model, and the options of `archive` on precisions. Imports no library of models.

--precision int8 --calibrate PATH --validate PATH --min-agreement X -> PrecisionRequest -> checked for a model
files of an archive -> the cache, or prove.py -> settings, proofs and an int8 graph beside them
"""

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.archives.exports import Exports, link_files
from deploy.archives.fingerprint import digest, find_modules
from deploy.archives.precision.inputs import FEWEST, MOST, find_sample_files, list_inputs
from deploy.archives.sources import Source
from deploy.archives.tasks import import_quietly, task_of
from deploy.models import ROOT, Engine, ModelEntry
from deploy.places import INSTALL_INT8
from deploy.progress import step
from deploy.rooms import ROOMS, open_room
from handlers.archive_files import GRAPH
from handlers.engines.cores import read_processor
from handlers.errors import InvalidConfig

# The programs that compare, and modules that decode their inputs: other code decodes other inputs.
PROGRAMS = [f"deploy.archives.precision.{name}" for name in ("prove", "text_fidelity", "image_fidelity")]
DECODING = ("handlers.vision.images", "handlers.text.handler", "handlers.text.answer_spans")


@dataclass(frozen=True, slots=True)
class PrecisionRequest:
    precision: str | None = None
    calibrate: Path | None = None  # a folder or file of inputs, from which int8 learns the ranges of activations
    # Inputs that compare precisions with fp32; None for a part of `calibrate`, or, without it, the examples' samples.
    validate: Path | None = None
    least: float | None = None  # the least agreement; None for the task's default

    def check(self, model: ModelEntry, engine: Engine) -> None:
        if self.precision is not None:
            open_room("int8").check(self, model, engine)
        elif self.validate is not None and (task_of(model).samples is None or engine == "torch"):
            raise InvalidConfig(f"{model.name}: --validate: this archive has no precision to prove")
        self._check_paths(model)

    def _check_paths(self, model: ModelEntry) -> None:
        given = {"--calibrate": self.calibrate, "--validate": self.validate}
        paths = {option: path for option, path in given.items() if path is not None}
        for option, path in paths.items():
            if task_of(model).samples == "images" and path.is_file():
                raise InvalidConfig(f"{model.name}: {option} {path}: expected a folder of images, received a file")
        if len(paths) == 2 and len({path.resolve() for path in paths.values()}) == 1:
            raise InvalidConfig(
                f"{model.name}: --validate and --calibrate name the same inputs; name other inputs for --validate"
            )
        for path in paths.values():
            list_inputs(path)

    def identity(self) -> str:
        """Return a text that changes with the options and with any input."""
        paths = [None if path is None else _identify(path) for path in (self.calibrate, self.validate)]
        return repr((self.precision, self.least, *paths))

    def make(
        self, model: ModelEntry, origin: Source, engine: Engine, folder: Path, *, exports: Exports, key: str | None
    ) -> None:
        """Compare the files of an archive in `folder` with the model, in fp32 and other precisions."""

        def compare(empty: Path) -> None:
            with step(f"{model.name}: comparing with the original model"):
                import_quietly("deploy.archives.precision.prove").check(model, origin, engine, folder, empty)
            has_graph = (folder / GRAPH).is_file() and task_of(model).samples is not None
            if has_graph and (origin.is_trained or self.precision):
                with step(f"{model.name}: comparing precisions"):
                    prove = import_quietly("deploy.archives.precision.prove")
                    prove.make(model, self, folder, empty, is_trained=origin.is_trained)

        with tempfile.TemporaryDirectory(prefix=".precision-", dir=folder.parent) as work:
            found = Path(work) / "files"
            found.mkdir()
            if key is None:
                compare(found)
            else:
                samples = {f"sample/{number}/{path.name}": path for number, path in enumerate(find_sample_files(model))}
                own = precision_fingerprint(model, samples, key, self.identity(), read_processor())
                exports.take(own, compare, found)
            link_files(found, folder, [path.name for path in found.iterdir()])


def add_options(group: argparse._ArgumentGroup) -> None:
    if "int8" in ROOMS:
        words = f"add an int8 graph; requires {INSTALL_INT8}"
        group.add_argument("--precision", choices=["int8"], help=words)
        words = f"calibrate int8 with these inputs, at least {FEWEST}; {MOST} are used at most"
        group.add_argument("--calibrate", type=Path, metavar="FOLDER|FILE", help=words)
        words = "reject int8 below this agreement, 0..1 (default: 0.99 for labels and accuracy, else 0.98)"
        group.add_argument("--min-agreement", type=_parse_share, metavar="X", help=words)
    else:
        group.set_defaults(precision=None, calibrate=None, min_agreement=None)
    words = (
        "compare precisions with fp32 on these inputs, optionally one folder per class "
        "(default: a quarter of --calibrate, or the examples' samples)"
    )
    group.add_argument("--validate", type=Path, metavar="FOLDER|FILE", help=words)


def check_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.calibrate is not None and options.precision is None:
        parser.error("--calibrate belongs to --precision int8: use both")
    if options.all and (options.precision or options.validate):
        parser.error("--precision and --validate belong to models of one kind: name them instead of --all")


def read_options(options: argparse.Namespace) -> PrecisionRequest:
    return PrecisionRequest(options.precision, options.calibrate, options.validate, options.min_agreement)


def _parse_share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value


def precision_fingerprint(model: ModelEntry, samples: Mapping[str, Path], export: str, *facts: str) -> str:
    """Hash all inputs of an archive's precisions and their proofs."""
    settings = {name: value for name, value in model.settings().items() if name != "scheduling"}
    programs = (*PROGRAMS, *(ROOMS[name] for name in ROOMS if name == "int8"))
    modules = find_modules(ROOT, *programs, *DECODING, task_of(model).builder)
    return digest({**modules, **samples}, export, facts, settings)


def _identify(path: Path) -> list[tuple[str, int, int]]:
    files = [each.value for each in list_inputs(path) if isinstance(each.value, Path)] if path.is_dir() else [path]
    root = path.resolve() if path.is_dir() else path.parent  # as `list_inputs` names its files
    found = [(file.relative_to(root).as_posix(), file.stat()) for file in files]
    return [(name, status.st_size, status.st_mtime_ns) for name, status in found]
