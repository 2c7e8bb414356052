import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from deploy.archive import Recipe
from deploy.models import ROOT, Model, model
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


def classic(entry: Model, folder: Path) -> Model:
    """An example in classic mode: an adaptive worker answers over the frontend's connection, which is not there."""
    own = Path(shutil.copytree(entry.folder, folder / "examples" / entry.name))
    config = yaml.safe_load(entry.config_path.read_text())
    handler = {**(config.get("handler") or {}), "scheduling": {"mode": "classic"}}
    (own / entry.config_path.name).write_text(yaml.safe_dump({**config, "handler": handler}))
    return replace(entry, folder=own)


def test_archives_of_text_tasks_answer_their_examples_through_torchserves_own_loader(tmp_path: Path) -> None:
    """In a process that sees the archives and the installed packages, and nothing of this repository."""
    archives: list[Any] = []
    for handler in ANSWERS:
        entry = classic(model(handler.replace("_", "-")), tmp_path)
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


# Named like modules of Python's and like a package of ours: in the archive's root each would end the worker.
OWN_CODE = {
    "types.py": (
        "from transformers import DistilBertConfig\n\n\nclass OwnConfig(DistilBertConfig):\n    model_type = 'own'\n"
    ),
    "json.py": (
        "from transformers import DistilBertForSequenceClassification\n\nfrom .types import OwnConfig\n\n\n"
        "class OwnModel(DistilBertForSequenceClassification):\n    config_class = OwnConfig\n"
    ),
    "handlers/__init__.py": "raise SystemExit('the checkpoint is imported')\n",
    "text_classification.py": "raise SystemExit('the checkpoint is imported')\n",
}


def test_archive_of_a_checkpoint_with_code_serves_it_where_trusted_and_imports_none_of_it_itself(
    tmp_path: Path,
) -> None:
    weights = checkpoint(tmp_path / "weights", "distilbert", "text_classification", labels=("NO", "YES"))
    config = json.loads((weights / "config.json").read_text())
    mapped = {"AutoConfig": "types.OwnConfig", "AutoModelForSequenceClassification": "json.OwnModel"}
    (weights / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": mapped}))
    for name, code in OWN_CODE.items():
        (weights / name).parent.mkdir(exist_ok=True)
        (weights / name).write_text(code)
    example = Path(shutil.copytree(ROOT / "examples" / "text-classification", tmp_path / "own"))
    (example / "model-config.yaml").write_text("handler: {trust_remote_code: true, scheduling: {mode: classic}}\n")
    entry = Model("own", "text_classification", "1.0", example)
    recipe = Recipe(entry, str(weights), engine="torch", archive_format="no-archive", export_path=tmp_path / "store")
    archive = recipe.build().path
    staged = {path.relative_to(archive).as_posix() for path in archive.rglob("*.py")}
    assert {f"checkpoint/{name}" for name in OWN_CODE} == {name for name in staged if name.startswith("checkpoint/")}
    assert {name for name in staged if "/" not in name} == {"text_classification.py"}
    body = next(example.glob("*.json")).read_text()
    finished = subprocess.run(
        [
            *(sys.executable, "-c", LOAD_AND_SERVE, str(ROOT / "deploy" / "metrics.yaml")),
            json.dumps([(str(archive), "text_classification", body)]),
        ],
        cwd=archive,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(archive), "HF_MODULES_CACHE": str(tmp_path / "modules")},
        capture_output=True,
        check=False,
        timeout=120,
    )
    _, *replies = finished.stdout.split(b"\nREPLY")
    assert len(replies) == 1, finished.stdout[-2000:] + finished.stderr[-2000:]
    assert replies[0].count(b'"label":') >= 3
    assert list((tmp_path / "modules").rglob("json.py"))
