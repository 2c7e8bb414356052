"""The check that an archive of a task on images answers as its model does; fidelity.py has that of texts.

pictures of several shapes -> the task's decode, collate and engine in fp32, alone and together
                           -> the transform of the library that owns the model  -> nearly the same pixels?
    the task's own pixels  -> that library's normalisation and model in PyTorch -> the same numbers?
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import torchvision
import transformers
from numpy.typing import NDArray
from PIL import Image
from torch.overrides import TorchFunctionMode
from torchvision.transforms import InterpolationMode
from torchvision.transforms._presets import ImageClassification, ObjectDetection, SemanticSegmentation

from deploy.build.hub import open_checkpoint
from deploy.build.precision.fidelity import TOLERANCE, difference
from deploy.build.preprocessing import MOST_LEVELS, chosen_settings, load_processors, make_picture, run_processors
from deploy.build.sources import Source
from deploy.build.weights import load_weights
from deploy.models import ModelEntry
from handlers.errors import InvalidConfig, InvalidInput, Unfaithful, reason
from handlers.protocol.requests import Payload
from handlers.vision.encoding import encode_image
from handlers.vision.pixel_classifier import network_options
from handlers.vision.pixel_network import load_state

# Width and height of pictures: as photographs are, tall, small, very small, and long; and those that run together.
SIZES = ((640, 480), (480, 640), (61, 333), (9, 7), (1, 1), (900, 60))
TOGETHER = ((0, 3, 5), (1, 4, 2), (0, 0))
# A detector chooses the likeliest places. Of those whose scores differ by less, as a share of the largest, rounding
# chooses: scores that OpenVINO and PyTorch compute differ by a tenth of it.
TIE = 1e-4

Array = NDArray[np.float32]


class Owner(NamedTuple):
    """The library that owns a model.

    Attributes:
        transform: turns a picture into what the model takes, (3, H, W).
        normalise: does that to a picture that has the size that the model sees.
        answer: the model's own outputs for (1, 3, H, W), without the first dimension.
    """

    transform: Callable[[Image.Image], torch.Tensor]
    normalise: Callable[[Image.Image], torch.Tensor]
    answer: Callable[[torch.Tensor], Sequence[torch.Tensor]]


def check(model: ModelEntry, origin: Source, config: Any, task: Any, name: str) -> tuple[str, float]:
    """Hold an archive's answers to pictures against those of the library that owns its model.

    Args:
        model: the entry of the list.
        origin: where its weights come from.
        config: its settings.
        task: loaded as by a worker, in fp32.
        name: that of its engine, for people.

    Returns:
        What was compared, in words, and the largest error.

    Raises:
        Unfaithful: the engine answers otherwise.
        InvalidConfig: the model itself gives no numbers, or its pictures become other pixels here.
    """
    with torch.no_grad(), _owner(model, origin, config, task) as owner:
        pictures = [make_picture(*size) for size in SIZES]
        items = {}
        for size, picture in zip(SIZES, pictures, strict=True):
            try:
                items[size] = task.decode(Payload(encode_image(picture, "PNG")))
            except InvalidInput:
                # A limit of the task's own, such as the most pixels that it sees of a long picture.
                continue
            _check_pixels(owner, picture, items[size].pixels)
        exact = {size: _exact(owner, size, item.pixels) for size, item in items.items()}
    worst, compared, tied = 0.0, set(), ""
    groups = [*([size] for size in items), *([SIZES[at] for at in group if SIZES[at] in items] for group in TOGETHER)]
    for group in _runnable(task, items, groups):
        some = [items[size] for size in group]
        try:
            outputs = task.forward(task.collate(some), some)
        except Exception as error:
            raise Unfaithful(f"{name} fails on pictures of {_listed(group)}: {reason(error)}") from error
        for at, size in enumerate(group):
            got = [array[at] for array in outputs.values()]
            found = min(COMPARED[model.handler](got, answer) for answer in exact[size])
            if found <= TOLERANCE:
                worst = max(worst, found)
                compared.add(size)
                continue
            beside = f" in a micro-batch of {_listed(group)}" if len(group) > 1 else ""
            words = f"by {found:.2g} of the largest number for a picture of {_listed([size])}{beside}"
            said = f"{name} answers otherwise than the model, {words}"
            if len(exact[size]) == 1:
                raise Unfaithful(said)
            tied = tied or said
    if not compared:
        raise Unfaithful(tied)
    sizes = _listed(size for size in items if size in compared)
    return f"{name} in fp32 is within {worst:.1e} of the model, pictures of {sizes} alone and together", worst


def _listed(sizes: Any) -> str:
    return ", ".join(f"{width}x{height}" for width, height in sizes)


def _runnable(task: Any, items: Any, groups: Sequence[Any]) -> Iterator[list[Any]]:
    """Divide groups into those that may share a micro-batch."""
    for group in groups:
        kinds = {size: task.cost(items[size]).group for size in group}
        for kind in dict.fromkeys(kinds.values()):
            yield [size for size in group if kinds[size] == kind]


def _check_pixels(owner: Owner, picture: Image.Image, pixels: NDArray[np.uint8]) -> None:
    """Raise InvalidConfig if the library makes other pixels of a picture."""
    own, wanted = owner.normalise(Image.fromarray(pixels)), owner.transform(picture)
    # A level of 256, as the model sees it.
    low, high = (owner.normalise(Image.new("RGB", picture.size, colour)).mean((1, 2)) for colour in ("black", "white"))
    level = ((high - low) / 255).view(3, 1, 1)
    off = float(((own - wanted) / level).abs().mean()) if own.shape == wanted.shape else math.inf
    if off > MOST_LEVELS:
        raise InvalidConfig(f"a picture of {_listed([picture.size])} becomes other pixels, by {off:.1f} levels of 256")


class _FirstOfEqual(TorchFunctionMode):
    """Lets torch.topk choose the first of equal scores, as OpenVINO does."""

    is_tied = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.topk:
            return func(*args, **(kwargs or {}))
        scores, count = args
        ordered = torch.sort(scores, descending=True, stable=True, **kwargs)
        if count < scores.shape[1]:
            gap = ordered.values[:, count - 1] - ordered.values[:, count]
            self.is_tied = bool(gap <= TIE * scores.abs().max())
        return ordered.values[:, :count], ordered.indices[:, :count]


def _exact(owner: Owner, size: tuple[int, int], pixels: NDArray[np.uint8]) -> list[list[Array]]:
    """Answer a picture; twice if rounding chooses among the places of a detector: with the first, and PyTorch's own."""
    values = owner.normalise(Image.fromarray(pixels))[None]
    try:
        with _FirstOfEqual() as choice:
            found = [[each.float().numpy() for each in owner.answer(values)]]
        if choice.is_tied:
            found += [[each.float().numpy() for each in owner.answer(values)]]
    except Exception as error:
        raise InvalidConfig(f"the model itself fails on a picture of {_listed([size])}: {reason(error)}") from error
    if not all(np.isfinite(each).all() for answer in found for each in answer):
        raise InvalidConfig(f"the model itself answers a picture of {_listed([size])} with what is no number")
    return found


