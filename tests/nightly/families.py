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
SEQ2SEQ: dict[str, Any] = {
    **{
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))
    },
    "init_std": 0.3,
    "decoder_start_token_id": 2,
}
T5: dict[str, Any] = {"d_kv": 8, "d_ff": 64, "initializer_factor": 2.0, "decoder_start_token_id": 1}
DEBERTA: dict[str, Any] = {
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "position_biased_input": False,
    "type_vocab_size": 0,
}


class Family(NamedTuple):
    """A family.

    Attributes:
        tokenizer: `words` as BERT's, `bytes` as RoBERTa's, `plain` as GPT-2's, with nothing around a text, and
            `unpadded`, the same without a token for padding.
        config: what the configuration has beside SIZES.
    """

    tokenizer: str
    config: Mapping[str, Any] = MappingProxyType({})


WORDS, BYTES = Family("words"), Family("bytes")
FAMILIES: dict[str, Family] = {
    "albert": Family("words", {"embedding_size": 16}),
    "bart": Family("bytes", SEQ2SEQ),
    "bert": WORDS,
    "big_bird": Family("words", {"block_size": 16, "num_random_blocks": 1}),
    "biogpt": Family("plain"),
    "bloom": Family("plain"),
    "camembert": BYTES,
    "canine": Family("words", {"downsampling_rate": 4, "local_transformer_stride": 16}),
    "convbert": Family("words", {"embedding_size": 32}),
    "ctrl": Family("plain", {"dff": 64, "n_positions": LIMIT}),
    "data2vec-text": BYTES,
    "deberta": Family("words", DEBERTA),
    "deberta-v2": Family(
        "words", {**DEBERTA, "position_buckets": 32, "norm_rel_ebd": "layer_norm", "share_att_key": True}
    ),
    "distilbert": WORDS,
    "electra": Family("words", {"embedding_size": 32}),
    "ernie": WORDS,
    "esm": Family("bytes", {"position_embedding_type": "rotary", "mask_token_id": 4, "token_dropout": True}),
    "eurobert": Family("bytes", GROUPED),
    "falcon": Family("plain", {"alibi": False, "new_decoder_architecture": False}),
    "flaubert": Family("bytes", {"pad_index": 1}),
    "fnet": WORDS,
    "gemma": Family("bytes", GROUPED),
    "gemma2": Family("bytes", {**GROUPED, **WINDOW}),
    "gemma3_text": Family("bytes", {**GROUPED, **WINDOW, "use_bidirectional_attention": True}),
    "glm": Family("plain", GROUPED),
    "gpt2": Family("plain"),
    "gpt2 without padding": Family("unpadded"),
    "gpt_bigcode": Family("plain"),
    "gpt_neo": Family("plain", {"attention_types": [[["global", "local"], 1]], "window_size": 16}),
    "gpt_neox": Family("plain"),
    "gptj": Family("plain", {"rotary_dim": 4}),
    "helium": Family("bytes", GROUPED),
    "ibert": BYTES,
    "layoutlm": WORDS,
    "lilt": Family("bytes", {"hidden_size": 48}),
    "llama": Family("bytes", GROUPED),
    "llama without padding": Family("unpadded", GROUPED),
    "longformer": Family("bytes", {"attention_window": 16}),
    "luke": Family("bytes", {"entity_vocab_size": 10, "entity_emb_size": 8}),
    "mbart": Family("bytes", SEQ2SEQ),
    "megatron-bert": WORDS,
    "mistral": Family("bytes", {**GROUPED, **WINDOW}),
    "mixtral": Family("bytes", {**GROUPED, "num_local_experts": 4}),
    "mobilebert": Family("words", {"embedding_size": 32, "true_hidden_size": 32, "intra_bottleneck_size": 32}),
    "modernbert": Family("bytes", {"num_hidden_layers": 4, "global_attn_every_n_layers": 2, "local_attention": 16}),
    "mpnet": BYTES,
    "mpt": Family("plain"),
    "mra": BYTES,
    "mt5": Family("bytes", T5),
    "mvp": Family("bytes", SEQ2SEQ),
    "nemotron": Family("bytes", GROUPED),
    "nomic_bert": WORDS,
    "nystromformer": Family("words", {"num_landmarks": 8, "segment_means_seq_len": 64}),
    "olmo2": Family("bytes", GROUPED),
    "openai-gpt": Family("plain"),
    "opt": Family("bytes", {"ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.3}),
    "persimmon": Family("plain"),
    "phi": Family("plain"),
    "phi3": Family("bytes", GROUPED),
    "plbart": Family("bytes", SEQ2SEQ),
    "qwen2": Family("bytes", GROUPED),
    "qwen3": Family("bytes", GROUPED),
    "reformer": Family(
        "bytes",
        {
            "attention_head_size": 8,
            "feed_forward_size": 64,
            "axial_pos_embds": False,
            "attn_layers": ["local"],
            "local_attn_chunk_length": 16,
            "is_decoder": False,
        },
    ),
    "rembert": Family("words", {"input_embedding_size": 16, "output_embedding_size": 16}),
    "roberta": BYTES,
    "roberta-prelayernorm": BYTES,
    "roc_bert": Family("words", {"pronunciation_embed_dim": 16, "shape_embed_dim": 16}),
    "roformer": Family("words", {"embedding_size": 32}),
    "smollm3": Family("bytes", GROUPED),
    "squeezebert": Family("words", {"embedding_size": 32}),
    "stablelm": Family("bytes", {"num_key_value_heads": 2}),
    "starcoder2": Family("bytes", {"num_key_value_heads": 2}),
    "t5": Family("bytes", T5),
    "umt5": Family("bytes", T5),
    "xlm": Family("bytes", {"pad_index": 1}),
    "xlm-roberta": BYTES,
    "xlm-roberta-xl": BYTES,
    "xlnet": Family("left", {"max_position_embeddings": None, "d_head": 8, "d_inner": 64}),
    "xmod": Family("bytes", {"languages": ["en_XX"], "default_language": "en_XX"}),
    "yoso": Family("words", {"use_expectation": True}),
}


def save(name: str, auto_class: str, folder: Path) -> None:
    """Write the checkpoint of a family with seeded weights.

    Args:
        name: of FAMILIES; what follows a space only tells it from another one of the same type.
        auto_class: the class of transformers that has its head.
        folder: to write it to.
    """
    family = FAMILIES[name]
    tokenizer = _tokenizer(family.tokenizer)
    given = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id or 0,
        "eos_token_id": tokenizer.eos_token_id or tokenizer.sep_token_id,
    }
    torch.manual_seed(0)
    settings = {key: value for key, value in {**SIZES, **given, **family.config}.items() if value is not None}
    config = transformers.AutoConfig.for_model(name.partition(" ")[0], **settings)
    getattr(transformers, auto_class).from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(kind: str) -> transformers.PreTrainedTokenizerFast:
    names = {"cls": "<s>", "sep": "</s>", "bos": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
    if kind == "words":
        names = {role: f"[{role.upper()}]" for role in ("cls", "sep", "pad", "unk", "mask")}
    model = word_piece() if kind == "words" else byte_level()
    if kind in ("plain", "unpadded"):
        model.post_processor = processors.ByteLevel(trim_offsets=False)
    if kind == "unpadded":
        del names["pad"]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model,
        model_max_length=LIMIT,
        padding_side="left" if kind == "left" else "right",
        **{f"{role}_token": name for role, name in names.items()},
    )
