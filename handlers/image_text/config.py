"""The task on images and texts: its settings, its options, and the families of its models; without PyTorch."""

from pathlib import Path
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from handlers.config import SETTINGS, Count, doc
from handlers.errors import InvalidConfig
from handlers.text.config import EmbeddingConfig, TruncationOptions
from handlers.text.encoders import read_tokenizer
from handlers.text.sentence_files import read_json
from handlers.vision.config import PixelsConfig


# The first base decides the defaults of settings that both have.
@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ImageTextEmbeddingConfig(EmbeddingConfig, PixelsConfig):
    """Settings of image and text embedding; the patches of an image are tokens."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ImageTextEmbeddingOptions(TruncationOptions):
    """Options of one image or text."""

    dimensions: Count | None = doc(
        None, "Number of leading values of the vector to return, scaled to unit length; null for all."
    )
    input_type: Literal["query", "document", "classification", "clustering"] | None = doc(
        None, "The role of the item; these models treat all alike."
    )
    normalized: Literal[True] = doc(True, "Jina's option; vectors always have unit length.")


TWO_TOWERS = ("clip", "siglip", "chinese_clip")  # models of images and texts, by `model_type`
# Models of images, whose vector is the first token after the last layer's norm.
ONLY_IMAGES = ("dinov2", "dinov2_with_registers", "dinov3_vit", "vit")
TEXT_GRAPH = "text.xml"  # the file of the exported tower for texts
# Models without a mask: the vector is that of the last position, and every text is padded to the length of training.
UNMASKED = ("siglip",)


def read_family(checkpoint: Path) -> tuple[Any, Any]:
    """Read a model's tokenizer, None without texts, and its configuration; InvalidConfig if it is not supported."""
    kind = read_json(checkpoint / "config.json").get("model_type")
    if kind not in (*TWO_TOWERS, *ONLY_IMAGES):
        served = ", ".join((*TWO_TOWERS, *ONLY_IMAGES))
        raise InvalidConfig(f"{kind} is not supported for embedding images; supported models are {served}")
    return read_tokenizer(checkpoint, trust_remote_code=False, has_tokenizer=kind in TWO_TOWERS)
