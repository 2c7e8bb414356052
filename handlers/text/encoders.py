"""Make modules with named inputs and outputs of Hugging Face encoders: exported for OpenVINO, or run by PyTorch.

folder (config.json, model.safetensors, ...) -> load_encoder -> Encoder: (B, T) ids -> the task's outputs
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import transformers

from handlers.checkpoints import load_strictly, load_tokenizer
from handlers.errors import InvalidConfig

# Tokenizers warn of a text's length, and some of their errors quote the text.
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids")
# Models whose position table is longer than they can use, as `model_type` names them.
ROBERTA_LIKE = frozenset({"roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "mpnet", "longformer"})


@dataclass(frozen=True, slots=True)
class Head:
    """What a task makes of an encoder; the task's class states it.

    Attributes:
        auto_class: the name of the class of transformers that loads it.
        outputs: the attributes of its result that are the task's outputs.
        is_pooled: whether the token states become one vector per text, the only output.
    """

    auto_class: str
    outputs: tuple[str, ...]
    is_pooled: bool = False


class Encoder(torch.nn.Module):
    """A model behind the names that the handlers use; it is always called with keyword arguments.

    Attributes:
        input_names: those of INPUT_NAMES that the model takes and its tokenizer gives.
        output_names: the names of the tensors that `forward` returns, in their order.
        pooling: how states become the only output, a vector per text; inside the graph, so that (B, D) leaves it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        input_names: tuple[str, ...],
        output_names: tuple[str, ...],
        pooling: "Pooling | None" = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.input_names, self.output_names, self.pooling = input_names, output_names, pooling

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Run the model.

        Args:
            input_ids, attention_mask, token_type_ids: (B, T) int64; those of `input_names`.

        Returns:
            One tensor per output name, (B, ...); vectors are in fp32.
        """
        given = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        others = {name: tensor for name, tensor in given.items() if tensor is not None}
        result = self.model(input_ids=input_ids, return_dict=True, **others)
        if self.pooling is None:
            return tuple(result[name] for name in self.output_names)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        vectors = self.pooling.pool(result["last_hidden_state"].float(), mask)
        return (torch.nn.functional.normalize(vectors, dim=-1) if self.pooling.is_normalized else vectors,)


def _mean(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def _cls(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    return states[:, 0]


def _last_token(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    # Padding may be on either side.
    places = torch.arange(mask.shape[1], device=mask.device) * mask
    last = places.argmax(1).view(-1, 1, 1).expand(-1, 1, states.shape[-1])
    return states.gather(1, last).squeeze(1)


class OfLastToken(torch.nn.Module):
    """A decoder's classifier whose configuration names no padding.

    transformers takes the last token of one text alone, and refuses several: it finds their last tokens by the padding.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **options: Any) -> dict[str, torch.Tensor]:
        states = self.model.base_model(input_ids=input_ids, attention_mask=attention_mask, **options)[0]
        return {"logits": _last_token(self.model.score(states), attention_mask)}


# sentence-transformers' 1_Pooling/config.json has these keys.
POOLINGS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "pooling_mode_mean_tokens": _mean,
    "pooling_mode_cls_token": _cls,
    "pooling_mode_lasttoken": _last_token,
}


@dataclass(frozen=True, slots=True)
class Pooling:
    """The way in which token states become one vector.

    Attributes:
        pool: makes vectors (B, D) of states (B, T, D) and a mask (B, T).
        is_normalized: whether the vector is scaled to unit length.
    """

    pool: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    is_normalized: bool

    @classmethod
    def read(cls, folder: Path) -> "Pooling":
        """Read the model's own files, as sentence-transformers writes them; without any, the mean is taken as it is.

        Raises:
            InvalidConfig: the files ask for a pooling that is not supported.
        """
        modules = _json(folder / "modules.json")
        is_normalized = any(module["type"].endswith("Normalize") for module in modules)
        paths = [module["path"] for module in modules if module["type"].endswith("Pooling")]
        config = _json(folder / paths[0] / "config.json") if paths else {}
        # Newer files name the mode itself.
        modes = [key for key, is_on in config.items() if key.startswith("pooling_mode_") and is_on is True]
        if "pooling_mode" in config:
            modes = [f"pooling_mode_{config['pooling_mode']}"]
        aliases = {"pooling_mode_mean": "pooling_mode_mean_tokens", "pooling_mode_cls": "pooling_mode_cls_token"}
        modes = [aliases.get(mode, mode) for mode in modes] or ["pooling_mode_mean_tokens"]
        if len(modes) != 1 or modes[0] not in POOLINGS:
            raise InvalidConfig(f"pooling: {', '.join(modes)} is not supported; supported are {', '.join(POOLINGS)}")
        return cls(POOLINGS[modes[0]], is_normalized)


def load_encoder(head: Head, folder: Path, *, trust_remote_code: bool = False) -> Encoder:
    """Load a task's model in fp32: config.json, model.safetensors and the tokenizer's files.

    Raises:
        InvalidConfig: the folder holds no such model.
    """
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    options = {"dtype": torch.float32, "trust_remote_code": trust_remote_code}
    # The pooler makes another vector than that of the token states.
    model = load_strictly(head.auto_class, folder, unused=r"(^|\.)pooler\." if head.is_pooled else "(?!)", **options)
    taken = signature(model.forward).parameters
    given = ("input_ids", "attention_mask", *tokenizer.model_input_names)
    inputs = tuple(name for name in INPUT_NAMES if name in taken and name in given)
    # Keys and values are kept for a next token, which there is none of; a graph cannot give them.
    model.config.use_cache = False
    if hasattr(model, "score") and getattr(model.config, "pad_token_id", None) is None:
        model = OfLastToken(model)
    return Encoder(model, inputs, head.outputs, Pooling.read(folder) if head.is_pooled else None)


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def token_limit(folder: Path) -> int | None:
    """Find the most tokens that the model's own files allow; None where they do not say.

    sentence-transformers' max_seq_length comes first; then the lesser of the tokenizer's model_max_length and the size
    of the position table. RoBERTa's table is longer than it can use by its padding index and one.
    """
    # The file's name has the kind of the model in older versions: sentence_roberta_config.json.
    for path in sorted(folder.glob("sentence_*_config.json")):
        if isinstance(length := _json(path).get("max_seq_length"), int):
            return length
    config = _json(folder / "config.json")
    positions = config.get("max_position_embeddings")
    if positions is not None and config.get("model_type") in ROBERTA_LIKE:
        positions -= (config.get("pad_token_id") or 0) + 1
    stated = _json(folder / "tokenizer_config.json").get("model_max_length")
    # Tokenizers without a limit state 10 to the 30.
    limits = [limit for limit in (positions, stated) if isinstance(limit, int | float) and 0 < limit < 10**9]
    return int(min(limits)) if limits else None


def source_limit(folder: Path, max_length: int | None) -> int:
    """Find the most tokens of a text: the configuration's `max_length`, or else the model's own limit.

    Raises:
        InvalidConfig: neither is known, or the configuration's is more than the model's.
    """
    limit = token_limit(folder)
    if max_length is None and limit is None:
        raise InvalidConfig("max_length: the model's files name no limit; name one")
    if max_length is not None and limit is not None and max_length > limit:
        raise InvalidConfig(f"max_length: {max_length} is more than the model's own {limit}")
    return max_length or limit or 0
