"""Object detection answers as transformers' pipeline does, whoever shares a batch with whom."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image

from deploy.models import model
from handlers.errors import InvalidConfig
from handlers.tasks.object_detection import ObjectDetectionHandler
from handlers.vision.pixel_detector import canvas
from tests import exports, tiny_detector
from tests.handlers.serving import serve, started
from tests.photographs import path, photograph

SETTINGS: dict[str, Any] = {"threads": 1, "scaled_decode": False, "threshold": 0.9}
NAMES = ("coffee", "chelsea", "china", "rocket", "astronaut")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_detector.detector(tmp_path_factory.mktemp("detector"))


@pytest.fixture(scope="module")
def archive(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    exports.taken(model("object-detection"), str(checkpoint), folder)
    return folder


def detector(archive: Path, **settings: Any) -> ObjectDetectionHandler:
    ready = started(ObjectDetectionHandler(), archive, {**SETTINGS, **settings})
    assert isinstance(ready, ObjectDetectionHandler)
    return ready


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> dict[str, Any]:
    """Answers of the pipeline to each photograph alone, with Pillow's filter."""
    images = transformers.AutoImageProcessor.from_pretrained(checkpoint, backend="pil")
    network = transformers.AutoModelForObjectDetection.from_pretrained(checkpoint)
    pipeline: Any = transformers.pipeline("object-detection", model=network, image_processor=images)
    return {name: pipeline(Image.open(path(name)).convert("RGB"), threshold=SETTINGS["threshold"]) for name in NAMES}


def assert_same(answer: Any, expected: Any) -> None:
    """Boxes within a pixel, scores within 1e-3."""
    assert [each["label"] for each in answer] == [each["label"] for each in expected]
    for found, wanted in zip(answer, expected, strict=True):
        assert found["score"] == pytest.approx(wanted["score"], abs=1e-3)
        assert found["box"] == pytest.approx(wanted["box"], abs=1)


@pytest.mark.parametrize("engine", ["openvino", "torch"])
def test_images_of_different_sizes_are_answered_as_the_pipeline_answers_each_alone(
    archive: Path, oracle: dict[str, Any], engine: str
) -> None:
    handler = detector(archive, engine=engine)
    assert len({json.dumps(answer) for answer in oracle.values()}) == len(NAMES)
    assert all(0 < len(answer) < tiny_detector.QUERIES for answer in oracle.values())
    for names in (NAMES, NAMES[::-1], NAMES[:1]):
        for name, answer in zip(names, serve(handler, [photograph(each) for each in names]), strict=True):
            assert answer.status == 200, answer
            assert_same(answer.body, oracle[name])


def test_options_are_an_items_own_and_a_bad_item_fails_alone(archive: Path, oracle: dict[str, Any]) -> None:
    handler = detector(archive)
    cat = base64.b64encode(photograph("chelsea")).decode()
    rows: list[Any] = [
        json.dumps({"b64": cat, "threshold": 0.0, "top_k": 3}).encode(),
        json.dumps({"instances": [{"b64": cat}, {"b64": cat, "threshold": 1.0}, {"b64": cat, "top_k": 1}]}).encode(),
        json.dumps({"b64": cat, "threshold": 2}).encode(),
        json.dumps({"b64": cat, "top_k": 0}).encode(),
        photograph("rocket")[:9000],
        b"no image",
        photograph("coffee"),
    ]
    answers = serve(handler, rows)
    assert [answer.status for answer in answers] == [200, 200, 400, 400, 422, 415, 200]
    assert len(answers[0].body) == 3
    plain, none, first = answers[1].body["predictions"]
    assert_same(plain, oracle["chelsea"])
    assert none == []
    assert_same(first, oracle["chelsea"][:1])
    assert "threshold" in answers[2].body["message"]
    assert_same(answers[6].body, oracle["coffee"])


def test_boxes_are_in_pixels_of_the_upright_image_and_pixels_may_be_sent(archive: Path, oracle: dict[str, Any]) -> None:
    handler = detector(archive)
    picture = Image.open(path("coffee")).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6
    with io.BytesIO() as file:
        # Turned by a quarter, and said so.
        picture.transpose(Image.Transpose.ROTATE_90).save(file, "PNG", exif=exif)
        turned = file.getvalue()
    pixels = {"inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, *np.asarray(picture).shape]}]}
    pixels["inputs"][0]["data"] = np.asarray(picture).ravel().tolist()
    upright, sent = serve(handler, [turned, json.dumps(pixels).encode()])
    assert_same(upright.body, oracle["coffee"])
    (output,) = sent.body["outputs"]
    assert_same(json.loads(output["data"][0]), oracle["coffee"])


def test_answers_may_have_the_form_of_torchserves_own_handler(archive: Path, oracle: dict[str, Any]) -> None:
    (answer,) = serve(detector(archive, answer="torchserve"), [photograph("chelsea")])
    for found, wanted in zip(answer.body, oracle["chelsea"], strict=True):
        assert found.keys() == {wanted["label"], "score"}
        assert found[wanted["label"]] == pytest.approx([*wanted["box"].values()], abs=1)


@pytest.mark.parametrize("change", [{"do_pad": True}, {"size": {"shortest_edge": 800}}, {"do_normalize": True}])
def test_checkpoint_that_does_anything_else_with_images_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    said = {"size": {"height": 64, "width": 96}, **change}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 64, "width": 96}}))
    assert canvas(tmp_path) == (96, 64)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    with pytest.raises(InvalidConfig, match="only images stretched to one size"):
        canvas(tmp_path)
