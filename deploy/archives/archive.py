"""Builds archives: `torchserve-batching archive NAME...`.

    model list + weights -> staged folder -> torch-model-archiver -> model_store/NAME-VERSION.mar <- NAME.mar

Every build works in separate folders and ends in one rename, so builds can run side by side, and a server never reads
half an archive. An archive of equal inputs is not built again; an export of equal inputs comes from the cache.
"""

import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast, get_args

import yaml

from deploy.archives.exports import Exports
from deploy.archives.fingerprint import archive_fingerprint, handler_files, read_build
from deploy.archives.labels import LABELS, check_labels
from deploy.archives.mode import complete_config
from deploy.archives.names import lead, place, reject_other_models
from deploy.archives.options import hide_places
from deploy.archives.options import keep as keep_options
from deploy.archives.requirements import check_installed, list_requirements
from deploy.archives.sources import Source, source
from deploy.archives.staging import Comparisons, check_root, find_packed_files, plan_comparisons, stage
from deploy.archives.tasks import task_of
from deploy.models import Engine, ModelEntry
from deploy.places import ARCHIVE, REGISTER, STORE
from deploy.progress import step
from deploy.work_folders import make_work_folder
from handlers.archive_files import BUILD, CONFIG, FIDELITY, LABEL, PROOFS, Build, hash_files
from handlers.config import parse
from handlers.errors import InvalidConfig
from handlers.proofs import Proof, read_proofs
from torchserve_client.archives import describe
from torchserve_client.payloads import Json
from torchserve_client.version import VERSION

# The ending of an archive by torch-model-archiver's name of its format. zip-store, our default, does not compress:
# weights gain nothing by it.
SUFFIXES = {"zip-store": ".mar", "no-archive": ""}


class ArchiverFailed(Exception):
    """torch-model-archiver did not write the archive."""


@dataclass(frozen=True, slots=True)
class Archive:
    path: Path  # a file, or a folder for `no-archive`
    version: str  # as registered; it ends in -untrained for random weights
    is_new: bool  # whether this call built it
    # The converter's facts about the model; see `handlers.archive_files.Build`.
    label: Mapping[str, str | float] = field(default_factory=dict)
    proofs: Mapping[str, Proof] = field(default_factory=dict)  # how near its answers are to fp32's, by precision
    fidelity: str = ""  # how near its answers are to the model's own, in words; empty if nothing was compared
    # `handler:` of its model-config.yaml; empty if the archive was up to date.
    settings: Mapping[str, object] = field(default_factory=dict)
    is_other: bool = False  # whether this call replaced an archive of the same version with other contents


