"""Builds image classification: torchvision's state dict or transformers' checkpoint -> the files of an archive."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torchvision
from torchvision.transforms import InterpolationMode
from torchvision.transforms._presets import ImageClassification

from deploy.archives.hub import open_checkpoint, pack
from deploy.archives.networks import make_unique, read_checkpoint_labels, read_labels, write_network, write_state
from deploy.archives.precision.image_fidelity import ImageTask, Owner, load_network, measure_numbers
from deploy.archives.preprocessing import complete_settings, follow_processor, read_transform
from deploy.archives.sources import Source
from deploy.archives.state_dicts import StateDict
from deploy.archives.weights import count_classes as count
from deploy.archives.weights import load_weights
from deploy.models import TENSORS, Engine, ModelEntry
from handlers.config import parse
from handlers.errors import InvalidConfig
from handlers.vision.config import ImageClassificationConfig
from handlers.vision.pixel_classifier import WITHOUT_HEADS, build_torchvision, load_classifier, network_options

FACTS = {
    "settings": "vision.config:ImageClassificationConfig",
    "export_settings": ("arch", "resize_size", "crop_size", "mean", "std", "interpolation", "transform_input"),
    "files": ("index_to_name.json",),
    "takes_hub_ids": True,
    "samples": "images",
    # As ts.torch_handler.image_classifier transforms images.
    "replaces": ("image_classifier", "torchvision.models"),
    "as_before": {"resize_size": 256, "crop_size": 224, "interpolation": "bilinear", "top_k": 5},
}
AUTO = "AutoModelForImageClassification"
measure = measure_numbers


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:
    """Write labels, preprocessing, the graph except for `torch`, and the weights except for `openvino`."""
    config = parse(ImageClassificationConfig, model.config().get("handler"))
    _check_source(model, config, origin)
    if config.arch is not None:
        seen = read_transform(model, config, origin)
        known = network_options(config.arch, seen)
        state = load_weights(model, config.arch, origin, **known)
        labels = read_labels(model, config.arch, count(model, config.arch, state, **known))
        classifier = build_torchvision(state, config.arch, len(labels), seen)
        write_state(state, engine, folder)
    else:
        with open_checkpoint(model, origin) as source:
            _check_library(model, source)
            labels = make_unique(model, [*read_checkpoint_labels(source).values()])
            seen = follow_processor(source)
            classifier = load_classifier(source, seen)
            pack(source, folder, with_weights=engine != "openvino")
    write_network(classifier, seen, ("logits",), dict(enumerate(labels)), engine=engine, folder=folder)


def _check_source(model: ModelEntry, config: ImageClassificationConfig, origin: Source) -> None:
    config_path = Path(origin.location).parent / "config.json"
    if config.arch is None:
        if (origin.kind == "file" and not config_path.is_file()) or origin.kind in ("torchvision", "random"):
            raise InvalidConfig(
                f"{model.name}: arch: required for weights of torchvision: the name of the network, such as resnet50"
            )
        return
    way_out = "remove arch for a checkpoint of transformers, whose config.json names the network"
    if config.arch not in torchvision.models.list_models(torchvision.models):
        raise InvalidConfig(f"{model.name}: arch: {config.arch} is not a classifier of torchvision.models; {way_out}")
    if origin.kind in ("folder", "hub") or (origin.kind == "file" and _names_network(config_path)):
        raise InvalidConfig(
            f"{model.name}: arch: only for a state dict of torchvision, and not for {origin.location}; {way_out}"
        )


def _names_network(path: Path) -> bool:
    """Return whether a file is the config.json of a checkpoint; a training program may write another one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "model_type" in content


def _check_library(model: ModelEntry, source: Path) -> None:
    """Raise InvalidConfig for a model of timm, for which transformers has only a wrapper."""
    content = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if content.get("model_type") == "timm_wrapper" or "pretrained_cfg" in content:
        raise InvalidConfig(
            f"{model.name}: a model of timm, which is not installed here; export it with torch.onnx.export, and serve "
            f"the file with task: {TENSORS}"
        )


def open_owner(model: ModelEntry, origin: Source, config: Any, task: ImageTask) -> Owner:
    known, chosen = network_options(config.arch, task.preprocessing), complete_settings(config, origin)
    if chosen["transform_input"]:
        known["transform_input"] = True
    network = load_network(model, origin, config, task, **known)
    crop = chosen["crop_size"]
    statistics = {"mean": chosen["mean"], "std": chosen["std"]}
    statistics["interpolation"] = InterpolationMode(chosen["interpolation"])
    return Owner(
        ImageClassification(crop_size=crop, resize_size=chosen["resize_size"], **statistics),
        ImageClassification(crop_size=crop, resize_size=crop, **statistics),
        lambda values: [network(values)[0]],
    )


def answer(network: torch.nn.Module, values: torch.Tensor) -> Sequence[torch.Tensor]:
    return [network(pixel_values=values).logits[0]]


def count_classes(arch: str, state: StateDict, way_out: str) -> int:  # noqa: ARG001 - each network can be moved
    return count(ModelEntry("", "", "", Path()), arch, state, **WITHOUT_HEADS.get(arch, {}))
