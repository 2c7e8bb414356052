"""The models of image and text embedding, as they are exported for OpenVINO and as PyTorch runs them.

checkpoint         -> ImageTower: (B, H, W, 3) uint8 -> (B, D)
                   -> TextTower:  (B, T) ids         -> (B, D), of models that have one

Vectors have unit length. An image becomes the same pixels in any batch.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from handlers.checkpoints import load_strictly
from handlers.image_text.config import TWO_TOWERS, UNMASKED, read_family
from handlers.vision.pixel_network import PixelNetwork
from handlers.vision.preprocessing import Preprocessing


class ImageTower(PixelNetwork):
    def __init__(self, model: Any, preprocessing: Preprocessing) -> None:
        """Wrap a model of TWO_TOWERS or ONLY_IMAGES."""
        super().__init__(preprocessing)
        self.model = model

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Turn pixels, (B, H, W, 3) uint8, RGB, into vectors, (B, D) float32."""
        values = self.normalise(pixels)
        if self.model.config.model_type in TWO_TOWERS:
            features = self.model.get_image_features(pixel_values=values).pooler_output
        else:
            features = self.model(pixel_values=values).last_hidden_state[:, 0]
        return torch.nn.functional.normalize(features.float(), dim=-1)


class TextTower(torch.nn.Module):
    output_names = ("embeddings",)

    def __init__(self, model: Any) -> None:
        """Wrap a model of TWO_TOWERS."""
        super().__init__()
        self.model = model
        is_masked = model.config.model_type not in UNMASKED
        self.input_names = ("input_ids", "attention_mask") if is_masked else ("input_ids",)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Turn ids and their mask, (B, T) int64, right-padded, into vectors, (B, D) float32."""
        mask = {} if attention_mask is None else {"attention_mask": attention_mask}
        features = self.model.get_text_features(input_ids=input_ids, **mask).pooler_output
        return torch.nn.functional.normalize(features.float(), dim=-1)


class Towers(NamedTuple):
    """The towers of a checkpoint; `text` is None if the model accepts only images."""

    image: ImageTower
    text: TextTower | None


def load_towers(checkpoint: Path, preprocessing: Preprocessing) -> Towers:
    """Load a checkpoint, in fp32; InvalidConfig if the model is not supported."""
    tokenizer, _ = read_family(checkpoint)
    # A model of ONLY_IMAGES does not use its pooler for its vector.
    model = load_strictly("AutoModel", checkpoint, unused=r"^pooler\.", dtype=torch.float32)
    image = ImageTower(model, preprocessing).eval()
    return Towers(image, TextTower(model).eval() if tokenizer is not None else None)
