"""What is done to an image before a model sees it: by torchvision's published transforms, or a checkpoint's processor.

arch, settings            -> of_arch      -> Preprocessing, and a line on each setting that differs
a folder of transformers  -> of_processor -> its image processor, run on pictures -> Preprocessing that does the same
"""

import itertools
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torchvision
import transformers
from numpy.typing import NDArray
from PIL import Image

from deploy.build.sources import Source
from deploy.models import ModelEntry
from handlers.errors import InvalidConfig, reason
from handlers.vision.config import OF_ARCH, ImageClassificationConfig
from handlers.vision.preprocessing import Levels, Preprocessing, to_levels

# The weights whose transform is the default where none are named; torchvision has them of most networks.
FIRST = "IMAGENET1K_V1"
# Networks whose published weights want `transform_input`, and what it normalises to, as the mean and deviation of
# values in 0..1: torchvision has it undo ImageNet's statistics first.
TRANSFORMED, AGAIN = ("googlenet", "inception_v3"), (0.5, 0.5)
IMAGENET = (0.485, 0.229), (0.456, 0.224), (0.406, 0.225)

# Width and height of the pictures that a processor is run on: wide, tall, tiny, long, and as photographs are.
SIZES = ((301, 97), (97, 301), (128, 128), (9, 7), (173, 211), (640, 480), (400, 20), (20, 400))
# How far a mean pixel may be off, in levels of 256. Two resamplings of one filter differ by a tenth, by rounding.
MOST_LEVELS = 1.0
# Settings of a processor that `of_processor` follows; the other numbers that have no part in pixels.
FOLLOWED = (
    *("do_resize", "size", "do_center_crop", "crop_size", "crop_pct", "resample", "do_rescale", "rescale_factor"),
    *("rescale_offset", "do_normalize", "image_mean", "image_std", "include_top", "do_flip_channel_order"),
    *("do_convert_rgb", "do_reduce_labels", "do_convert_annotations", "return_segmentation_masks"),
)


def chosen_settings(config: ImageClassificationConfig, origin: Source) -> dict[str, Any]:
    """Return a classifier's settings, completed from the transform of the weights that torchvision publishes."""
    weights = _weights(config, origin)
    return {
        name: own if (own := getattr(config, name)) is not None else value
        for name, value in _published(weights).items()
    }


def of_arch(model: ModelEntry, config: ImageClassificationConfig, origin: Source) -> Preprocessing:
    """Complete a classifier's settings, and print those that the published transform has otherwise.

    Raises:
        InvalidConfig: the crop is larger than what it is cut out of.
    """
    weights, chosen = _weights(config, origin), chosen_settings(config, origin)
    for setting, default in _published(weights).items():
        if chosen[setting] != default:
            own = _shown(chosen[setting])
            print(f"{model.name}: {setting} is {own}; the transform of {weights} has {_shown(default)}")
        elif origin.kind != "torchvision" and getattr(config, setting) is None:
            others = {
                _shown(value): other for other in type(weights) if (value := _published(other)[setting]) != default
            }
            for value, other in others.items():
                print(f"{model.name}: {setting} is {_shown(default)}, as of {weights}; {other.name} has {value}")
    resize, crop = chosen["resize_size"], chosen["crop_size"]
    if crop > resize:
        raise InvalidConfig(f"{model.name}: crop_size {crop} is more than resize_size {resize}")
    mean, std = chosen["mean"], chosen["std"]
    if chosen["transform_input"]:
        # What the network would do is linear, so that it is done here: m' = m - s * (i - 0.5) / j and s' = s * 0.5 / j.
        pairs = list(zip(mean, std, IMAGENET, strict=True))
        mean = [m - s * (own_mean - AGAIN[0]) / own_std for m, s, (own_mean, own_std) in pairs]
        std = [s * AGAIN[1] / own_std for _, s, (_, own_std) in pairs]
    return Preprocessing(
        resize, (crop, crop), chosen["interpolation"], to_levels(mean), to_levels(std), is_rounded=True
    )


def _weights(config: ImageClassificationConfig, origin: Source) -> Any:
    known = torchvision.models.get_model_weights(config.arch)
    name = origin.location if origin.kind == "torchvision" else FIRST
    return known[name] if name in known.__members__ else next(iter(known))


def _published(weights: Any) -> dict[str, Any]:
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


