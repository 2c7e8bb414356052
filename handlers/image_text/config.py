"""Settings and options of the task on images and texts; see handlers.config."""

from typing import Literal

from pydantic.dataclasses import dataclass

from handlers.config import SETTINGS, Count, doc
from handlers.text.config import EmbeddingConfig, TruncationOptions
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
