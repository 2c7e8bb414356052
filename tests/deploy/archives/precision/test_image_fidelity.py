"""An archive answers pictures as the library that owns its model does, or it is not built."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
import transformers

from deploy.archives.precision import fidelity
from deploy.archives.sources import source
from deploy.archives.stagers import detection, vision
from deploy.models import ModelEntry
from handlers.errors import InvalidConfig, Unfaithful
from handlers.vision.preprocessing import Preprocessing
from tests import tiny_detector
from tests.deploy.archives.conftest import ArchiveSh
from tests.nightly import image_families
from tests.tiny_image_text import VISION

pytestmark = pytest.mark.builds


@pytest.fixture(scope="module")
def resnet18(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelEntry, Path, Path]:
    own, folder = tmp_path_factory.mktemp("own"), tmp_path_factory.mktemp("archive")
    weights = image_families.save("resnet18", own)
    settings = {"arch": "resnet18", "resize_size": 72, "crop_size": 64}
    (own / "model-config.yaml").write_text(json.dumps({"handler": settings}))
    (own / "index_to_name.json").write_text(json.dumps({"0": "a", "1": "b", "2": "c"}))
    entry = ModelEntry("tiny", "image_classification", "1.0", own)
    vision.stage(entry, source(entry, str(weights)), "openvino", folder)
    return entry, weights, folder


def test_archive_of_torchvision_agrees_and_other_weights_or_pixels_do_not(
    resnet18: tuple[ModelEntry, Path, Path], tmp_path: Path
) -> None:
    entry, weights, folder = resnet18
    fidelity.check(entry, source(entry, str(weights)), "openvino", folder, tmp_path)
    said = json.loads((tmp_path / "fidelity.json").read_text())
    assert said["engine"] == "openvino"
    assert 0 < said["largest_error"] < 1e-4
    assert "640x480, 480x640, 61x333, 9x7, 1x1, 900x60 one by one and together" in said["said"]
    state = torch.load(weights)
    torch.save({**state, "fc.bias": state["fc.bias"] + torch.tensor([0, 0.1, 0])}, tmp_path / "other.pt")
    with pytest.raises(Unfaithful, match=r"OpenVINO differs from the model by .* on a picture of 640x480"):
        fidelity.check(entry, source(entry, str(tmp_path / "other.pt")), "openvino", folder, tmp_path)
    preprocessing = Preprocessing.read(folder)
    try:
        Preprocessing(64, (64, 64), "bilinear", preprocessing.mean, preprocessing.std).write(folder)
        with pytest.raises(InvalidConfig, match=r"a picture of 640x480: pixels differ from .* by \d"):
            fidelity.check(entry, source(entry, str(weights)), "openvino", folder, tmp_path)
    finally:
        preprocessing.write(folder)


def test_detector_whose_scores_tie_agrees_as_a_set_and_one_with_other_weights_does_not(tmp_path: Path) -> None:
    weights, other, folder = (tmp_path / name for name in ("weights", "other", "archive"))
    for path in (weights, other, folder):
        path.mkdir()
    tiny_detector.detector(weights)
    network = transformers.AutoModelForObjectDetection.from_pretrained(weights)
    network.config.num_queries = 20
    with torch.no_grad():
        network.model.enc_score_head.weight.zero_()
        network.save_pretrained(weights)
        network.model.decoder.class_embed[-1].bias[0] += 0.1
    network.save_pretrained(other)
    transformers.AutoImageProcessor.from_pretrained(weights).save_pretrained(other)
    entry = ModelEntry("tiny", "object_detection", "1.0", tmp_path)
    detection.stage(entry, source(entry, str(weights)), "openvino", folder)
    fidelity.check(entry, source(entry, str(weights)), "openvino", folder, tmp_path)
    said = json.loads((tmp_path / "fidelity.json").read_text())
    assert said["largest_error"] < 1e-4
    assert "640x480, 480x640, 61x333, 9x7, 1x1, 900x60 one by one and together" in said["said"]
    with pytest.raises(Unfaithful, match=r"OpenVINO differs from the model by .* on a picture of 640x480"):
        fidelity.check(entry, source(entry, str(other)), "openvino", folder, tmp_path)


@pytest.mark.parametrize(
    ("config", "files", "words"),
    [
        ({}, {"model_type": "timm_wrapper"}, "a model of timm, which is not installed here; export it with torch.onnx"),
        ({}, {"architecture": "resnet18", "pretrained_cfg": {}}, "serve the file with task: tensors"),
        ({"arch": "resnet18"}, {}, "arch: only for a state dict of torchvision, and not for"),
    ],
)
def test_folder_that_is_no_classifier_of_transformers_is_one_line(
    config: dict[str, Any], files: dict[str, Any], words: str, archive_sh: ArchiveSh
) -> None:
    weights = archive_sh.folder / "weights"
    transformers.ViTForImageClassification(transformers.ViTConfig(**{**VISION, "num_labels": 3})).save_pretrained(
        weights
    )
    if files:
        (weights / "config.json").write_text(json.dumps(files))
    archive_sh.write_list("own", "image_classification", config=config)
    assert words in archive_sh.refused("own", "--weights", str(weights))


def test_state_dict_without_arch_and_of_other_sizes_of_images_is_one_line(archive_sh: ArchiveSh) -> None:
    archive_sh.write_list("own", "image_classification", config={"threads": 1})
    network = torchvision.models.get_model("vit_b_32", weights=None, num_classes=2, image_size=384)
    torch.save(network.state_dict(), archive_sh.folder / "weights.pt")
    arguments = ("own", "--weights", str(archive_sh.folder / "weights.pt"))
    assert "own: arch: required for weights of torchvision" in archive_sh.refused(*arguments)
    folder = archive_sh.write_list("own", "image_classification", config={"arch": "vit_b_32"})
    (folder / "index_to_name.json").write_text(json.dumps({"0": "a", "1": "b"}))
    assert "set crop_size to the side of the images that it was trained on" in archive_sh.refused(*arguments)
