"""Hugging Face encoders as modules with named inputs and outputs: exported for OpenVINO, or run by PyTorch.

folder (config.json, model.safetensors, ...) -> load_encoder -> Encoder: (B, T) ids -> the task's outputs
"""

from inspect import signature
from pathlib import Path
from typing import Any

import torch

from handlers.checkpoints import load_strictly, load_tokenizer
from handlers.errors import InvalidConfig
from handlers.text import token_networks
from handlers.text.encoders import (
    ENCODER_DECODERS,
    INPUT_NAMES,
    SEGMENTS,
    STATES,
    UNCERTAIN_SEGMENTS,
    Head,
    takes_segments,
)
from handlers.text.sentence_files import read_json
from handlers.text.sentence_modules import read_answer_ids
from handlers.text.sentence_network import PooledAndStates, SentenceModules


class Encoder(torch.nn.Module):
    """A model behind the names that the handlers use; it is always called with keyword arguments."""

    def __init__(
        self,
        model: torch.nn.Module,
        input_names: tuple[str, ...],
        output_names: tuple[str, ...],
        pooling: SentenceModules | token_networks.TokenNetwork | None = None,
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
        """Run the model on (B, T) int64 inputs: one tensor per output name, (B, ...); vectors are in fp32."""
        given = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        others = {name: tensor for name, tensor in given.items() if tensor is not None}
        result = self.model(input_ids=input_ids, return_dict=True, **others)
        if self.pooling is None:
            return tuple(result[name] for name in self.output_names)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        found = self.pooling(result[self.pooling.reads], mask)
        return found if isinstance(found, tuple) else (found,)


def _last_token(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    places = torch.arange(mask.shape[1], device=mask.device) * mask  # padding may be on either side
    last = places.argmax(1).view(-1, 1, 1).expand(-1, 1, states.shape[-1])
    return states.gather(1, last).squeeze(1)


class LastTokenClassifier(torch.nn.Module):
    """A decoder's classifier without a padding token, by which transformers finds the last token of each text."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **options: Any) -> dict[str, torch.Tensor]:
        states = self.model.base_model(input_ids=input_ids, attention_mask=attention_mask, **options)[0]
        return {"logits": _last_token(self.model.score(states), attention_mask)}


class AnswerScore(torch.nn.Module):
    """A language model's score of a pair: its logit of the good answer, less that of the bad one if it has one."""

    def __init__(self, model: Any, answer_ids: list[int]) -> None:
        super().__init__()
        self.model, self.config, head = model.base_model, model.config, model.get_output_embeddings()
        self.head = torch.nn.Linear(head.in_features, len(answer_ids), head.bias is not None)
        for name, values in self.head.named_parameters():
            values.data = getattr(head, name).data[answer_ids]
        ids = torch.tensor([answer_ids])
        with torch.no_grad():
            own, whole = self(ids, torch.ones_like(ids))["logits"], model(ids).logits[:, -1, answer_ids]
        if not torch.allclose(own, self._subtract(whole), atol=1e-4, rtol=1e-4):
            raise InvalidConfig("reranking: the model changes its logits behind its head; write a task for this model")

    @staticmethod
    def _subtract(logits: torch.Tensor) -> torch.Tensor:
        return logits[:, :1] - logits[:, 1:].sum(1, keepdim=True)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **options: object
    ) -> dict[str, torch.Tensor]:
        states = self.model(input_ids=input_ids, attention_mask=attention_mask, **options)[0]
        return {"logits": self._subtract(self.head(_last_token(states, attention_mask)))}


def load_encoder(head: Head, folder: Path, *, trust_remote_code: bool = False) -> Encoder:
    """Load a task's model in fp32 from a folder; InvalidConfig if the folder does not contain such a model."""
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    options = {"dtype": torch.float32, "trust_remote_code": trust_remote_code}
    is_encoder_only = head.is_pooled and read_json(folder / "config.json").get("model_type") in ENCODER_DECODERS
    auto_class = "AutoModelForTextEncoding" if is_encoder_only else head.auto_class
    kind = PooledAndStates if STATES in head.outputs else SentenceModules
    pooling: Any = kind(folder) if head.is_pooled else None
    if head.network:
        pooling = getattr(token_networks, head.network)(folder)
        auto_class = pooling.auto_class
    answer_ids = read_answer_ids(folder) if head.is_paired else []
    auto_class = "AutoModelForCausalLM" if answer_ids else auto_class
    # The pooler's vector is not the one of the token states.
    model = load_strictly(auto_class, folder, unused=r"(^|\.)pooler\." if pooling else "(?!)", **options)
    taken = signature(model.forward).parameters
    inputs = tuple(name for name in INPUT_NAMES if name in taken)
    has_segments = takes_segments(tokenizer, model.config, folder) if SEGMENTS in inputs else False
    if head.is_paired and has_segments is None:
        raise InvalidConfig(UNCERTAIN_SEGMENTS)
    inputs = inputs if has_segments else tuple(name for name in inputs if name != SEGMENTS)
    # There is no next token to cache keys and values for, and a graph cannot return them.
    model.config.use_cache = False
    if answer_ids:
        model = AnswerScore(model, answer_ids)
    elif hasattr(model, "score") and getattr(model.config, "pad_token_id", None) is None:
        model = LastTokenClassifier(model)
    return Encoder(model, inputs, getattr(pooling, "output_names", head.outputs), pooling)
