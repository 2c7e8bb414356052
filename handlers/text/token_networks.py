"""Runs the modules after a transformer that answers more than one vector for a text, as parts of its graph.

logits (B, T, V) -> Splade -> weights of words (B, V)
states (B, T, D) -> Tokens -> vectors of tokens (B, T, E)
                 -> Heads  -> bge-m3's weights of tokens (B, T), vectors of tokens (B, T, E), vectors (B, D)
"""

from pathlib import Path

import safetensors.torch
import torch

from handlers.errors import InvalidConfig
from handlers.text.sentence_network import Normalize, SentenceModules, load_module
from handlers.text.token_modules import LATE_HEAD, SPARSE_HEAD, read_late, read_splade


class TokenNetwork(torch.nn.Module):
    """The class of all; `reads` is the result of the transformer that it gets."""

    reads = "last_hidden_state"
    auto_class = "AutoModel"
    output_names: tuple[str, ...]


class Splade(TokenNetwork):
    reads = "logits"
    auto_class = "AutoModelForMaskedLM"
    output_names = ("weights",)

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.pooling, self.activation = read_splade(folder)

    def forward(self, logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Turn logits, (B, T, V), into weights of words, (B, V) float32."""
        logits = logits.float().where(mask.unsqueeze(-1) > 0, 0)  # padding may contain NaN
        # The activation grows with its argument, so that the largest logit has the largest weight.
        weights = torch.log1p(torch.relu(logits.amax(1) if self.pooling == "max" else logits))
        weights = torch.log1p(weights) if self.activation == "log1p_relu" else weights
        return weights if self.pooling == "max" else weights.sum(1)


class Tokens(TokenNetwork):
    output_names = ("vectors",)

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(map(load_module, read_late(folder).modules))

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Turn states, (B, T, D), into vectors of tokens, (B, T, E) float32."""
        for layer in self.layers:
            dtype = next((each.dtype for each in layer.parameters()), torch.float32)
            states = layer(states.to(dtype))
        return states.float()


class Heads(TokenNetwork):
    def __init__(self, folder: Path, *names: str) -> None:
        super().__init__()
        self.output_names = names
        self.dense = SentenceModules(folder) if "dense" in names else None
        self.sparse = _load_head(folder / SPARSE_HEAD) if "token_weights" in names else None
        self.late = _load_head(folder / LATE_HEAD) if "vectors" in names else None

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Turn states, (B, T, D), into the outputs by their names."""
        found = []
        if self.dense is not None:
            found.append(self.dense(states, mask))
        if self.sparse is not None:
            found.append(torch.relu(self.sparse(states)).squeeze(-1).float())
        if self.late is not None:
            found.append(Normalize()(self.late(states).float()))
        return tuple(found)


def _load_head(path: Path) -> torch.nn.Module:
    if not path.is_file():
        raise InvalidConfig(f"the folder has no {path.stem}.pt, a head of bge-m3; copy the whole folder again")
    state = safetensors.torch.load_file(path)
    size = state["weight"].shape
    head = torch.nn.Linear(size[1], size[0])
    head.load_state_dict(state)
    return head


def sparse(folder: Path) -> TokenNetwork:
    return Heads(folder, "token_weights") if (folder / SPARSE_HEAD).is_file() else Splade(folder)


def late(folder: Path) -> TokenNetwork:
    return Heads(folder, "vectors") if (folder / LATE_HEAD).is_file() else Tokens(folder)


def every(folder: Path) -> TokenNetwork:
    return Heads(folder, "dense", "token_weights", "vectors")
