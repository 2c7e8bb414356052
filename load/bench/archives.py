"""The archives of a comparison: an example as a folder, in either mode or precision, and TorchServe's handler.

example -> build -> folder of the model store -> copy_with  -> equal files, other settings
                                              -> build_stock -> image_classifier with these weights
"""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import yaml

from deploy.archives.archive import Recipe, run_archiver
from deploy.archives.sources import WeightsUnavailable
from deploy.archives.staging import Comparisons, plan_comparisons
from deploy.models import Engine, ModelEntry, model
from deploy.places import STORE
from handlers.archive_files import CHECKPOINT
from handlers.continuous.mode import CONTINUOUS
from load.bench.rounds import Bench, progress, redirect_output
from torchserve_client.payloads import Json

CPU_ONLY = ("number_of_gpu=0",)  # the comparisons use OpenVINO on the processor, even on a machine with a GPU
EXPORTS = STORE / ".exports"  # `make serve` uses these exports, too
CLASSIC = "classic"
ADAPTIVE = "adaptive"
STOCK = "stock"
BATCH = 16  # requests per batch of images in classic mode and of the stock handler: those of 16 clients
WINDOW = 64  # requests in an adaptive worker's window: those of 64 clients
# Example -> the file with one class that TorchServe's image_classifier needs.
CLASSIFIERS = {
    "resnet-152": """from torchvision.models.resnet import Bottleneck, ResNet
class ImageClassifier(ResNet):
    def __init__(self):
        super().__init__(Bottleneck, [3, 8, 36, 3])
""",
    "mobilenet-v2": """from torchvision.models.mobilenetv2 import MobileNetV2
class ImageClassifier(MobileNetV2):
    pass
""",
}
# TorchServe's transformers example, for embeddings: texts one by one, padded to 150 tokens, one forward pass in torch.
TRANSFORMERS = """import torch
import transformers
from ts.torch_handler.base_handler import BaseHandler
class TransformersHandler(BaseHandler):
    def initialize(self, context):
        folder = context.system_properties["model_dir"]
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModel.from_pretrained(folder).eval()
        self.initialized = True
    def preprocess(self, requests):
        options = {"max_length": 150, "padding": "max_length", "truncation": True, "return_tensors": "pt"}
        rows = [self.tokenizer(bytes(each.get("data") or each["body"]).decode(), **options) for each in requests]
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    def inference(self, batch):
        with torch.inference_mode():
            hidden, mask = self.model(**batch).last_hidden_state, batch["attention_mask"][..., None]
            return (hidden * mask).sum(1) / mask.sum(1)
    def postprocess(self, vectors):
        return vectors.tolist()
"""


def recipe(
    of: ModelEntry,
    store: Path,
    weights: str | None = None,
    precisions: Comparisons | None = None,
    engine: Engine = "auto",
) -> Recipe:
    options: Json = {"archive_format": "no-archive", "export_path": store, "cache_path": EXPORTS}
    return Recipe(of, weights, engine, comparisons=precisions or plan_comparisons(), **options)


def build(
    bench: Bench,
    name: str,
    store: Path,
    precisions: Comparisons | None = None,
    weights: str | None = None,
    *,
    engine: Engine = "auto",
) -> Path:
    """Build an example as a folder of a model store; remarks report random weights, and low precisions' proofs."""
    progress(f"archive: {name}")
    planned = recipe(model(name), store, weights, precisions, engine)
    with redirect_output():
        try:
            archive = planned.build()
        except WeightsUnavailable:
            bench.remark(f"{name} has random weights, which take as long to multiply")
            archive = replace(planned, weights="random").build()
    for precision, proof in archive.proofs.items() if precisions else ():
        bench.remark(f"{name} {archive.version}, {precision} against fp32: {proof}")
    return archive.path


def copy_with(built: Path, name: str, mode: str | None = None, **settings: str | float) -> str:
    """Copy an archive's folder as links with other `settings` and `mode` (None keeps it); return its name."""
    path = built.with_name(name) / "model-config.yaml"
    shutil.copytree(built, path.parent, copy_function=os.link)
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    handler = {**(config.get("handler") or {}), **settings}
    if mode is not None:
        target = {"latency_target_ms": None} if mode == ADAPTIVE else {}
        handler["scheduling"] = {**(handler.get("scheduling") or {}), "mode": mode, **target}
        config = {key: value for key, value in config.items() if key not in (CONTINUOUS, "minWorkers", "maxWorkers")}
    if mode == ADAPTIVE:
        config |= {CONTINUOUS: True, "minWorkers": 1, "maxWorkers": 1}
    # The copy's file is a link to the original's.
    path.unlink()
    path.write_text(json.dumps({**config, "handler": handler}), encoding="utf-8")  # JSON is YAML
    return name


def build_stock(built: Path, source: str, handler: str | None = None) -> str:
    """Build a TorchServe handler's archive with a folder's weights; `source` is its model class or itself."""
    temporary = built.parent / ".stock"
    temporary.mkdir()
    (file := temporary / "model.py").write_text(source, encoding="utf-8")
    files = {"--handler": str(file), "--extra-files": ",".join(map(str, (built / CHECKPOINT).glob("*.*")))}
    if handler:
        labels, weights = str(built / "index_to_name.json"), str(built / "model.pt")
        files = {"--handler": handler, "--model-file": str(file), "--serialized-file": weights, "--extra-files": labels}
    place = {"--archive-format": "zip-store", "--export-path": str(built.parent)}
    run_archiver(STOCK, {"--model-name": STOCK, "--version": "1.0", **files, **place}, temporary)
    return f"{STOCK}.mar"
