import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from deploy.archive import Recipe
from deploy.models import ROOT, model
from tests.tiny_models import checkpoint

LOAD_AND_SERVE = """
import json, sys
from ts.model_loader import TsModelLoader
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
for folder, handler, body in json.loads(sys.argv[2]):
    metrics = MetricsCacheYamlImpl(sys.argv[1])
    metrics.initialize_cache()
    service = TsModelLoader().load(handler, folder, handler + ".py", None, 4, metrics_cache=metrics)
    service.set_cl_socket(None)
    parameter = {"name": "body", "contentType": "application/json", "value": body.encode()}
    batch = [{"requestId": f"r{i}".encode(), "headers": [], "parameters": [parameter]} for i in range(3)]
    sys.stdout.buffer.write(b"\\nREPLY" + bytes(service.predict(batch)))
"""
# Handler -> the keys of its example's answer.
ANSWERS = {
    "text_classification": ("label", "score"),
    "token_classification": ("entity_group", "score", "word", "start", "end"),
    "question_answering": ("answer", "score", "start", "end"),
}


def test_archives_of_text_tasks_answer_their_examples_through_torchserves_own_loader(tmp_path: Path) -> None:
    """In a process that sees the archives and the installed packages, and nothing of this repository."""
    archives: list[Any] = []
    for handler in ANSWERS:
        entry = model(handler.replace("_", "-"))
        weights = checkpoint(tmp_path / "checkpoints" / handler, "distilbert", handler, labels=("NO", "YES"))
        recipe = Recipe(entry, str(weights), engine="openvino", archive_format="no-archive", export_path=tmp_path)
        (example,) = entry.folder.glob("*.json")
        archives.append((str(recipe.build().path), handler, example.read_text()))
    finished = subprocess.run(
        [sys.executable, "-c", LOAD_AND_SERVE, str(ROOT / "deploy" / "metrics.yaml"), json.dumps(archives)],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(folder for folder, *_ in archives)},
        capture_output=True,
        check=False,
        timeout=120,
    )
    replies = finished.stdout.split(b"\nREPLY")[1:]
    assert len(replies) == 3, finished.stdout[-2000:] + finished.stderr[-2000:]
    for reply, keys in zip(replies, ANSWERS.values(), strict=True):
        assert all(reply.count(f'"{key}":'.encode()) >= 3 for key in keys), reply
