"""The weights of a network of torchvision.

--weights or the model list -> Source -> load_weights -> state dict
"""

import contextlib
import io
import socket
import urllib.error
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch.overrides import TorchFunctionMode

from deploy.archives.sources import RANDOM_SEED, Source, WeightsUnavailable
from deploy.archives.state_dicts import StateDict, read_state
from deploy.models import ModelEntry
from deploy.progress import step
from handlers.vision.pixel_network import AUXILIARY

# Seconds without a byte from the download server: a closed network must not look like a hanging build.
NETWORK_TIMEOUT_S = 20


def load_weights(model: ModelEntry, arch: str, origin: Source, **options: object) -> StateDict:
    if origin.kind == "random":
        if "detection" in torchvision.models.get_model_builder(arch).__module__:
            raise WeightsUnavailable(f"{model.name}: no random weights for {arch}; use --weights PATH, a state dict")
        return _make_random(arch, **options)
    if origin.kind == "torchvision":
        return _fetch(model, arch, origin.location)
    return read_state(model, Path(origin.location), read_shapes(arch, **options))


class _NumbersInMemory(TorchFunctionMode):
    """Keeps ranges and lists of numbers on the CPU: RegNet computes its widths with them, and reads the result."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **{**(kwargs or {}), **({"device": "cpu"} if func in (torch.arange, torch.tensor) else {})})


def read_shapes(arch: str, **options: object) -> dict[str, torch.Size]:
    with torch.device("meta"), _NumbersInMemory():
        network = torchvision.models.get_model(arch, weights=None, **options)
    return {name: tensor.shape for name, tensor in network.state_dict().items()}


def count_classes(model: ModelEntry, arch: str, state: StateDict, **options: object) -> int:
    """Read the number of classes from the head: the weights whose shape depends on that number."""
    two, three = (read_shapes(arch, num_classes=count, **options) for count in (2, 3))
    heads = [name for name, shape in two.items() if shape != three[name] and not AUXILIARY.match(name)]
    sizes = {state[name].shape[:1] for name in heads if name in state}
    if len(sizes) != 1 or not all(sizes):
        like = {name: [other for other in state if _may_be_head(other, state[other], name, two)] for name in heads}
        # A head in a Sequential: its layers without weights, such as an activation, are unknown.
        renames = [f'state["{name}"] = state.pop("{others[0]}")' for name, others in like.items() if len(others) == 1]
        way_out = "; rename the head's weights" + (", if only dropout comes before it: " * bool(renames))
        way_out += "; ".join(renames)
        raise WeightsUnavailable(f"{model.name}: the weights have no {heads[0]}, the head of {arch}{way_out}")
    return sizes.pop()[0]


def _may_be_head(other: str, tensor: torch.Tensor, name: str, own: Mapping[str, torch.Size]) -> bool:
    """Return whether a tensor that the network does not have may be its head."""
    is_named = other not in own and other.rpartition(".")[2] == name.rpartition(".")[2]
    return is_named and tensor.shape[1:] == own[name][1:]


def _fetch(model: ModelEntry, arch: str, name: str) -> StateDict:
    known = torchvision.models.get_model_weights(arch)
    if name not in known.__members__:
        raise WeightsUnavailable(
            f"{model.name}: torchvision publishes no {name} for {arch}, only {', '.join(known.__members__)}"
        )
    weights = known[name]
    previous = socket.getdefaulttimeout()
    socket.setdefaulttimeout(NETWORK_TIMEOUT_S)
    try:
        # torch.hub announces the download a second time.
        with (
            step(f"{model.name}: fetching {weights.url}"),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            state: StateDict = weights.get_state_dict(progress=False, check_hash=True, map_location="cpu")
    except (OSError, urllib.error.URLError) as error:
        raise WeightsUnavailable(
            f"{model.name}: cannot fetch {weights.url} ({error}); "
            "use --weights PATH, a state dict, or --weights random for an untrained demo"
        ) from error
    finally:
        socket.setdefaulttimeout(previous)
    return state


def _make_random(arch: str, **options: object) -> StateDict:
    """Make seeded weights with logits of unit deviation on blurred noise, which deep defaults would not have."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(RANDOM_SEED)
        torch.set_num_threads(1)  # the last digits of a sum depend on the number
        classifier = torchvision.models.get_model(arch, weights=None, **options)
        noise = torch.nn.functional.interpolate(torch.randn(8, 3, 7, 7), size=(224, 224), mode="bilinear")
        for module in classifier.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None  # a cumulative average
        classifier.train()(noise)
        found = classifier.eval()(noise)
        deviation = (found["out"] if isinstance(found, dict) else found).std()
        *_, head_weight, head_bias = classifier.parameters()
        head_weight /= deviation
        head_bias /= deviation
    torch.set_num_threads(threads)
    state: StateDict = classifier.state_dict()
    return state
