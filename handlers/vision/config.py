"""Settings and options of tasks on images; see handlers.config."""

from typing import Literal

from pydantic import model_validator
from pydantic.dataclasses import dataclass

from handlers.config import SETTINGS, Channels, Count, Deviations, HandlerConfig, Share, Side

# Statistics of the ImageNet training set, per channel, as torchvision's transforms have them.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# Pillow's filters.
Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
# Settings of a classifier's preprocessing, which a checkpoint of transformers has itself.
OF_ARCH = ("resize_size", "crop_size", "interpolation", "mean", "std", "transform_input")

# How an answer draws segments: a PNG of all classes, one of each, run lengths of each as COCO's tools read them, or the
# class of each pixel as numbers.
Masks = Literal["map", "png"]


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class PixelsConfig(HandlerConfig):
    """Settings of every task on images.

    Attributes:
        max_pixels: the most pixels of an image; a larger one is refused by its header, before it is decoded.
        max_request_pixels: the most pixels of all images of one request.
        scaled_decode: whether libjpeg may decode large JPEGs at 1/2, 1/4 or 1/8, never below twice what the model sees.
    """

    max_pixels: Count = 50_000_000
    max_request_pixels: Count = 200_000_000
    scaled_decode: bool = True


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ImageClassificationConfig(PixelsConfig):
    """Settings of image classification.

    Attributes:
        arch: the name of a torchvision classifier, as `torchvision.models.get_model` takes it; None for a checkpoint of
            transformers, whose image processor decides what follows.
        resize_size: the length that the shorter side is resized to, in pixels. The default of this and of what follows
            is the transform of the weights that torchvision publishes for `arch`.
        crop_size: the side of the centre square that is then taken, in pixels.
        interpolation: the filter of the resizing.
        mean, std: the statistics that pixels are normalised by, per channel, for values in 0..1.
        transform_input: whether a network of Google's normalises its input again, as with published weights.
        top_k: the most labels of an answer, where the request does not say.
    """

    arch: str | None = None
    resize_size: Side | None = None
    crop_size: Side | None = None
    interpolation: Interpolation | None = None
    mean: Channels | None = None
    std: Deviations | None = None
    transform_input: bool | None = None
    top_k: Count = 5

    @model_validator(mode="after")
    def _check_arch(self) -> "ImageClassificationConfig":
        if self.arch is None and (given := [name for name in OF_ARCH if getattr(self, name) is not None]):
            raise ValueError(f"{', '.join(given)}: only with arch; the image processor of a checkpoint decides this")
        return self


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ImageClassificationOptions:
    """Options of one image.

    Attributes:
        top_k: the most labels of its answer; None for the configuration's.
    """

    top_k: Count | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ObjectDetectionConfig(PixelsConfig):
    """Settings of object detection.

    Attributes:
        arch: SSD or SSDLite of torchvision; None for a checkpoint of transformers.
        threshold: the least score of a box, where the request does not say; transformers' pipeline has the same.
        top_k: the most boxes of an answer, where the request does not say; None for all.
        answer: `boxes` as transformers' pipeline answers, or `torchserve` as TorchServe's object_detector does.
    """

    max_batch_items: Count = 8
    arch: Literal["ssdlite320_mobilenet_v3_large", "ssd300_vgg16"] | None = None
    threshold: Share = 0.5
    top_k: Count | None = None
    answer: Literal["boxes", "torchserve"] = "boxes"


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ObjectDetectionOptions:
    """Options of one image.

    Attributes:
        threshold, top_k: see `ObjectDetectionConfig`; None for the configuration's.
    """

    threshold: Share | None = None
    top_k: Count | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ImageSegmentationConfig(PixelsConfig):
    """Settings of image segmentation.

    Attributes:
        max_batch_items: the most images of one micro-batch; 16 images and 150 classes took 6 GB with SegFormer.
        arch: the name of a network of torchvision.models.segmentation; None for a checkpoint of transformers.
        resize_size: the length that the shorter side is resized to, in pixels, where `arch` is given; the default is
            torchvision's. A checkpoint says its own.
        mean, std: the statistics that pixels are normalised by, per channel, for values in 0..1; likewise.
        max_seen_pixels: the most pixels of an image once it is resized: one that is very long is refused.
        max_map_pixels: the most pixels of a map in an answer, which has the size of the image.
        masks: how an answer draws the segments, where the request does not say.
        answer: `segments`, or `torchserve` as TorchServe's image_segmenter does: [class, probability] of every pixel,
            here of the whole image as the network sees it.
    """

    max_batch_items: Count = 4
    arch: str | None = None
    resize_size: Side = 520
    mean: Channels = IMAGENET_MEAN
    std: Deviations = IMAGENET_STD
    max_seen_pixels: Count = 2_000_000
    max_map_pixels: Count = 16_000_000
    masks: Masks = "map"
    answer: Literal["segments", "torchserve"] = "segments"


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ImageSegmentationOptions:
    """Options of one image.

    Attributes:
        masks: see `ImageSegmentationConfig`; None for the configuration's.
    """

    masks: Masks | None = None
