"""The model list (examples/models.yaml or the user's), and the folder of each model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import yaml

from handlers.config import check_names
from handlers.errors import InvalidConfig
from torchserve_client.archives import check_name

ROOT = Path(__file__).resolve().parent.parent
MODEL_LIST = ROOT / "examples" / "models.yaml"

# The engine that an archive is built for.
Engine = Literal["auto", "openvino", "onnxruntime", "torch"]

# The keys of an entry.
REQUIRED = frozenset({"handler", "version"})
KEYS = REQUIRED | {"weights", "made_by"}

# The task whose models describe themselves; the other tasks are configured.
TENSORS = "tensors"
# The task that runs an old archive's own code, which no build may run.
STOCK = "stock"


class UnknownModel(LookupError):
    """The model list does not contain the name."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """An entry of the model list; archive and registered model have its name."""

    name: str
    # A built-in task, or a file beside the list that contains the user's task: `my_task.py`.
    handler: str
    # The archive's version if its weights are trained.
    version: str
    # Configuration, files that the task stages, and sample requests.
    folder: Path
    # The default source of the weights; empty if the command names one, or if the model has no weights.
    weights: dict[str, str] = field(default_factory=dict)
    # A program of the folder that makes the weights; the error for missing weights names it.
    made_by: str = ""

    @property
    def config_path(self) -> Path:
        return self.folder / "model-config.yaml"

    def config(self) -> dict[str, Any]:
        """Read model-config.yaml; a missing or empty file means no settings, a misspelt file name is an error."""
        file = self.config_path.name
        if not self.config_path.exists():
            if similar := get_close_matches(file, (path.name for path in self.folder.glob("*.y*ml")), cutoff=0.75):
                raise InvalidConfig(f"{self.name}: {similar[0]} is not read: rename it to {file}")
            return {}
        try:
            loaded = yaml.safe_load(self.config_path.read_text(encoding="utf-8"))
            config = {} if loaded is None else loaded
            check_names(config)
        except (yaml.YAMLError, UnicodeDecodeError, InvalidConfig) as error:
            raise InvalidConfig(f"{self.name}: {file}: {' '.join(str(error).split())}") from None
        return dict(config)


def models(path: Path = MODEL_LIST) -> dict[str, ModelEntry]:
    """Read every model of a list, in its order; a model's folder is beside the list and has the model's name.

    Raises:
        InvalidConfig: an entry lacks a key or has an unknown key, or its name or version cannot be served.
    """
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(entries, Mapping):
            raise InvalidConfig("expected a mapping of model names to entries")
        found = {name: _model(path.parent, name, entry) for name, entry in entries.items()}
    except FileNotFoundError:
        raise InvalidConfig(f"no model list {path}") from None
    except (yaml.YAMLError, ValueError, InvalidConfig) as error:
        raise InvalidConfig(f"{path.name}: {' '.join(str(error).split())}") from None
    for model in found.values():
        if not all(isinstance(text, str) for text in (model.name, model.handler, model.version)):
            raise InvalidConfig(f"{path.name}: {model.name}: handler and version must be text; quote a number")
        if not isinstance(model.weights, dict) or not all(isinstance(text, str) for text in model.weights.values()):
            raise InvalidConfig(f"{path.name}: {model.name}: weights must be text, or a mapping of names to text")
    return found


def _model(folder: Path, name: str, entry: Any) -> ModelEntry:
    check_name(name)
    try:
        check_names(entry, KEYS, f"known are {', '.join(sorted(KEYS))}")
    except InvalidConfig as error:
        raise InvalidConfig(f"{name}: {error}") from None
    if missing := REQUIRED - entry.keys():
        raise InvalidConfig(f"{name}: {' and '.join(sorted(missing))} missing")
    check_name(str(entry["version"]))
    if isinstance(entry.get("weights"), str):
        entry = {**entry, "weights": {"path": entry["weights"]}}
    return ModelEntry(name=name, folder=folder / name, **entry)


def model(name: str, path: Path = MODEL_LIST) -> ModelEntry:
    """Find one model of a list, or raise UnknownModel with the known names."""
    known = models(path)
    if name not in known:
        raise UnknownModel(f"{name}: not in {path.name}; known are {', '.join(known)}")
    return known[name]
