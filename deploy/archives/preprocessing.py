"""The preprocessing of images, by torchvision's published transforms or a checkpoint's image processor.

arch, settings            -> read_transform   -> Preprocessing, and a line on each setting that differs
a folder of transformers  -> follow_processor -> its processor, run on pictures -> Preprocessing with equal pixels
"""

import itertools
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torchvision
import transformers
from numpy.typing import NDArray
from PIL import Image

from deploy.archives.sources import Source
from deploy.models import ModelEntry
from handlers.errors import InvalidConfig, reason
from handlers.vision.config import OF_ARCH, ImageClassificationConfig
from handlers.vision.preprocessing import Levels, Pixels, Preprocessing, to_levels
from torchserve_client.payloads import Json

FIRST = "IMAGENET1K_V1"  # the weights whose transform is the default; torchvision has them for most networks
TRANSFORMED = ("googlenet", "inception_v3")  # networks whose published weights need `transform_input`
# The mean and deviation, of values in 0..1, that `transform_input` normalises to; it undoes ImageNet's first.
AGAIN = (0.5, 0.5)
IMAGENET = (0.485, 0.229), (0.456, 0.224), (0.406, 0.225)  # the mean and deviation of each channel of ImageNet

# Width and height of the pictures for a processor: wide, tall, tiny, long, and as photographs are.
SIZES = ((301, 97), (97, 301), (128, 128), (9, 7), (173, 211), (640, 480), (400, 20), (20, 400))
# The largest mean difference of a pixel, in levels of 256. Two resamplings by one filter differ by a tenth.
MOST_LEVELS = 1.0
# Settings of a processor that `follow_processor` follows, or that do not change pixels.
FOLLOWED = (
    *("do_resize", "size", "do_center_crop", "crop_size", "crop_pct", "resample", "do_rescale", "rescale_factor"),
    *("rescale_offset", "do_normalize", "image_mean", "image_std", "include_top", "do_flip_channel_order"),
    *("do_convert_rgb", "do_reduce_labels", "do_convert_annotations", "return_segmentation_masks"),
)


def complete_settings(config: ImageClassificationConfig, origin: Source) -> Json:
    """Return a classifier's settings, completed from the transform of torchvision's weights."""
    weights = _find_weights(config, origin)
    return {
        name: own if (own := getattr(config, name)) is not None else value
        for name, value in _read_published(weights).items()
    }


def read_transform(model: ModelEntry, config: ImageClassificationConfig, origin: Source) -> Preprocessing:
    """Complete a classifier's settings, and print those that differ from the published transform."""
    weights, chosen = _find_weights(config, origin), complete_settings(config, origin)
    for setting, default in _read_published(weights).items():
        if chosen[setting] != default:
            own = _format(chosen[setting])
            print(f"{model.name}: {setting} is {own}; the transform of {weights} has {_format(default)}")
        elif origin.kind != "torchvision" and getattr(config, setting) is None:
            others = {
                _format(value): other
                for other in type(weights)
                if (value := _read_published(other)[setting]) != default
            }
            for value, other in others.items():
                print(f"{model.name}: {setting} is {_format(default)}, as of {weights}; {other.name} has {value}")
    resize, crop = chosen["resize_size"], chosen["crop_size"]
    if crop > resize:
        raise InvalidConfig(
            f"{model.name}: crop_size {crop} is more than resize_size {resize}; a crop is cut out of the resized image"
        )
    mean, std = chosen["mean"], chosen["std"]
    if chosen["transform_input"]:
        # The network's transform is linear and becomes part of them: m' = m - s (i - 0.5) / j, s' = 0.5 s / j.
        pairs = list(zip(mean, std, IMAGENET, strict=True))
        mean = [m - s * (own_mean - AGAIN[0]) / own_std for m, s, (own_mean, own_std) in pairs]
        std = [s * AGAIN[1] / own_std for _, s, (_, own_std) in pairs]
    return Preprocessing(
        resize, (crop, crop), chosen["interpolation"], to_levels(mean), to_levels(std), is_rounded=True
    )


def _find_weights(config: ImageClassificationConfig, origin: Source) -> torchvision.models.WeightsEnum:
    known = torchvision.models.get_model_weights(config.arch)
    name = origin.location if origin.kind == "torchvision" else FIRST
    return known[name] if name in known.__members__ else next(iter(known))


def _read_published(weights: torchvision.models.WeightsEnum) -> Json:
    transform = weights.transforms()
    values = (
        transform.resize_size[0],
        transform.crop_size[0],
        transform.interpolation.value,
        tuple(transform.mean),
        tuple(transform.std),
        type(weights).__name__.lower().removesuffix("_weights") in TRANSFORMED,
    )
    return dict(zip(OF_ARCH, values, strict=True))


