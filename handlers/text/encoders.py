"""Make modules with named inputs and outputs of Hugging Face encoders: exported for OpenVINO, or run by PyTorch.

folder (config.json, model.safetensors, ...) -> load_encoder -> Encoder: (B, T) ids -> the task's outputs
"""

from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from handlers.checkpoints import load_strictly, load_tokenizer
from handlers.errors import InvalidConfig
from handlers.text.sentence_files import read_json
from handlers.text.sentence_modules import SentenceModules, transformer_settings

# Tokenizers warn of a text's length, and some of their errors quote the text.
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

SEGMENTS = "token_type_ids"
INPUT_NAMES = ("input_ids", "attention_mask", SEGMENTS)
# transformers 5 changed the inputs that a tokenizer makes if its files do not say.
FIRST_WITHOUT = 5
# Models whose position table is longer than they can use, as `model_type` names them.
ROBERTA_LIKE = frozenset({"roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "mpnet", "longformer"})
# Of these, sentence-transformers has the encoder alone.
ENCODERS_ALONE = frozenset({"t5", "mt5", "umt5"})


@dataclass(frozen=True, slots=True)
class Head:
    """What a task makes of an encoder; the task's class states it.

    Attributes:
        auto_class: the name of the class of transformers that loads it.
        outputs: the attributes of its result that are the task's outputs.
        is_pooled: whether the token states become one vector per text, the only output.
        is_paired: whether every input is two texts.
    """

    auto_class: str
    outputs: tuple[str, ...]
    is_pooled: bool = False
    is_paired: bool = False


class Encoder(torch.nn.Module):
    """A model behind the names that the handlers use; it is always called with keyword arguments.

    Attributes:
        input_names: those of INPUT_NAMES that the model takes; segments only if `takes_segments`.
        output_names: the names of the tensors that `forward` returns, in their order.
        pooling: how states become the only output, a vector per text.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        input_names: tuple[str, ...],
        output_names: tuple[str, ...],
        pooling: SentenceModules | None = None,
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
        return (self.pooling(result["last_hidden_state"], mask),)


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


def takes_segments(tokenizer: Any, config: Any, folder: Path) -> bool | None:
    """Return whether a model is told which of two texts a token belongs to, by `token_type_ids`; None if files differ.

    `model_input_names` of tokenizer_config.json decides. A model of several segments, saved by transformers 4, had
    those of its tokenizer; 5 leaves them out for generic tokenizers and ALBERT's, so that neither is certain.
    """
    if stated := read_json(folder / "tokenizer_config.json").get("model_input_names"):
        return SEGMENTS in stated
    is_named = SEGMENTS in tokenizer.model_input_names
    if (getattr(config, "type_vocab_size", None) or 0) < 2:
        return is_named
    if any(tokenizer("a", "a", return_token_type_ids=True)[SEGMENTS]):
        return is_named or int((config.transformers_version or "0").partition(".")[0]) < FIRST_WITHOUT or None
    family: Any = getattr(transformers, TOKENIZER_MAPPING_NAMES.get(config.model_type) or "", None)
    return None if SEGMENTS in getattr(family, "model_input_names", ()) else is_named


UNCERTAIN_SEGMENTS = (
    "the files do not say whether the model gets token_type_ids, which tell two texts apart; add "
    'model_input_names to tokenizer_config.json: ["input_ids", "token_type_ids", "attention_mask"], or without '
    "token_type_ids if it was trained without"
)


def load_encoder(head: Head, folder: Path, *, trust_remote_code: bool = False) -> Encoder:
    """Load a task's model in fp32: config.json, model.safetensors and the tokenizer's files.

    Raises:
        InvalidConfig: the folder holds no such model.
    """
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    options = {"dtype": torch.float32, "trust_remote_code": trust_remote_code}
    is_alone = head.is_pooled and read_json(folder / "config.json").get("model_type") in ENCODERS_ALONE
    auto_class = "AutoModelForTextEncoding" if is_alone else head.auto_class
    # The pooler makes another vector than that of the token states.
    model = load_strictly(auto_class, folder, unused=r"(^|\.)pooler\." if head.is_pooled else "(?!)", **options)
    taken = signature(model.forward).parameters
    inputs = tuple(name for name in INPUT_NAMES if name in taken)
    is_told = takes_segments(tokenizer, model.config, folder) if SEGMENTS in inputs else False
    if head.is_paired and is_told is None:
        raise InvalidConfig(UNCERTAIN_SEGMENTS)
    inputs = inputs if is_told else tuple(name for name in inputs if name != SEGMENTS)
    # Keys and values are kept for a next token, which there is none of; a graph cannot give them.
    model.config.use_cache = False
    if hasattr(model, "score") and getattr(model.config, "pad_token_id", None) is None:
        model = OfLastToken(model)
    return Encoder(model, inputs, head.outputs, SentenceModules(folder) if head.is_pooled else None)


def token_limit(folder: Path) -> int | None:
    """Find the most tokens that the model's own files allow; None where they do not say.

    sentence-transformers' max_seq_length comes first; then the lesser of the tokenizer's model_max_length and the size
    of the position table. RoBERTa's table is longer than it can use by its padding index and one.
    """
    length = transformer_settings(folder).get("max_seq_length")
    if isinstance(length, int):
        return length
    config = read_json(folder / "config.json")
    positions = config.get("max_position_embeddings")
    if positions is not None and config.get("model_type") in ROBERTA_LIKE:
        positions -= (config.get("pad_token_id") or 0) + 1
    stated = read_json(folder / "tokenizer_config.json").get("model_max_length")
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
