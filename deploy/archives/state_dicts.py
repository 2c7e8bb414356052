"""State dicts of any file that a training program saves, under the network's own names.

file -> mappings, lists and tensors, without running code -> the state dict among them -> without wrappers' prefixes
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from deploy.archives.pickles import Claim, InvalidPickle, read_tensors
from deploy.archives.sources import WeightsUnavailable
from deploy.models import ModelEntry

StateDict = dict[str, torch.Tensor]
Tensors = dict[str, Any]  # a tensor, or the claim of one, by its name

# A wrapper's attribute for its module, anywhere in a name: torch.compile, FSDP, activation checkpoints.
WRAPPERS = re.compile(r"^module\.|\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\.")
# Other weights of a training program's module: AveragedModel's counter, and losses with class weights.
TRAINING = ("n_averaged", "criterion.", "loss.", "loss_fn.")
# Levels of mappings above a state dict, and characters of a weight's name.
MOST_LEVELS = 8
MOST_CHARACTERS = 500


def read_state(model: ModelEntry, path: Path, expected: Collection[str]) -> StateDict:
    """Read the weights of one network, found by its own names, if known; WeightsUnavailable has the remedy."""
    try:
        if path.suffix == ".safetensors":
            return _choose(safetensors.torch.load_file(path), expected)
        return read_tensors(path, lambda loaded: _choose(loaded, expected))
    except WeightsUnavailable as error:
        raise WeightsUnavailable(f"{model.name}: {path} {error}") from None
    except InvalidPickle as error:
        raise WeightsUnavailable(f"{model.name}: {path}: {error}") from None
    except Exception as error:
        raise WeightsUnavailable(
            f"{model.name}: {path} is not a whole file of PyTorch or safetensors ({type(error).__name__}), or it "
            "contains code, which is never run; save model.state_dict() with torch.save"
        ) from error


def _choose(loaded: object, expected: Collection[str]) -> Tensors:
    """Choose the state dict that fits the expected names best."""
    found = {key: _unwrap(state, expected) for key, state in _find_state_dicts(loaded).items()}
    fits = {key: sum(name in state for name in expected) for key, state in found.items()}
    best = [key for key, count in fits.items() if count == max(fits.values())]
    if not best:
        raise WeightsUnavailable(
            "is not a state dict: it contains no mapping of names to tensors; save model.state_dict(), not the model"
        )
    if len(best) > 1:
        raise WeightsUnavailable(
            f"contains several networks: {', '.join(best[:4])}; save the state dict of the one to serve"
        )
    return found[best[0]]


def _find_state_dicts(loaded: object) -> dict[str, Tensors]:
    """Find the state dicts nearest to the top of a checkpoint, by their keys; each mapping is searched once."""
    level: dict[tuple[str, ...], Any] = {(): loaded}
    seen, found = set[int](), dict[str, Tensors]()
    for _ in range(MOST_LEVELS):
        level = {key: value for key, value in level.items() if isinstance(value, Mapping) and id(value) not in seen}
        seen |= {id(value) for value in level.values()}
        for key, value in level.items():
            named = {str(name): each for name, each in value.items() if isinstance(each, torch.Tensor | Claim)}
            tensors = {name: each for name, each in named.items() if len(name) <= MOST_CHARACTERS}
            # A network's names have dots; those of an optimizer's state have none.
            if any("." in name for name in tensors):
                found[".".join(key)] = tensors
        if found:
            break
        once = {id(value): (key, value) for key, value in level.items()}.values()
        level = {(*key, str(name)): inner for key, value in once for name, inner in value.items()}
    return found


def _unwrap(state: Tensors, expected: Collection[str]) -> Tensors:
    """Remove wrappers' names, and the prefix under which most of the expected names are found."""
    plain = {WRAPPERS.sub("", name): tensor for name, tensor in state.items() if not name.startswith(TRAINING)}
    starts = {name: [0, *(dot.end() for dot in re.finditer(r"\.", name))] for name in plain}
    counts = Counter(name[:start] for name in plain for start in starts[name] if name[start:] in expected)
    most = max(counts.values(), default=0)
    if not most or 2 * most < len(expected):
        return plain
    prefix, *others = [prefix for prefix, count in counts.items() if count == most]
    named = {name.removeprefix(prefix): tensor for name, tensor in plain.items()}
    if others or len(named) < len(plain):
        names = ", ".join([prefix, *others[:3]])
        raise WeightsUnavailable(f"has weights that contain several networks, under {names}; save the one to serve")
    return named
