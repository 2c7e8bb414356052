"""Builds archives: `./archive.sh NAME...`.

    model list + weights -> staged folder -> torch-model-archiver -> model_store/NAME.mar

Every build works in folders of its own and ends in one rename, so builds can run side by side and a server never sees
half an archive. An archive that was built from the same inputs is left as it is.
"""

import argparse
import hashlib
import importlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from deploy.models import MODEL_LIST, ROOT, Engine, Model, UnknownModel, model, models
from deploy.sources import Source, WeightsUnavailable, source
from handlers.errors import InvalidConfig

HANDLERS = ROOT / "handlers"
# Which packages' versions make another archive of the same inputs.
TOOLS = ("torch", "torchvision", "transformers", "openvino", "torch-model-archiver")
# torch-model-archiver's own names, and what each appends. zip-store is our default: weights do not compress.
SUFFIXES = {"zip-store": ".mar", "default": ".mar", "tgz": ".tar.gz", "no-archive": ""}

# Handler -> the module whose `stage(model, source, engine, folder)` writes what it serves. Imported when something is
# built: torch takes seconds, finding an archive up to date should not.
STAGES = {
    "image_classification": "deploy.vision",
    "text_classification": "deploy.text",
    "token_classification": "deploy.text",
    "question_answering": "deploy.text",
    "sentence_embedding": "deploy.text",
    "translation": "deploy.translation",
    "language_id": "deploy.language_id",
}


class ArchiverFailed(Exception):
    """torch-model-archiver did not make the archive."""


