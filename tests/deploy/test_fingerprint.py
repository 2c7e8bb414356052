"""What makes another archive or another export, and what does not: on a copy of the code, edited."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.fingerprint import archive_fingerprint, export_fingerprint, imported
from deploy.models import MODEL_LIST, ROOT, Engine, Model, model
from deploy.sources import source
from deploy.tasks import task_of

CUSTOM_LIST = ROOT / "examples" / "custom-task" / "models.yaml"
EMBEDDING, IMAGES, CUSTOM = "sentence-embedding", "mobilenet-v2", "colours"

# A model -> what its archive is hashed to, and what its export is.
Hashes = Callable[[str], tuple[str, str | None]]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The code, the examples, and weights of a few bytes."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("deploy", "handlers", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    (tmp_path / "weights" / "deep").mkdir(parents=True)
    for name in ("weights/config.json", "weights/deep/model.safetensors", "weights.pt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "examples" / IMAGES / "index_to_name.json").write_text("{}")
    return tmp_path


@pytest.fixture
def hashes(copy: Path) -> Hashes:
    def of(name: str, engine: Engine = "auto") -> tuple[str, str | None]:
        own = copy / (CUSTOM_LIST if name == CUSTOM else MODEL_LIST).relative_to(ROOT)
        entry = model(name, own)
        origin = source(entry, None if name == CUSTOM else str(copy / ("weights.pt" if name == IMAGES else "weights")))
        task = task_of(entry)
        if task.path.is_relative_to(ROOT):
            task = replace(task, path=copy / task.path.relative_to(ROOT))
        packed = archive_fingerprint(entry, task, origin, (entry.version, engine), copy)
        return packed, export_fingerprint(entry, task, origin, engine, copy)

    return of


ARCHIVE, BOTH, NEITHER = (True, False), (True, True), (False, False)


@pytest.mark.parametrize(
    ("name", "edited", "is_changed"),
    [
        # The code that serves.
        (IMAGES, "handlers/tasks/image_classification.py", ARCHIVE),
        (IMAGES, "handlers/adaptive/worker.py", ARCHIVE),
        (IMAGES, "handlers/vision/images.py", ARCHIVE),
        (IMAGES, "handlers/vision/pixel_classifier.py", BOTH),
        (EMBEDDING, "handlers/tasks/sentence_embedding.py", ARCHIVE),
        (EMBEDDING, "handlers/text/encoders.py", BOTH),
        (CUSTOM, "handlers/base.py", ARCHIVE),
        # The code that builds.
        (IMAGES, "deploy/archive.py", ARCHIVE),
        (IMAGES, "deploy/fingerprint.py", ARCHIVE),
        (IMAGES, "deploy/vision.py", BOTH),
        (IMAGES, "deploy/weights.py", BOTH),
        (IMAGES, "deploy/sources.py", BOTH),
        (IMAGES, "deploy/models.py", BOTH),
        (EMBEDDING, "deploy/hub.py", BOTH),
        (EMBEDDING, "deploy/text.py", BOTH),
        (CUSTOM, "deploy/custom.py", ARCHIVE),
        (CUSTOM, "deploy/hub.py", ARCHIVE),
        # What belongs to the model.
        (IMAGES, f"examples/{IMAGES}/model-config.yaml", ARCHIVE),
        (IMAGES, f"examples/{IMAGES}/index_to_name.json", BOTH),
        (IMAGES, "weights.pt", BOTH),
        (EMBEDDING, "weights/deep/model.safetensors", BOTH),
        (CUSTOM, "examples/custom-task/colour_names.py", ARCHIVE),
        (CUSTOM, "examples/custom-task/colours/palette.csv", ARCHIVE),
        (CUSTOM, "examples/custom-task/colours/model-config.yaml", ARCHIVE),
        # What decides nothing.
        (IMAGES, "deploy/text.py", NEITHER),
        (IMAGES, "deploy/serve.py", NEITHER),
        (IMAGES, "deploy/server.py", NEITHER),
        (IMAGES, f"examples/{IMAGES}/README.md", NEITHER),
        (IMAGES, "handlers/README.md", NEITHER),
        (IMAGES, "deploy/README.md", NEITHER),
        (IMAGES, f"examples/{IMAGES}/espresso.jpg", NEITHER),
        (CUSTOM, "examples/custom-task/README.md", NEITHER),
        (CUSTOM, "examples/custom-task/colours/README.md", NEITHER),
        (CUSTOM, "examples/custom-task/colours/colours.json", NEITHER),
    ],
)
def test_fingerprints_after_an_edit_change_for_what_it_decides(
    name: str, edited: str, is_changed: tuple[bool, bool], copy: Path, hashes: Hashes
) -> None:
    before = hashes(name)
    with (copy / edited).open("a") as file:
        file.write("\n# edited\n")
    after = hashes(name)
    assert after[0] != before[0] if is_changed[0] else after[0] == before[0]
    assert after[1] != before[1] if is_changed[1] else after[1] == before[1]


@pytest.mark.parametrize(
    ("name", "move", "is_changed"),
    [
        (IMAGES, ("handlers/text/languages.py", "handlers/vision/languages.py"), ARCHIVE),
        (IMAGES, ("handlers/text/languages.py", "handlers/text/language_names.py"), ARCHIVE),
        (EMBEDDING, ("weights/deep", "weights/deeper"), BOTH),
        (EMBEDDING, ("weights/config.json", "weights/deep/config.json"), BOTH),
        (IMAGES, ("deploy/server.py", "deploy/running_server.py"), NEITHER),
        (IMAGES, (f"examples/{IMAGES}/espresso.jpg", f"examples/{IMAGES}/coffee.jpg"), NEITHER),
    ],
)
def test_fingerprints_after_a_move_change_for_what_it_decides(
    name: str, move: tuple[str, str], is_changed: tuple[bool, bool], copy: Path, hashes: Hashes
) -> None:
    old, new = (copy / place for place in move)
    before = hashes(name)
    old.rename(new)
    after = hashes(name)
    assert (after[0] != before[0], after[1] != before[1]) == is_changed


@pytest.mark.parametrize(
    ("setting", "is_changed"),
    [
        ("arch: mobilenet_v3_large", BOTH),
        ("arch: mobilenet_v2\n  crop_size: 192", BOTH),
        ("arch: mobilenet_v2\n  mean: [0.5, 0.5, 0.5]", BOTH),
        ("arch: mobilenet_v2\n  max_items: 3", ARCHIVE),
        ("arch: mobilenet_v2\n  precision: bf16", ARCHIVE),
    ],
)
def test_export_fingerprint_after_a_setting_changes_only_where_the_graph_does(
    setting: str, is_changed: tuple[bool, bool], copy: Path, hashes: Hashes
) -> None:
    config = copy / "examples" / IMAGES / "model-config.yaml"
    config.write_text("handler:\n  arch: mobilenet_v2\n")
    before = hashes(IMAGES)
    config.write_text(f"handler:\n  {setting}\n")
    after = hashes(IMAGES)
    assert (after[0] != before[0], after[1] != before[1]) == is_changed


def test_export_fingerprint_of_another_head_or_engine_changes(
    copy: Path, hashes: Callable[..., tuple[str, str]]
) -> None:
    before = hashes(EMBEDDING)
    assert before[1] != hashes(EMBEDDING, "openvino")[1]
    path = copy / "handlers" / "tasks" / "sentence_embedding.py"
    path.write_text(path.read_text().replace("is_pooled=True", "is_pooled=False"))
    assert before[1] != hashes(EMBEDDING)[1]


def test_export_fingerprint_of_one_graph_in_two_models_is_one() -> None:
    keys = []
    for name in ("resnet-152", "resnet-152-adaptive"):
        entry = model(name)
        keys.append(export_fingerprint(entry, task_of(entry), source(entry, "random"), "auto"))
    assert keys[0] is not None
    assert keys[0] == keys[1]


def test_fingerprint_of_the_same_files_elsewhere_and_later_is_the_same(
    copy: Path, hashes: Hashes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = hashes(CUSTOM)
    for path in copy.rglob("*.py"):
        os.utime(path, (1, 1))
    assert hashes(CUSTOM) == before
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "copy"
    shutil.copytree(copy, elsewhere)
    entry: Model = model(CUSTOM, elsewhere / CUSTOM_LIST.relative_to(ROOT))
    packing = (entry.version, "auto")
    assert archive_fingerprint(entry, task_of(entry), source(entry, None), packing, elsewhere) == before[0]


def test_imported_modules_of_a_builder_are_those_that_it_needs() -> None:
    names = set(imported(ROOT, "deploy.vision"))
    needed = {"deploy/vision.py", "deploy/weights.py", "deploy/sources.py", "handlers/vision/pixel_classifier.py"}
    assert needed <= names
    # An edit of these exports nothing again.
    assert not {"handlers/base.py", "handlers/tasks/image_classification.py", "deploy/archive.py"} & names
