"""The cache of exports, and the fingerprints of what requires a new archive or export."""

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any
from unittest.mock import Mock

import pytest

from deploy.archives.exports import Exports
from deploy.archives.fingerprint import archive_fingerprint, export_fingerprint
from deploy.archives.sources import source
from deploy.archives.tasks import task_of
from deploy.models import MODEL_LIST, ROOT, Engine, model
from tests.tables import table
from tests.tensor_files import files

FILES = {"model.xml": b"<net/>", "deep/model.bin": b"0123456789"}
CUSTOM_LIST = ROOT / "examples" / "custom-task" / "models.yaml"
EMBEDDING, IMAGES, CUSTOM = "sentence-embedding", "mobilenet-v2", "colours"
CONFIG = f"examples/{IMAGES}/model-config.yaml"
# Of an archive, and of its export.
Hashes = tuple[str, str | None]
ARCHIVE, BOTH, NEITHER = (True, False), (True, True), (False, False)


def make(folder: Path) -> None:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files(folder)}


def test_entry_is_made_once_and_anew_where_it_is_cut_off(tmp_path: Path) -> None:
    exports, maker = Exports(tmp_path / "cache"), Mock(side_effect=make)
    for count in (1, 1, 2):
        if count == 2:
            os.truncate(exports.folder / "key" / "files" / "deep" / "model.bin", 4)
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        exports.take("key", maker, folder)
        assert (contents(folder), maker.call_count) == (FILES, count)
    # Takes side by side all have whole files and leave one entry.
    exports, barrier = Exports(tmp_path / "other"), Barrier(4)
    *folders, late = (Path(tempfile.mkdtemp(dir=tmp_path)) for _ in range(5))

    def make_together(folder: Path) -> None:
        barrier.wait(timeout=60)
        make(folder)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda folder: exports.take("key", make_together, folder), folders))
    assert [contents(folder) for folder in folders] == [FILES] * 4
    assert [path.name for path in exports.folder.iterdir()] == ["key"]
    exports.take("key", unused := Mock(), late)
    unused.assert_not_called()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, ignored = tmp_path_factory.mktemp("copy"), shutil.ignore_patterns("__pycache__")
    for name in ("deploy", "handlers", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    (folder / "weights" / "deep").mkdir(parents=True)
    for name in ("weights/config.json", "weights/deep/model.safetensors", "weights.pt"):
        (folder / name).write_text(name)
    (folder / "examples" / IMAGES / "index_to_name.json").write_text("{}")
    (folder / CONFIG).write_text("handler:\n  arch: mobilenet_v2\n")
    return folder


def hashes_of(copy: Path, name: str, engine: Engine = "auto") -> Hashes:
    entry = model(name, copy / (CUSTOM_LIST if name == CUSTOM else MODEL_LIST).relative_to(ROOT))
    origin = source(entry, None if name == CUSTOM else str(copy / ("weights.pt" if name == IMAGES else "weights")))
    task = task_of(entry)
    if task.path.is_relative_to(ROOT):
        task = replace(task, path=copy / task.path.relative_to(ROOT))
    packed = archive_fingerprint(entry, task, f"{origin.identity} {engine}", (entry.version,), copy)
    return packed, export_fingerprint(entry, task, origin, engine, copy)


@pytest.fixture(scope="module")
def before(copy: Path) -> dict[str, Hashes]:
    return {name: hashes_of(copy, name) for name in (EMBEDDING, IMAGES, CUSTOM)}


def is_changed(copy: Path, name: str, file: str, text: str, before: dict[str, Hashes]) -> tuple[bool, bool]:
    """Whether another text of a file changes the hashes of an archive, and of its export."""
    content, status = (copy / file).read_bytes(), (copy / file).stat()
    (copy / file).write_text(text)
    after = hashes_of(copy, name)
    (copy / file).write_bytes(content)
    os.utime(copy / file, ns=(status.st_atime_ns, status.st_mtime_ns))
    return after[0] != before[name][0], after[1] != before[name][1]


@table(
    # The code that serves; of it, an export has what makes its graph.
    (IMAGES, "handlers/tasks/image_classification.py", ARCHIVE),
    (IMAGES, "handlers/vision/pixel_classifier.py", BOTH),
    # The code that builds: what the builder imports, and no other builder.
    (IMAGES, "deploy/archives/archive.py", ARCHIVE),
    (IMAGES, "deploy/archives/weights.py", BOTH),
    (IMAGES, "deploy/archives/encoders.py", NEITHER),
    # The model's files.
    (IMAGES, CONFIG, ARCHIVE),
    (IMAGES, f"examples/{IMAGES}/index_to_name.json", BOTH),
    (IMAGES, f"examples/{IMAGES}/espresso.jpg", NEITHER),
    (EMBEDDING, "weights/deep/model.safetensors", BOTH),
    (CUSTOM, "examples/custom-task/colours/palette.csv", ARCHIVE),
)
def test_edit_changes_what_it_decides(name: str, file: str, changed: Any, copy: Path, before: Any) -> None:
    text = (copy / file).read_bytes().decode(errors="ignore") + "\n# edited\n"
    assert is_changed(copy, name, file, text, before) == changed


def test_setting_engine_or_head_makes_an_export_for_another_graph(copy: Path, before: dict[str, Hashes]) -> None:
    for setting, changed in {"crop_size: 192": BOTH, "max_batch_items: 3": ARCHIVE, "precision: bf16": ARCHIVE}.items():
        text = f"handler:\n  arch: mobilenet_v2\n  {setting}\n"
        assert is_changed(copy, IMAGES, CONFIG, text, before) == changed, setting
    assert before[EMBEDDING][1] != hashes_of(copy, EMBEDDING, "openvino")[1]
    file = "handlers/tasks/sentence_embedding.py"
    text = (copy / file).read_text().replace("is_pooled=True", "is_pooled=False")
    assert is_changed(copy, EMBEDDING, file, text, before)[1]
