"""Where a model's weights come from: published, in a package, a file of the user's, or random.

Decided without reading them, and without importing torch: whether an archive is up to date is answered at once.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deploy.models import Model

RANDOM_SEED = 0


class WeightsUnavailable(Exception):
    """The weights cannot be had; the message says what to give instead."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model's weights come from.

    Attributes:
        kind: of the location.
        location: weights' name, file, or nothing for random.
        identity: changes whenever the weights may have.
    """

    kind: Literal["torchvision", "file", "random"]
    location: str
    identity: str

    @property
    def is_trained(self) -> bool:
        """Whether its answers mean anything."""
        return self.kind != "random"


def source(model: Model, choice: str | None) -> Source:
    """Decide where the weights come from.

    Args:
        model: its entry says what is taken without a choice.
        choice: a path, `random`, or None.

    Raises:
        WeightsUnavailable: a file or package is missing.
    """
    if choice == "random":
        return Source("random", "", f"random, seed {RANDOM_SEED}")
    if choice is not None:
        return _file(model, Path(choice))
    if "torchvision" in model.weights:
        name = model.weights["torchvision"]
        return Source("torchvision", name, f"torchvision {name}")
    if "package" not in model.weights:
        raise WeightsUnavailable(f"{model.name}: the list names no weights; give --weights PATH or --weights random")
    package = importlib.util.find_spec(model.weights["package"])
    if package is None or not package.submodule_search_locations:
        raise WeightsUnavailable(
            f"{model.name}: the package {model.weights['package']} is not installed; "
            "install it or give --weights PATH or --weights random"
        )
    return _file(model, Path(package.submodule_search_locations[0]) / model.weights["file"])


def _file(model: Model, path: Path) -> Source:
    if not path.is_file():
        raise WeightsUnavailable(f"{model.name}: no file {path}; give --weights PATH or --weights random")
    status = path.stat()
    return Source("file", str(path), f"file {path.name}, {status.st_size} bytes, {status.st_mtime_ns}")
