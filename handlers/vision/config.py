"""Settings and options of tasks on images; see handlers.config."""

from typing import Annotated, Literal

from pydantic import Field, Strict, model_validator
from pydantic.dataclasses import dataclass

from handlers.config import SETTINGS, Channels, Count, Deviations, HandlerConfig, Share, Side, doc

# Statistics of the ImageNet training set, per channel, as torchvision's transforms have them.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]  # Pillow's filters
Format = Literal["JPEG", "PNG", "WEBP", "GIF", "BMP", "AVIF", "TIFF"]
# Settings of a classifier's preprocessing, which a checkpoint of transformers has itself.
OF_ARCH = ("resize_size", "crop_size", "interpolation", "mean", "std", "transform_input")

Masks = Literal["map", "png"]  # how a response draws segments: one PNG of all classes, or a PNG of each


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class PixelsConfig(HandlerConfig):
    """Settings of every task on images."""

    max_pixels: Count = doc(
        50_000_000, "Maximum pixels of an image; a larger one is rejected by its header, before it is decoded."
    )
    max_request_pixels: Count = doc(200_000_000, "Maximum pixels of all images of one request.")
    formats: Annotated[tuple[Format, ...], Strict(False), Field(min_length=1)] = doc(
        ("JPEG", "PNG", "WEBP", "GIF", "BMP"),
        "Accepted formats; further ones: TIFF (first page), and AVIF, which may exceed `max_pixels`.",
    )
    scaled_decode: bool = doc(
        True,
        "Whether libjpeg may decode large JPEGs at 1/2, 1/4 or 1/8, never below twice the size that the model gets.",
    )


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ImageClassificationConfig(PixelsConfig):
    """Settings of image classification; `top_k` is the default of a request.

    The defaults from `resize_size` to `transform_input` are those of the weights that torchvision publishes for `arch`.
    """

    arch: str | None = doc(
        None,
        "The name of a torchvision classifier, for `torchvision.models.get_model`; None for a checkpoint "
        "of transformers, whose image processor then decides the preprocessing.",
    )
    resize_size: Side | None = doc(None, "The length of the shorter side after resizing, in pixels.")
    crop_size: Side | None = doc(None, "The side of the centre square that is cut out after resizing, in pixels.")
    interpolation: Interpolation | None = doc(None, "The filter of the resizing.")
    mean: Channels | None = doc(None, "The mean of each channel's values, 0 to 1, that is subtracted.")
    std: Deviations | None = doc(None, "The standard deviation of each channel, by which values are divided.")
    transform_input: bool | None = doc(
        None, "Whether GoogLeNet or Inception normalises its input again, as with published weights."
    )
    top_k: Count = 5

    @model_validator(mode="after")
    def _check_arch(self) -> "ImageClassificationConfig":
        if self.arch is None and (given := [name for name in OF_ARCH if getattr(self, name) is not None]):
            raise ValueError(f"{', '.join(given)}: only with arch; the image processor of a checkpoint decides this")
        return self


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ImageClassificationOptions:
    """Options of one image."""

    top_k: Count | None = doc(None, "Maximum labels in the response.")
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = doc(
        None, "The function that turns logits into scores; null for the model's own."
    )


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ObjectDetectionConfig(PixelsConfig):
    """Settings of object detection; `threshold` and `top_k` are the defaults of a request."""

    max_batch_items: Count = 8
    arch: Literal["ssdlite320_mobilenet_v3_large", "ssd300_vgg16"] | None = doc(
        None, "SSD or SSDLite of torchvision; None for a checkpoint of transformers."
    )
    threshold: Share = doc(0.5, "Minimum score of a box; the default is transformers' pipeline's.")
    top_k: Count | None = doc(None, "Maximum boxes in the response; None for all.")
    answer: Literal["boxes", "torchserve"] = doc(
        "boxes", "`boxes` responds like transformers' pipeline, `torchserve` like TorchServe's object_detector."
    )


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ObjectDetectionOptions:
    """Options of one image; None selects the setting of that name."""

    threshold: Share | None = doc(None, "Minimum score of a box, 0 to 1.")
    top_k: Count | None = doc(None, "Maximum boxes in the response.")


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ImageSegmentationConfig(PixelsConfig):
    """Settings of image segmentation; `masks` is the default of a request.

    A checkpoint of transformers has its own `resize_size`, `mean` and `std`; the settings are for `arch`.
    """

    max_batch_items: Count = 4  # the classes of all pixels of 16 images took SegFormer, of 150 classes, 6 GB
    arch: str | None = doc(None, "The name of a network of torchvision.models.segmentation; None for a checkpoint.")
    resize_size: Side = doc(520, "The length of the shorter side after resizing, in pixels.")
    crop_size: Side | None = doc(
        None,
        "The side of the centre square that the network sees, with `arch` and `answer: torchserve`; None "
        "for the whole image. TorchServe's image_segmenter has 224, and 256 for `resize_size`.",
    )
    mean: Channels = doc(IMAGENET_MEAN, "The mean of each channel's values, 0 to 1, that is subtracted.")
    std: Deviations = doc(IMAGENET_STD, "The standard deviation of each channel, by which values are divided.")
    max_seen_pixels: Count = doc(2_000_000, "Maximum pixels of an image after resizing: a very long image is rejected.")
    max_map_pixels: Count = doc(16_000_000, "Maximum pixels of a map in a response, which has the size of the image.")
    masks: Masks = "map"
    answer: Literal["segments", "torchserve"] = doc(
        "segments",
        "`segments`, or `torchserve` for TorchServe's image_segmenter's [class, probability] of every "
        "pixel that the network sees.",
    )

    @model_validator(mode="after")
    def _check_crop(self) -> "ImageSegmentationConfig":
        if self.crop_size is not None and (self.arch is None or self.answer != "torchserve"):
            raise ValueError("crop_size: only with arch and answer: torchserve; segments cover the whole image")
        if self.crop_size is not None and self.crop_size > self.resize_size:
            raise ValueError(f"crop_size {self.crop_size} is more than resize_size {self.resize_size}")
        return self


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ImageSegmentationOptions:
    """Options of one image; None selects the setting of that name."""

    subtask: Literal["semantic"] | None = doc(None, "The kind of segments, by transformers' name.")
    masks: Masks | None = doc(
        None, "How the response draws the segments: `map` is one PNG of all classes, `png` one of each."
    )
