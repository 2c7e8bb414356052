"""Object detection answers as transformers' pipeline does, in any mix of a batch."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torchvision.transforms.functional import to_tensor

from deploy.archives.precision.prove import check
from deploy.archives.sources import source
from deploy.models import ModelEntry
from handlers.archive_files import CHECKPOINT, FIDELITY
from handlers.tasks.object_detection import CORNERS, ObjectDetectionHandler
from handlers.vision.boxes import RULES
from tests import exports, tiny_detector
from tests.handlers.serving import ENGINES, Bad, Made, Temp, assert_own_answers, serve, started
from tests.photographs import encoded, path, photograph

SETTINGS: dict[str, Any] = {"threads": 1, "precision": "fp32", "scaled_decode": False, "threshold": 0.9}
# Share of the boxes of random weights that ties may change.
TIES = 0.05
NAMES = ("coffee", "chelsea", "china")


@pytest.fixture(scope="module")
def archive(archived: Made) -> Path:
    return archived("object_detection", "torch", tiny_detector.detector, **SETTINGS)


def detector(archive: Path, **settings: Any) -> ObjectDetectionHandler:
    return started(ObjectDetectionHandler(), archive, {**SETTINGS, "engine": "torch", **settings})


@pytest.fixture(scope="module")
def oracle(archive: Path) -> dict[str, Any]:
    return answer_by_pipeline(archive)


def answer_by_pipeline(archive: Path) -> dict[str, Any]:
    """Answers of the pipeline to each photograph alone, with Pillow's filter."""
    images = transformers.AutoImageProcessor.from_pretrained(archive / CHECKPOINT, backend="pil")
    network = transformers.AutoModelForObjectDetection.from_pretrained(archive / CHECKPOINT)
    pipeline: Any = transformers.pipeline("object-detection", model=network, image_processor=images)
    return {name: pipeline(Image.open(path(name)).convert("RGB"), threshold=SETTINGS["threshold"]) for name in NAMES}


def is_same(found: Any, wanted: Any) -> bool:
    near = found["score"] == pytest.approx(wanted["score"], abs=1e-3)
    return bool(found["label"] == wanted["label"] and near and found["box"] == pytest.approx(wanted["box"], abs=1))


def is_alike(answer: Any, expected: Any) -> bool:
    """The same boxes, best first; scores of random weights tie, so any order of ties is right."""
    left, scores = [*answer], [found["score"] for found in answer]
    for wanted in expected:
        if (match := next((found for found in left if is_same(found, wanted)), None)) is None:
            return False
        left.remove(match)
    return not left and scores == sorted(scores, reverse=True)


CAT = base64.b64encode(photograph("chelsea")).decode()
BAD: list[Bad] = [
    (json.dumps({"b64": CAT, "threshold": 2}).encode(), 400, "InvalidOption", "threshold"),
    (json.dumps({"b64": CAT, "top_k": 0}).encode(), 400, "InvalidOption", "top_k"),
    (b"no image", 415, "UnsupportedMedia", "Not an image"),
]


@pytest.mark.parametrize("engine", ENGINES)
def test_any_batch_is_answered_as_by_the_pipeline(archived: Made, oracle: dict[str, Any], engine: str) -> None:
    assert_answers(archived("object_detection", engine, tiny_detector.detector, **SETTINGS), engine, oracle)


@pytest.mark.builds
@pytest.mark.parametrize("kind", ["RTDetr", "DFine"])
def test_other_kinds_answer_as_the_pipeline(kind: str, archived: Made) -> None:
    made = {
        each: archived("object_detection", each, tiny_detector.detector, kind, **SETTINGS)
        for each in ("torch", "openvino")
    }
    assert_answers(made["openvino"], "openvino", answer_by_pipeline(made["torch"]))


def assert_answers(archive: Path, engine: str, oracle: dict[str, Any]) -> None:
    assert len({json.dumps(answer) for answer in oracle.values()}) == len(NAMES)
    assert all(0 < len(answer) < tiny_detector.QUERIES for answer in oracle.values())
    good = ((photograph(name), oracle[name]) for name in NAMES)
    assert_own_answers(detector(archive, engine=engine), good, BAD, is_alike)


@pytest.fixture(scope="module")
def ssdlite(tmp_path_factory: Temp) -> tuple[Path, Any]:
    file, network = tiny_detector.ssdlite(tmp_path_factory.mktemp("weights"))
    labels = {"index_to_name.json": dict(enumerate(["__background__", *tiny_detector.LABELS]))}
    settings = {**SETTINGS, "arch": tiny_detector.SSDLITE}
    return exports.archived("object_detection", file, tmp_path_factory.mktemp("a"), settings, files=labels), network


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
        parts = (found[name].tolist() for name in ("labels", "scores", "boxes"))
        expected = [
            {"label": tiny_detector.LABELS[label - 1], "score": score, "box": dict(zip(CORNERS, box, strict=True))}
            for label, score, box in zip(*parts, strict=True)
        ]
        assert len(expected) < RULES[tiny_detector.SSDLITE].most
        # Scores of random weights are so near each other that rounding may change their order, and which of two goes.
        assert abs(len(answer.body) - len(expected)) <= TIES * len(expected)
        assert sum(any(is_same(each, one) for one in answer.body) for each in expected) >= (1 - TIES) * len(expected)
    assert sum(len(answer.body) for answer in answers) > len(NAMES)


@pytest.mark.builds
def test_build_compares_boxes_of_ssd_with_torchvisions(ssdlite: tuple[Path, Any], tmp_path: Path) -> None:
    archive = ssdlite[0]
    entry = ModelEntry("tiny", "object_detection", "1.0", archive.parent / "own")
    weights, _ = tiny_detector.ssdlite(tmp_path)
    check(entry, source(entry, str(weights)), "auto", archive, tmp_path)
    assert json.loads((tmp_path / FIDELITY).read_text())["largest_error"] < 1e-3


def test_options_are_an_items_own_and_answers_may_have_torchserves_form(archive: Path, oracle: dict[str, Any]) -> None:
    items = [{"b64": CAT}, {"b64": CAT, "threshold": 1.0}, {"b64": CAT, "top_k": 1}, {"b64": CAT, "threshold": 0.0}]
    (answer,) = serve(detector(archive), [json.dumps({"instances": items, "top_k": 300}).encode()])
    plain, none, first, every = answer.body["predictions"]
    assert is_alike(plain, oracle["chelsea"]) and is_alike(first, plain[:1])
    assert (none, len(every)) == ([], tiny_detector.QUERIES)
    (answer,) = serve(detector(archive, answer="torchserve"), [photograph("chelsea")])
    boxes = [
        {"label": name, "score": found["score"], "box": dict(zip(CORNERS, found[name], strict=True))}
        for found in answer.body
        for name in found.keys() - {"score"}
    ]
    assert is_alike(boxes, oracle["chelsea"])


def test_boxes_are_in_pixels_of_the_upright_image_and_pixels_may_be_sent(archive: Path, oracle: dict[str, Any]) -> None:
    handler, picture = detector(archive), Image.open(path("coffee")).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encoded(picture.transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif)
    pixels = {"inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, *np.asarray(picture).shape]}]}
    pixels["inputs"][0]["data"] = np.asarray(picture).ravel().tolist()
    upright, sent = serve(handler, [turned, json.dumps(pixels).encode()])
    assert is_alike(upright.body, oracle["coffee"])
    (output,) = sent.body["outputs"]
    assert is_alike(json.loads(output["data"][0]), oracle["coffee"])
