import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from handlers.engines.torch import TorchEngine, dtype_for
from handlers.errors import OutOfMemory
from handlers.vision.pixel_classifier import PixelClassifier
from tests.handlers.engines.test_engines import arch, config, expected, network, pixels, state, worst_error  # noqa: F401

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("arch", ["resnet18"], indirect=True, scope="module")
def test_cuda_auto_precision_stays_within_tolerance_of_torch_fp32(
    network: torch.nn.Module,  # noqa: F811
    pixels: NDArray[np.uint8],  # noqa: F811
    expected: NDArray[np.float32],  # noqa: F811
) -> None:
    device = torch.device("cuda", 0)
    classifier = copy.deepcopy(network).to(dtype_for(device, "auto"))
    module = PixelClassifier(classifier, config("").mean, config("").std).to(device)
    engine = TorchEngine(module, device, ["pixels"], ["logits"])
    assert engine.description in ("torch cuda:0 bfloat16", "torch cuda:0 float16")
    assert worst_error(engine, pixels, expected) < 2e-2


def test_cuda_out_of_memory_is_told_apart(tmp_path: Path) -> None:
    class Hog(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.empty(2**50, device=x.device)

    engine = TorchEngine(Hog(), torch.device("cuda", 0), ["x"], ["y"])
    with pytest.raises(OutOfMemory):
        engine.run({"x": np.zeros((1,), np.float32)})
