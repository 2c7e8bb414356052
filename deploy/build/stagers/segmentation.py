"""Stages what an archive of image segmentation holds, made from torchvision's weights or a Hugging Face checkpoint."""

import json
import warnings
from pathlib import Path

import openvino
import torch
import transformers

from deploy.build.hub import checkpoint, pack
from deploy.build.sources import Source
from deploy.build.stagers.vision import labels_of
from deploy.build.weights import load
from deploy.models import Engine, Model
from handlers.archive_files import GRAPH
from handlers.config import parse
from handlers.vision.config import ImageSegmentationConfig
from handlers.vision.pixel_segmenter import Geometry, PixelSegmenter, load_segmenter, of_torchvision


def stage(model: Model, origin: Source, engine: Engine, folder: Path) -> None:
    """Write index_to_name.json, the graph but for `torch`, and the weights but for `openvino`.

    Raises:
        WeightsUnavailable: the weights, or labels for them, cannot be had.
        InvalidConfig: the configuration is wrong, or the model is none that is served.
    """
    config = parse(ImageSegmentationConfig, model.config().get("handler"))
    if config.arch is not None:
        geometry = Geometry.of(config, folder)
        state = load(model, config.arch, origin, weights_backbone=None)
        # The last tensor is a bias of a head; its first axis is the classes.
        labels = labels_of(model, config.arch, next(reversed(state.values())).shape[0])
        segmenter = of_torchvision(state, config.arch, len(labels), geometry)
        if engine != "openvino":
            torch.save(state, folder / "model.pt")
    else:
        with checkpoint(model, origin) as source:
            geometry = Geometry.of(config, source)
            names = transformers.AutoConfig.from_pretrained(source, local_files_only=True).id2label
            labels = [names[index] for index in range(len(names))]
            segmenter = load_segmenter(source, None, len(labels), geometry)
            pack(source, folder, with_weights=engine != "openvino")
    if engine != "torch":
        openvino.save_model(export(segmenter, geometry), folder / GRAPH, compress_to_fp16=False)
    (folder / "index_to_name.json").write_text(
        json.dumps(dict(enumerate(labels)), ensure_ascii=False), encoding="utf-8"
    )


def export(segmenter: PixelSegmenter, geometry: Geometry) -> openvino.Model:
    """Export a segmenter as a graph: pixels (B, H, W, 3) uint8 -> classes, probabilities.

    It takes any B, and any H and W where images keep their shape.
    """
    width, height = geometry.size or (geometry.shorter, geometry.shorter)
    example = torch.randint(0, 256, (2, height, width, 3), dtype=torch.uint8)
    sizes = [-1, -1] if geometry.size is None else [height, width]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = openvino.convert_model(segmenter, example_input=example, input=[-1, *sizes, 3])
    graph.inputs[0].get_tensor().set_names({"pixels"})
    for port, name in zip(graph.outputs, ("classes", "probabilities"), strict=True):
        port.get_tensor().set_names({name})
    return graph
