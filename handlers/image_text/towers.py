"""The models of image and text embedding, as they are exported for OpenVINO and as PyTorch runs them.

checkpoint         -> ImageTower: (B, H, W, 3) uint8 -> (B, D)
                   -> TextTower:  (B, T) ids         -> (B, D), of models that have one

Vectors have unit length. An image becomes the same pixels in any batch.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from handlers.checkpoints import load_strictly
from handlers.errors import InvalidConfig
from handlers.vision.pixel_network import PixelNetwork
from handlers.vision.preprocessing import Preprocessing

# Models of images and texts, by `model_type`.
TWO_TOWERS = ("clip", "siglip", "chinese_clip")
# Models of images, whose vector is the first token after the last layer's norm.
ONLY_IMAGES = ("dinov2", "dinov2_with_registers", "dinov3_vit", "vit")
# The file of the exported tower for texts.
TEXT_GRAPH = "text.xml"
# Models without a mask: the vector is that of the last position, and every text is padded to the length of training.
UNMASKED = ("siglip",)


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


def read_configuration(checkpoint: Path) -> Any:
    """Read a model's configuration; InvalidConfig if the model is not supported."""
    config = transformers.AutoConfig.from_pretrained(checkpoint, local_files_only=True)
    if config.model_type not in (*TWO_TOWERS, *ONLY_IMAGES):
        served = ", ".join((*TWO_TOWERS, *ONLY_IMAGES))
        raise InvalidConfig(f"{config.model_type} is not supported for embedding images; supported models are {served}")
    return config


def load_towers(checkpoint: Path, preprocessing: Preprocessing) -> Towers:
    """Load a checkpoint, in fp32; InvalidConfig if the model is not supported."""
    has_text = read_configuration(checkpoint).model_type in TWO_TOWERS
    # A model of ONLY_IMAGES does not use its pooler for its vector.
    model = load_strictly("AutoModel", checkpoint, unused=r"^pooler\.", dtype=torch.float32)
    image = ImageTower(model, preprocessing).eval()
    return Towers(image, TextTower(model).eval() if has_text else None)
