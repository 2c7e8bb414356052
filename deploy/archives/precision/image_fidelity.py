"""Samples and exact answers of tasks on images, for the check of fidelity.

pictures of several shapes -> the task's decode  -> nearly the pixels of the transform of the model's own library
    the task's own pixels  -> that library's normalisation and model in PyTorch -> the exact answer
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
import torchvision
import transformers
from PIL import Image
from torch.overrides import TorchFunctionMode

from deploy.archives.differences import Array, Sample, compare_samples, relative_error
from deploy.archives.hub import open_checkpoint
from deploy.archives.preprocessing import MOST_LEVELS, load_processors, make_picture, run_processors
from deploy.archives.sources import Source
from deploy.archives.tasks import import_quietly, task_of
from deploy.archives.weights import load_weights
from deploy.models import ModelEntry
from handlers.errors import InvalidConfig, InvalidInput, Unfaithful, reason
from handlers.pipeline.task import decode
from handlers.protocol.requests import Payload
from handlers.vision.handler import ImageHandler
from handlers.vision.images import encode_image
from handlers.vision.pixel_network import load_state
from handlers.vision.preprocessing import Pixels

# Width and height of pictures: as photographs are, tall, small, very small, and long.
SIZES = ((640, 480), (480, 640), (61, 333), (9, 7), (1, 1), (900, 60))
TOGETHER = ((0, 3, 5), (1, 4, 2), (0, 0))  # micro-batches of them, as indices
# A detector chooses the likeliest places. If scores differ by less than this share of the largest, rounding chooses:
# scores that OpenVINO and PyTorch compute differ by a tenth of it.
TIE = 1e-4


ImageTask = ImageHandler[Any]


class Owner(NamedTuple):
    """The library that owns a model."""

    transform: Callable[[Image.Image], torch.Tensor]  # a picture -> the model's input, (3, H, W)
    # The same for a picture, or its values in 0..1, that has the model's size already.
    normalise: Callable[[Any], torch.Tensor]
    # The model's input, (1, 3, H, W) -> its outputs, without the first dimension.
    answer: Callable[[torch.Tensor], Sequence[torch.Tensor]]


def check(model: ModelEntry, origin: Source, config: Any, task: ImageTask, engine: str) -> tuple[str, float]:
    """Compare the pixels and the answers of pictures; return the comparison in words, and the largest error."""
    samples, own = {}, import_quietly(task_of(model).builder)
    with torch.no_grad(), _open_owner(model, origin, config, task, own) as owner:
        for width, height in SIZES:
            picture = make_picture(width, height)
            try:
                item = decode(task, Payload(encode_image(picture, "PNG")))
            except InvalidInput:
                continue  # a limit of the task's own, such as the most pixels of a long picture
            _check_pixels(owner, picture, item.pixels)
            answers = _answer(owner, (width, height), item.pixels)
            measures = [partial(own.measure, exact=answer) for answer in answers]
            samples[width, height] = Sample(f"{width}x{height}", item, measures)
    together = [[SIZES[at] for at in group if SIZES[at] in samples] for group in TOGETHER]
    groups = [*([size] for size in samples), *together]
    outcome = compare_samples(task, samples, groups, kind="a picture of", owner="the model")
    failures = outcome.failures or ({} if outcome.agreed else outcome.tied)
    for words in failures.values():
        raise Unfaithful(f"{engine} {words}")
    sizes = ", ".join(each.name for size, each in samples.items() if size in outcome.agreed)
    worst = outcome.largest_error
    return f"{engine} in fp32 is within {worst:.1e} of the model, pictures of {sizes} one by one and together", worst


def _normalise(owner: Owner, pixels: Pixels) -> torch.Tensor:
    is_whole = pixels.dtype == np.uint8
    return owner.normalise(Image.fromarray(pixels) if is_whole else torch.from_numpy(pixels).permute(2, 0, 1) / 255)


def _check_pixels(owner: Owner, picture: Image.Image, pixels: Pixels) -> None:
    """Raise InvalidConfig if the library makes other pixels of a picture."""
    own, wanted = _normalise(owner, pixels), owner.transform(picture)
    # A level of 256, as the model sees it.
    low, high = (owner.normalise(Image.new("RGB", picture.size, colour)).mean((1, 2)) for colour in ("black", "white"))
    level = ((high - low) / 255).view(3, 1, 1)
    off = float(((own - wanted) / level).abs().mean()) if own.shape == wanted.shape else math.inf
    if off > MOST_LEVELS:
        size = "{}x{}".format(*picture.size)
        raise InvalidConfig(f"a picture of {size}: pixels differ from the model's library by {off:.1f} levels of 256")


class _FirstOfEqual(TorchFunctionMode):
    """Lets torch.topk choose the first of equal scores, as OpenVINO does."""

    is_tied = False

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not torch.topk:
            return func(*args, **(kwargs or {}))
        scores, count = args
        ordered = torch.sort(scores, descending=True, stable=True, **kwargs)
        if count < scores.shape[1]:
            gap = ordered.values[:, count - 1] - ordered.values[:, count]
            self.is_tied = bool(gap <= TIE * scores.abs().max())
        return ordered.values[:, :count], ordered.indices[:, :count]


def _answer(owner: Owner, size: tuple[int, int], pixels: Pixels) -> list[list[Array]]:
    """Answer a picture; twice if rounding chooses among a detector's places: with the first, and with PyTorch's."""
    values = _normalise(owner, pixels)[None]
    name = "a picture of {}x{}".format(*size)
    try:
        with _FirstOfEqual() as choice:
            found = [[each.float().numpy() for each in owner.answer(values)]]
        if choice.is_tied:
            found += [[each.float().numpy() for each in owner.answer(values)]]
    except Exception as error:
        raise InvalidConfig(f"the model itself fails on {name}: {reason(error)}") from error
    if not all(np.isfinite(each).all() for answer in found for each in answer):
        raise InvalidConfig(f"the model itself returns NaN or infinity for {name}")
    return found


@contextmanager
def _open_owner(model: ModelEntry, origin: Source, config: Any, task: ImageTask, own: ModuleType) -> Iterator[Owner]:
    if getattr(config, "arch", None) is not None:
        yield own.open_owner(model, origin, config, task)
        return
    with open_checkpoint(model, origin, lists_others=False) as source:
        processors = load_processors(source)[:1]
        bare = {"do_resize": False, "do_center_crop": False}
        network = getattr(transformers, own.AUTO).from_pretrained(source, dtype=torch.float32).eval()
        yield Owner(
            lambda picture: torch.from_numpy(run_processors(processors, picture)[0]),
            lambda picture: torch.from_numpy(run_processors(processors, picture, **bare)[0]),
            lambda values: own.answer(network, values),
        )


def load_network(model: ModelEntry, origin: Source, config: Any, task: ImageTask, **known: object) -> Any:
    state = load_weights(model, config.arch, origin, **known)
    empty = torchvision.models.get_model(config.arch, weights=None, num_classes=len(task.labels), **known)
    return load_state(empty, state, config.arch)


def measure_numbers(got: Sequence[Array], exact: Sequence[Array]) -> float:
    return max(map(relative_error, got, exact))
