"""Loads an archive in this process as TorchServe's worker loads it, without a server.

    NAME.mar -> unpacked -> first on sys.path -> its handler's one class -> initialize: files checked, model loaded

An archive contains its own package `handlers`, and a process imports only one of that name: it loads several archives
only if their modules are equal. So this module does not import `handlers`, and neither does a program before.
"""

import hashlib
import importlib
import inspect
import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Literal

import yaml

from deploy.places import ARCHIVE, ROOT
from torchserve_client.payloads import Json
from torchserve_client.version import VERSION

MANIFEST, CONFIG, BUILD = "MAR-INF/MANIFEST.json", "model-config.yaml", "build.json"


# The format of archives whose handlers the hosts in Python can call; handlers.archive_files writes it into build.json.
FORMAT = 5


class OtherFormat(Exception):
    """An archive has handlers that these hosts cannot call; the message is one line."""


class NotTogether(Exception):
    """Archives that one process cannot load; the message is one line."""


class NoMetrics:
    """Discards metrics; it has the interface of TorchServe's metrics cache."""

    def get_metric(self, name: str, kind: object) -> "NoMetrics":  # noqa: ARG002
        return self

    def add_or_update(self, value: float, labels: Sequence[str]) -> None:
        """Discard a sample."""


class PlainContext:
    """The parts of TorchServe's context that `handler.initialize` reads, without the import of `ts` and torch."""

    def __init__(self, name: str, folder: str, manifest: object, window: int, gpu: int | None, *rest: object) -> None:
        *_, self.metrics, self.model_yaml_config = rest
        self.model_name, self.manifest = name, manifest
        self.system_properties = {"model_dir": folder, "gpu_id": gpu, "batch_size": window}


class LoadedArchive:
    """One archive, with its handler ready."""

    def __init__(
        self,
        archive: Path,  # NAME.mar, or the folder of an archive that was built as one
        mode: Literal["classic", "adaptive"],  # batches are formed by the caller of `handler.handle`, or by the core
        *,
        batch_size: int | None = None,  # of the registration; None for `batchSize` of model-config.yaml, or 1
        response_timeout_s: int | None = None,  # of a batch; None for `responseTimeout` of model-config.yaml
        threads: int = 0,  # of the engine and of decoding; 0 for the archive's own setting, by default every core
        gpu: int | None = None,  # the device's number; None for the processor
        metrics: object = None,  # receives the samples of the handler's metrics; None discards them
    ) -> None:
        """Load it, which takes seconds. Its handler may raise any exception, such as InvalidConfig."""
        # An unpacked archive lives as long as its process: a task may read and write its files.
        self._unpacked = tempfile.TemporaryDirectory(prefix="archive-", ignore_cleanup_errors=True)
        self.folder = folder = _extract(archive, Path(self._unpacked.name))  #: the folder of its files
        manifest = manifest_of(folder)
        self.name, self.version = str(manifest["model"]["modelName"]), manifest["model"].get("modelVersion")
        settings = _settings(folder, mode, threads)
        if response_timeout_s is not None:
            settings["responseTimeout"] = response_timeout_s
        make_context: Callable[..., Any] = PlainContext
        if mode == "classic" or (folder / "original").is_dir():
            # Handlers of stock archives, and `handler.handle`, need TorchServe's; handlers.torchserve looks for it.
            from ts.context import Context  # noqa: PLC0415

            make_context = Context
        self.handler = _handler(folder, manifest)  #: a `handlers.base.BatchHandler` of the archive's own package
        window = batch_size or settings.get("batchSize") or 1
        metrics = NoMetrics() if metrics is None else metrics  # an empty collection of metrics is false
        #: TorchServe's, which `handler.handle` takes.
        self.context: Any = make_context(self.name, str(folder), manifest, window, gpu, "", True, metrics, settings)
        self.handler.initialize(self.context)

    def close(self) -> None:
        """Let go of the archive's files and modules, if its `handlers` is not that of this process."""
        del self.handler, self.context
        _OTHERS.folders.remove(self.folder)
        sys.path[:] = [each for each in sys.path if not _is_in(self.folder, each)]
        own = [name for name, each in sys.modules.items() if _is_in(self.folder, getattr(each, "__file__", None))]
        for name in own:
            del sys.modules[name]
        self._unpacked.cleanup()


def _is_in(folder: Path, file: str | None) -> bool:
    return file is not None and Path(file).is_relative_to(folder)


class _Others(MetaPathFinder):
    """Finds the modules of `handlers` that the first archive does not have in those after it."""

    def __init__(self) -> None:
        self.folders: list[Path] = []

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        inner = Path(*name.split(".")[:-1])
        folders = [str(each / inner) for each in self.folders] if name.startswith("handlers.") else []
        return PathFinder.find_spec(name, folders) if folders else None