@dataclass(frozen=True, slots=True)
class Archive:
    """One archive on disk.

    Attributes:
        path: file, or folder for `no-archive`.
        version: as registered; ends in -untrained for random weights.
        is_new: built by this call, not found.
    """

    path: Path
    version: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an archive is to be made from.

    Attributes:
        entry: of the model list.
        weights: a path, `random`, or None for what the list says.
        engine: what the archive carries a model for; `auto` both, and the worker picks by its device.
        archive_format: of torch-model-archiver.
        export_path: the model store.
    """

    entry: Model
    weights: str | None = None
    engine: Engine = "auto"
    archive_format: str = "zip-store"
    export_path: Path = ROOT / "model_store"

    @property
    def path(self) -> Path:
        """Where the archive lies or will."""
        return self.export_path / (self.entry.name + SUFFIXES[self.archive_format])

    def find(self) -> Archive | None:
        """The archive on disk, if it was made from this recipe and nothing has changed since.

        Raises:
            WeightsUnavailable: a file or package is missing.
        """
        origin = source(self.entry, self.weights)
        if built_from(self.path) != self._fingerprint(origin):
            return None
        return Archive(self.path, self._version(origin), is_new=False)

    def build(self) -> Archive:
        """Make the archive, whatever is there.

        Raises:
            WeightsUnavailable, InvalidConfig, ArchiverFailed: with one line for the user.
        """
        entry, origin = self.entry, source(self.entry, self.weights)
        self.export_path.mkdir(parents=True, exist_ok=True)
        # Beside the archive to come, so that the last step is a rename; hidden, so that nothing serves it.
        with tempfile.TemporaryDirectory(prefix=".build-", dir=self.export_path) as work:
            stage, temporary, out = (Path(work) / name for name in ("stage", "tmp", "out"))
            for folder in (stage, temporary, out):
                folder.mkdir()
            shutil.copytree(HANDLERS, stage / "handlers", ignore=shutil.ignore_patterns("__pycache__"))
            importlib.import_module(STAGES[entry.handler]).stage(entry, origin, self.engine, stage)
            inputs = {"fingerprint": self._fingerprint(origin), "weights": origin.identity}
            (stage / "build.json").write_text(json.dumps(inputs))
            config = entry.config()
            config["handler"] = {**config.get("handler", {}), "engine": self.engine}
            config_path = Path(work) / "model-config.yaml"
            config_path.write_text(yaml.safe_dump(config, sort_keys=False))
            arguments = {
                "--model-name": entry.name,
                "--version": self._version(origin),
                "--handler": str(HANDLERS / f"{entry.handler}.py"),
                "--extra-files": str(stage),
                "--config-file": str(config_path),
                "--archive-format": self.archive_format,
                "--export-path": str(out),
            }
            run_archiver(entry.name, arguments, temporary)
            _replace(out / self.path.name, self.path)
        return Archive(self.path, self._version(origin), is_new=True)

    def _version(self, origin: Source) -> str:
        return self.entry.version if origin.is_trained else f"{self.entry.version}-untrained"

    def _fingerprint(self, origin: Source) -> str:
        """A hash of everything that the archive is made from."""
        digest = hashlib.sha256()
        # This file and the task's own; what else is in deploy/ does not decide what an archive holds.
        builders = (Path(__file__), ROOT.joinpath(*STAGES[self.entry.handler].split(".")).with_suffix(".py"))
        code = [*sorted(HANDLERS.rglob("*.py")), *builders]
        labels = self.entry.folder / "index_to_name.json"
        for path in [*code, self.entry.config_path, *([labels] if labels.is_file() else [])]:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        tools = [f"{name} {importlib.metadata.version(name)}" for name in TOOLS]
        entry = (self.entry.name, self.entry.handler, self._version(origin))
        digest.update(repr((entry, origin.identity, self.engine, self.archive_format, tools)).encode())
        return digest.hexdigest()


def run_archiver(name: str, arguments: dict[str, str], temporary: Path) -> None:
    """Run torch-model-archiver.

    Args:
        name: of the model, for the error.
        arguments: option -> value.
        temporary: a folder of this call's own: the archiver works in $TMPDIR/<model name> and deletes that first.

    Raises:
        ArchiverFailed: with its last line.
    """
    finished = subprocess.run(
        [str(Path(sys.executable).with_name("torch-model-archiver")), *(a for pair in arguments.items() for a in pair)],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode != 0:
        reason = (finished.stderr.strip() or finished.stdout.strip()).rpartition("\n")[2]
        raise ArchiverFailed(f"{name}: torch-model-archiver failed: {reason}")


def _replace(new: Path, path: Path) -> None:
    """Put the new archive in place. A folder cannot replace another in one step: the old one steps aside."""
    if path.is_dir():
        path.rename(new.with_name("old"))
    new.replace(path)


def built_from(path: Path) -> str | None:
    """The fingerprint inside an archive; None where there is no archive of ours."""
    try:
        if path.is_dir():
            text = (path / "build.json").read_text()
        elif path.suffix == ".mar":
            with zipfile.ZipFile(path) as archive:
                text = archive.read("build.json").decode()
        else:
            with tarfile.open(path) as archive:
                member = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/build.json")
                text = member.read().decode() if member else "{}"
        found = json.loads(text).get("fingerprint")
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, tarfile.TarError):
        return None
    return found if isinstance(found, str) else None


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="archive.sh", description="Build archives of a model list.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of the list; examples/ has {', '.join(models())}")
    parser.add_argument("--all", action="store_true", help="every model of the list")
    parser.add_argument("--models", type=Path, default=MODEL_LIST, metavar="FILE", help="default: examples/models.yaml")
    parser.add_argument("--weights", metavar="PATH|HUB_ID|random", help="instead of those the list names")
    parser.add_argument("--engine", choices=["auto", "openvino", "torch"], default="auto")
    parser.add_argument("--archive-format", choices=list(SUFFIXES), default="zip-store")
    parser.add_argument("--export-path", type=Path, default=ROOT / "model_store", help="default: model_store")
    parser.add_argument("--force", action="store_true", help="build even what is up to date")
    parsed = parser.parse_args(arguments)
    if bool(parsed.names) == parsed.all:
        parser.error("name models, or give --all")
    if parsed.weights not in (None, "random") and (parsed.all or len(parsed.names) > 1):
        parser.error("--weights PATH belongs to one model: name just that one")
    return parsed


def main(arguments: list[str]) -> int:
    """Build what the command line names; 1 when one could not be built."""
    options = _arguments(arguments)
    for name in list(models(options.models)) if options.all else options.names:
        started = time.monotonic()
        try:
            recipe = Recipe(
                model(name, options.models),
                options.weights,
                options.engine,
                options.archive_format,
                options.export_path.resolve(),
            )
            archive = (None if options.force else recipe.find()) or recipe.build()
        except (UnknownModel, WeightsUnavailable, InvalidConfig, ArchiverFailed, OSError) as error:
            print(f"archive.sh: {error}", file=sys.stderr)
            return 1
        report(archive, time.monotonic() - started)
    return 0


def report(archive: Archive, seconds: float) -> None:
    """One line on what became of an archive."""
    place = os.path.relpath(archive.path)
    if not archive.is_new:
        print(f"{place}: up to date")
        return
    size = archive.path.stat().st_size if archive.path.is_file() else 0
    print(
        f"{place}: built, version {archive.version}" + (f", {size / 1e6:.0f} MB" if size else "") + f", {seconds:.0f} s"
    )
    if archive.version.endswith("-untrained"):
        print(f"{place}: UNTRAINED: its weights are random, its answers mean nothing", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
