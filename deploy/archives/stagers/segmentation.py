"""Stages image segmentation: torchvision's state dict, or transformers' checkpoint -> the files of an archive."""

from pathlib import Path

from deploy.archives.hub import open_checkpoint, pack
from deploy.archives.preprocessing import follow_processor
from deploy.archives.sources import Source
from deploy.archives.stagers.vision import read_checkpoint_labels, read_labels, write_network, write_state
from deploy.archives.weights import count_classes, load_weights
from deploy.models import Engine, ModelEntry
from handlers.config import parse
from handlers.vision.config import ImageSegmentationConfig
from handlers.vision.pixel_network import check_family
from handlers.vision.pixel_segmenter import FAMILY, PixelSegformer, PixelSegmenter, build_torchvision, load_segmenter
from handlers.vision.preprocessing import Preprocessing, to_levels


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:
    """Write labels, preprocessing, the graph except for `torch`, and the weights except for `openvino`."""
    config = parse(ImageSegmentationConfig, model.config().get("handler"))
    segmenter: PixelSegmenter | PixelSegformer
    if config.arch is not None:
        crop = None if config.crop_size is None else (config.crop_size, config.crop_size)
        statistics = to_levels(config.mean), to_levels(config.std)
        seen = Preprocessing(config.resize_size, crop, "bilinear", *statistics, is_rounded=crop is not None)
        state = load_weights(model, config.arch, origin, weights_backbone=None)
        labels = read_labels(model, config.arch, count_classes(model, config.arch, state, weights_backbone=None))
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
