"""Settings and options of the task on images and texts; see handlers.config."""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from handlers.config import SETTINGS, Count
from handlers.text.config import RetrievalConfig
from handlers.vision.config import PixelsConfig


# The first base decides the defaults of settings that both have.
@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ImageTextEmbeddingConfig(RetrievalConfig, PixelsConfig):
    """Settings of image and text embedding; the patches of an image are tokens."""

    is_matryoshka: bool = Field(
        default=False,
        description="Whether `dimensions` is allowed although the model's files do not declare Matryoshka training.",
    )


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ImageTextEmbeddingOptions:
    """Options of one image or text."""

    dimensions: Count | None = Field(
        default=None,
        description="Number of leading values of the vector to return, scaled to unit length; null for all.",
    )
    input_type: Literal["query", "document"] | None = Field(
        default=None, description="Whether the item is a query or a document; these models treat both alike."
    )
    normalized: Literal[True] = Field(default=True, description="Jina's option; vectors always have unit length.")