def _format(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def follow_processor(checkpoint: Path) -> Preprocessing:
    """Find the preprocessing of a checkpoint's image processor, by running it on pictures."""
    processors = load_processors(checkpoint)
    first = processors[0]
    mean, std, is_bgr = _find_statistics(processors)
    pictures = [make_picture(*size) for size in SIZES]
    wanted = [run_processors(processors, picture) for picture in pictures]
    shapes = {each.shape for every in wanted for each in every}
    if len(shapes) != 1:
        raise InvalidConfig(
            f"{_name_unfollowed(first)}: images get different sizes, which no batch can hold; save the processor "
            "with a size of height and width"
        )
    _, height, width = shapes.pop()
    best, least = None, np.inf
    for resize in _find_sizes(first, width, height):
        crop = None if resize == (width, height) else (width, height)
        found = Preprocessing(resize, crop, _read_filter(first), mean, std, is_bgr=is_bgr)
        worst = 0.0
        for picture, every in zip(pictures, wanted, strict=True):
            own = _normalise(found, found.fit(picture))
            scale = np.reshape(std, (3, 1, 1))[:: -1 if is_bgr else 1]
            worst = max([worst, *(float((np.abs(own - each) * scale).mean()) for each in every)])
        if worst < least:
            best, least = found, worst
    if best is None or least > MOST_LEVELS:
        raise InvalidConfig(
            f"{_name_unfollowed(first)} of the image processor cannot be followed: pixels would differ by {least:.1f} "
            "levels of 256; save a checkpoint that stretches images, or resizes the shorter side and then crops"
        )
    return best


def load_processors(checkpoint: Path) -> list[transformers.BaseImageProcessor]:
    try:
        found = [
            transformers.AutoImageProcessor.from_pretrained(checkpoint, backend=backend, local_files_only=True)
            for backend in ("pil", "torchvision")
        ]
    except Exception as error:
        raise InvalidConfig(
            f"{checkpoint.name}: its image processor cannot be read: {reason(error)}; save it with save_pretrained"
        ) from error
    return list({type(each): each for each in found}.values())


def run_processors(
    processors: Sequence[transformers.BaseImageProcessor], picture: Image.Image, **settings: object
) -> list[NDArray[np.float32]]:
    """Run each processor on a picture, with these settings, to (3, H, W)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [np.asarray(one(picture, return_tensors="pt", **settings)["pixel_values"])[0] for one in processors]
    except Exception as error:
        raise InvalidConfig(f"the image processor fails on a picture of {picture.size}: {reason(error)}") from error


def _find_statistics(processors: Sequence[object]) -> tuple[Levels, Levels, bool]:
    """Find the mean and deviation of values in 0..255, and whether blue comes first, by pictures of one colour."""
    side = 2 * max(SIZES[-1])
    found = [
        run_processors(processors[:1], Image.new("RGB", (side, side), name))[0] for name in ("black", "white", "red")
    ]
    black, white, red = (each.reshape(len(each), -1) for each in found)
    if len(black) != 3 or max(np.ptp(each, axis=1).max() for each in (black, white, red)) > 1e-4:
        raise InvalidConfig(f"{_name_unfollowed(processors[0])}: a picture of one colour gets several")
    black, white, red = (each.mean(axis=1) for each in (black, white, red))
    order = np.abs(red - white) < np.abs(red - black)
    if not (white > black).all() or [*order] not in ([True, False, False], [False, False, True]):
        raise InvalidConfig(f"{_name_unfollowed(processors[0])}: its channels are not red, green and blue")
    is_bgr = bool(order[2])
    std = 255 / (white - black)[:: -1 if is_bgr else 1].astype(np.float64)
    mean = -black[:: -1 if is_bgr else 1] * std
    return (*mean.tolist(),), (*std.tolist(),), is_bgr


def _normalise(found: Preprocessing, pixels: Pixels) -> NDArray[np.float64]:
    values: NDArray[np.float64] = ((pixels - np.array(found.mean)) / np.array(found.std)).transpose(2, 0, 1)
    return values[::-1] if found.is_bgr else values


def _find_sizes(processor: object, width: int, height: int) -> Iterator[int | tuple[int, int]]:
    """Yield the sizes that images may be resized to: the model's, or larger ones that the settings name."""
    yield width, height
    size = getattr(processor, "size", None) or {}
    if (size.get("width") or 0) >= width and (size.get("height") or 0) >= height:
        yield size["width"], size["height"]
    named = [side for side in (size.get("shortest_edge"), size.get("height"), size.get("width"), width, height) if side]
    # LeViT's processor resizes to 256 pixels for a crop of 224.
    shares = (1, getattr(processor, "crop_pct", None) or 1, 224 / 256)
    yield from sorted({side for each in named for share in shares if (side := int(each / share)) >= max(width, height)})


def _read_filter(processor: object) -> str:
    resample = getattr(processor, "resample", None)
    value = getattr(resample, "value", resample)
    return value if isinstance(value, str) else Image.Resampling(2 if value is None else value).name.lower()


def _name_unfollowed(processor: transformers.BaseImageProcessor) -> str:
    """Name a processor's settings that are not followed, or else those of its geometry."""
    settings = {name: value for name, value in processor.to_dict().items() if value is not None and value is not False}
    others = {name: value for name, value in settings.items() if name not in FOLLOWED and not isinstance(value, str)}
    others |= {} if processor.do_resize else {"do_resize": False}
    named = ("resample", "size", "crop_size", "do_center_crop", "crop_pct")
    shown = others or {name: settings[name] for name in named if name in settings}
    return ", ".join(f"{name}: {getattr(value, 'value', value)}" for name, value in itertools.islice(shown.items(), 4))


def make_picture(width: int, height: int) -> Image.Image:
    """Make a seeded picture that is smooth with some noise, as photographs are."""
    chance = np.random.default_rng(width * 1000 + height)
    shape = (max(2, height // 9), max(2, width // 9), 3)
    coarse = Image.fromarray(chance.integers(0, 256, shape, dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return Image.fromarray((smooth + chance.integers(-25, 26, smooth.shape)).clip(0, 255).astype(np.uint8))
