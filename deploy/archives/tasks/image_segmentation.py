"""Builds image segmentation: torchvision's state dict, or transformers' checkpoint -> the files of an archive."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torchvision.transforms._presets import ImageClassification, SemanticSegmentation

from deploy.archives.differences import Array, relative_error
from deploy.archives.hub import open_checkpoint, pack
from deploy.archives.networks import read_checkpoint_labels, read_labels, write_network, write_state
from deploy.archives.precision.image_fidelity import ImageTask, Owner, load_network, measure_numbers
from deploy.archives.preprocessing import follow_processor
from deploy.archives.sources import Source
from deploy.archives.state_dicts import StateDict
from deploy.archives.weights import count_classes as count
from deploy.archives.weights import load_weights
from deploy.models import Engine, ModelEntry
from handlers.config import parse
from handlers.vision.config import ImageSegmentationConfig
from handlers.vision.pixel_network import check_family
from handlers.vision.pixel_segmenter import FAMILY, PixelSegformer, PixelSegmenter, build_torchvision, load_segmenter
from handlers.vision.preprocessing import Preprocessing, to_levels

FACTS = {
    "settings": "vision.config:ImageSegmentationConfig",
    "export_settings": ("arch", "resize_size", "crop_size", "mean", "std"),
    "files": ("index_to_name.json",),
    "takes_hub_ids": True,
    "samples": "images",
    # As ts.torch_handler.image_segmenter transforms images.
    "replaces": ("image_segmenter", "torchvision.models.segmentation"),
    "as_before": {"resize_size": 256, "crop_size": 224, "answer": "torchserve"},
}
AUTO = "AutoModelForSemanticSegmentation"


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:
    """Write labels, preprocessing, the graph except for `torch`, and the weights except for `openvino`."""
    config = parse(ImageSegmentationConfig, model.config().get("handler"))
    segmenter: PixelSegmenter | PixelSegformer
    if config.arch is not None:
        crop = None if config.crop_size is None else (config.crop_size, config.crop_size)
        statistics = to_levels(config.mean), to_levels(config.std)
        seen = Preprocessing(config.resize_size, crop, "bilinear", *statistics, is_rounded=crop is not None)
        state = load_weights(model, config.arch, origin, weights_backbone=None)
        labels = read_labels(model, config.arch, count(model, config.arch, state, weights_backbone=None))
        segmenter = build_torchvision(state, config.arch, len(labels), seen)
        write_state(state, engine, folder)
    else:
        with open_checkpoint(model, origin) as source:
            check_family(source, FAMILY)
            seen = follow_processor(source)
            labels = [*read_checkpoint_labels(source).values()]
            segmenter = load_segmenter(source, None, len(labels), seen)
            pack(source, folder, with_weights=engine != "openvino")
    names = dict(enumerate(labels))
    write_network(segmenter, seen, segmenter.output_names, names, engine=engine, folder=folder)


def open_owner(model: ModelEntry, origin: Source, config: ImageSegmentationConfig, task: ImageTask) -> Owner:
    network = load_network(model, origin, config, task, weights_backbone=None)
    statistics = {"mean": config.mean, "std": config.std}
    transform: torch.nn.Module = SemanticSegmentation(resize_size=config.resize_size, **statistics)
    if config.crop_size is not None:
        # A classifier's transform is TorchServe's own, of its image_segmenter too.
        transform = ImageClassification(crop_size=config.crop_size, resize_size=config.resize_size, **statistics)
    return Owner(
        transform, SemanticSegmentation(resize_size=None, **statistics), lambda values: [network(values)["out"][0]]
    )


def answer(network: torch.nn.Module, values: torch.Tensor) -> Sequence[torch.Tensor]:
    return [network(pixel_values=values).logits[0]]


def measure(got: Sequence[Array], exact: Sequence[Array]) -> float:
    """Compare maps: a class may be another one whose logit is as large."""
    (logits,) = exact
    if len(got) == 1:
        return measure_numbers(got, exact)
    classes, probabilities = got
    best = logits.max(0)
    chosen = np.take_along_axis(logits, classes.astype(np.intp)[None], 0)[0]
    likeliest = 1 / np.exp(logits - best).sum(0)
    largest = float(np.abs(logits).max())
    # A small error of large logits is a large one of a probability, and of its logarithm a small one.
    rounded = relative_error(np.log(probabilities), np.log(likeliest), largest)
    return max(relative_error(chosen, best, largest), min(rounded, relative_error(probabilities, likeliest, 1.0)))


def count_classes(arch: str, state: StateDict, way_out: str) -> int:  # noqa: ARG001 - each network can be moved
    return count(ModelEntry("", "", "", Path()), arch, state, weights_backbone=None)
