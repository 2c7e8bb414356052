"""Stages what an archive of object detection holds, made from torchvision's weights or a Hugging Face checkpoint."""

import json
from pathlib import Path

import openvino
import torch
import transformers

from deploy.build.hub import open_checkpoint, pack
from deploy.build.preprocessing import of_processor
from deploy.build.sources import Source
from deploy.build.stagers.vision import export, read_labels
from deploy.build.weights import load_weights
from deploy.models import Engine, ModelEntry
from handlers.archive_files import GRAPH
from handlers.checkpoints import check_labels
from handlers.config import parse
from handlers.vision.config import ObjectDetectionConfig
from handlers.vision.pixel_detector import PixelDetector, load_detector
from handlers.vision.pixel_ssd import PixelSsd, load_ssd


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:
    """Write index_to_name.json, preprocessing.json, the graph but for `torch`, and the weights but for `openvino`.

    Raises:
        WeightsUnavailable: the model cannot be had, or only as a pickle.
        InvalidConfig: the configuration is wrong, or the model is none that is served.
    """
    config = parse(ObjectDetectionConfig, model.config().get("handler"))
    detector: PixelDetector | PixelSsd
    if config.arch is not None:
        state = load_weights(model, config.arch, origin, weights_backbone=None)
        detector, classes = load_ssd(state, config.arch)
        seen = detector.preprocessing
        # Numbers that no class has are all "N/A" in COCO.
        labels = dict(enumerate(read_labels(model, config.arch, classes, are_unique=False)))
        if engine != "openvino":
            torch.save(state, folder / "model.pt")
    else:
        with open_checkpoint(model, origin) as source:
            seen = of_processor(source)
            detector = load_detector(source, seen)
            labels = check_labels(transformers.AutoConfig.from_pretrained(source, local_files_only=True).id2label)
            pack(source, folder, with_weights=engine != "openvino")
    seen.write(folder)
    if engine != "torch":
        openvino.save_model(export(detector, seen, ("logits", "boxes")), folder / GRAPH, compress_to_fp16=False)
    (folder / "index_to_name.json").write_text(json.dumps(labels, ensure_ascii=False), encoding="utf-8")
