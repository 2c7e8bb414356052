"""Builds object detection: an SSD of torchvision, or transformers' checkpoint -> the files of an archive."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.transforms._presets import ObjectDetection

from deploy.archives.differences import TOLERANCE, Array
from deploy.archives.hub import open_checkpoint, pack
from deploy.archives.networks import read_checkpoint_labels, read_labels, write_network, write_state
from deploy.archives.precision.image_fidelity import ImageTask, Owner, load_network
from deploy.archives.preprocessing import follow_processor
from deploy.archives.sources import Source
from deploy.archives.state_dicts import StateDict
from deploy.archives.weights import load_weights
from deploy.models import Engine, ModelEntry
from handlers.config import parse
from handlers.errors import InvalidConfig
from handlers.vision.boxes import RULES
from handlers.vision.config import ObjectDetectionConfig
from handlers.vision.pixel_detector import FAMILY, PixelDetector, PixelSsd, load_detector, load_ssd
from handlers.vision.pixel_network import check_family

FACTS = {
    "settings": "vision.config:ObjectDetectionConfig",
    "export_settings": ("arch",),
    "files": ("index_to_name.json",),
    "takes_hub_ids": True,
    "samples": "images",
    "replaces": ("object_detector", "torchvision.models.detection"),
    "as_before": {"threshold": 0.5, "answer": "torchserve"},
    "unserved": {
        ("owlvit", "owlv2", "grounding-dino", "mm-grounding-dino", "omdet-turbo"): (
            "it finds objects that a request names, and this task has fixed classes; use a detector such as DETR"
        )
    },
}
AUTO = "AutoModelForObjectDetection"


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:
    """Write labels, preprocessing, the graph except for `torch`, and the weights except for `openvino`."""
    config = parse(ObjectDetectionConfig, model.config().get("handler"))
    detector: PixelDetector | PixelSsd
    if config.arch is not None:
        state = load_weights(model, config.arch, origin, weights_backbone=None)
        detector, classes = load_ssd(state, config.arch)
        seen = detector.preprocessing
        # COCO's unused numbers are all named "N/A".
        labels = dict(enumerate(read_labels(model, config.arch, classes, are_unique=False)))
        write_state(state, engine, folder)
    else:
        with open_checkpoint(model, origin) as source:
            check_family(source, FAMILY)
            seen = follow_processor(source)
            detector = load_detector(source, seen)
            labels = read_checkpoint_labels(source)
            pack(source, folder, with_weights=engine != "openvino")
    write_network(detector, seen, ("logits", "boxes"), labels, engine=engine, folder=folder)


def count_classes(arch: str, state: StateDict, way_out: str) -> int:
    """Count a network's classes; InvalidConfig, with the way out, if the network is not one of RULES."""
    if arch not in RULES:
        raise InvalidConfig(
            f"{arch}: it chooses boxes inside the network, so images cannot share a forward pass; {way_out}, or "
            f"train one of {', '.join(RULES)}, or RT-DETR of transformers"
        )
    return load_ssd(state, arch)[1]


def open_owner(model: ModelEntry, origin: Source, config: ObjectDetectionConfig, task: ImageTask) -> Owner:
    network = load_network(model, origin, config, task, weights_backbone=None)
    side = task.preprocessing.least_side
    found: dict[str, torch.Tensor] = {}
    network.head.register_forward_hook(lambda *arguments: found.update(arguments[2]))
    network.anchor_generator.register_forward_hook(lambda *arguments: found.update(anchors=arguments[2][0]))

    def answer(values: torch.Tensor) -> list[torch.Tensor]:
        network(list(values))
        boxes = network.box_coder.decode_single(found["bbox_regression"][0], found["anchors"]) / side
        return [found["cls_logits"][0], boxes.clamp(0, 1)]

    def transform(picture: Image.Image) -> torch.Tensor:
        resized = torch.nn.functional.interpolate(ObjectDetection()(picture)[None], (side, side), mode="bilinear")
        return resized[0]

    return Owner(transform, ObjectDetection(), answer)


def answer(network: torch.nn.Module, values: torch.Tensor) -> list[torch.Tensor]:
    found = network(pixel_values=values)
    centres, halves = found.pred_boxes[0, :, :2], found.pred_boxes[0, :, 2:] / 2
    return [found.logits[0], torch.cat([centres - halves, centres + halves], 1)]


def measure(got: Sequence[Array], exact: Sequence[Array]) -> float:
    """Compare boxes as sets: equally likely ones may change places."""
    if any(one.shape != other.shape or not np.isfinite(one).all() for one, other in zip(got, exact, strict=True)):
        return math.inf
    scales = [max(1e-9, float(np.abs(each).max())) for each in exact]
    ours, theirs = (
        np.concatenate([each / scale for each, scale in zip(every, scales, strict=True)], 1) for every in (got, exact)
    )
    if np.abs(ours - theirs).max() <= TOLERANCE:
        return float(np.abs(ours - theirs).max())
    nearest = [float(np.abs(theirs - row).max(1).min()) for row in ours]
    nearest += [float(np.abs(ours - row).max(1).min()) for row in theirs]
    return max(nearest)
