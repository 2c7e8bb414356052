"""The network of an old archive: its tensors, read without running any code, and torchvision's name of it.

state dict, or the pickle of a TorchScript file -> read_weights -> tensors by name -> find_arch -> "resnet18"
"""

import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torchvision

from deploy.archives.state_dicts import StateDict, read_state
from deploy.archives.weights import read_shapes
from deploy.models import ModelEntry
from handlers.errors import InvalidConfig
from handlers.vision.pixel_classifier import WITHOUT_HEADS
from handlers.vision.pixel_network import AUXILIARY

# TorchScript's names of the types of tensors.
STORAGES = {
    **{"FloatStorage": torch.float32, "DoubleStorage": torch.float64, "HalfStorage": torch.float16},
    **{"BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32},
    **{"ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool},
}


def read_weights(model: ModelEntry, path: Path) -> StateDict:
    """Read a state dict, or the parameters and buffers of a TorchScript program.

    Raises:
        WeightsUnavailable: it is a pickle of anything else than tensors.
        InvalidConfig: the program's file is damaged, or has objects other than modules and tensors.
    """
    if not zipfile.is_zipfile(path):
        return read_state(model, path, ())
    with zipfile.ZipFile(path) as archive:
        roots = {name.partition("/")[0] for name in archive.namelist()}
        if len(roots) != 1 or not any("/code/" in name for name in archive.namelist()):
            return read_state(model, path, ())
        try:
            found = dict(_tensors(_Reader(archive, roots.pop()).load()))
        except Exception as error:
            raise InvalidConfig(f"{path.name}: its tensors cannot be read without running it: {error}") from error
    return found


class _Module:
    """Replaces every class of a program, and keeps only the attributes in the file."""

    attributes: Mapping[str, Any]

    def __setstate__(self, state: Any) -> None:
        self.attributes = state if isinstance(state, dict) else {}


class _Reader(pickle.Unpickler):
    """Reads the pickle of a TorchScript file: modules, tensors and lists; any other object is an error."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(archive.open(f"{root}/data.pkl"))
        self._archive, self._root = archive, root

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("__torch__"):
            return _Module
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            # PyTorch checks that size and stride are within the storage.
            return lambda storage, offset, size, stride, *_: storage.as_strided(size, stride, offset)
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if module == "torch.jit._pickle" or (module, name) == ("collections", "OrderedDict"):
            return lambda *values: values[0] if values else {}
        raise pickle.UnpicklingError(f"it contains {module}.{name}")

    def persistent_load(self, key: Any) -> torch.Tensor:
        _, dtype, name, _, count = key
        data = bytearray(self._archive.read(f"{self._root}/data/{name}"))
        return torch.frombuffer(data, dtype=dtype) if count else torch.empty(0, dtype=dtype)


def _tensors(module: Any, prefix: str = "") -> Iterable[tuple[str, torch.Tensor]]:
    for name, value in module.attributes.items():
        if isinstance(value, _Module):
            yield from _tensors(value, f"{prefix}{name}.")
        elif isinstance(value, torch.Tensor):
            yield f"{prefix}{name}", value.clone()


def find_arch(state: StateDict, package: Any, hint: str) -> str | None:
    """Find the network of torchvision that has these weights, but for the size of its head.

    Args:
        state: the weights.
        package: torchvision.models, or its `detection` or `segmentation`.
        hint: text that may name the network: it is looked for first, since making all of them takes half a minute.
    """
    words = re.sub(r"\W|_", "", hint.lower())
    own = {name: tensor.shape for name, tensor in state.items() if not _is_optional(name)}
    names = torchvision.models.list_models(package)
    for name in sorted(names, key=lambda each: _family(each) not in words):
        options = WITHOUT_HEADS.get(name, {}) if package is torchvision.models else {"weights_backbone": None}
        known = {key: shape for key, shape in read_shapes(name, **options).items() if not _is_optional(key)}
        if known.keys() != own.keys():
            continue
        two, three = (read_shapes(name, num_classes=count, **options) for count in (2, 3))
        if all(own[key] == shape or two[key] != three[key] for key, shape in known.items()):
            return str(name)
    return None


def _family(name: str) -> str:
    found = re.match(r"[a-z]+", name)
    return found[0] if found else name


def _is_optional(name: str) -> bool:
    return bool(AUXILIARY.match(name)) or name.endswith("num_batches_tracked")
