"""The models of image and text embedding, as they are exported for OpenVINO and as PyTorch runs them.

checkpoint         -> ImageTower: (B, H, W, 3) uint8 -> (B, D)
                   -> TextTower:  (B, T) ids         -> (B, D), of models that have one

Vectors have unit length. Each image becomes the same pixels whatever else is in the batch.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from handlers.checkpoints import load_strictly
from handlers.errors import InvalidConfig
from handlers.vision.pixel_network import PixelNetwork
from handlers.vision.preprocessing import Preprocessing

# Models by `model_type`: images and texts; images alone, whose vector is the first token, after the last layer's norm.
TWO_TOWERS = ("clip", "siglip", "chinese_clip")
IMAGES_ALONE = ("dinov2", "dinov2_with_registers", "dinov3_vit", "vit")
# The exported tower for texts, beside that for images.
TEXT_GRAPH = "text.xml"
# Takes no mask: the vector is that of the last place, and texts always have the length that it was trained with.
UNMASKED = ("siglip",)


class ImageTower(PixelNetwork):
    """The tower for images, behind pixels."""

    def __init__(self, model: Any, preprocessing: Preprocessing) -> None:
        """Wrap a model of TWO_TOWERS or IMAGES_ALONE."""
        super().__init__(preprocessing)
        self.model = model

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Make vectors, (B, D) float32, of pixels, (B, H, W, 3) uint8, RGB."""
        values = self.normalised(pixels)
        if self.model.config.model_type in TWO_TOWERS:
            features = self.model.get_image_features(pixel_values=values).pooler_output
        else:
            features = self.model(pixel_values=values).last_hidden_state[:, 0]
        return torch.nn.functional.normalize(features.float(), dim=-1)


class TextTower(torch.nn.Module):
    """The tower for texts.

    Attributes:
        input_names, output_names: those of its arrays, in order.
    """

    output_names = ("embeddings",)

    def __init__(self, model: Any) -> None:
        """Wrap a model of TWO_TOWERS."""
        super().__init__()
        self.model = model
        is_masked = model.config.model_type not in UNMASKED
        self.input_names = ("input_ids", "attention_mask") if is_masked else ("input_ids",)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Make vectors, (B, D) float32, of ids and their mask, (B, T) int64, right-padded."""
        mask = {} if attention_mask is None else {"attention_mask": attention_mask}
        features = self.model.get_text_features(input_ids=input_ids, **mask).pooler_output
        return torch.nn.functional.normalize(features.float(), dim=-1)


class Towers(NamedTuple):
    """The towers of a checkpoint; `text` is None where the model takes images alone."""

    image: ImageTower
    text: TextTower | None


def configuration(checkpoint: Path) -> Any:
    """Read a model's configuration.

    Raises:
        InvalidConfig: it is none that is served.
    """
    config = transformers.AutoConfig.from_pretrained(checkpoint, local_files_only=True)
    if config.model_type not in (*TWO_TOWERS, *IMAGES_ALONE):
        served = ", ".join((*TWO_TOWERS, *IMAGES_ALONE))
        raise InvalidConfig(f"{config.model_type} embeds no images that are served: {served}")
    return config


def load_towers(checkpoint: Path, preprocessing: Preprocessing) -> Towers:
    """Load a checkpoint, in fp32.

    Raises:
        InvalidConfig: the model is none that is served.
    """
    has_text = configuration(checkpoint).model_type in TWO_TOWERS
    # The vector of a model of IMAGES_ALONE is not what its pooler makes.
    model = load_strictly("AutoModel", checkpoint, unused=r"^pooler\.", dtype=torch.float32)
    image = ImageTower(model, preprocessing).eval()
    return Towers(image, TextTower(model).eval() if has_text else None)
