"""The network of an old archive: its tensors, read without running any code, and torchvision's name of it.

state dict, or the pickle of a TorchScript file -> read_weights -> tensors by name -> find_arch -> "resnet18"
"""

import re
import zipfile
from pathlib import Path
from typing import Any

import torchvision

from deploy.archives.pickles import Claim, Instance, InvalidPickle, read_tensors
from deploy.archives.state_dicts import StateDict, read_state
from deploy.archives.weights import read_shapes
from deploy.models import ModelEntry
from handlers.errors import InvalidConfig
from handlers.vision.pixel_classifier import WITHOUT_HEADS
from handlers.vision.pixel_network import AUXILIARY

# Modules and tensors of a program, and characters of a tensor's name.
MOST_MODULES = 20_000
MOST_CHARACTERS = 500


def read_weights(model: ModelEntry, path: Path) -> StateDict:
    """Read a state dict, or a TorchScript program's tensors; WeightsUnavailable or InvalidConfig without them."""
    try:
        with zipfile.ZipFile(path) as archive:
            is_script = any("/code/" in name for name in archive.namelist())
    except Exception:
        is_script = False  # another format, or damaged, as its reader then says
    if not is_script:
        return read_state(model, path, ())
    try:
        return read_tensors(path, _list_tensors)
    except Exception as error:
        raise InvalidConfig(f"{path.name}: its tensors cannot be read without running it: {error}") from error


def _list_tensors(program: Any) -> dict[str, Claim]:
    found, waiting, count = dict[str, Claim](), [("", program)], 0
    while waiting:
        prefix, module = waiting.pop()
        if not isinstance(getattr(module, "state", None), dict):
            raise InvalidPickle(f"{prefix or 'its first object'} is not a module")
        for name, value in module.state.items():
            count += 1
            if count > MOST_MODULES or len(prefix) > MOST_CHARACTERS:
                raise InvalidPickle(f"its modules have more than {MOST_MODULES} attributes, or contain themselves")
            if isinstance(value, Instance) and value.name.startswith("__torch__"):
                waiting.append((f"{prefix}{name}.", value))
            elif isinstance(value, Claim):
                found[f"{prefix}{name}"] = value
    return found


def find_arch(state: StateDict, package: object, hint: str) -> str | None:
    """Find the network of torchvision that has these weights, but for its head; it tries those in `hint` first."""
    words = re.sub(r"\W|_", "", hint.lower())
    own = {name: tensor.shape for name, tensor in state.items() if not _is_optional(name)}
    names = torchvision.models.list_models(package)
    for name in sorted(names, key=lambda each: _family(each) not in words):
        options = WITHOUT_HEADS.get(name, {}) if package is torchvision.models else {"weights_backbone": None}
        known = {key: shape for key, shape in read_shapes(name, **options).items() if not _is_optional(key)}
        if known.keys() != own.keys():
            continue
        two, three = (read_shapes(name, num_classes=count, **options) for count in (2, 3))
        # The number of classes is the first dimension of a head, and no other.
        if all(own[key][two[key] != three[key] :] == shape[two[key] != three[key] :] for key, shape in known.items()):
            return str(name)
    return None


def _family(name: str) -> str:
    found = re.match(r"[a-z]+", name)
    return found[0] if found else name


def _is_optional(name: str) -> bool:
    return bool(AUXILIARY.match(name)) or name.endswith("num_batches_tracked")
