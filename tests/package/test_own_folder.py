"""A user's folder with models.yaml and models: nothing is looked up beside it that only the examples have."""

from pathlib import Path

import pytest
import transformers

from tests.package.conftest import run
from tests.tiny_image_text import SIDE, VISION
from tests.tiny_models import checkpoint

pytestmark = pytest.mark.builds
LIST = """
reviews: {task: text_classification, version: "1", weights: reviews}
pictures: {task: image_classification, version: "1", weights: pictures}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints as `save_pretrained` leaves them, each in the folder of its model's name."""
    folder = tmp_path_factory.mktemp("own")
    checkpoint(folder / "reviews", "bert", "text_classification")
    config = transformers.ViTConfig(**VISION, num_labels=3)
    transformers.ViTForImageClassification(config).save_pretrained(folder / "pictures")
    size = {"height": SIDE, "width": SIDE}
    transformers.ViTImageProcessorPil(size=size).save_pretrained(folder / "pictures")
    (folder / "models.yaml").write_text(LIST)
    return folder


def test_models_of_texts_and_of_images_are_built(project: Path) -> None:
    done = run("archive", "--all", cwd=project)
    built = done.stdout
    assert "reviews.mar: OpenVINO in fp32 is within" in built and "pictures.mar: OpenVINO in fp32 is within" in built


def test_options_of_archive_are_those_of_serve_and_start(tmp_path: Path) -> None:
    assert run("init", "own", cwd=tmp_path).returncode == 0
    (tmp_path / "own" / "numbers.bin").write_bytes(b"123")
    words = ["archive", "colours", "--weights", "numbers.bin", "--engine", "torch"]
    assert "colours.mar: built" in run(*words, cwd=tmp_path / "own").stdout
    # As `serve colours` and `start` call it, from any folder.
    recall = ["--dir", "own", "archive", "colours", "--recall"]
    again = run(*recall, cwd=tmp_path).stdout
    assert "colours: built with --weights " in again and "numbers.bin --engine torch, as" in again
    assert "colours.mar: up to date" in again
    (tmp_path / "own" / "numbers.bin").unlink()
    gone = run(*recall, cwd=tmp_path)
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "colours: --weights numbers.bin, with which its archive was built, is missing; " in gone.stderr


def test_names_of_classes_in_a_text_file_are_refused_before_any_build(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    assert run("init", "own", cwd=tmp_path).returncode == 0
    with (folder / "models.yaml").open("a") as models:
        models.write('flowers: {task: image_classification, version: "1", weights: flowers.pth}\n')
    (folder / "flowers").mkdir()
    (folder / "flowers.pth").write_bytes(b"not read")
    (folder / "flowers" / "model-config.yaml").write_text("handler: {arch: resnet18}\n")
    names = folder / "flowers" / "labels.txt"
    names.write_text("rose\ntulip\n")
    refused = run("archive", "--all", cwd=folder)
    words = 'flowers: labels.txt is not read; name the classes in flowers/index_to_name.json: {"0": "NAME", '
    assert (refused.returncode, refused.stdout) == (1, "") and words in refused.stderr
    names.rename(folder / "flowers" / "index_to_name.json")
    assert "index_to_name.json: not a JSON object of names by number" in run("archive", "--all", cwd=folder).stderr
