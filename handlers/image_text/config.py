"""Settings and options of the task on images and texts; see handlers.config."""

from typing import Literal

from pydantic.dataclasses import dataclass

from handlers.config import SETTINGS, Count
from handlers.text.config import RetrievalConfig
from handlers.vision.config import PixelsConfig


# Of settings that both have, the first one's defaults hold.
@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ImageTextEmbeddingConfig(RetrievalConfig, PixelsConfig):
    """Settings of image and text embedding.

    Attributes:
        max_batch_tokens: the most padded tokens of one micro-batch; the patches of an image are tokens.
        is_matryoshka: whether `dimensions` may be any number up to the model's own, although its files do not say that
            it was trained so.
    """

    is_matryoshka: bool = False


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ImageTextEmbeddingOptions:
    """Options of one image or text.

    Attributes:
        dimensions: how many numbers its vector has: the first so many, scaled to unit length. None for all.
        input_type: `query` or `document`, which these models treat alike.
        normalized: Jina's; vectors always have unit length.
    """

    dimensions: Count | None = None
    input_type: Literal["query", "document"] | None = None
    normalized: Literal[True] = True
