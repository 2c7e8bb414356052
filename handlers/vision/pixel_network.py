"""The base of networks behind pixels, as they are exported for OpenVINO and as PyTorch runs them.

checkpoint, state dict -> load_checkpoint, load_state -> a network behind a PixelNetwork
"""

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from handlers.checkpoints import join_names, load_strictly
from handlers.errors import InvalidConfig
from handlers.vision.preprocessing import Preprocessing

# Heads of torchvision's networks that only training uses; a checkpoint may lack them.
AUXILIARY = re.compile(r"(aux_classifier|aux[12]|AuxLogits)\.")


class PixelNetwork(torch.nn.Module):
    """Accepts pixels as they were decoded: a quarter of the bytes of normalised floats."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.is_bgr = preprocessing.is_bgr
        # Values in 0..255 are normalised without dividing them first. Always fp32: bf16 has 8 bits of mantissa.
        self.register_buffer("mean", torch.tensor(preprocessing.mean, dtype=torch.float32).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(preprocessing.std, dtype=torch.float32).view(1, 3, 1, 1))

    def normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        """Turn pixels, (B, H, W, 3), RGB, 0..255, into (B, 3, H, W) in the precision of the network's weights."""
        # The permuted view of interleaved pixels is what PyTorch calls channels_last.
        values = (pixels.permute(0, 3, 1, 2).float() - self.mean) / self.std
        values = values.flip(1) if self.is_bgr else values
        return values.to(next(self.parameters()).dtype)


def check_family(checkpoint: Path, families: Sequence[str]) -> None:
    """Raise InvalidConfig if the model of a checkpoint is of another family."""
    # The import takes seconds, and a worker on OpenVINO does not need it.
    import transformers  # noqa: PLC0415

    family = transformers.AutoConfig.from_pretrained(checkpoint, local_files_only=True).model_type
    if family not in families:
        raise InvalidConfig(
            f"{family} is not supported by this task; supported families are {', '.join(families)}; export the model "
            "for images of one size with torch.onnx.export, and serve the file with task: tensors"
        )


def load_checkpoint(checkpoint: Path, auto_class: str, families: Sequence[str]) -> Any:
    """Load a model of transformers in fp32, by the name of its class; InvalidConfig if its family is not supported."""
    check_family(checkpoint, families)
    return load_strictly(auto_class, checkpoint, dtype=torch.float32)


def read_state(weights: Path) -> Mapping[str, torch.Tensor]:
    """Read an archive's state dict; InvalidConfig if the file is missing."""
    if not weights.is_file():
        raise InvalidConfig(f"engine: torch needs {weights.name}, which this archive lacks")
    state: Mapping[str, torch.Tensor] = torch.load(weights, map_location="cpu", weights_only=True, mmap=True)
    return state


def load_state(network: Any, state: Mapping[str, torch.Tensor], arch: str) -> Any:
    """Load the weights of a network, except AUXILIARY ones; InvalidConfig if they belong to another network."""
    if not hasattr(state, "_metadata"):
        # MNASNet loads only weights with its version, which safetensors and wrappers' state dicts lack.
        state = OrderedDict(state)
        state._metadata = {"": {"version": network._version}}  # type: ignore[attr-defined] # as state_dict() sets it  # noqa: SLF001
    try:
        found = network.load_state_dict(state, strict=False)
        problems = {"they lack": found.missing_keys, f"{arch} does not have": found.unexpected_keys}
        problems = {words: [name for name in names if not AUXILIARY.match(name)] for words, names in problems.items()}
        reasons = [f"{words} {join_names(names)}" for words, names in problems.items() if names]
    except RuntimeError as error:
        reasons = [str(error).splitlines()[1].strip()]
        if "pos_embedding" in reasons[0]:
            reasons += ["set crop_size to the side of the images that it was trained on"]
    if reasons:
        raise InvalidConfig(f"the weights are not those of {arch}: {'; '.join(reasons)}")
    return network.eval()
