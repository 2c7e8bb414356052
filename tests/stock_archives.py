"""Archives of stock TorchServe, as torch-model-archiver writes them, with tiny or trained networks."""

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torchvision

from tests.tensor_files import script

RESNET = """
from torchvision.models.resnet import ResNet, BasicBlock

class ImageClassifier(ResNet):
    def __init__(self):
        super().__init__(BasicBlock, [2, 2, 2, 2], num_classes=5)
"""
IRIS = """
import torch
from ts.torch_handler.base_handler import BaseHandler

class IrisHandler(BaseHandler):
    def preprocess(self, data):
        rows = [row.get("data") or row.get("body") for row in data]
        return torch.tensor([row["features"] for row in rows], dtype=torch.float32)

    def postprocess(self, data):
        return [{"class": self.mapping[str(index)]} for index in data.argmax(1).tolist()]
"""
IRIS_LABELS = '{"0": "setosa", "1": "versicolor", "2": "virginica"}'


class Running:
    """An object whose pickle contains a call, which makes a folder on loading."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._mark),)


def archive(path: Path, handler: str, files: Mapping[str, Path | str | bytes], **model: str) -> Path:
    """Write an archive: `files` by name, with `model` in the manifest."""
    manifest = {"modelName": path.stem, "modelVersion": "1.0", "handler": handler, **model}
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": manifest, "runtime": "python"}))
        for name, content in files.items():
            if isinstance(content, Path):
                target.write(content, name)
            else:
                target.writestr(name, content)
    return path


def scripted(module: torch.nn.Module, path: Path) -> Path:
    return script(path, module)


def resnet18() -> Any:
    torch.manual_seed(1)
    return torchvision.models.resnet18(num_classes=5).eval()


def saved(state: Any, path: Path) -> Path:
    torch.save(state, path)
    return path