@dataclass(frozen=True, slots=True)
class Recipe:
    """The inputs of one archive: an entry of a model list, and the options of `archive`."""

    entry: ModelEntry
    weights: str | None = None  # a path, a hub id, `random`, or None for the list's
    # The engine for which the archive contains a model; with `auto` it contains both, and the worker's device decides.
    engine: Engine = "auto"
    archive_format: str = "zip-store"
    export_path: Path = STORE
    cache_path: Path | None = None  # the folder of cached exports; None for a hidden one in the model store
    min_chrf: float | None = None  # the least chrF of a converted translation model against the original; None for any
    comparisons: Comparisons | None = field(default_factory=plan_comparisons)
    options: tuple[str, ...] = ()  # of the command line, for a build by `serve` or `start`
    lost: str = ""  # an option of the last build that this machine lacks: the archive on disk serves, or nothing does

    @property
    def path(self) -> Path:
        return self.export_path / (self.entry.name + SUFFIXES[self.archive_format])

    @property
    def preferred_engine(self) -> Engine:
        """The engine of the command line, or else of model-config.yaml."""
        configured = self.entry.settings().get("engine")
        is_known = self.engine == "auto" and configured in get_args(Engine)
        return cast(Engine, configured) if is_known else self.engine

    def locate(self, version: str) -> Path:
        """Return the path of a version, to which `path` leads; only a .mar has a version in its name."""
        suffix = SUFFIXES[self.archive_format]
        return self.path.with_name(f"{self.entry.name}-{version}.mar") if suffix == ".mar" else self.path

    def check(self, *, with_code: bool = False) -> None:
        """Raise InvalidConfig or WeightsUnavailable; a user's settings are checked `with_code` unless up to date."""
        if self.lost:
            self._find_built()
            print(f"{self.entry.name}: {self.lost}, with which it was built, is not on this machine: used as it is")
            return
        self._check_comparisons()
        task = task_of(self.entry)
        complete_config(self.entry)
        check_installed(self.entry)
        origin = source(self.entry, self.weights)
        if LABELS in task.files and origin.kind == "file" and self.entry.settings().get("arch"):
            check_labels(self.entry)
        if task.settings:
            parse(task.settings_class(), self.entry.config().get("handler"))
        elif with_code and self.find() is None:
            importlib.import_module(task.builder).check(self.entry)

    def find(self) -> Archive | None:
        """Return the archive on disk if it was built from these inputs and none has changed since."""
        if self.lost:
            return self._find_built()
        self._check_comparisons()
        origin = source(self.entry, self.weights)
        path = self.locate(self._version(origin))
        build = read_build(path)
        if build is None or build.fingerprint != self._fingerprint(self._hash_inputs(origin)):
            return None
        _check_quality(self.entry, build.label, self.min_chrf)
        lead(self.path, path)
        keep_options(self.path, build.fingerprint, self.options)
        proofs = read_proofs(build.proofs)
        return Archive(self.path, self._version(origin), is_new=False, label=build.label, proofs=proofs)

    def _find_built(self) -> Archive:
        """Return the archive on disk if all but the lost weights and options is unchanged, or else InvalidConfig."""
        build, name = read_build(self.path), self.entry.name
        if build is None or build.fingerprint != self._fingerprint(build.inputs):
            raise InvalidConfig(
                f"{name}: its archive is out of date, and {self.lost}, with which it was built, is not on this "
                f"machine: give its options again to {ARCHIVE} {name}, or serve {os.path.relpath(self.path)} as it is"
            )
        return Archive(self.path, describe(self.path).version, is_new=False)

    def build(self) -> Archive:
        self._check_comparisons()
        entry, origin = self.entry, source(self.entry, self.weights)
        task, config, version = task_of(entry), complete_config(entry), self._version(origin)
        self.export_path.mkdir(parents=True, exist_ok=True)
        reject_other_models(entry.name, self.path, self.locate(version))
        requirements, old = list_requirements(entry), read_build(self.locate(version))
        has_version = self.locate(version).exists()
        # Beside the new archive, so that the last step is a rename; hidden, so that no server loads it.
        with make_work_folder(".build-", self.export_path) as work:
            staged, temporary, out = (work / name for name in ("stage", "tmp", "out"))
            for folder in (staged, temporary, out):
                folder.mkdir()
            exports = Exports(self.cache_path or self.export_path / ".exports")
            preferred = self.preferred_engine
            engine = stage(entry, origin, preferred, self.comparisons, exports=exports, folder=staged)
            label, proofs, fidelity = (_pop_json(staged, name) for name in (LABEL, PROOFS, FIDELITY))
            _check_quality(entry, label, self.min_chrf)
            check_root(entry, staged, task.path.name)
            for name, path in handler_files().items():
                (staged / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, staged / name)
            settings = {**(config.get("handler") or {}), "engine": engine, **fidelity.get("settings", {})}
            config_path = work / CONFIG
            config_path.write_text(yaml.safe_dump({**config, "handler": settings}, sort_keys=False))
            inputs = self._hash_inputs(origin)
            build = Build(
                fingerprint=self._fingerprint(inputs),
                inputs=inputs,
                weights=origin.identity,
                is_folder=self.archive_format == "no-archive",
                files=hash_files({**find_packed_files(staged), task.path.name: task.path, CONFIG: config_path}),
                label=label,
                proofs=proofs,
                fidelity=fidelity,
                made_with=VERSION,
                requirements=requirements,
                options=hide_places(self.options),
            )
            (staged / BUILD).write_text(build.to_json())
            arguments = {
                "--model-name": entry.name,
                "--version": version,
                "--handler": str(task.path),
                "--extra-files": str(staged),
                "--config-file": str(config_path),
                "--archive-format": self.archive_format,
                "--export-path": str(out),
            }
            with step(f"{entry.name}: packing"):
                run_archiver(entry.name, arguments, temporary)
            place(out / self.path.name, self.locate(version))
            lead(self.path, self.locate(version))
        keep_options(self.path, build.fingerprint, self.options)
        words, found = fidelity.get("said", ""), read_proofs(proofs)
        is_other = has_version and (old is None or old.fingerprint != build.fingerprint)
        return Archive(
            self.path,
            version,
            is_new=True,
            is_other=is_other,
            label=label,
            proofs=found,
            fidelity=words,
            settings=settings,
        )

    def _check_comparisons(self) -> None:
        if self.comparisons is not None:
            self.comparisons.check(self.entry, self.preferred_engine)

    def _version(self, origin: Source) -> str:
        return self.entry.version if origin.is_trained else f"{self.entry.version}-untrained"

    def _hash_inputs(self, origin: Source) -> str:
        identity = "" if self.comparisons is None else self.comparisons.identity()
        facts = (origin.identity, origin.is_trained, self.engine, self.archive_format, identity)
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def _fingerprint(self, inputs: str) -> str:
        facts = (self.entry.version, *list_requirements(self.entry))
        return archive_fingerprint(self.entry, task_of(self.entry), inputs, facts)


