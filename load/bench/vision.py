"""Detection and segmentation: ours, TorchServe's object_detector, transformers' pipeline and a loop in process.

    SSDLite        TorchServe's handler, in the same server
    RT-DETR r18,   transformers' pipeline, called once per image, without batching
    SegFormer b0

Weights are random, which does not change the time. A pipeline has no cost of a server and HTTP, ours has.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision
import transformers
import yaml

from deploy.models import ModelEntry
from deploy.sandbox import run_server
from load.bench import archives, samples
from load.bench.archives import BATCH, CPU_ONLY, STOCK
from load.bench.contender import Contender, Loop, register, start_loop
from load.bench.rounds import Bench, Comparison, progress, redirect_output
from load.bench.table import Row
from load.generate import ClosedLoop

FP32 = "fp32"
AUTO = "auto"
IN_PROCESS = "in process"
PIPELINE = "pipeline"
SSDLITE = "ssdlite320_mobilenet_v3_large"
# Images per micro-batch of the loop: as many as in a segmenter's worker.
LOOP_BATCH = 4
# The file with one class that object_detector needs.
STOCK_MODEL = """from torch import nn
from torchvision.models.detection import ssdlite320_mobilenet_v3_large as ssdlite
class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = ssdlite(weights=None, weights_backbone=None)
    def load_state_dict(self, state):
        return self.network.load_state_dict(state)
    def forward(self, images):
        return self.network(images)
"""


@dataclass(frozen=True, slots=True)
class VisionCase:
    """One model."""

    name: str
    task: str
    write_weights: Callable[[Path], Path]
    arch: str | None = None  # torchvision's name of the network


def write_ssdlite(folder: Path) -> Path:
    """Write the state dict of torchvision's SSDLite."""
    torch.manual_seed(0)
    network: Any = torchvision.models.get_model(SSDLITE, weights=None, weights_backbone=None)
    torch.save(network.state_dict(), folder / "weights.pt")
    return folder / "weights.pt"


def write_rt_detr(folder: Path) -> Path:
    """Write an RT-DETR of the size of PekingU/rtdetr_r18vd."""
    backbone = transformers.RTDetrResNetConfig(
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = transformers.RTDetrConfig(
        backbone_config=backbone, encoder_in_channels=[128, 256, 512], decoder_layers=3, num_labels=80
    )
    torch.manual_seed(0)
    transformers.RTDetrForObjectDetection(config).save_pretrained(folder)
    transformers.RTDetrImageProcessor().save_pretrained(folder)
    return folder


def write_segformer(folder: Path) -> Path:
    """Write a SegFormer of the size of nvidia/segformer-b0-finetuned-ade-512-512, transformers' default."""
    torch.manual_seed(0)
    config = transformers.SegformerConfig(num_labels=150)
    transformers.SegformerForSemanticSegmentation(config).save_pretrained(folder)
    transformers.SegformerImageProcessor().save_pretrained(folder)
    return folder


CASES = (
    VisionCase("ssdlite", "object_detection", write_ssdlite, SSDLITE),
    VisionCase("rt-detr", "object_detection", write_rt_detr),
    VisionCase("segformer", "image_segmentation", write_segformer),
)


def build(case: VisionCase, work: Path) -> Path:
    """Build an archive as a folder of a model store, with copies in fp32 and in the precision that it chooses."""
    progress(f"archive: {case.name}")
    folder = work / "models" / case.name
    (folder / "weights").mkdir(parents=True)
    weights = str(case.write_weights(folder / "weights"))
    settings = {"handler": {} if case.arch is None else {"arch": case.arch}, "responseTimeout": 60}
    (folder / "model-config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    with redirect_output():
        path = archives.recipe(ModelEntry(case.name, case.task, "1.0", folder), work, weights).build().path
    for precision in (FP32, AUTO):
        archives.copy_with(path, f"{case.name}-{precision}", precision=precision)
    return path


def measure(bench: Bench) -> Iterator[Row]:
    """Measure 16 clients."""
    load = ClosedLoop(BATCH)
    for case in CASES:
        path = build(case, bench.work / case.name)
        with ExitStack() as stack:
            server = stack.enter_context(run_server(path.parent, extra=CPU_ONLY))
            loop = stack.enter_context(start_loop("vision", path.with_name(f"{case.name}-{FP32}")))
            contenders: list[Contender] = [
                register(server, f"{case.name}-{each}", each, samples.images(), BATCH) for each in (FP32, AUTO)
            ]
            contenders.append(Loop(IN_PROCESS, loop, batch_size=LOOP_BATCH))
            if case.arch is None:
                contenders.append(Loop(PIPELINE, stack.enter_context(start_loop("pipeline", path)), batch_size=1))
            else:
                stock = archives.build_stock(path, STOCK_MODEL, "object_detector")
                contenders.append(register(server, stock, STOCK, samples.images(), BATCH))
            bench.settle(contenders, load)
            results = bench.measure([Comparison(load, contenders)])
        theirs = contenders[-1].name
        yield results.row(f"{case.name}, {load}, {FP32}, images/s", load, FP32, theirs)
        yield results.row(f"{case.name}, {load}, {AUTO}, images/s", load, AUTO, theirs)
        yield results.row(f"{case.name}, {load}, {FP32}, images/s", load, FP32, IN_PROCESS)
