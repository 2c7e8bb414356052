"""Where a model's weights come from: published, in a package, a file of the user's, random, or nowhere.

This is decided without reading them and without importing torch: whether an archive is up to date is answered at once.
"""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deploy.build.tasks import find_in_package, task_of
from deploy.build.tensors.files import companions, files_of
from deploy.models import TENSORS, ModelEntry

RANDOM_SEED = 0

# The Hugging Face hub has its models as organisation/name.
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

# Serving reads these files. READMEs, other frameworks' weights and training state are not among them.
SERVED = re.compile(
    r"(.*/)?("
    r"config\.json|generation_config\.json|modules\.json|sentence_[^/]*config\.json|config_sentence_transformers\.json|"
    r"(pre)?processor_config\.json|"
    r"special_tokens_map\.json|added_tokens\.json|tokenizer[^/]*|vocab[^/]*|merges\.txt|[^/]*\.spm|[^/]*\.model|"
    r"model[^/]*\.safetensors|model\.safetensors\.index\.json)"
    # A module of sentence-transformers.
    r"|\d+_\w+/pytorch_model\.bin"
)
# What a user may think is served: settings, and weights of all kinds.
MODELS = (".json", ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".h5", ".msgpack", ".model", ".spm")
# Code is served only where the archive's settings trust it.
CODE = ".py"


class WeightsUnavailable(Exception):
    """The weights cannot be had; the message says what to give instead."""


class NotMade(WeightsUnavailable):
    """The weights are made by a program that has not run yet; the message says how to run it."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source says where a model's weights come from.

    Attributes:
        kind: what the location is; `none` for a task that needs no weights.
        location: the weights' name, folder or file; empty for `random` and `none`.
        identity: a text that changes whenever the weights may have.
        revision: the branch, tag or commit of the hub that is taken; None for its latest.
    """

    kind: Literal["torchvision", "hub", "folder", "file", "random", "none"]
    location: str
    identity: str
    revision: str | None = None

    @property
    def is_trained(self) -> bool:
        """Whether its answers mean anything."""
        return self.kind != "random"


def source(model: ModelEntry, choice: str | None) -> Source:
    """Decide where the weights come from.

    Args:
        model: its entry says what is taken without a choice.
        choice: a path, a hub id where the task takes one, `random`, or None.

    Raises:
        NotMade, WeightsUnavailable: a file or package is missing.
        InvalidConfig: no task serves the model.
    """
    task = task_of(model)
    if choice == "random":
        return Source("random", "", f"random, seed {RANDOM_SEED}")
    if choice is not None:
        is_hub_id = HUB_ID.fullmatch(choice) and not choice.endswith(MODELS) and not Path(choice).exists()
        return _hub(choice) if is_hub_id and task.takes_hub_ids else _path(model, Path(choice))
    return _listed(model, needs_weights=task.needs_weights)


def _listed(model: ModelEntry, *, needs_weights: bool) -> Source:
    """Take the weights that the list names."""
    if "torchvision" in model.weights:
        name = model.weights["torchvision"]
        return Source("torchvision", name, f"torchvision {name}")
    if "hub" in model.weights:
        return _hub(model.weights["hub"], model.weights.get("revision"))
    if not model.weights and not needs_weights:
        return Source("none", "", "no weights")
    if "path" in model.weights:
        return _path(model, _beside(model, model.weights["path"]))
    if not {"package", "file"} <= model.weights.keys():
        raise WeightsUnavailable(f"{model.name}: the list names no weights; {_instead(model)}")
    path = find_in_package(model.weights["package"], model.weights["file"])
    if path is None:
        raise WeightsUnavailable(
            f"{model.name}: the package {model.weights['package']} is not installed; install it or {_instead(model)}"
        )
    return _path(model, path)


def _instead(model: ModelEntry) -> str:
    return "give --weights PATH" if model.handler == TENSORS else "give --weights PATH or --weights random"


def _hub(hub_id: str, revision: str | None = None) -> Source:
    return Source("hub", hub_id, f"hub {hub_id}" + (f" at {revision}" if revision else ""), revision)


def _beside(model: ModelEntry, name: str) -> Path:
    """Find what the list names: beside itself, then in the model's own folder.

    Raises:
        NotMade: it is in neither, and a program makes it.
        WeightsUnavailable: it is in neither.
    """
    places = (model.folder.parent / name, model.folder / name)
    for place in places:
        if place.exists():
            return place
    if model.made_by:
        raise NotMade(
            f"{model.name}: there is no {name} yet; python {os.path.relpath(model.folder / model.made_by)} makes it"
        )
    raise WeightsUnavailable(
        f"{model.name}: no {name} in {os.path.relpath(model.folder.parent)}/ or {os.path.relpath(model.folder)}/; "
        "give --weights PATH"
    )


def _path(model: ModelEntry, path: Path) -> Source:
    if path.is_dir():
        listed = files_of(path) if model.handler == TENSORS else filter(Path.is_file, sorted(path.rglob("*")))
        files = [_identity(file, path) for file in listed]
        return Source("folder", str(path), f"folder {files}")
    if not path.is_file():
        raise WeightsUnavailable(f"{model.name}: no file {path}; {_instead(model)}")
    parts = [path, *companions(path)]
    if missing := [part.name for part in parts if not part.is_file()]:
        raise WeightsUnavailable(f"{model.name}: {path.name} needs {', '.join(missing)}, which is not beside it")
    if task_of(model).takes_hub_ids:
        # The configuration and tokenizer beside it go into the archive with it.
        parts += served_files(path.parent, with_code=True, is_whole=False)
    return Source("file", str(path), f"file {[_identity(file, path.parent) for file in parts]}")


def _identity(path: Path, folder: Path) -> str:
    status = path.stat()
    return f"{path.relative_to(folder).as_posix()}, {status.st_size} bytes, {status.st_mtime_ns}"


def served_files(source: Path, *, with_code: bool, is_whole: bool = True) -> list[Path]:
    """List the files of a checkpoint that serving reads: in its folder, and in the folders that modules.json names.

    Other folders hold other models, such as a trainer's checkpoints. Only code is read from all of them, if the whole
    folder is the checkpoint, and not if weights in it were named.
    """
    folders = [source]
    modules = source / "modules.json"
    if modules.is_file():
        try:
            named = [str(module["path"]) for module in json.loads(modules.read_text(encoding="utf-8"))]
        except (ValueError, TypeError, KeyError):
            # Whoever loads the model says what is wrong with the file.
            named = []
        folders += [source / name for name in named if name not in ("", ".", "..") and Path(name).name == name]
    files = [file for folder in folders if folder.is_dir() for file in sorted(folder.iterdir())]
    code = [file for file in (sorted(source.rglob("*")) if is_whole else files) if with_code and file.suffix == CODE]
    served = [file for file in files if SERVED.fullmatch(file.relative_to(source).as_posix())]
    return [file for file in (*served, *code) if file.is_file()]


def unserved_files(source: Path, served: Iterable[Path]) -> list[str]:
    """List what looks like a model or its settings and is not among the served files; a folder stands for its own."""
    others = {path for path in source.rglob("*") if path.name.endswith(MODELS)} - {*served}
    parts = sorted(path.relative_to(source).parts for path in others)
    return [*dict.fromkeys(f"{names[0]}/" if len(names) > 1 else names[0] for names in parts)]
