"""A detector of transformers behind pixels as they were decoded, as it is exported for OpenVINO and as PyTorch runs it.

checkpoint -> load_detector -> PixelDetector: (B, H, W, 3) uint8 -> (B, Q, labels) logits, (B, Q, 4) boxes

Detectors of the RT-DETR family alone: they stretch every image to one size, take no mask, and answer with a set, so
that nothing depends on the other images of a batch. Only what runs PyTorch calls `load_detector`.
"""

import json
from pathlib import Path
from typing import Any

import torch

from handlers.errors import InvalidConfig

FAMILY = ("rt_detr", "rt_detr_v2", "d_fine")
# What stretches to a size with a bilinear filter and makes 0..1 of 0..255, as the family's own configurations have it.
PROCESSOR = {"do_resize": True, "do_rescale": True, "do_normalize": False, "do_pad": False, "resample": 2}


def canvas(checkpoint: Path) -> tuple[int, int]:
    """Read the width and height that a checkpoint's images are stretched to.

    Raises:
        InvalidConfig: its preprocessor_config.json is missing, or does anything else with images.
    """
    path = checkpoint / "preprocessor_config.json"
    if not path.is_file():
        raise InvalidConfig(f"{path.name}: missing; it says what size the model's images have")
    said = json.loads(path.read_text(encoding="utf-8"))
    size = said.get("size")
    wrong = [name for name, value in PROCESSOR.items() if said.get(name, value) != value]
    if wrong or not isinstance(size, dict) or not {"height", "width"} <= size.keys():
        raise InvalidConfig(f"{path.name}: {', '.join(wrong) or 'size'}: only images stretched to one size are served")
    return int(size["width"]), int(size["height"])


class PixelDetector(torch.nn.Module):
    """A detector that takes pixels as they were decoded: a quarter of the bytes of floats."""

    def __init__(self, detector: Any) -> None:
        """Wrap a model of FAMILY."""
        super().__init__()
        self.detector = detector

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Detect.

        Args:
            pixels: (B, H, W, 3) uint8, RGB.

        Returns:
            Logits (B, Q, labels), and boxes (B, Q, 4): left, top, right and bottom, as shares of the image.
        """
        values = pixels.permute(0, 3, 1, 2).to(next(self.detector.parameters()).dtype) / 255
        found = self.detector(pixel_values=values)
        centres, halves = found.pred_boxes[..., :2], found.pred_boxes[..., 2:] / 2
        return found.logits, torch.cat([centres - halves, centres + halves], 2)


def load_detector(checkpoint: Path) -> PixelDetector:
    """Load a checkpoint, in fp32.

    Raises:
        InvalidConfig: it is no detector, or one of another family.
    """
    # Seconds, which a worker on OpenVINO does not need.
    import transformers  # noqa: PLC0415

    config = transformers.AutoConfig.from_pretrained(checkpoint, local_files_only=True)
    if config.model_type not in FAMILY:
        raise InvalidConfig(f"{config.model_type} is no detector that is served: {', '.join(FAMILY)}")
    loaded = transformers.AutoModelForObjectDetection.from_pretrained(
        checkpoint, local_files_only=True, use_safetensors=True, dtype=torch.float32
    )
    return PixelDetector(loaded.eval()).eval()
