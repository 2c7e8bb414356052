"""Pixels that a GPU resizes, with the CPU in place of one, are Pillow's; classes of enlarged logits are torch's."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from handlers.vision import class_maps, device_resizing
from handlers.vision.device_resizing import DevicePreprocessing, choose
from handlers.vision.preprocessing import Preprocessing
from tests.handlers.cpu_graphs import GPU
from tests.handlers.serving import Log, Patch

LEVELS = (0.0, 0.0, 0.0)
SIDES, SIZES = st.integers(1, 700), st.sampled_from([(64, (56, 56)), (232, (224, 224)), (50, None)])


@settings(deadline=None, max_examples=60)
@given(SIDES, SIDES, st.integers(0, 9), SIZES)
def test_pixels_are_pillows(width: int, height: int, seed: int, sizes: Any) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    # Black and white, or grey: every second half is a tie.
    image = Image.fromarray(noise // 128 * 255 if seed % 2 else noise)
    resize, crop = sizes
    own = Preprocessing(resize, crop, "bilinear", LEVELS, LEVELS, is_rounded=seed > 5)
    found, wanted = DevicePreprocessing(**asdict(own), device=GPU).fit(image), own.fit(image)
    assert found.dtype == torch.uint8
    assert np.array_equal(found.numpy(), wanted)


@pytest.mark.parametrize(
    ("change", "device_s", "is_chosen"),
    [
        *(({}, 1.0, True), ({}, 3.0, False), ({"interpolation": "bicubic"}, 1.0, False)),
        *((change, 1.0, False) for change in ({"is_antialiased": False}, {"crop": (72, 72)}, {"resize": (64, 64)})),
    ],
)
def test_faster_device_resizes(change: Any, device_s: float, is_chosen: bool, monkeypatch: Any, caplog: Log) -> None:
    own = replace(Preprocessing(64, (56, 56), "bilinear", LEVELS, LEVELS), **change)
    monkeypatch.setattr(device_resizing, "_time_s", lambda fit, *_: 2.0 if fit == own.fit else device_s)
    assert isinstance(choose(own, GPU, 2), DevicePreprocessing) == is_chosen
    monkeypatch.setattr(DevicePreprocessing, "cut", lambda *_: torch.zeros(56, 56, 3, dtype=torch.uint8))
    assert choose(own, GPU, 2) is own
    assert ("cpu makes other pixels" in caplog.text) == (change == {})


@pytest.mark.parametrize("size", [(97, 61), (16, 12), (5, 3), (1, 1), (400, 12)])
def test_likeliest_classes_are_those_of_enlarged_logits(size: tuple[int, int], monkeypatch: Patch) -> None:
    monkeypatch.setattr(class_maps, "MOST_ENLARGED", 1000)
    logits = torch.randn(7, 12, 16, generator=torch.Generator().manual_seed(2))
    logits[3, :6, :8] += 9
    enlarged = torch.nn.functional.interpolate(logits[None], size[::-1], mode="bilinear", align_corners=False)[0]
    classes, probabilities = class_maps.find_classes(logits.numpy(), size)
    assert np.mean(classes == enlarged.argmax(0).numpy()) >= 0.999
    assert probabilities.shape == classes.shape
    assert np.abs(probabilities - enlarged.softmax(0).max(0).values.numpy()).mean() < 0.05
    assert probabilities.min() >= 1 / 7