@contextmanager
def _owner(model: ModelEntry, origin: Source, config: Any, task: Any) -> Iterator[Owner]:
    if getattr(config, "arch", None) is not None:
        yield ARCHS[model.handler](model, origin, config, task)
        return
    with open_checkpoint(model, origin, lists_others=False) as source:
        processors = load_processors(source)[:1]
        bare = {"do_resize": False, "do_center_crop": False}
        network = getattr(transformers, AUTO[model.handler]).from_pretrained(source, dtype=torch.float32).eval()
        yield Owner(
            lambda picture: torch.from_numpy(run_processors(processors, picture)[0]),
            lambda picture: torch.from_numpy(run_processors(processors, picture, **bare)[0]),
            lambda values: ANSWERS[model.handler](network, values),
        )


def _of_classifier(model: ModelEntry, origin: Source, config: Any, task: Any) -> Owner:
    known, chosen = network_options(config.arch, task.preprocessing), chosen_settings(config, origin)
    state = load_weights(model, config.arch, origin, **known)
    if chosen["transform_input"]:
        known["transform_input"] = True
    empty = torchvision.models.get_model(config.arch, weights=None, num_classes=len(task.labels), **known)
    network = load_state(empty, state, config.arch)
    sizes = {"crop_size": chosen["crop_size"], "resize_size": chosen["resize_size"]}
    bare = {"crop_size": chosen["crop_size"], "resize_size": chosen["crop_size"]}
    mode = InterpolationMode(chosen["interpolation"])
    statistics = {"mean": chosen["mean"], "std": chosen["std"], "interpolation": mode}
    return Owner(
        ImageClassification(**sizes, **statistics),
        ImageClassification(**bare, **statistics),
        lambda values: [network(values)[0]],
    )


def _of_segmenter(model: ModelEntry, origin: Source, config: Any, task: Any) -> Owner:
    state = load_weights(model, config.arch, origin, weights_backbone=None)
    classes = len(task.labels)
    empty = torchvision.models.get_model(config.arch, weights=None, weights_backbone=None, num_classes=classes)
    network = load_state(empty, state, config.arch)
    statistics = {"mean": config.mean, "std": config.std}
    return Owner(
        SemanticSegmentation(resize_size=config.resize_size, **statistics),
        SemanticSegmentation(resize_size=None, **statistics),
        lambda values: [network(values)["out"][0]],
    )


