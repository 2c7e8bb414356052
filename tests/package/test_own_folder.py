"""A user's folder with models.yaml and models: nothing is looked up beside it that only the examples have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
import yaml

from deploy.models import ROOT
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
    own = tmp_path / "own"
    assert run("init", "own", cwd=tmp_path).returncode == 0
    (tmp_path / "numbers.bin").write_bytes(b"123")
    built = run("archive", "colours", "--weights", "../numbers.bin", "--engine", "torch", cwd=own)
    assert "colours.mar: built" in built.stdout
    archive, record = own / "model_store" / "colours.mar", own / ".nodes" / ".options" / "colours.json"
    # Neither the archive nor another user learns the folder of a build.
    assert str(tmp_path).encode() not in archive.read_bytes() and record.stat().st_mode & 0o777 == 0o600
    # As `serve colours` and `start` call it, from any folder.
    recall = ["--dir", "own", "archive", "colours", "--recall"]
    again = run(*recall, cwd=tmp_path).stdout
    assert f"colours: built with --weights {tmp_path}/numbers.bin --engine torch, as" in again
    assert "colours.mar: up to date" in again
    settings = own / "colours" / "model-config.yaml"
    settings.write_text(f"{settings.read_text()}\n# edited\n")
    assert "colours.mar: built" in run(*recall, cwd=tmp_path).stdout
    # As on a machine to which the archive was copied: it serves as it is, until it is out of date.
    record.unlink()
    there = run(*recall, cwd=tmp_path).stdout
    assert "colours: --weights numbers.bin, with which it was built, is not on this machine: used as" in there
    assert "colours.mar: up to date" in there
    settings.write_text(f"{settings.read_text()}\n# edited again\n")
    refused = run(*recall, cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "colours: its archive is out of date, and --weights numbers.bin, with which it was " in refused.stderr
    assert refused.stderr.count("\n") == 1


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


def test_project_of_your_own_model_builds_it_and_names_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "double it").mkdir()
    (tmp_path / "double it" / "infer.py").write_text("def infer(x):\n    return {'y': x * 2}\n")
    words = ("init", "own", "--task", "tensors", "--weights", "double it")
    assert run(*words, cwd=tmp_path).returncode == 0
    files = {str(path.relative_to(tmp_path / "own")) for path in (tmp_path / "own").rglob("*") if path.is_file()}
    assert files == {
        *("models.yaml", "double-it/model-config.yaml", "requirements.txt", ".gitignore"),
        ".github/workflows/models.yml",
    }
    built = run("archive", "--all", cwd=tmp_path / "own")
    assert built.returncode == 0 and "double-it.mar: built" in built.stderr + built.stdout
    wrong = {
        ("--task", "tensors"): "--task and --weights belong together",
        ("--task", "colours", "--weights", "double it"): "--task colours is not one of ",
        ("--task", "tensors", "--weights", "nowhere"): "--weights nowhere: no such file or folder; nothing is written",
    }
    for options, message in wrong.items():
        refused = run("init", "other", *options, cwd=tmp_path)
        assert refused.returncode and message in refused.stderr and refused.stderr.count("\n") == 1
        assert not (tmp_path / "other").exists()
    assert run("init", "hub", "--task", "reranking", "--weights", "me/mine", cwd=tmp_path).returncode == 0
    assert yaml.safe_load((tmp_path / "hub" / "models.yaml").read_text())["mine"]["weights"] == {"hub": "me/mine"}
    # The base installs no torch.
    program = "import sys; from torchserve_batching.init import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    (tmp_path / "old.mar").write_bytes(b"not read")
    line = [sys.executable, "-c", program, "old", "--task", "stock", "--weights", "old.mar"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