_OTHERS = _Others()


def check_together(archives: Sequence[Path]) -> None:
    """Raise NotTogether unless one process can load the archives: modules of one name are equal, and names differ."""
    modules, names = dict[str, tuple[str, Path]](), dict[str, Path]()
    for archive in archives if len(archives) > 1 else ():
        name = str(manifest_of(archive)["model"]["modelName"])
        if other := names.get(name):
            raise NotTogether(f"{other.name} and {archive.name} are both of the model {name}; serve them apart")
        names[name] = archive
        files = build_of(archive).get("files")
        if not files:
            raise NotTogether(f"{archive.name} is no archive of {ARCHIVE}; serve it apart from others")
        for file, found in files.items():
            # A function is imported by its path, all others by their names.
            if file.endswith(".py") and file != "function/infer.py":
                known, other = modules.setdefault(file, (found, archive))
                if known != found:
                    words = f"build both again with {ARCHIVE}" if file.startswith("handlers/") else "serve them apart"
                    raise NotTogether(f"{file} differs in {other.name} and {archive.name}: {words}")


def check_installed(archive: Path) -> None:
    """Raise NotTogether unless an archive's `handlers` is that of this installation."""
    files = build_of(archive).get("files")
    if not files:
        raise NotTogether(f"{archive.name} is no archive of {ARCHIVE}; serve it apart from others")
    for file, found in files.items():
        path = ROOT / file
        if file.startswith("handlers/") and file.endswith(".py"):
            known = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            if known != found:
                raise NotTogether(f"{file} differs in {archive.name} and here: build it again with {ARCHIVE}")


def settings_of(archive: Path) -> Json:
    settings: Json = yaml.safe_load(_read(archive, CONFIG)) or {}
    return settings


def manifest_of(archive: Path) -> Json:
    """Read the manifest of an archive, which need not be loaded."""
    manifest: Json = json.loads(_read(archive, MANIFEST))
    return manifest


def build_of(archive: Path) -> Json:
    """Read build.json; empty for an archive that this project did not build."""
    try:
        build = json.loads(_read(archive, BUILD))
    except (OSError, KeyError, ValueError):
        build = None
    return build if isinstance(build, dict) else {}


def check_format(archive: Path) -> None:
    """Raise OtherFormat unless the archive has our format, whichever release built it, or is not one of ours."""
    build = build_of(archive)
    if build and (found := build.get("format", 1)) != FORMAT:
        raise OtherFormat(
            f"{archive.name} has format {found}, of torchserve-batching {build.get('made_with') or 'of old'}, and this "
            f"is {VERSION} with format {FORMAT}: build it again with {ARCHIVE}, or serve it with TorchServe"
        )


def _read(archive: Path, name: str) -> str:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as content:
            return content.read(name).decode()
    with tempfile.TemporaryDirectory() as folder:
        return (_extract(archive, Path(folder)) / name).read_text(encoding="utf-8")


def _extract(archive: Path, folder: Path) -> Path:
    """Unpack an archive into a folder, and return the folder of its files."""
    if archive.is_dir():
        return archive
    shutil.unpack_archive(archive, folder, "zip")  # it does not write outside the folder
    return folder


def _handler(folder: Path, manifest: Json) -> Any:
    """Import the archive's handler as TorchServe does: by its file's name, with the archive first on the path."""
    if _OTHERS.folders:
        sys.path.append(str(folder))
    else:
        sys.path.insert(0, str(folder))
        if _OTHERS not in sys.meta_path:
            sys.meta_path.append(_OTHERS)
    _OTHERS.folders.append(folder)
    importlib.invalidate_caches()
    module = importlib.import_module(Path(manifest["model"]["handler"]).stem)
    own = [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]
    if len(own) != 1 or not hasattr(own[0], "initialize"):
        raise ValueError(f"{module.__name__}: not a handler: a module with one class")
    return own[0]()


def _settings(folder: Path, mode: str, threads: int) -> Json:
    """Read the archive's settings, with the caller's mode and threads."""
    settings = settings_of(folder)
    handler = dict(settings.get("handler") or {})
    # A caller that forms the batches has no use for the scheduler's settings.
    kept = (handler.get("scheduling") or {}) if mode == "adaptive" else {}
    handler["scheduling"] = {**kept, "mode": mode}
    if threads:
        handler |= {"threads": threads, "decode_threads": threads}
    frontend = {"continuousBatching": mode == "adaptive", "maxWorkers": 1, "asyncCommunication": False}
    return {**settings, **frontend, "handler": handler}
