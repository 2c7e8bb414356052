"""Classes of enlarged logits are torch's."""

import numpy as np
import pytest
import torch

from handlers.vision import class_maps
from tests.handlers.serving import Patch


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
