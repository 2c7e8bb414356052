"""The model list: examples/models.yaml and the folder of each model."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from handlers.errors import InvalidConfig

ROOT = Path(__file__).resolve().parent.parent
MODEL_LIST = ROOT / "examples" / "models.yaml"

# What an archive carries a model for; `auto` for both.
Engine = Literal["auto", "openvino", "torch"]


class UnknownModel(LookupError):
    """The model list has no such name."""


@dataclass(frozen=True, slots=True)
class Model:
    """One entry of the model list.

    Attributes:
        name: of the archive and of the registered model.
        handler: module of handlers/ that serves it.
        version: of the archive, where its weights are trained.
        folder: its configuration, labels and sample requests.
        weights: where they come from by default, as the list has it; empty for "the user says".
    """

    name: str
    handler: str
    version: str
    folder: Path
    weights: dict[str, str] = field(default_factory=dict)

    @property
    def config_path(self) -> Path:
        """Its model-config.yaml."""
        return self.folder / "model-config.yaml"

    def config(self) -> dict[str, Any]:
        """Its model-config.yaml, parsed."""
        loaded: dict[str, Any] = yaml.safe_load(self.config_path.read_text(encoding="utf-8"))
        return loaded


def models(path: Path = MODEL_LIST) -> dict[str, Model]:
    """Every model of a list, by name, in its order; a model's folder lies beside the list and has its name.

    Raises:
        InvalidConfig: an entry misses a key or has an unknown one.
    """
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    try:
        return {name: Model(name=name, folder=path.parent / name, **entry) for name, entry in entries.items()}
    except (AttributeError, TypeError) as error:
        raise InvalidConfig(f"{path.name}: an entry is no {{handler, version, weights}}: {error}") from error


def model(name: str, path: Path = MODEL_LIST) -> Model:
    """One model of a list.

    Raises:
        UnknownModel: names those there are.
    """
    known = models(path)
    if name not in known:
        raise UnknownModel(f"{name}: not in {path.name}; known are {', '.join(known)}")
    return known[name]
