"""The files of Hugging Face encoders beside their weights. handlers.text.encoder_modules loads these, with PyTorch.

builder: tokenizer.json, config.json, ... -> write_tokenizer -> prepared.json
worker:  prepared.json -> read_tokenizer -> FastTokenizer and configuration, without the import of transformers
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import Unigram

from handlers.archive_files import hash_files
from handlers.checkpoints import import_transformers, load_tokenizer
from handlers.errors import InvalidConfig
from handlers.text.inputs import FastTokenizer
from handlers.text.sentence_files import read_json
from handlers.text.sentence_modules import transformer_settings

SEGMENTS = "token_type_ids"
INPUT_NAMES = ("input_ids", "attention_mask", SEGMENTS)
STATES = "states"  # the output with the states of a text's tokens, (B, T, D)
FIRST_WITHOUT = 5  # the version of transformers that changed the default inputs of a tokenizer
# Models whose position table is longer than the model can use, by `model_type`.
ROBERTA_LIKE = frozenset(
    {
        *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod", "camembert", "data2vec-text"),
        *("mpnet", "longformer", "ibert", "luke", "lilt", "layoutlmv3", "markuplm", "esm"),
    }
)
ENCODER_DECODERS = frozenset({"t5", "mt5", "umt5"})  # models of which sentence-transformers uses only the encoder
PREPARED = "prepared.json"
# The attributes that handlers read, and `split_special_tokens`, which a backend's text lacks.
IDS = ("pad_token_id", "eos_token_id", "cls_token_id", "unk_token_id", "mask_token_id", "all_special_ids")
SIDES = ("padding_side", "truncation_side")
TOKENIZER_NAMES = (*IDS, *SIDES, "is_fast", "model_input_names", "model_max_length", "split_special_tokens")
SIZES = ("hidden_size", "vocab_size", "type_vocab_size", "num_labels", "patch_size", "projection_dim")
CONFIG_NAMES = (*SIZES, "pad_token_id", "eos_token_id", "model_type", "transformers_version", "problem_type")
# The parts of the configuration of a model of images and texts.
PARTS = {"text_config": ("max_position_embeddings",), "vision_config": ("hidden_size", "patch_size")}
# A class that replaces one of these methods is not prepared: it may encode, or save itself, with its own Python.
METHODS = ("__call__", "_encode_plus", "_convert_encoding", "convert_tokens_to_string", "save_pretrained")


@dataclass(frozen=True, slots=True)
class Head:
    auto_class: str  # the class of transformers that loads it
    outputs: tuple[str, ...]  # attributes of its result that are the task's outputs
    is_pooled: bool = False  # whether token states become the only output, one vector per text
    is_paired: bool = False  # whether every input is two texts
    network: str = ""  # the function of handlers.text.token_networks that makes the modules after the transformer
    owner: str = ""  # the class of sentence-transformers that answers its texts

    def under(self, config: object) -> "Head":
        """Return the head under a task's settings: with `has_late_chunking` the states of tokens are an output, too."""
        return replace(self, outputs=(*self.outputs, STATES)) if getattr(config, "has_late_chunking", False) else self


def takes_segments(tokenizer: Any, config: Any, folder: Path) -> bool | None:
    """Return whether tokenizer_config.json names `token_type_ids`; None if other files contradict it."""
    if stated := read_json(folder / "tokenizer_config.json").get("model_input_names"):
        return SEGMENTS in stated
    is_named = SEGMENTS in tokenizer.model_input_names
    if (getattr(config, "type_vocab_size", None) or 0) < 2:
        return is_named
    if any(tokenizer(["a"], ["a"], return_token_type_ids=True)[SEGMENTS][0]):
        return is_named or int((config.transformers_version or "0").partition(".")[0]) < FIRST_WITHOUT or None
    names = import_transformers().models.auto.tokenization_auto.TOKENIZER_MAPPING_NAMES
    family: Any = getattr(import_transformers(), names.get(config.model_type) or "", None)
    return None if SEGMENTS in getattr(family, "model_input_names", ()) else is_named


UNCERTAIN_SEGMENTS = (
    "the files do not show whether the model gets token_type_ids, which distinguish two texts; add "
    'model_input_names to tokenizer_config.json: ["input_ids", "token_type_ids", "attention_mask"], or without '
    "token_type_ids if it was trained without"
)


def hash_sources(folder: Path) -> dict[str, str]:
    names = {path.name: path for path in folder.iterdir() if path.name != PREPARED and path.suffix != ".safetensors"}
    return hash_files(names)


