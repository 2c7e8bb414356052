"""Image segmentation returns the network's class map of each single image, in any mix of a batch."""

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
import torchvision
import transformers
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from torchvision.transforms.functional import normalize, resize, to_tensor

from deploy.models import Engine
from handlers.tasks import image_segmentation
from handlers.tasks.image_segmentation import ImageSegmentationHandler
from handlers.vision.config import IMAGENET_MEAN, IMAGENET_STD
from tests import tiny_segmenter
from tests.handlers.serving import Bad, Made, Patch, assert_own_answers, serve, started
from tests.photographs import encoded, path
from tests.tables import table

ARCH, SHORTER = "lraspp_mobilenet_v3_large", 128
COMMON: dict[str, Any] = {"threads": 1, "scaled_decode": False, "precision": "fp32", "max_map_pixels": 400_000}
# The writer of each kind's weights, and its settings.
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "torchvision": ((), {**COMMON, "arch": ARCH, "resize_size": SHORTER, "max_seen_pixels": 120_000}),
    "transformers": ((tiny_segmenter.segmenter,), COMMON),
    "beit": ((tiny_segmenter.segmenter, True), COMMON),
}
NAMES = ("coffee", "chelsea", "china", "rocket", "astronaut")
LEAST_EQUAL = 0.99
Oracle = Callable[[Image.Image], NDArray[np.uint8]]


@cache
def sent(name: str) -> bytes:
    """A photograph without its details: logits of random weights follow every one of them."""
    return encoded(Image.open(path(name)).convert("RGB").filter(ImageFilter.GaussianBlur(60)), "PNG")


def archive_of(archived: Made, kind: str, engine: Engine = "torch") -> Path:
    weights, settings = KINDS[kind]
    return archived("image_segmentation", engine, *weights, **settings)


def start(archived: Made, kind: str, engine: Engine = "torch", **more: Any) -> ImageSegmentationHandler:
    settings = {**KINDS[kind][1], "engine": engine, **more}
    return started(ImageSegmentationHandler(), archive_of(archived, kind, engine), settings)


def by_torchvision(archive: Path) -> Oracle:
    """torchvision's way ends at the size that the network sees: 21 random classes have too many edges for another."""
    network = torchvision.models.get_model(ARCH, weights=None, weights_backbone=None).eval()
    network.load_state_dict(torch.load(archive / "model.pt", weights_only=True))

    def classes(image: Image.Image) -> NDArray[np.uint8]:
        seen = normalize(to_tensor(resize(image, [SHORTER])), list(IMAGENET_MEAN), list(IMAGENET_STD))
        with torch.inference_mode():
            found = network(seen[None])["out"].argmax(1)[0].numpy().astype(np.uint8)
        return np.asarray(Image.fromarray(found).resize(image.size, Image.Resampling.NEAREST))

    return classes


def by_transformers(archive: Path) -> Oracle:
    network = transformers.AutoModelForSemanticSegmentation.from_pretrained(archive / "checkpoint").eval()
    processor: Any = transformers.AutoImageProcessor.from_pretrained(archive / "checkpoint", backend="pil")

    def classes(image: Image.Image) -> NDArray[np.uint8]:
        with torch.inference_mode():
            outputs = network(**processor(image, return_tensors="pt"))
        (found,) = processor.post_process_semantic_segmentation(outputs, [(image.height, image.width)])
        return np.asarray(found).astype(np.uint8)

    return classes


def b64(body: bytes, **options: Any) -> bytes:
    return json.dumps({"b64": base64.b64encode(body).decode(), **options}).encode()


BAD: list[Bad] = [
    (b64(sent("coffee"), masks="rle"), 400, "InvalidOption", "masks"),
    (encoded(Image.new("RGB", (800, 600)), "PNG"), 413, "ImageTooLarge", "max_map_pixels is 400000"),
]
# transformers' networks see each image in one size.
LONG = (encoded(Image.new("RGB", (900, 30)), "PNG"), 413, "ImageTooLarge", "max_seen_pixels is 120000")
BUILT = pytest.mark.builds


