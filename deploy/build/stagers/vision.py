"""Stages what an archive of image classification holds, made from a state dict; and exports for all tasks on images."""

import json
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import openvino
import torch
import torchvision

from deploy.build.sources import Source, WeightsUnavailable
from deploy.build.weights import class_count, load
from deploy.models import Engine, Model
from handlers.archive_files import GRAPH
from handlers.config import parse
from handlers.errors import InvalidConfig
from handlers.vision.config import ImageClassificationConfig
from handlers.vision.pixel_classifier import PixelClassifier
from handlers.vision.pixel_network import load_state


def stage(model: Model, origin: Source, engine: Engine, folder: Path) -> None:
    """Write index_to_name.json, and model.xml with model.bin, model.pt, or both for `auto`.

    Raises:
        WeightsUnavailable: the weights, or labels for them, cannot be had.
        InvalidConfig: the model's configuration is wrong.
    """
    config = parse(ImageClassificationConfig, model.config().get("handler"))
    if config.arch not in torchvision.models.list_models(torchvision.models):
        raise InvalidConfig(f"{model.name}: arch: {config.arch} is no classifier of torchvision.models")
    state = load(model, config.arch, origin)
    classes = class_count(model, config.arch, state)
    labels = labels_of(model, config.arch, classes)
    (folder / "index_to_name.json").write_text(json.dumps(dict(enumerate(labels)), ensure_ascii=False))
    empty = torchvision.models.get_model(config.arch, weights=None, num_classes=classes)
    classifier = load_state(empty, state, config.arch)
    if engine != "torch":
        pixels = PixelClassifier(classifier, config.mean, config.std).eval()
        graph = export(pixels, (config.crop_size, config.crop_size), ("logits",))
        openvino.save_model(graph, folder / GRAPH, compress_to_fp16=False)
    if engine != "openvino":
        torch.save(state, folder / "model.pt")


def export(
    module: torch.nn.Module, size: tuple[int, int], outputs: Sequence[str], *, is_free: bool = False
) -> openvino.Model:
    """Export a module that sees images as a graph: pixels (B, H, W, 3) uint8 -> outputs; any B.

    Args:
        module: takes the pixels.
        size: width and height.
        outputs: names of what it returns.
        is_free: whether the graph takes images of other sizes too.
    """
    width, height = size
    # Zeros would leave every query of a detector alike, and the order of the first ones open.
    chance = torch.Generator().manual_seed(0)
    example = torch.randint(0, 256, (2, height, width, 3), dtype=torch.uint8, generator=chance)
    sizes = [-1, -1] if is_free else [height, width]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = openvino.convert_model(module, example_input=example, input=[-1, *sizes, 3])
    graph.inputs[0].get_tensor().set_names({"pixels"})
    for port, name in zip(graph.outputs, outputs, strict=True):
        port.get_tensor().set_names({name})
    return graph


def labels_of(model: Model, arch: str, class_count: int, *, are_unique: bool = True) -> list[str]:
    """Name the classes: by the model's own file, or as torchvision's weights do where the count fits."""
    own = model.folder / "index_to_name.json"
    if own.is_file():
        names = json.loads(own.read_text(encoding="utf-8"))
        # TorchServe's example pairs names with WordNet's ids, ["n01440764", "tench"]; two of the names are not unique.
        pairs = [name if isinstance(name, list) else [name] for name in map(names.get, map(str, range(len(names))))]
        counts = Counter(pair[-1] for pair in pairs)
        labels = [f"{pair[-1]} ({pair[0]})" if len(pair) > 1 < counts[pair[-1]] else pair[-1] for pair in pairs]
    else:
        labels = torchvision.models.get_model_weights(arch).DEFAULT.meta["categories"]
    if len(labels) != class_count or None in labels:
        raise WeightsUnavailable(
            f"{model.name}: the weights have {class_count} classes; name them in {os.path.relpath(own)}, from 0 to "
            f"{class_count - 1}; there are {len(labels)} names"
        )
    if are_unique and len(set(labels)) != class_count:
        raise WeightsUnavailable(f"{model.name}: two classes have the same name; an answer could not hold both")
    return labels
