"""Object detection answers as transformers' pipeline does, in any mix of a batch."""

import base64
import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torchvision.transforms.functional import to_tensor

from handlers.tasks.object_detection import CORNERS, ObjectDetectionHandler
from handlers.vision.boxes import RULES
from tests import exports, tiny_detector
from tests.handlers.serving import ENGINES, serve, started
from tests.photographs import path, photograph

SETTINGS: dict[str, Any] = {"threads": 1, "precision": "fp32", "scaled_decode": False, "threshold": 0.9}
# Share of the boxes of random weights that ties may change.
TIES = 0.05
NAMES = ("coffee", "chelsea", "china", "rocket", "astronaut")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_detector.detector(tmp_path_factory.mktemp("detector"))


@pytest.fixture(scope="module")
def archives(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Path]:
    """Make the archive's contents for an engine."""
    return cache(
        lambda engine: exports.archived(
            "object_detection", checkpoint, tmp_path_factory.mktemp("a"), SETTINGS, engine=engine
        )
    )


@pytest.fixture(scope="module")
def archive(archives: Callable[[Any], Path]) -> Path:
    return archives("torch")


def detector(archive: Path, **settings: Any) -> ObjectDetectionHandler:
    ready = started(ObjectDetectionHandler(), archive, {**SETTINGS, "engine": "torch", **settings})
    assert isinstance(ready, ObjectDetectionHandler)
    return ready


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> dict[str, Any]:
    """Answers of the pipeline to each photograph alone, with Pillow's filter."""
    images = transformers.AutoImageProcessor.from_pretrained(checkpoint, backend="pil")
    network = transformers.AutoModelForObjectDetection.from_pretrained(checkpoint)
    pipeline: Any = transformers.pipeline("object-detection", model=network, image_processor=images)
    return {name: pipeline(Image.open(path(name)).convert("RGB"), threshold=SETTINGS["threshold"]) for name in NAMES}


def is_same(found: Any, wanted: Any) -> bool:
    """A box within a pixel, its score within 1e-3."""
    near = found["score"] == pytest.approx(wanted["score"], abs=1e-3)
    return bool(found["label"] == wanted["label"] and near and found["box"] == pytest.approx(wanted["box"], abs=1))


def assert_same(answer: Any, expected: Any) -> None:
    """The same boxes, best first; scores of random weights tie, so any order of ties is right."""
    left, scores = [*answer], [found["score"] for found in answer]
    assert scores == sorted(scores, reverse=True)
    for wanted in expected:
        match = next((found for found in left if is_same(found, wanted)), None)
        assert match is not None, wanted
        left.remove(match)
    assert not left


@pytest.mark.parametrize("engine", ENGINES)
def test_images_of_different_sizes_are_answered_as_the_pipeline_answers_each_alone(
    archives: Callable[[Any], Path], oracle: dict[str, Any], engine: str
) -> None:
    handler = detector(archives(engine), engine=engine)
    assert len({json.dumps(answer) for answer in oracle.values()}) == len(NAMES)
    assert all(0 < len(answer) < tiny_detector.QUERIES for answer in oracle.values())
    for names in (NAMES, NAMES[::-1], NAMES[:1]):
        for name, answer in zip(names, serve(handler, [photograph(each) for each in names]), strict=True):
            assert answer.status == 200, answer
            assert_same(answer.body, oracle[name])


@pytest.fixture(scope="module")
def ssdlite(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """An archive of torchvision's SSDLite, and the network."""
    file, network = tiny_detector.ssdlite(tmp_path_factory.mktemp("weights"))
    labels = {"index_to_name.json": dict(enumerate(["__background__", *tiny_detector.LABELS]))}
    settings = {**SETTINGS, "arch": tiny_detector.SSDLITE}
    archive = exports.archived("object_detection", file, tmp_path_factory.mktemp("a"), settings, files=labels)
    return archive, network


@pytest.mark.builds
@pytest.mark.parametrize("engine", ["openvino", "torch"])
def test_boxes_of_ssd_are_those_that_torchvision_keeps(ssdlite: tuple[Path, Any], engine: str) -> None:
    archive, network = ssdlite
    handler = detector(archive, engine=engine, arch=tiny_detector.SSDLITE, threshold=0.3)
    network.score_thresh = 0.3
    answers = serve(handler, [photograph(name) for name in NAMES])
    for name, answer in zip(NAMES, answers, strict=True):
        image = Image.open(path(name)).convert("RGB")
        seen = handler.preprocessing.fit(image)
        resized = 255 * torch.nn.functional.interpolate(to_tensor(image)[None], (320, 320), mode="bilinear")
        assert np.abs(seen - resized[0].permute(1, 2, 0).numpy()).max() < 1e-3
        with torch.inference_mode():
            (found,) = network([to_tensor(image)])
        expected = [
            {"label": tiny_detector.LABELS[label - 1], "score": score, "box": dict(zip(CORNERS, box, strict=True))}
            for label, score, box in zip(
                found["labels"].tolist(),
                found["scores"].tolist(),
                found["boxes"].tolist(),
                strict=True,
            )
        ]
        assert len(expected) < RULES[tiny_detector.SSDLITE].most
        # Scores of random weights are so near each other that rounding may change their order, and which of two goes.
        assert abs(len(answer.body) - len(expected)) <= TIES * len(expected)
        assert sum(any(is_same(each, one) for one in answer.body) for each in expected) >= (1 - TIES) * len(expected)
    assert sum(len(answer.body) for answer in answers) > len(NAMES)


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
    assert len(first) == 1 and any(is_same(first[0], each) for each in plain[:1])
    assert "threshold" in answers[2].body["message"]
    assert_same(answers[6].body, oracle["coffee"])


def test_boxes_are_in_pixels_of_the_upright_image_and_pixels_may_be_sent(archive: Path, oracle: dict[str, Any]) -> None:
    handler = detector(archive)
    picture = Image.open(path("coffee")).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6
    with io.BytesIO() as file:
        # Turned by a quarter, as its EXIF states.
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
    named = [(next(name for name in found if name != "score"), found) for found in answer.body]
    boxes = [
        {"label": name, "score": found["score"], "box": dict(zip(CORNERS, found[name], strict=True))}
        for name, found in named
    ]
    assert_same(boxes, oracle["chelsea"])
