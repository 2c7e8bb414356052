"""Builds archives: `./archive.sh NAME...`.

    model list + weights -> staged folder -> torch-model-archiver -> model_store/NAME.mar

Every build works in folders of its own and ends in one rename, so builds can run side by side and a server never sees
half an archive. An archive that was built from the same inputs is left as it is, and an export that was made from the
same inputs is taken from the cache.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

import yaml

from deploy.build.exports import Exports
from deploy.build.fingerprint import (
    archive_fingerprint,
    handler_files,
    read_build,
)
from deploy.build.precision import staging
from deploy.build.precision.request import PrecisionRequest
from deploy.build.sources import Source, source
from deploy.build.tasks import Mode, task_of
from deploy.models import ROOT, Engine, ModelEntry
from deploy.progress import step
from handlers.archive_files import BUILD, CONFIG, FIDELITY, LABEL, PROOFS, Build, hash_files
from handlers.continuous.mode import CONTINUOUS, check_mode
from handlers.errors import InvalidConfig
from handlers.proofs import Proof, read_proofs

# These are torch-model-archiver's own names, and what each appends. zip-store is our default: weights do not compress.
SUFFIXES = {"zip-store": ".mar", "default": ".mar", "tgz": ".tar.gz", "no-archive": ""}

# TorchServe's part of an adaptive archive, where its file does not say. batchSize is the window: the requests that the
# worker sees and chooses from. maxBatchDelay is what an idle worker waits for a second request, in ms; TorchServe's own
# default is 100, and 1 is the least it takes. Beside an idle worker a busy one would starve.
ADAPTIVE = {CONTINUOUS: True, "batchSize": 64, "maxBatchDelay": 1, "minWorkers": 1, "maxWorkers": 1}
# TorchServe's part of a classic archive, whose batches have one request by TorchServe's default: the most requests,
# and the ms for which a worker waits for them.
CLASSIC = {"batchSize": 32, "maxBatchDelay": 1}


class ArchiverFailed(Exception):
    """torch-model-archiver did not make the archive."""


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive lies on disk.

    Attributes:
        path: a file, or a folder for `no-archive`.
        version: as registered; it ends in -untrained for random weights.
        is_new: whether this call built it, and not found it.
        label: what its builder says of a model that it converted; see `handlers.archive_files.Build`.
        proofs: how near its answers are to fp32's, by precision.
        fidelity: how near they are to the model's own, in words; empty where nothing was compared.
        settings: `handler:` of its model-config.yaml; empty if it was found.
    """

    path: Path
    version: str
    is_new: bool
    label: Mapping[str, str | float] = field(default_factory=dict)
    proofs: Mapping[str, Proof] = field(default_factory=dict)
    fidelity: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe says what an archive is to be made from.

    Attributes:
        entry: the model's, of the list.
        weights: a path, a hub id, `random`, or None for what the list says.
        engine: what the archive carries a model for; `auto` both, and the worker picks by its device.
        archive_format: torch-model-archiver's name of it.
        export_path: the model store.
        cache_path: the folder of cached exports; None for a hidden one in the model store.
        min_chrf: how near a converted model's answers must be to the original's, in chrF; None for any.
        wanted: what is asked for of precisions.
    """

    entry: ModelEntry
    weights: str | None = None
    engine: Engine = "auto"
    archive_format: str = "zip-store"
    export_path: Path = ROOT / "model_store"
    cache_path: Path | None = None
    min_chrf: float | None = None
    wanted: PrecisionRequest = field(default_factory=PrecisionRequest)

    @property
    def path(self) -> Path:
        """The place where the archive lies or will."""
        return self.export_path / (self.entry.name + SUFFIXES[self.archive_format])

    @property
    def chosen(self) -> Engine:
        """The engine that the command line names, or else model-config.yaml."""
        configured = (self.entry.config().get("handler") or {}).get("engine")
        is_known = self.engine == "auto" and configured in get_args(Engine)
        return cast(Engine, configured) if is_known else self.engine

    def find(self) -> Archive | None:
        """Find the archive on disk, if it was made from this recipe and nothing has changed since.

        Raises:
            WeightsUnavailable: a file or package is missing.
            InvalidConfig: no task serves the model.
        """
        self.wanted.check(self.entry, self.chosen)
        origin = source(self.entry, self.weights)
        build = read_build(self.path)
        if build is None or build.fingerprint != self._fingerprint(origin):
            return None
        _check_quality(self.entry, build.label, self.min_chrf)
        proofs = read_proofs(build.proofs)
        return Archive(self.path, self._version(origin), is_new=False, label=build.label, proofs=proofs)

    def build(self) -> Archive:
        """Make the archive, whatever is there.

        Raises:
            WeightsUnavailable, InvalidConfig, ArchiverFailed: with one line for the user.
        """
        self.wanted.check(self.entry, self.chosen)
        entry, origin = self.entry, source(self.entry, self.weights)
        task, config = task_of(entry), complete_config(entry)
        self.export_path.mkdir(parents=True, exist_ok=True)
        # Beside the archive to come, so that the last step is a rename; hidden, so that nothing serves it.
        with tempfile.TemporaryDirectory(prefix=".build-", dir=self.export_path) as work:
            stage, temporary, out = (Path(work) / name for name in ("stage", "tmp", "out"))
            for folder in (stage, temporary, out):
                folder.mkdir()
            engine = self._stage(origin, stage)
            label, proofs, fidelity = (_taken(stage, name) for name in (LABEL, PROOFS, FIDELITY))
            _check_quality(entry, label, self.min_chrf)
            _check_root(entry, stage, task.path.name)
            for name, path in handler_files().items():
                (stage / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, stage / name)
            needed = fidelity.get("settings", {})
            config["handler"] = {**(config.get("handler") or {}), "engine": engine, **needed}
            config_path = Path(work) / CONFIG
            config_path.write_text(yaml.safe_dump(config, sort_keys=False))
            build = Build(
                fingerprint=self._fingerprint(origin),
                weights=origin.identity,
                is_folder=self.archive_format == "no-archive",
                files=hash_files({**_packed(stage), task.path.name: task.path, CONFIG: config_path}),
                label=label,
                proofs=proofs,
                fidelity=fidelity,
            )
            (stage / BUILD).write_text(build.to_json())
            arguments = {
                "--model-name": entry.name,
                "--version": self._version(origin),
                "--handler": str(task.path),
                "--extra-files": str(stage),
                "--config-file": str(config_path),
                "--archive-format": self.archive_format,
                "--export-path": str(out),
            }
            with step(f"{entry.name}: packing"):
                run_archiver(entry.name, arguments, temporary)
            _replace(out / self.path.name, self.path)
        said, found, settings = fidelity.get("said", ""), read_proofs(proofs), config["handler"]
        version = self._version(origin)
        return Archive(self.path, version, is_new=True, label=label, proofs=found, fidelity=said, settings=settings)

    def _stage(self, origin: Source, folder: Path) -> Engine:
        """Write what the task serves, or link it from the cache where it takes long to make; returns its engine."""
        exports = Exports(self.cache_path or self.export_path / ".exports")
        return staging.stage(self.entry, origin, self.chosen, self.wanted, exports=exports, folder=folder)

    def _version(self, origin: Source) -> str:
        return self.entry.version if origin.is_trained else f"{self.entry.version}-untrained"

    def _fingerprint(self, origin: Source) -> str:
        packing = (self._version(origin), self.engine, self.archive_format, self.wanted.identity())
        return archive_fingerprint(self.entry, task_of(self.entry), origin, packing)


def _taken(stage: Path, name: str) -> dict[str, Any]:
    """Take what a builder says of a model out of the stage; it goes into build.json."""
    path = stage / name
    if not path.is_file():
        return {}
    said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    # It may be a link into the cache: only this name of it goes.
    path.unlink()
    return said


def _check_quality(entry: ModelEntry, label: Mapping[str, str | float], min_chrf: float | None) -> None:
    """Check that a converted model answers as the original does.

    Raises:
        InvalidConfig: it does not, or nothing says so.
    """
    if min_chrf is None:
        return
    chrf = label.get("chrf")
    if chrf is None:
        raise InvalidConfig(
            f"{entry.name}: --min-chrf {min_chrf:g}: nothing was measured; that needs a model that is converted, and "
            "samples.txt beside model-config.yaml"
        )
    if float(chrf) < min_chrf:
        raise InvalidConfig(f"{entry.name}: chrF {chrf} against the model in fp32 is less than --min-chrf {min_chrf:g}")


def _check_root(entry: ModelEntry, stage: Path, handler: str) -> None:
    """Check that nothing staged takes the name of what every archive has, or of a module that the worker needs.

    Raises:
        InvalidConfig: a checkpoint or the task brings such a file.
    """
    ours = {"handlers", "MAR-INF", BUILD, CONFIG, handler}
    for path in sorted(stage.iterdir()):
        is_shadow = path.suffix in ("", ".py") and path.stem in sys.stdlib_module_names
        if path.name in ours or is_shadow:
            raise InvalidConfig(f"{entry.name}: {path.name} cannot be staged: the archive or the worker has its own")


def _packed(stage: Path) -> dict[str, Path]:
    """Find the staged files that torch-model-archiver packs, by their paths in the archive."""
    files = {path.relative_to(stage): path for path in stage.rglob("*") if path.is_file()}
    return {name.as_posix(): path for name, path in files.items() if not any(map(_is_left_out, name.parts[:-1]))}


def _is_left_out(folder: str) -> bool:
    return folder.startswith(".") or folder in ("__MACOSX", "__pycache__")


def run_archiver(name: str, arguments: dict[str, str], temporary: Path) -> None:
    """Run torch-model-archiver.

    Args:
        name: the model's, for the error.
        arguments: values by option.
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
    """Put the new archive in place; a folder cannot replace another in one step, so the old one steps aside."""
    if path.is_dir():
        path.rename(new.with_name("old"))
    new.replace(path)