def write_tokenizer(folder: Path, *, has_tokenizer: bool = True) -> None:
    """Write a checkpoint's tokenizer and configuration as transformers loads them, unless it would encode otherwise."""
    tokenizer, config = read_tokenizer(folder, trust_remote_code=False, has_tokenizer=has_tokenizer)
    content = {
        "sources": hash_sources(folder),
        "config": {name: getattr(config, name) for name in CONFIG_NAMES if hasattr(config, name)},
        "parts": {
            part: {name: getattr(own, name, None) for name in names}
            for part, names in PARTS.items()
            if (own := getattr(config, part, None)) is not None
        },
        "labels": [*(config.id2label or {}).items()],
    }
    if tokenizer is not None:
        if (backend := backend_of(tokenizer)) is None:
            return
        content |= {"backend": backend, "tokenizer": {name: getattr(tokenizer, name) for name in TOKENIZER_NAMES}}
    (folder / PREPARED).write_text(json.dumps(content), encoding="utf-8")


def backend_of(tokenizer: Any) -> str | None:
    """Return the text of a tokenizer of Rust; None if another would be read from it."""
    usual = import_transformers().TokenizersBackend
    if any(getattr(type(tokenizer), name, None) is not getattr(usual, name) for name in METHODS):
        return None
    tokenizer(["a"])  # a call selects the language, and undoes the padding and truncation of tokenizer.json
    backend = tokenizer.backend_tokenizer.to_str()
    return backend if read_backend(backend).to_str() == backend else None


def read_backend(text: str) -> Tokenizer:
    """Read a tokenizer of Rust, whose own reader rounds the scores of a Unigram model: Python reads them exactly."""
    backend = Tokenizer.from_str(text)
    if isinstance(backend.model, Unigram):
        model = json.loads(text)["model"]
        vocabulary = [(piece, score) for piece, score in model["vocab"]]
        backend.model = Unigram(vocabulary, model["unk_id"], model.get("byte_fallback", False))
    return backend


def read_tokenizer(folder: Path, *, trust_remote_code: bool, has_tokenizer: bool = True) -> tuple[Any, Any]:
    """Read a checkpoint's tokenizer and configuration, with transformers unless they are prepared and unchanged."""
    content = {} if trust_remote_code else read_json(folder / PREPARED)
    if not content or content["sources"] != hash_sources(folder):
        options = {"trust_remote_code": trust_remote_code, "local_files_only": True}
        tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code) if has_tokenizer else None
        return tokenizer, import_transformers().AutoConfig.from_pretrained(folder, **options)
    parts = {part: SimpleNamespace(**values) for part, values in content["parts"].items()}
    config = SimpleNamespace(**content["config"], **parts, id2label=dict(content["labels"]))
    if not has_tokenizer:
        return None, config
    backend = read_backend(content["backend"])
    backend.encode_special_tokens = content["tokenizer"]["split_special_tokens"]
    return FastTokenizer(**content["tokenizer"], backend_tokenizer=backend), config


def find_token_limit(folder: Path) -> int | None:
    """Find the most tokens by the model's files, or None; RoBERTa's table is longer than it can use by two."""
    settings = transformer_settings(folder)
    has_modules = (folder / "modules.json").is_file()
    processing = (settings.get("processing_kwargs") or {}).get("text") or {} if has_modules else {}
    for length in (processing.get("max_length"), settings.get("max_seq_length")):
        if isinstance(length, int):
            return length
    config = read_json(folder / "config.json")
    positions = config.get("max_position_embeddings")
    if positions is not None and config.get("model_type") in ROBERTA_LIKE:
        positions -= (config.get("pad_token_id") or 0) + 1
    stated = read_json(folder / "tokenizer_config.json").get("model_max_length")
    # Tokenizers without a limit contain 10 to the 30.
    limits = [limit for limit in (positions, stated) if isinstance(limit, int | float) and 0 < limit < 10**9]
    return int(min(limits)) if limits else None


def find_source_limit(folder: Path, max_length: int | None) -> int:
    """Find the most tokens of a text: `max_length` or else the model's limit; InvalidConfig if neither fits."""
    limit = find_token_limit(folder)
    if max_length is None and limit is None:
        raise InvalidConfig("max_length: the model's files contain no limit; set max_length")
    if max_length is not None and limit is not None and max_length > limit:
        raise InvalidConfig(f"max_length: {max_length} is more than the model's own {limit}")
    return max_length or limit or 0
