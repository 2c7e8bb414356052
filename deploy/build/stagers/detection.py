"""Stages what an archive of object detection holds, made from a Hugging Face folder or hub id."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import openvino
import torch
import transformers

from deploy.build.hub import checkpoint, pack
from deploy.build.sources import Source
from deploy.models import Engine, Model
from handlers.archive_files import GRAPH
from handlers.config import parse
from handlers.vision.config import ObjectDetectionConfig
from handlers.vision.pixel_detector import canvas, load_detector


def stage(model: Model, origin: Source, engine: Engine, folder: Path) -> None:
    """Write index_to_name.json, the checkpoint, without its weights for `openvino`, and the graph but for `torch`.

    Raises:
        WeightsUnavailable: the model cannot be had, or only as a pickle.
        InvalidConfig: the configuration is wrong, or the model is none that is served.
    """
    parse(ObjectDetectionConfig, model.config().get("handler"))
    with checkpoint(model, origin) as source:
        size = canvas(source)
        detector = load_detector(source)
        if engine != "torch":
            graph = export(detector, size, ("logits", "boxes"))
            openvino.save_model(graph, folder / GRAPH, compress_to_fp16=False)
        labels = transformers.AutoConfig.from_pretrained(source, local_files_only=True).id2label
        (folder / "index_to_name.json").write_text(json.dumps(labels, ensure_ascii=False), encoding="utf-8")
        pack(source, folder, with_weights=engine != "openvino")


def export(module: torch.nn.Module, size: tuple[int, int], outputs: Sequence[str]) -> openvino.Model:
    """Export a module that sees images of one size as a graph: pixels (B, H, W, 3) uint8 -> outputs; any B."""
    width, height = size
    # Zeros would leave every query alike, and the order of the first ones open.
    example = torch.randint(
        0, 256, (2, height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = openvino.convert_model(module, example_input=example, input=[-1, height, width, 3])
    graph.inputs[0].get_tensor().set_names({"pixels"})
    for port, name in zip(graph.outputs, outputs, strict=True):
        port.get_tensor().set_names({name})
    return graph
