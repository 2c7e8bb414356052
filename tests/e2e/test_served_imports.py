"""A process of one archive whose engine is not PyTorch loads it without PyTorch, TorchServe and transformers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.models import ROOT, ModelEntry
from deploy.yaml_text import parse_yaml
from tests import exports, tiny_detector, tiny_image_text, tiny_models, tiny_segmenter

# Loads a folder as deploy.loader does, and prints the imported packages.
PROGRAM = """
import json, sys
from importlib import import_module
from deploy.loader import NoMetrics, PlainContext

module = import_module(f"handlers.tasks.{sys.argv[1]}")
(task,) = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
settings = json.loads(sys.argv[3])
settings["handler"] = {**settings.get("handler", {}), "scheduling": {"mode": "adaptive"}}
settings |= {"continuousBatching": True, "maxWorkers": 1, "asyncCommunication": False}
handler = task()
handler.initialize(PlainContext("m", sys.argv[2], {"model": {}}, 1, None, "", True, NoMetrics(), settings))
print(json.dumps(sorted(name for name in sys.modules if "." not in name)), flush=True)
import os; os._exit(0)
"""
ENGINES = {"torch", "torchvision", "transformers", "ts"}


def image_text(kind: str) -> Callable[[Path], Path]:
    return lambda folder: tiny_image_text.checkpoint(folder, kind)


# Task -> its tiny weights; an example's if there are none.
WEIGHTS: dict[str, Callable[[Path], Path] | None] = {
    **dict.fromkeys(("language_id", "image_classification", "tokenization")),
    "object_detection": tiny_detector.detector,
    "image_segmentation": tiny_segmenter.segmenter,
    "image_text_embedding": image_text("clip"),
    "image_text_embedding of images": image_text("dinov2"),
    **{
        task: lambda folder, task=task: tiny_models.checkpoint(folder, "bert", task)  # type: ignore[misc]
        for task in ("sentence_embedding", "text_classification", "token_classification", "question_answering")
    },
    "reranking": lambda folder: tiny_models.checkpoint(folder, "bert", "reranking", ["relevant"]),
}
EXAMPLES = {"language_id": "language-id", "image_classification": "mobilenet-v2", "tokenization": "tokenizer"}


@pytest.mark.parametrize("name", WEIGHTS)
def test_archive_is_loaded_without_torch(name: str, tmp_path: Path) -> None:
    task, make = name.partition(" ")[0], WEIGHTS[name]
    (archive := tmp_path / "archive").mkdir()
    if make is None:
        exports.staged(EXAMPLES[task], archive)
        settings = (ROOT / "examples" / EXAMPLES[task] / "model-config.yaml").read_text()
    else:
        (own := tmp_path / "own").mkdir()
        (own / "model-config.yaml").write_text(settings := "{}")
        exports.taken(ModelEntry("tiny", task, "1.0", own), str(make(tmp_path / "weights")), archive)
    words = [sys.executable, "-W", "ignore", "-c", PROGRAM, task, str(archive), json.dumps(parse_yaml(settings) or {})]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not ENGINES & {*json.loads(done.stdout.splitlines()[-1])}
