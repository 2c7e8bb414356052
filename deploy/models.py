"""The model list: examples/models.yaml and the folder of each model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"

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
        weights: where they come from by default, as the list has it.
    """

    name: str
    handler: str
    version: str
    weights: dict[str, str]

    @property
    def folder(self) -> Path:
        """Its configuration and sample requests."""
        return EXAMPLES / self.name

    @property
    def config_path(self) -> Path:
        """Its model-config.yaml."""
        return self.folder / "model-config.yaml"

    def config(self) -> dict[str, Any]:
        """Its model-config.yaml, parsed."""
        loaded: dict[str, Any] = yaml.safe_load(self.config_path.read_text(encoding="utf-8"))
        return loaded


def models() -> dict[str, Model]:
    """Every model of the list, by name, in its order."""
    entries = yaml.safe_load((EXAMPLES / "models.yaml").read_text(encoding="utf-8"))
    return {name: Model(name=name, **entry) for name, entry in entries.items()}


def model(name: str) -> Model:
    """One model of the list.

    Raises:
        UnknownModel: names those there are.
    """
    known = models()
    if name not in known:
        raise UnknownModel(f"{name}: not in examples/models.yaml; known are {', '.join(known)}")
    return known[name]
