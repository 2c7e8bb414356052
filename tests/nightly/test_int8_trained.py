"""int8 of trained classifiers, as archive.sh makes it with NNCF: what it prints, refuses, and lets through.

The environment is built where it is not there; a build's NNCF takes half a minute, so each model has one.
"""

import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
import yaml
from numpy.typing import NDArray
from PIL import Image

from deploy.archive import Recipe
from deploy.models import ROOT, model
from deploy.precision import int8
from deploy.precision.wanted import Wanted
from handlers.archive_files import CONFIG, GRAPH, proofs
from handlers.config import parse
from handlers.engines.openvino import OpenVinoEngine
from handlers.errors import InvalidConfig
from handlers.probabilities import softmax
from handlers.vision.config import ImageClassificationConfig
from handlers.vision.images import Geometry, decode_image
from handlers.vision.pixel_classifier import PixelClassifier
from tests import held_out, resnet18, trained
from tests.exports import shared
from tests.nearness import of_classes

pytestmark = [pytest.mark.timeout(600)]

START_S = 300
LINE = re.compile(r"int8: top-1 (0\.\d{4}) of (\d+) samples, largest change (0\.\d{4})")
# What plain quantisation reaches on crops, most of which are near ties; the search for layers has tests of its own.
LEAST = "0.8"

Inputs = tuple[Path, Path]


@pytest.fixture(scope="module", autouse=True)
def environment() -> None:
    """NNCF's, which another module or run has built in most cases: then the script is done in a second."""
    subprocess.run([ROOT / "deploy" / "extras" / "environment.sh", "int8"], cwd=ROOT, check=True, timeout=START_S)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """Crops of photographs to calibrate with, and crops of others."""
    return held_out.crops(100).write(tmp_path_factory.mktemp("images"), ".jpg")


@pytest.fixture(scope="module")
def built(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str]]:
    """An archive with int8 as a folder, and what archive.sh printed; one build a model."""

    @cache
    def build(name: str) -> tuple[Path, str]:
        work = tmp_path_factory.mktemp(name)
        entry = resnet18.entry(work) if name == resnet18.NAME else model(name)
        arguments = [name, "--precision", "int8", "--calibrate", str(inputs[0]), "--validate", str(inputs[1])]
        arguments += ["--min-agreement", LEAST, "--archive-format", "no-archive", "--export-path", str(work / "store")]
        if name == resnet18.NAME:
            listed = work / "models.yaml"
            listed.write_text(
                f'{name}:\n  handler: {entry.handler}\n  version: "1.0"\n  weights: {entry.weights["path"]}\n'
            )
            arguments += ["--models", str(listed)]
        printed = printed_by(arguments)
        return work / "store" / name, printed

    return build


def printed_by(arguments: list[str]) -> str:
    """What archive.sh prints, which succeeds."""
    finished = subprocess.run(
        [ROOT / "archive.sh", *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "CACHE_DIR": str(shared())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def exact(name: str, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Probabilities of torch in fp32."""
    arch, state = {
        "mobilenet-v2": ("mobilenet_v2", trained.mobilenet_v2),
        "resnet-18": ("resnet18", trained.resnet18),
    }[name]
    classifier = torchvision.models.get_model(arch, weights=None)
    classifier.load_state_dict(state())
    config = ImageClassificationConfig(arch=arch)
    module = PixelClassifier(classifier, config.mean, config.std).eval()
    with torch.inference_mode():
        return np.concatenate([softmax(module(torch.from_numpy(some)).numpy()) for some in np.array_split(pixels, 8)])


@pytest.mark.parametrize("name", ["mobilenet-v2", "resnet-18"])
def test_archive_in_int8_is_as_near_to_torch_in_fp32_as_it_printed(
    name: str, built: Callable[[str], tuple[Path, str]], inputs: Inputs
) -> None:
    folder, printed = built(name)
    lines = LINE.findall(printed)
    assert lines, printed
    agreement, samples, change = lines[-1]
    assert int(samples) == 100
    proof = proofs(folder)["int8"]
    assert proof.holds
    assert (f"{proof.agreement:.4f}", proof.samples, f"{proof.largest_change:.4f}") == (agreement, 100, change)
    bodies = [path.read_bytes() for path in sorted(inputs[1].iterdir())]
    config = parse(ImageClassificationConfig, yaml.safe_load((folder / CONFIG).read_text())["handler"])
    geometry = Geometry(config.resize_size, config.crop_size, config.max_pixels, config.scaled_decode)
    pixels = np.stack([decode_image(body, geometry) for body in bodies])
    logits = OpenVinoEngine(folder / GRAPH, precision="int8").run({"pixels": pixels})["logits"]
    near = of_classes(exact(name, pixels), softmax(logits))
    # OpenVINO's fp32 and torch's differ by rounding: one crop may be as near a tie as that.
    assert near.mean == pytest.approx(float(agreement), abs=0.015)
    assert near.worst == pytest.approx(float(change), abs=0.005)
    # bf16, where the processor has it, is printed beside it.
    assert set(proofs(folder)) - {"bf16"} == {"int8"}


def test_archive_calibrated_on_black_images_is_refused_with_its_figures(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No layer is looked for: what knows nothing of the inputs is refused after minutes as after seconds.
    monkeypatch.setattr(int8, "ranked", lambda *_arguments: [])
    black = tmp_path / "black"
    black.mkdir()
    for number in range(10):
        Image.new("RGB", (224 + number, 224)).save(black / f"{number}.png")
    recipe = Recipe(
        model("mobilenet-v2"),
        export_path=tmp_path / "store",
        cache_path=shared(),
        wanted=Wanted("int8", black, inputs[1]),
    )
    with pytest.raises(InvalidConfig) as raised:
        recipe.build()
    refusal = str(raised.value)
    figures = re.search(r"mobilenet-v2: int8: top-1 (0\.\d{4}) of 100 samples, largest change (0\.\d{4})", refusal)
    assert figures, refusal
    assert float(figures[1]) < 0.5
    assert float(figures[2]) > 0.3
    assert "less than --min-agreement 0.99, so nothing was built" in refusal
    assert not recipe.path.exists()