def _shown(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def of_processor(checkpoint: Path) -> Preprocessing:
    """Find out what a checkpoint's image processor does, by running it on pictures.

    Raises:
        InvalidConfig: there is none, or it does what is not done here; the message names the setting.
    """
    processors = load_processors(checkpoint)
    said = processors[0]
    mean, std, is_bgr = _statistics(processors)
    pictures = [make_picture(*size) for size in SIZES]
    wanted = [run_processors(processors, picture) for picture in pictures]
    shapes = {each.shape for every in wanted for each in every}
    if len(shapes) != 1:
        raise InvalidConfig(f"{_unfollowed(said)}: images become of different sizes, which no batch can hold")
    _, height, width = shapes.pop()
    best, least = None, np.inf
    for resize in _resizes(said, width, height):
        crop = None if resize == (width, height) else (width, height)
        found = Preprocessing(resize, crop, _filter(said), mean, std, is_bgr=is_bgr)
        worst = 0.0
        for picture, every in zip(pictures, wanted, strict=True):
            own = _normalised(found, found.fit(picture))
            scale = np.reshape(std, (3, 1, 1))[:: -1 if is_bgr else 1]
            worst = max([worst, *(float((np.abs(own - each) * scale).mean()) for each in every)])
        if worst < least:
            best, least = found, worst
    if best is None or least > MOST_LEVELS:
        raise InvalidConfig(
            f"{_unfollowed(said)} of the image processor cannot be followed: pixels would be off by {least:.1f} levels "
            "of 256; save a checkpoint whose images are stretched, or resized by the shorter side and then cropped"
        )
    return best


def load_processors(checkpoint: Path) -> list[Any]:
    """Load the processor with both of its arithmetics, Pillow's and torchvision's, where it has both."""
    try:
        found = [
            transformers.AutoImageProcessor.from_pretrained(checkpoint, backend=backend, local_files_only=True)
            for backend in ("pil", "torchvision")
        ]
    except Exception as error:
        raise InvalidConfig(f"{checkpoint.name}: no image processor can be read: {reason(error)}") from error
    return list({type(each): each for each in found}.values())


def run_processors(processors: Sequence[Any], picture: Image.Image, **settings: Any) -> list[NDArray[np.float32]]:
    """Run each on a picture, with other settings, to (3, H, W); InvalidConfig if one fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [
                np.asarray(each(picture, return_tensors="pt", **settings)["pixel_values"])[0] for each in processors
            ]
    except Exception as error:
        raise InvalidConfig(f"the image processor fails on a picture of {picture.size}: {reason(error)}") from error


def _statistics(processors: Sequence[Any]) -> tuple[Levels, Levels, bool]:
    """Return the mean and deviation of values in 0..255 and whether blue comes first, of pictures of one colour."""
    side = 2 * max(SIZES[-1])
    found = [
        run_processors(processors[:1], Image.new("RGB", (side, side), name))[0] for name in ("black", "white", "red")
    ]
    black, white, red = (each.reshape(len(each), -1) for each in found)
    if len(black) != 3 or max(np.ptp(each, axis=1).max() for each in (black, white, red)) > 1e-4:
        raise InvalidConfig(f"{_unfollowed(processors[0])}: a picture of one colour does not stay one")
    black, white, red = (each.mean(axis=1) for each in (black, white, red))
    order = np.abs(red - white) < np.abs(red - black)
    if not (white > black).all() or [*order] not in ([True, False, False], [False, False, True]):
        raise InvalidConfig(f"{_unfollowed(processors[0])}: its channels are not red, green and blue")
    is_bgr = bool(order[2])
    std = 255 / (white - black)[:: -1 if is_bgr else 1].astype(np.float64)
    mean = -black[:: -1 if is_bgr else 1] * std
    return (*mean.tolist(),), (*std.tolist(),), is_bgr


def _normalised(found: Preprocessing, pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    values: NDArray[np.float64] = ((pixels - np.array(found.mean)) / np.array(found.std)).transpose(2, 0, 1)
    return values[::-1] if found.is_bgr else values


def _resizes(said: Any, width: int, height: int) -> Iterator[int | tuple[int, int]]:
    """Yield what images may be resized to: the size that the model sees, or larger ones that the settings name."""
    yield width, height
    size = getattr(said, "size", None) or {}
    if (size.get("width") or 0) >= width and (size.get("height") or 0) >= height:
        yield size["width"], size["height"]
    named = [side for side in (size.get("shortest_edge"), size.get("height"), size.get("width"), width, height) if side]
    # LeViT's processor resizes to 256 pixels for a crop of 224.
    shares = (1, getattr(said, "crop_pct", None) or 1, 224 / 256)
    yield from sorted({side for each in named for share in shares if (side := int(each / share)) >= max(width, height)})


def _filter(said: Any) -> str:
    resample = getattr(said, "resample", None)
    value = getattr(resample, "value", resample)
    return value if isinstance(value, str) else Image.Resampling(2 if value is None else value).name.lower()


def _unfollowed(said: Any) -> str:
    """Name the settings of a processor that are not followed, or else those that decide its geometry."""
    settings = {name: value for name, value in said.to_dict().items() if value is not None and value is not False}
    others = {name: value for name, value in settings.items() if name not in FOLLOWED and not isinstance(value, str)}
    others |= {} if said.do_resize else {"do_resize": False}
    named = ("resample", "size", "crop_size", "do_center_crop", "crop_pct")
    shown = others or {name: settings[name] for name in named if name in settings}
    return ", ".join(f"{name}: {getattr(value, 'value', value)}" for name, value in itertools.islice(shown.items(), 4))


def make_picture(width: int, height: int) -> Image.Image:
    """Make a picture that is smooth with some noise, as photographs are, by a seed."""
    chance = np.random.default_rng(width * 1000 + height)
    shape = (max(2, height // 9), max(2, width // 9), 3)
    coarse = Image.fromarray(chance.integers(0, 256, shape, dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return Image.fromarray((smooth + chance.integers(-25, 26, smooth.shape)).clip(0, 255).astype(np.uint8))