def find_cache_folder(environment: Mapping[str, str]) -> Path | None:
    """Tell where exported graphs are kept, as CACHE_DIR says; None where it says nothing."""
    folder = environment.get("CACHE_DIR")
    return Path(folder).resolve() if folder else None


def complete_config(model: ModelEntry) -> dict[str, Any]:
    """Give a model's configuration as its archive has it; see `with_mode`."""
    return with_mode(model.name, model.config(), task_of(model).mode)


def with_mode(name: str, config: Mapping[str, Any], default: Mode = "adaptive") -> dict[str, Any]:
    """Complete a model-config.yaml for the mode that it asks for, or may have; what the file sets is kept.

    Args:
        name: the model's, for the error.
        config: as its owner wrote it.
        default: the mode where the file says nothing of it.

    Raises:
        InvalidConfig: it says `mode: adaptive`, and what TorchServe cannot serve so.
    """
    asked = _mode(config)
    mode = default if asked == "auto" and config.get(CONTINUOUS) is None else asked
    is_classic = mode == "classic" or why_classic(config) is not None
    defaults: Mapping[str, Any] = CLASSIC if is_classic else ADAPTIVE
    if config.get("asyncCommunication"):
        # TorchServe's frontend fails with larger batches there.
        defaults = {}
    completed = {**config, **{key: value for key, value in defaults.items() if config.get(key) is None}}
    if is_classic:
        return completed
    try:
        check_mode(completed)
    except InvalidConfig as error:
        raise InvalidConfig(f"{name}: {error}") from None
    return completed


