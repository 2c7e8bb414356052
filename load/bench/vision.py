"""Detection and segmentation against TorchServe's object_detector, transformers' pipeline and a loop in process.

    SSDLite        TorchServe's own handler, behind the same server
    RT-DETR r18,   transformers' pipeline, called once an image, as who has no batching does
    SegFormer b0

Weights are random: what is measured is time. A pipeline has no server and no HTTP, which ours has.
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

from deploy.build.archive import Recipe
from deploy.models import ModelEntry
from deploy.sandbox import started
from load.bench import archives, samples
from load.bench.archives import BATCH, CPU_ONLY, EXPORTS, STOCK
from load.bench.contender import Contender, Loop, loop_process, registered
from load.bench.rounds import Bench, Comparison, progress, quietly
from load.bench.table import Row
from load.generate import ClosedLoop

FP32 = "fp32"
AUTO = "auto"
IN_PROCESS = "in process"
PIPELINE = "pipeline"
SSDLITE = "ssdlite320_mobilenet_v3_large"
# Images of a micro-batch of the loop: as many as a segmenter's worker takes.
LOOP_BATCH = 4
# What object_detector wants: a file with one class.
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
class Case:
    """What is compared: a task, its weights, and the name of its network where that is torchvision's."""

    name: str
    task: str
    weights: Callable[[Path], Path]
    arch: str | None = None


def ssdlite(folder: Path) -> Path:
    """Write the state dict of torchvision's SSDLite."""
    torch.manual_seed(0)
    network: Any = torchvision.models.get_model(SSDLITE, weights=None, weights_backbone=None)
    torch.save(network.state_dict(), folder / "weights.pt")
    return folder / "weights.pt"


def rt_detr(folder: Path) -> Path:
    """Write RT-DETR of the size of PekingU/rtdetr_r18vd."""
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


def segformer(folder: Path) -> Path:
    """Write SegFormer of the size of nvidia/segformer-b0-finetuned-ade-512-512, transformers' default."""
    torch.manual_seed(0)
    config = transformers.SegformerConfig(num_labels=150)
    transformers.SegformerForSemanticSegmentation(config).save_pretrained(folder)
    transformers.SegformerImageProcessor().save_pretrained(folder)
    return folder


CASES = (
    Case("ssdlite", "object_detection", ssdlite, SSDLITE),
    Case("rt-detr", "object_detection", rt_detr),
    Case("segformer", "image_segmentation", segformer),
)


def built(case: Case, work: Path) -> Path:
    """Build an archive as a folder of its own model store, in fp32 and as it chooses itself."""
    progress(f"archive: {case.name}")
    folder = work / "models" / case.name
    (folder / "weights").mkdir(parents=True)
    weights = str(case.weights(folder / "weights"))
    settings = {"handler": {} if case.arch is None else {"arch": case.arch}, "responseTimeout": 60}
    (folder / "model-config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    options: Any = {"archive_format": "no-archive", "export_path": work, "cache_path": EXPORTS}
    with quietly():
        path = Recipe(ModelEntry(case.name, case.task, "1.0", folder), weights, **options).build().path
    for precision in (FP32, AUTO):
        archives.variant(path, f"{case.name}-{precision}", precision=precision)
    return path


def rows(bench: Bench) -> Iterator[Row]:
    """Measure 16 clients."""
    load = ClosedLoop(BATCH)
    for case in CASES:
        path = built(case, bench.work / case.name)
        with ExitStack() as stack:
            server = stack.enter_context(started(path.parent, extra=CPU_ONLY))
            loop = stack.enter_context(loop_process("vision", path.with_name(f"{case.name}-{FP32}")))
            contenders: list[Contender] = [
                registered(server, f"{case.name}-{each}", each, samples.images(), BATCH) for each in (FP32, AUTO)
            ]
            contenders.append(Loop(IN_PROCESS, loop, batch_size=LOOP_BATCH))
            if case.arch is None:
                contenders.append(Loop(PIPELINE, stack.enter_context(loop_process("pipeline", path)), batch_size=1))
            else:
                stock = archives.stock(path, "object_detector", STOCK_MODEL)
                contenders.append(registered(server, stock, STOCK, samples.images(), BATCH))
            bench.settle(contenders, load)
            results = bench.measure([Comparison(load, contenders)])
        theirs = contenders[-1].name
        yield results.row(f"{case.name}, {load}, {FP32}, images/s", load, FP32, theirs)
        yield results.row(f"{case.name}, {load}, {AUTO}, images/s", load, AUTO, theirs)
        yield results.row(f"{case.name}, {load}, {FP32}, images/s", load, FP32, IN_PROCESS)