@table(
    ("transformers", "torch"),
    *(pytest.param(kind, "torch", marks=BUILT) for kind in ("torchvision", "beit")),
    *(pytest.param(kind, "openvino", marks=BUILT) for kind in ("torchvision", "transformers")),
)
def test_maps_in_any_company_are_those_of_the_network_on_each_image(kind: str, engine: Engine, archived: Made) -> None:
    handler = start(archived, kind, engine)
    expected_of = (by_torchvision if kind == "torchvision" else by_transformers)(archive_of(archived, kind))

    def same(found: Any, expected: NDArray[np.uint8]) -> bool:
        classes = decoded(found["map"])
        return classes.shape == expected.shape and np.mean(classes == expected) >= LEAST_EQUAL

    expected = [expected_of(Image.open(io.BytesIO(sent(name)))) for name in NAMES]
    assert min(len(np.unique(each)) for each in expected) > 1
    good = zip(map(sent, NAMES), expected, strict=True)
    assert_own_answers(handler, good, [*BAD, LONG] if kind == "torchvision" else BAD, same)


def decoded(text: str) -> NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))


def test_every_way_to_draw_segments_says_the_same(archived: Made) -> None:
    handler = start(archived, "transformers")
    drawn, pngs = (answer.body for answer in serve(handler, [b64(sent("coffee"), masks=way) for way in ("map", "png")]))
    classes = decoded(drawn["map"])
    assert 1 < len(drawn["segments"]) == len(pngs) == len(np.unique(classes))
    for segment, png in zip(drawn["segments"], pngs, strict=True):
        assert segment["label"] == png["label"] == tiny_segmenter.LABELS[segment["value"]]
        # Places in a batch differ by rounding on some processors.
        assert segment["score"] == pytest.approx(png["score"], abs=1e-6)
        assert 0 < segment["score"] <= 1
        assert np.array_equal(decoded(png["mask"]), np.where(classes == segment["value"], 255, 0))
    # Hugging Face's clients send base64 with parameters, or the file as it is.
    asked = {"inputs": base64.b64encode(sent("coffee")).decode(), "parameters": {"subtask": "semantic"}}
    agent = {"user-agent": "unknown/None; hf_hub/1.2.0"}
    for answer in serve(handler, [{"body": asked}, sent("coffee")], [{}, agent]):
        near = [{**segment, "score": pytest.approx(segment["score"], abs=1e-6)} for segment in pngs]
        assert answer.body == near
    # Or the form of TorchServe's own handler.
    (answer,) = serve(start(archived, "transformers", answer="torchserve"), [sent("coffee")])
    pixels, count = np.array(answer.body), len(tiny_segmenter.LABELS)
    assert pixels.shape == (tiny_segmenter.SIDE, tiny_segmenter.SIDE, 2)
    assert set(pixels[..., 0].ravel()) <= set(range(count))
    assert 1 / count <= pixels[..., 1].min() <= pixels[..., 1].max() <= 1


@pytest.mark.parametrize("size", [(97, 61), (16, 12), (5, 3), (1, 1), (400, 12)])
def test_likeliest_classes_are_those_of_enlarged_logits(size: tuple[int, int], monkeypatch: Patch) -> None:
    monkeypatch.setattr(image_segmentation, "MOST_ENLARGED", 1000)
    logits = torch.randn(7, 12, 16, generator=torch.Generator().manual_seed(2))
    logits[3, :6, :8] += 9
    enlarged = torch.nn.functional.interpolate(logits[None], size[::-1], mode="bilinear", align_corners=False)[0]
    classes, probabilities = image_segmentation.find_classes(logits.numpy(), size)
    assert np.mean(classes == enlarged.argmax(0).numpy()) >= 0.999
    assert probabilities.shape == classes.shape
    assert np.abs(probabilities - enlarged.softmax(0).max(0).values.numpy()).mean() < 0.05
    assert probabilities.min() >= 1 / 7
