"""Tiny seeded checkpoints of the families that the nightly sweep builds, each saved as `save_pretrained` leaves it.

FAMILIES   model type of transformers -> what its configuration has beside SIZES, and the kind of its tokenizer
save       -> config.json, model.safetensors, tokenizer.json, ...
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import transformers
from tokenizers import processors

from tests.tiny_models import byte_level, word_piece

# The most tokens of each: more than any attention window or block below.
LIMIT = 256
SIZES: dict[str, Any] = {
    "vocab_size": 640,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": LIMIT + 2,
    "initializer_range": 0.3,
    "num_labels": 3,
}
# A decoder's query heads share keys; and windows of a few tokens.
GROUPED: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 8}
WINDOW = {"sliding_window": 16}
SEQ2SEQ: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 2, "init_std": 0.3, "decoder_start_token_id": 2}
T5: dict[str, Any] = {"d_kv": 8, "d_ff": 64, "initializer_factor": 2.0, "decoder_start_token_id": 1}
DEBERTA: dict[str, Any] = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0}


class Family(NamedTuple):
    """A family."""

    tokenizer: str
    config: Mapping[str, Any] = MappingProxyType({})


# By names; what follows a colon only tells a family from another one of the same type.
_FAMILIES: dict[str, Family] = {
    "bart mbart mvp": Family("bytes", SEQ2SEQ),
    "bert distilbert ernie fnet layoutlm megatron-bert nomic_bert": Family("words"),
    "biogpt bloom gpt2 gpt_bigcode gpt_neox mpt openai-gpt persimmon phi": Family("plain"),
    "camembert data2vec-text ibert mpnet mra roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl": Family("bytes"),
    "convbert electra roformer squeezebert": Family("words", {"embedding_size": 32}),
    "eurobert gemma helium llama nemotron olmo2 phi3 qwen2 qwen3 smollm3": Family("bytes", GROUPED),
    "flaubert xlm": Family("bytes", {"pad_index": 1}),
    "gemma2 mistral": Family("bytes", {**GROUPED, **WINDOW}),
    "mt5 t5 umt5": Family("bytes", T5),
    "stablelm starcoder2": Family("bytes", {"num_key_value_heads": 2}),
    "albert": Family("words", {"embedding_size": 16}),
    "big_bird": Family("words", {"block_size": 16, "num_random_blocks": 1}),
    "canine": Family("words", {"downsampling_rate": 4, "local_transformer_stride": 16}),
    "ctrl": Family("plain", {"dff": 64, "n_positions": 256}),
    "deberta": Family("words", DEBERTA),
    "deberta-v2": Family("words", {**DEBERTA, "position_buckets": 32, "share_att_key": True}),
    "esm": Family("bytes", {"position_embedding_type": "rotary", "mask_token_id": 4, "token_dropout": True}),
    "falcon": Family("plain", {"alibi": False, "new_decoder_architecture": False}),
    "gemma3_text": Family("bytes", {**GROUPED, **WINDOW, "use_bidirectional_attention": True}),
    "glm": Family("plain", GROUPED),
    "gpt2:unpadded": Family("unpadded"),
    "gpt_neo": Family("plain", {"attention_types": [[["global", "local"], 1]], "window_size": 16}),
    "gptj": Family("plain", {"rotary_dim": 4}),
    "lilt": Family("bytes", {"hidden_size": 48}),
    "llama:unpadded": Family("unpadded", GROUPED),
    "longformer": Family("bytes", {"attention_window": 16}),
    "luke": Family("bytes", {"entity_vocab_size": 10, "entity_emb_size": 8}),
    "mixtral": Family("bytes", {**GROUPED, "num_local_experts": 4}),
    "mobilebert": Family("words", {"embedding_size": 32, "true_hidden_size": 32, "intra_bottleneck_size": 32}),
    "modernbert": Family("bytes", {"num_hidden_layers": 4, "global_attn_every_n_layers": 2, "local_attention": 16}),
    "nystromformer": Family("words", {"num_landmarks": 8, "segment_means_seq_len": 64}),
    "opt": Family("bytes", {"ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.3}),
    "reformer": Family("bytes", {"axial_pos_embds": False, "attn_layers": ["local"], "is_decoder": False}),
    "rembert": Family("words", {"input_embedding_size": 16, "output_embedding_size": 16}),
    "roc_bert": Family("words", {"pronunciation_embed_dim": 16, "shape_embed_dim": 16}),
    "xlnet": Family("left", {"max_position_embeddings": None, "d_head": 8, "d_inner": 64}),
    "xmod": Family("bytes", {"languages": ["en_XX"], "default_language": "en_XX"}),
    "yoso": Family("words", {"use_expectation": True}),
}
FAMILIES = {name: family for names, family in _FAMILIES.items() for name in names.split()}


def save(name: str, auto_class: str, folder: Path) -> None:
    """Write the checkpoint of a family with seeded weights."""
    family = FAMILIES[name]
    tokenizer = _tokenizer(family.tokenizer)
    given = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id or 0,
        "eos_token_id": tokenizer.eos_token_id or tokenizer.sep_token_id,
    }
    torch.manual_seed(0)
    settings = {key: value for key, value in {**SIZES, **given, **family.config}.items() if value is not None}
    config = transformers.AutoConfig.for_model(name.partition(":")[0], **settings)
    getattr(transformers, auto_class).from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(kind: str) -> transformers.PreTrainedTokenizerFast:
    names = {"cls": "<s>", "sep": "</s>", "bos": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
    if kind == "words":
        names = {role: f"[{role.upper()}]" for role in ("cls", "sep", "pad", "unk", "mask")}
    model, side = word_piece() if kind == "words" else byte_level(), "left" if kind == "left" else "right"
    if kind in ("plain", "unpadded"):
        model.post_processor = processors.ByteLevel(trim_offsets=False)
    roles = {f"{role}_token": name for role, name in names.items() if kind != "unpadded" or role != "pad"}
    settings: dict[str, Any] = {"model_max_length": LIMIT, "padding_side": side, **roles}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, **settings)
