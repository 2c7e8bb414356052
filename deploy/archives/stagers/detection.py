"""Stages object detection: an SSD of torchvision, or transformers' checkpoint -> the files of an archive."""

from pathlib import Path

from deploy.archives.hub import open_checkpoint, pack
from deploy.archives.preprocessing import follow_processor
from deploy.archives.sources import Source
from deploy.archives.stagers.vision import read_checkpoint_labels, read_labels, write_network, write_state
from deploy.archives.state_dicts import StateDict
from deploy.archives.weights import load_weights
from deploy.models import Engine, ModelEntry
from handlers.config import parse
from handlers.errors import InvalidConfig
from handlers.vision.boxes import RULES
from handlers.vision.config import ObjectDetectionConfig
from handlers.vision.pixel_detector import FAMILY, PixelDetector, load_detector
from handlers.vision.pixel_network import check_family
from handlers.vision.pixel_ssd import PixelSsd, load_ssd


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
