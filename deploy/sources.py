"""Where a model's weights come from: published, in a package, a file of the user's, random, or nowhere.

This is decided without reading them and without importing torch: whether an archive is up to date is answered at once.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deploy.checkpoint_files import files_beside
from deploy.models import Model
from deploy.named_files import in_package
from deploy.tasks import task_of

RANDOM_SEED = 0

# The Hugging Face hub has its models as organisation/name.
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class WeightsUnavailable(Exception):
    """The weights cannot be had; the message says what to give instead."""


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


def source(model: Model, choice: str | None) -> Source:
    """Decide where the weights come from.

    Args:
        model: its entry says what is taken without a choice.
        choice: a path, a hub id where the task takes one, `random`, or None.

    Raises:
        WeightsUnavailable: a file or package is missing.
        InvalidConfig: no task serves the model.
    """
    task = task_of(model)
    if choice == "random":
        return Source("random", "", f"random, seed {RANDOM_SEED}")
    if choice is not None:
        is_hub_id = HUB_ID.fullmatch(choice) and not Path(choice).exists()
        return _hub(choice) if is_hub_id and task.takes_hub_ids else _path(model, Path(choice))
    if "torchvision" in model.weights:
        name = model.weights["torchvision"]
        return Source("torchvision", name, f"torchvision {name}")
    if "hub" in model.weights:
        return _hub(model.weights["hub"], model.weights.get("revision"))
    if not model.weights and not task.needs_weights:
        return Source("none", "", "no weights")
    if not {"package", "file"} <= model.weights.keys():
        raise WeightsUnavailable(f"{model.name}: the list names no weights; give --weights PATH or --weights random")
    path = in_package(model.weights["package"], model.weights["file"])
    if path is None:
        raise WeightsUnavailable(
            f"{model.name}: the package {model.weights['package']} is not installed; "
            "install it or give --weights PATH or --weights random"
        )
    return _path(model, path)


def _hub(hub_id: str, revision: str | None = None) -> Source:
    return Source("hub", hub_id, f"hub {hub_id}" + (f" at {revision}" if revision else ""), revision)


def _path(model: Model, path: Path) -> Source:
    if path.is_dir():
        files = [_identity(file, path) for file in sorted(path.rglob("*")) if file.is_file()]
        return Source("folder", str(path), f"folder {files}")
    if not path.is_file():
        raise WeightsUnavailable(f"{model.name}: no file {path}; give --weights PATH or --weights random")
    parts = [path]
    if task_of(model).takes_hub_ids:
        # The configuration and tokenizer beside it go into the archive with it.
        parts += files_beside(path, with_code=True)
    return Source("file", str(path), f"file {[_identity(file, path.parent) for file in parts]}")


def _identity(path: Path, folder: Path) -> str:
    status = path.stat()
    return f"{path.relative_to(folder).as_posix()}, {status.st_size} bytes, {status.st_mtime_ns}"
