"""The model list: examples/models.yaml, or a user's own, and the folder of each model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import yaml

from deploy import places
from deploy.yaml_text import parse_yaml
from handlers.config import check_names
from handlers.errors import InvalidConfig
from torchserve_client.archives import check_name
from torchserve_client.payloads import Json

ROOT, MODEL_LIST = places.ROOT, places.MODEL_LIST

# The engine for which an archive contains a model; with `auto`, both OpenVINO and PyTorch.
Engine = Literal["auto", "openvino", "onnxruntime", "torch"]

REQUIRED = frozenset({"task", "version"})  # the keys of an entry
FORMER = "handler"  # the former name of `task`, in messages
KEYS = REQUIRED | {"weights", "made_by", "requirements"}

TENSORS = "tensors"  # the task whose inputs and outputs the model's own file describes
STOCK = "stock"  # the task that runs an old archive's own code, which no build may run


class UnknownModel(LookupError):
    """The model list has no such name."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    name: str  # the name of the archive and of the registered model
    handler: str  # a built-in task, or a file beside the list with a task of the user's: `my_task.py`
    version: str  # the archive's version if its weights are trained
    folder: Path  # the folder of model-config.yaml, the files that the task stages, and sample requests
    # The default source of the weights; empty if the command line must name one, or the task needs none. A text stands
    # for `path: TEXT`, a file or folder beside the list or in the model's folder.
    weights: dict[str, str] = field(default_factory=dict)
    made_by: str = ""  # a program in the model's folder that writes the weights
    requirements: tuple[str, ...] | str = ()  # packages that its task imports, or the file beside the list with them

    @property
    def config_path(self) -> Path:
        return self.folder / "model-config.yaml"

    def config(self) -> Json:
        """Read model-config.yaml; a missing or empty file is an empty mapping."""
        file = self.config_path.name
        if not self.config_path.exists():
            if similar := get_close_matches(file, (path.name for path in self.folder.glob("*.y*ml")), cutoff=0.75):
                raise InvalidConfig(f"{self.name}: {similar[0]} is not read: rename it to {file}")
            return {}
        try:
            loaded = parse_yaml(self.config_path.read_text(encoding="utf-8"))
            config = {} if loaded is None else loaded
            check_names(config)
            if not isinstance(config.get("handler"), Mapping | None):
                raise InvalidConfig(
                    f"handler: expected a mapping of settings, received {type(config['handler']).__name__}; indent the "
                    "settings below it. The task's name belongs to the model list"
                )
        except (yaml.YAMLError, UnicodeDecodeError, InvalidConfig) as error:
            raise InvalidConfig(f"{self.name}: {file}: {' '.join(str(error).split())}") from None
        return dict(config)

    def settings(self) -> Json:
        """Read the settings under `handler:` of model-config.yaml; see `config`."""
        return dict(self.config().get("handler") or {})


def models(path: Path = MODEL_LIST) -> dict[str, ModelEntry]:
    """Read a list: its models by name, in its order. A model's folder lies beside the list and has the model's name."""
    try:
        entries = parse_yaml(path.read_text(encoding="utf-8"))
        if not isinstance(entries, Mapping):
            raise InvalidConfig(f"expected a mapping of model names to entries, received {type(entries).__name__}")
        found = {name: _read_entry(path.parent, name, entry) for name, entry in entries.items()}
    except FileNotFoundError:
        raise InvalidConfig(f"no model list {path}; name one with --models FILE") from None
    except (yaml.YAMLError, ValueError, InvalidConfig) as error:
        raise InvalidConfig(f"{path.name}: {' '.join(str(error).split())}") from None
    return found


def _read_entry(folder: Path, name: Any, entry: Any) -> ModelEntry:
    check_name(str(name))
    if not isinstance(name, str):
        raise InvalidConfig(f"{name}: a name must be text; quote it")
    try:
        check_names(entry, KEYS, f"known are {', '.join(sorted(KEYS))}; {FORMER} was the name of task")
    except InvalidConfig as error:
        raise InvalidConfig(f"{name}: {error}") from None
    if missing := REQUIRED - entry.keys():
        raise InvalidConfig(f"{name}: {' and '.join(sorted(missing))} missing")
    if not all(isinstance(entry[key], str) for key in REQUIRED):
        raise InvalidConfig(f"{name}: task and version must be text; quote a number")
    check_name(entry["version"])
    weights, made_by = entry.get("weights", {}), entry.get("made_by", "")
    weights = {"path": weights} if isinstance(weights, str) else weights
    if not isinstance(weights, dict) or not all(isinstance(text, str) for each in weights.items() for text in each):
        raise InvalidConfig(f"{name}: weights must be a text, or a mapping of names to texts")
    if not isinstance(made_by, str):
        raise InvalidConfig(f"{name}: made_by must be the name of a file")
    needs = entry.get("requirements", ())
    if not isinstance(needs, str | list | tuple) or not all(isinstance(each, str) for each in needs):
        raise InvalidConfig(f"{name}: requirements must be a list of packages, or the name of a file beside the list")
    needs = needs if isinstance(needs, str) else tuple(needs)
    return ModelEntry(name, entry["task"], entry["version"], folder / name, weights, made_by, needs)


def model(name: str, path: Path = MODEL_LIST) -> ModelEntry:
    known = models(path)
    if name not in known:
        raise UnknownModel(f"{name}: not in {path.name}; known are {', '.join(known)}")
    return known[name]
