"""Changes that require a new archive or export, and changes that do not: on a copy of the code, edited and restored."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.archives.fingerprint import archive_fingerprint, export_fingerprint
from deploy.archives.sources import source
from deploy.archives.tasks import task_of
from deploy.models import MODEL_LIST, ROOT, Engine, model

CUSTOM_LIST = ROOT / "examples" / "custom-task" / "models.yaml"
EMBEDDING, IMAGES, CUSTOM = "sentence-embedding", "mobilenet-v2", "colours"
CONFIG = f"examples/{IMAGES}/model-config.yaml"

# Of an archive, and of its export.
Hashes = tuple[str, str | None]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code, the examples, and weights of a few bytes."""
    folder = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__")
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
    packed = archive_fingerprint(entry, task, origin, (entry.version, engine), copy)
    return packed, export_fingerprint(entry, task, origin, engine, copy)


@pytest.fixture(scope="module")
def before(copy: Path) -> dict[str, Hashes]:
    """The hashes of each model on the copy as it was made."""
    return {name: hashes_of(copy, name) for name in (EMBEDDING, IMAGES, CUSTOM)}


@contextmanager
def edited(path: Path, text: str) -> Iterator[None]:
    content, status = path.read_bytes(), path.stat()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


ARCHIVE, BOTH, NEITHER = (True, False), (True, True), (False, False)


@pytest.mark.parametrize(
    ("name", "file", "is_changed"),
    [
        # The code that serves; of it, an export has what makes its graph.
        (IMAGES, "handlers/tasks/image_classification.py", ARCHIVE),
        (IMAGES, "handlers/vision/pixel_classifier.py", BOTH),
        # The code that builds: what the builder imports, and no other builder.
        (IMAGES, "deploy/archives/archive.py", ARCHIVE),
        (IMAGES, "deploy/archives/weights.py", BOTH),
        (IMAGES, "deploy/archives/stagers/text.py", NEITHER),
        # The model's files.
        (IMAGES, CONFIG, ARCHIVE),
        (IMAGES, f"examples/{IMAGES}/index_to_name.json", BOTH),
        (IMAGES, f"examples/{IMAGES}/espresso.jpg", NEITHER),
        (EMBEDDING, "weights/deep/model.safetensors", BOTH),
        (CUSTOM, "examples/custom-task/colours/palette.csv", ARCHIVE),
    ],
)
def test_an_edit_changes_the_fingerprint_of_what_it_decides(
    name: str, file: str, is_changed: tuple[bool, bool], copy: Path, before: dict[str, Hashes]
) -> None:
    with edited(copy / file, (copy / file).read_bytes().decode(errors="ignore") + "\n# edited\n"):
        after = hashes_of(copy, name)
    assert (after[0] != before[name][0], after[1] != before[name][1]) == is_changed


def test_a_setting_an_engine_or_a_head_makes_another_export_only_where_the_graph_is_another(
    copy: Path, before: dict[str, Hashes]
) -> None:
    for setting, is_changed in (
        ("crop_size: 192", BOTH),
        ("max_batch_items: 3", ARCHIVE),
        ("precision: bf16", ARCHIVE),
    ):
        with edited(copy / CONFIG, f"handler:\n  arch: mobilenet_v2\n  {setting}\n"):
            after = hashes_of(copy, IMAGES)
        assert (after[0] != before[IMAGES][0], after[1] != before[IMAGES][1]) == is_changed, setting
    assert before[EMBEDDING][1] != hashes_of(copy, EMBEDDING, "openvino")[1]
    path = copy / "handlers" / "tasks" / "sentence_embedding.py"
    with edited(path, path.read_text().replace("is_pooled=True", "is_pooled=False")):
        assert before[EMBEDDING][1] != hashes_of(copy, EMBEDDING)[1]
