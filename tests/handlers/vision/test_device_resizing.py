"""Resizing on a GPU, with the CPU in place of one: PyTorch's operators are the same, and Pillow is the oracle."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from handlers.vision import device_resizing
from handlers.vision.device_resizing import DevicePreprocessing, choose
from handlers.vision.preprocessing import Preprocessing
from tests.handlers.cpu_graphs import GPU

LEVELS = (0.0, 0.0, 0.0)
SIDES = st.integers(1, 700)
SIZES = st.sampled_from([(64, (56, 56)), (232, (224, 224)), (50, None)])


@settings(deadline=None, max_examples=60)
@given(SIDES, SIDES, st.integers(0, 9), SIZES)
def test_pixels_are_pillows(width: int, height: int, seed: int, sizes: Any) -> None:
    chance = np.random.default_rng(seed)
    noise = chance.integers(0, 256, (height, width, 3), np.uint8)
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
        ({}, 1.0, True),
        ({}, 3.0, False),
        ({"interpolation": "bicubic"}, 1.0, False),
        ({"is_antialiased": False}, 1.0, False),
        ({"crop": (72, 72)}, 1.0, False),
        ({"resize": (64, 64)}, 1.0, False),
    ],
)
def test_processor_resizes_unless_the_device_is_faster_and_makes_its_pixels(
    change: Any, device_s: float, is_chosen: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = replace(Preprocessing(64, (56, 56), "bilinear", LEVELS, LEVELS), **change)
    monkeypatch.setattr(device_resizing, "_time_s", lambda fit, *_: 2.0 if fit == own.fit else device_s)
    assert isinstance(choose(own, GPU, 2), DevicePreprocessing) == is_chosen
    monkeypatch.setattr(DevicePreprocessing, "cut", lambda *_: torch.zeros(56, 56, 3, dtype=torch.uint8))
    assert choose(own, GPU, 2) is own
    assert ("cpu makes other pixels" in caplog.text) == (change == {})
