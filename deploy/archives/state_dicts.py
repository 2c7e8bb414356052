"""State dicts of any file that a training program saves, under the network's own names.

file -> mappings, lists and tensors, without running code -> the state dict among them -> without wrappers' prefixes
"""

import re
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from deploy.archives.sources import WeightsUnavailable
from deploy.models import ModelEntry

StateDict = dict[str, torch.Tensor]

# A wrapper's attribute for its module, anywhere in a name: torch.compile, FSDP, activation checkpoints.
WRAPPERS = re.compile(r"^module\.|\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\.")
# Other weights of a training program's module: AveragedModel's counter, and losses with class weights.
TRAINING = ("n_averaged", "criterion.", "loss.", "loss_fn.")
# NumPy's numbers and arrays, such as the best accuracy, and their constructors, which read only bytes.
NUMBERS: list[Any] = [np.dtype, np.ndarray, np.float64(0).__reduce__()[0], np.empty(0).__reduce__()[0]]
NUMBERS += {type(np.dtype(code)) for code in np.typecodes["All"]}


def read_state(model: ModelEntry, path: Path, expected: Collection[str]) -> StateDict:
    """Read the weights of one network.

    Args:
        model: the entry of the list.
        path: a file of safetensors or of torch.save.
        expected: the network's own names, which find it among others, and its prefix; empty if they are not known.

    Raises:
        WeightsUnavailable: the file contains no state dict, or more than one network; the message has the remedy.
    """
    try:
        loaded = safetensors.torch.load_file(path) if path.suffix == ".safetensors" else _unpickle(path)
    except Exception as error:
        raise WeightsUnavailable(
            f"{model.name}: {path} is not a whole file of PyTorch or safetensors ({type(error).__name__}), or it "
            "contains code, which is never run; save model.state_dict() with torch.save"
        ) from error
    found = {key: _unwrap(state, expected) for key, state in _find_state_dicts(loaded).items()}
    fits = {key: sum(name in state for name in expected) for key, state in found.items()}
    best = [key for key, count in fits.items() if count == max(fits.values())]
    if not best:
        reason = (
            "is not a state dict: it contains no mapping of names to tensors; save model.state_dict(), not the model"
        )
        raise WeightsUnavailable(f"{model.name}: {path} {reason}")
    if len(best) > 1:
        reason = f"contains several networks: {', '.join(best)}; save the state dict of the one to serve"
        raise WeightsUnavailable(f"{model.name}: {path} {reason}")
    return found[best[0]]


class _Skipped:
    """An empty mapping in place of an object whose class is not imported, such as a program's own settings."""

    def __new__(cls, *arguments: object) -> Any:  # noqa: ARG004
        return OrderedDict()


def _unpickle(path: Path) -> Any:
    with torch.serialization.safe_globals(NUMBERS):
        skipped: list[Any] = []
        with suppress(ValueError):  # not a ZIP file, as PyTorch wrote before 1.6: nothing is skipped
            skipped += [(_Skipped, name) for name in torch.serialization.get_unsafe_globals_in_checkpoint(path)]
        with torch.serialization.safe_globals(skipped):
            return torch.load(path, map_location="cpu", weights_only=True)


def _find_state_dicts(loaded: Any) -> dict[str, StateDict]:
    """Find the state dicts nearest to the top of a checkpoint, by their keys."""
    level, found = {"": loaded}, dict[str, StateDict]()
    while level and not found:
        level = {key: value for key, value in level.items() if isinstance(value, Mapping)}
        for key, value in level.items():
            tensors = {name: tensor.detach() for name, tensor in value.items() if isinstance(tensor, torch.Tensor)}
            # A network's names have dots; those of an optimizer's state have none.
            if any("." in str(name) for name in tensors):
                found[key] = tensors
        level = {f"{key}.{name}".lstrip("."): inner for key, value in level.items() for name, inner in value.items()}
    return found


def _unwrap(state: StateDict, expected: Collection[str]) -> StateDict:
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
        names = ", ".join([prefix, *others])
        raise WeightsUnavailable(f"the weights contain several networks, under {names}; save the one to serve")
    return named