def _of_ssd(model: ModelEntry, origin: Source, config: Any, task: Any) -> Owner:
    state = load_weights(model, config.arch, origin, weights_backbone=None)
    empty = torchvision.models.get_model(config.arch, weights=None, weights_backbone=None, num_classes=len(task.labels))
    network = load_state(empty, state, config.arch)
    side = task.preprocessing.least_side
    found: dict[str, Any] = {}
    network.head.register_forward_hook(lambda *arguments: found.update(arguments[2]))
    network.anchor_generator.register_forward_hook(lambda *arguments: found.update(anchors=arguments[2][0]))

    def answer(values: torch.Tensor) -> list[torch.Tensor]:
        network(list(values))
        boxes = network.box_coder.decode_single(found["bbox_regression"][0], found["anchors"]) / side
        return [found["cls_logits"][0], boxes.clamp(0, 1)]

    def transform(picture: Image.Image) -> torch.Tensor:
        resized = torch.nn.functional.interpolate(ObjectDetection()(picture)[None], (side, side), mode="bilinear")
        return resized[0]

    return Owner(transform, ObjectDetection(), answer)


ARCHS = {"image_classification": _of_classifier, "image_segmentation": _of_segmenter, "object_detection": _of_ssd}


def _boxes(network: Any, values: torch.Tensor) -> list[torch.Tensor]:
    found = network(pixel_values=values)
    centres, halves = found.pred_boxes[0, :, :2], found.pred_boxes[0, :, 2:] / 2
    return [found.logits[0], torch.cat([centres - halves, centres + halves], 1)]


def _vector(network: Any, values: torch.Tensor) -> list[torch.Tensor]:
    if hasattr(network, "get_image_features"):
        vector = network.get_image_features(pixel_values=values).pooler_output[0]
    else:
        vector = network(pixel_values=values).last_hidden_state[0, 0]
    return [torch.nn.functional.normalize(vector, dim=-1)]


AUTO = {
    "image_classification": "AutoModelForImageClassification",
    "image_segmentation": "AutoModelForSemanticSegmentation",
    "object_detection": "AutoModelForObjectDetection",
    "image_text_embedding": "AutoModel",
}
ANSWERS: dict[str, Callable[[Any, torch.Tensor], list[torch.Tensor]]] = {
    "image_classification": lambda network, values: [network(pixel_values=values).logits[0]],
    "image_segmentation": lambda network, values: [network(pixel_values=values).logits[0]],
    "object_detection": _boxes,
    "image_text_embedding": _vector,
}


def _numbers(got: Sequence[Array], exact: Sequence[Array]) -> float:
    return max(difference(one, other, float(np.abs(other).max())) for one, other in zip(got, exact, strict=True))


def _maps(got: Sequence[NDArray[Any]], exact: Sequence[Array]) -> float:
    """Compare maps: a class may be another one whose logit is as large."""
    (logits,) = exact
    if len(got) == 1:
        return _numbers(got, exact)
    classes, probabilities = got
    best = logits.max(0)
    taken = np.take_along_axis(logits, classes.astype(np.intp)[None], 0)[0]
    likeliest = 1 / np.exp(logits - best).sum(0)
    largest = float(np.abs(logits).max())
    # A small error of large logits is a large one of a probability, and of its logarithm a small one.
    rounded = difference(np.log(probabilities), np.log(likeliest), largest)
    return max(difference(taken, best, largest), min(rounded, difference(probabilities, likeliest, 1.0)))


def _sets(got: Sequence[Array], exact: Sequence[Array]) -> float:
    """Compare boxes as sets: equally likely ones may change places."""
    if any(one.shape != other.shape or not np.isfinite(one).all() for one, other in zip(got, exact, strict=True)):
        return math.inf
    scales = [max(1e-9, float(np.abs(each).max())) for each in exact]
    ours, theirs = (
        np.concatenate([each / scale for each, scale in zip(every, scales, strict=True)], 1) for every in (got, exact)
    )
    if np.abs(ours - theirs).max() <= TOLERANCE:
        return float(np.abs(ours - theirs).max())
    nearest = [float(np.abs(theirs - row).max(1).min()) for row in ours]
    nearest += [float(np.abs(ours - row).max(1).min()) for row in theirs]
    return max(nearest)


COMPARED = {
    "image_classification": _numbers,
    "image_segmentation": _maps,
    "object_detection": _sets,
    "image_text_embedding": _numbers,
}
