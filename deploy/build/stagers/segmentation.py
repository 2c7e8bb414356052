"""Stages what an archive of image segmentation holds, made from torchvision's weights or a Hugging Face checkpoint."""

import json
from pathlib import Path

import openvino
import torch
import transformers

from deploy.build.hub import open_checkpoint, pack
from deploy.build.preprocessing import of_processor
from deploy.build.sources import Source
from deploy.build.stagers.vision import export, read_labels
from deploy.build.weights import count_classes, load_weights
from deploy.models import Engine, ModelEntry
from handlers.archive_files import GRAPH
from handlers.checkpoints import check_labels
from handlers.config import parse
from handlers.vision.config import ImageSegmentationConfig
from handlers.vision.pixel_segmenter import PixelSegformer, PixelSegmenter, build_torchvision, load_segmenter
from handlers.vision.preprocessing import Preprocessing, to_levels


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:
    """Write index_to_name.json, preprocessing.json, the graph but for `torch`, and the weights but for `openvino`.

    Raises:
        WeightsUnavailable: the weights, or labels for them, cannot be had.
        InvalidConfig: the configuration is wrong, or the model is none that is served.
    """
    config = parse(ImageSegmentationConfig, model.config().get("handler"))
    segmenter: PixelSegmenter | PixelSegformer
    if config.arch is not None:
        seen = Preprocessing(config.resize_size, None, "bilinear", to_levels(config.mean), to_levels(config.std))
        state = load_weights(model, config.arch, origin, weights_backbone=None)
        labels = read_labels(model, config.arch, count_classes(model, config.arch, state, weights_backbone=None))
        segmenter = build_torchvision(state, config.arch, len(labels), seen)
        if engine != "openvino":
            torch.save(state, folder / "model.pt")
    else:
        with open_checkpoint(model, origin) as source:
            seen = of_processor(source)
            names = check_labels(transformers.AutoConfig.from_pretrained(source, local_files_only=True).id2label)
            labels = [*names.values()]
            segmenter = load_segmenter(source, None, len(labels), seen)
            pack(source, folder, with_weights=engine != "openvino")
    seen.write(folder)
    if engine != "torch":
        openvino.save_model(export(segmenter, seen, segmenter.output_names), folder / GRAPH, compress_to_fp16=False)
    (folder / "index_to_name.json").write_text(
        json.dumps(dict(enumerate(labels)), ensure_ascii=False), encoding="utf-8"
    )