def _pop_json(stage: Path, name: str) -> Json:
    """Read a builder's facts and remove their file from the stage; build.json contains them instead."""
    path = stage / name
    if not path.is_file():
        return {}
    content: Json = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()  # a link into the cache: the cache's own file stays
    return content


def _check_quality(entry: ModelEntry, label: Mapping[str, str | float], min_chrf: float | None) -> None:
    """Raise InvalidConfig if a converted model was not measured, or is less like the original than `--min-chrf`."""
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


def run_archiver(name: str, arguments: dict[str, str], temporary: Path) -> None:
    """Run torch-model-archiver with a new, empty folder: it works in $TMPDIR/NAME, which it deletes first."""
    finished = subprocess.run(
        [str(Path(sys.executable).with_name("torch-model-archiver")), *(a for pair in arguments.items() for a in pair)],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode != 0:
        said = finished.stderr.strip() or finished.stdout.strip() or f"exit status {finished.returncode}"
        reason = said.rpartition("\n")[2]
        raise ArchiverFailed(f"{name}: torch-model-archiver failed: {reason}")


def find_cache_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of cached exports that CACHE_DIR names."""
    folder = environment.get("CACHE_DIR")
    return Path(folder).resolve() if folder else None


def report(archive: Archive, seconds: float, *, is_served: bool = False) -> None:
    """Print the outcome of a build: a line on the archive, which a host serves or you register, and its comparisons."""
    place = os.path.relpath(archive.path)
    if not archive.is_new:
        print(f"{place}: up to date")
        return
    size = archive.path.stat().st_size if archive.path.is_file() else 0
    facts = [f"version {archive.version}", f"engine {archive.settings['engine']}"]
    facts += [f"precision {archive.settings.get('precision', 'auto')}"] if archive.proofs else []
    facts += [f"{size / 1e6:.0f} MB"] if size else []
    can_register = archive.path.suffix == ".mar" and not is_served
    register = f"; {REGISTER} {archive.path.stem} --wait" if can_register else ""
    print(f"{place}: built, {', '.join(facts)}, {seconds:.0f} s{register}")
    if archive.label:
        print(f"{place}: {', '.join(f'{name} {value}' for name, value in archive.label.items())}")
    if archive.fidelity:
        print(f"{place}: {archive.fidelity}")
    for precision, proof in archive.proofs.items():
        short = "" if proof.is_enough else f", less than {proof.least:g}: `precision: auto` leaves it out"
        print(f"{place}: {precision}: {proof}{proof.weakness}{short}")
    if archive.is_other:
        print(
            f"{place}: replaces another archive of version {archive.version}, which servers may have loaded; raise "
            "`version` in the list with each change"
        )
    if archive.version.endswith("-untrained"):
        print(f"{place}: UNTRAINED: random weights, so its answers mean nothing", file=sys.stderr)
