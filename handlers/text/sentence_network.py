"""Runs the modules after a transformer: states (B, T, D) and a mask (B, T) -> SentenceModules -> vectors (B, E)."""

import pickle
from collections.abc import Callable
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from handlers.aliases import Json
from handlers.errors import InvalidConfig
from handlers.text.sentence_files import SENTENCE_CONFIG, make_torch_module, read_json
from handlers.text.sentence_modules import SentenceModule, read_modules


# Padding may contain NaN, and be on either side. `places` counts a text's tokens from 1; 0 is padding.
def _mean(states: torch.Tensor, places: torch.Tensor, power: float = 1) -> torch.Tensor:
    return states.where(places > 0, 0).sum(1) / (places > 0).sum(1).float().clamp(min=1e-9) ** power


def _weighted_mean(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return (states.where(places > 0, 0) * places).sum(1) / places.sum(1).clamp(min=1e-9)


POOLINGS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cls": lambda states, places: states.where(places == 1, 0).sum(1),
    "max": lambda states, places: states.where(places > 0, -torch.inf).amax(1),
    "mean": _mean,
    "mean_sqrt_len_tokens": lambda states, places: _mean(states, places, 0.5),
    "weightedmean": _weighted_mean,
    "lasttoken": lambda states, places: states.where(places == places.amax(1, keepdim=True), 0).sum(1),
}


class Dense(torch.nn.Module):
    """A linear layer and an activation, with an optional residual connection around both."""

    def __init__(self, settings: Json) -> None:
        super().__init__()
        sizes = int(settings["in_features"]), int(settings["out_features"])
        self.linear = torch.nn.Linear(*sizes, bias=settings.get("bias", True))
        name = settings.get("activation_function", "torch.nn.Tanh")
        activation = make_torch_module(name)
        if activation is None:
            raise InvalidConfig(f"Dense: activation_function: {name} is not a module of torch.nn")
        self.activation = activation
        self.residual: torch.nn.Module | None = None
        if settings.get("use_residual"):
            self.residual = torch.nn.Identity() if sizes[0] == sizes[1] else torch.nn.Linear(*sizes, bias=False)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Project vectors, (B, in_features) -> (B, out_features)."""
        projected: torch.Tensor = self.activation(self.linear(vectors))
        return projected if self.residual is None else projected + self.residual(vectors)


class Normalize(torch.nn.Module):
    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Scale vectors, (B, E), to unit length."""
        return torch.nn.functional.normalize(vectors, dim=-1)


class SentenceModules(torch.nn.Module):
    """All modules after the transformer. As parts of the graph they return (B, E), not (B, T, D)."""

    reads = "last_hidden_state"  # the result of the transformer that they get

    def __init__(self, folder: Path) -> None:
        """Load the modules; InvalidConfig if one is not supported, or its weights do not fit."""
        super().__init__()
        pooling, *others = read_modules(folder)
        self.modes, self.others = pooling.modes, torch.nn.ModuleList(map(load_module, others))
        self.most: int | None = read_json(folder / SENTENCE_CONFIG).get("truncate_dim")

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Turn states, (B, T, D), and a mask, (B, T), into vectors, (B, E) float32."""
        places = (mask.cumsum(1) * mask).unsqueeze(-1)
        vectors = torch.cat([POOLINGS[mode](states.float(), places) for mode in self.modes], -1)
        for module in self.others:
            dtype = next((each.dtype for each in module.parameters()), vectors.dtype)
            vectors = module(vectors.to(dtype)).float()
        return vectors[:, : self.most]


class PooledAndStates(torch.nn.Module):
    """The vector of a text, and the states of its tokens."""

    reads = SentenceModules.reads

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.pooling = SentenceModules(folder)

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (B, E) and (B, T, D), both float32."""
        return self.pooling(states, mask), states.float()


def load_module(module: SentenceModule) -> torch.nn.Module:
    if module.kind in ("Normalize", "Dropout"):
        return Normalize() if module.kind == "Normalize" else torch.nn.Identity()
    weights, pickled = module.folder / "model.safetensors", module.folder / "pytorch_model.bin"
    try:
        is_dense = module.kind == "Dense"
        empty = Dense(module.settings) if is_dense else torch.nn.LayerNorm(int(module.settings["dimension"]))
        state = (
            safetensors.torch.load_file(weights)
            if weights.is_file()
            else torch.load(pickled, map_location="cpu", weights_only=True)
        )
        empty.load_state_dict({name.removeprefix("norm."): tensor for name, tensor in state.items()})
    except FileNotFoundError:
        raise InvalidConfig(
            f"{module.kind}: {module.folder.name} lacks {weights.name} and {pickled.name}; set --weights FOLDER"
        ) from None
    except (OSError, RuntimeError, KeyError, pickle.UnpicklingError, safetensors.SafetensorError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise InvalidConfig(f"{module.kind}: {module.folder.name} cannot be loaded: {reason}") from error
    return empty