def defaults_of(model: ModelEntry) -> str | None:
    """Describe the batch parameters that an archive has by default; None where model-config.yaml sets them."""
    given, settings = model.config(), complete_config(model)
    added = [f"{key} {settings[key]}" for key in CLASSIC if given.get(key) is None and key in settings]
    mode = "adaptive" if settings.get(CONTINUOUS) is True else "classic"
    return f"{mode} mode, {', '.join(added)} by default; model-config.yaml sets others" if added else None


def why_classic(config: Mapping[str, Any]) -> str | None:
    """Say what in a model-config.yaml that leaves the mode open keeps it classic; None where nothing does."""
    if _mode(config) != "auto":
        return None
    if config.get(CONTINUOUS) is False:
        return f"{CONTINUOUS}: false"
    if config.get("asyncCommunication"):
        return "asyncCommunication: true"
    for key in ("minWorkers", "maxWorkers"):
        workers = config.get(key)
        if isinstance(workers, int) and workers > 1:
            return f"{key}: {workers}"
    return None


def _mode(config: Mapping[str, Any]) -> Any:
    """What the file says of the mode; who parses `handler:` finds out whether that is one."""
    inner: Any = config
    for key in ("handler", "scheduling"):
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    return inner.get("mode", "auto") if isinstance(inner, Mapping) else "auto"


def report(archive: Archive, seconds: float) -> None:
    """Print one line on what became of an archive."""
    place = os.path.relpath(archive.path)
    if not archive.is_new:
        print(f"{place}: up to date")
        return
    size = archive.path.stat().st_size if archive.path.is_file() else 0
    facts = [f"version {archive.version}", f"engine {archive.settings['engine']}"]
    facts += [f"precision {archive.settings.get('precision', 'auto')}"] if archive.proofs else []
    facts += [f"{size / 1e6:.0f} MB"] if size else []
    register = f"; torchserve-client register {archive.path.stem} --wait" if archive.path.suffix == ".mar" else ""
    print(f"{place}: built, {', '.join(facts)}, {seconds:.0f} s{register}")
    if archive.label:
        print(f"{place}: {', '.join(f'{name} {value}' for name, value in archive.label.items())}")
    if archive.fidelity:
        print(f"{place}: {archive.fidelity}")
    for precision, proof in archive.proofs.items():
        short = "" if not proof.is_refuted else f", less than {proof.least:g}: `precision: auto` leaves it out"
        print(f"{place}: {precision}: {proof}{proof.weakness}{short}")
    if archive.version.endswith("-untrained"):
        print(f"{place}: UNTRAINED: its weights are random, its answers mean nothing", file=sys.stderr)
