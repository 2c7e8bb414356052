"""The files of models that answer more than one vector for a text, and the parts of their answers. No PyTorch.

modules.json                              -> read_splade, read_late: settings of the modules, checked
sparse_linear, colbert_linear             -> heads of bge-m3, beside its checkpoint
weights of words (V,), or of tokens (T,)  -> choose_words: the indices and values that are not zero
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from handlers.aliases import Json
from handlers.errors import InvalidConfig
from handlers.text.sentence_files import SENTENCE_CONFIG, read_json
from handlers.text.sentence_modules import SentenceModule, check_transformer, transformer_settings

# Heads of bge-m3, which the builder converts from .pt.
SPARSE_HEAD, LATE_HEAD = "sparse_linear.safetensors", "colbert_linear.safetensors"
# A static weight for each word of a query, (V,), instead of a run of the model, which the builder takes from a Router.
QUERY_WEIGHTS = "query_weights.npy"
NEUTRAL_SPLADE = {"transformer_task": "fill-mask", "module_output_name": "token_embeddings", "do_lower_case": False}
NEUTRAL_LATE = {**NEUTRAL_SPLADE, "transformer_task": "feature-extraction"}
TOKENS = ("token_embeddings", None)  # the input and output of a module on each token
# PyLate's settings of a model, in config_sentence_transformers.json.
PYLATE = ("query_prefix", "document_prefix", "do_query_expansion", "attend_to_expansion_tokens", "skiplist_words")
PUNCTUATION = list(string.punctuation)  # PyLate's default of `skiplist_words`
EXPANDED_TOKENS = 32  # PyLate's default of `query_length`


def _list_modules(folder: Path) -> list[SentenceModule]:
    listed = read_json(folder / "modules.json") or []
    kinds = [each["type"].rpartition(".")[2] for each in listed]
    settings = [read_json(folder / each["path"] / "config.json") if each["path"] else {} for each in listed]
    paths = [folder / each["path"] for each in listed]
    return [SentenceModule(*each) for each in zip(kinds, paths, settings, strict=True)]


def _reject(modules: Sequence[SentenceModule], known: str) -> InvalidConfig:
    names = ", ".join(module.kind for module in modules)
    return InvalidConfig(f"modules.json: {names} is not supported, only {known}; write a task for this model")


def read_splade(folder: Path) -> tuple[str, str]:
    """Return the pooling and the activation of a masked-language model that weighs words."""
    modules = _list_modules(folder)
    if modules and [each.kind.replace("MLM", "") for each in modules] != ["Transformer", "SpladePooling"]:
        raise _reject(modules, "Transformer, SpladePooling, or a Router of them and a SparseStaticEmbedding")
    check_transformer(folder, NEUTRAL_SPLADE)
    settings = modules[1].settings if modules else {}
    found = str(settings.get("pooling_strategy") or "max"), str(settings.get("activation_function") or "relu")
    if found[0] not in ("max", "sum") or found[1] not in ("relu", "log1p_relu"):
        raise InvalidConfig(f"SpladePooling: {', '.join(found)} is not supported, only max or sum, relu or log1p_relu")
    return found


@dataclass(frozen=True, slots=True)
class Late:
    """The settings of a model of late interaction, with a vector for each token."""

    modules: Sequence[SentenceModule] = ()  # after the transformer: Dense and Normalize, on each token
    prefixes: Mapping[str, str] = field(default_factory=dict)  # PyLate's, before the prompt of each kind of text
    lengths: Mapping[str, int] = field(default_factory=dict)  # the most tokens of each kind of text
    skipped: Sequence[str] = ()  # tokens that have no vector
    skipped_kinds: Sequence[str] = ("document",)  # kinds of texts in which they have none
    expansion: Json = field(default_factory=dict)  # of queries; sentence-transformers' names
    is_mean: bool = False  # whether a score is a mean over the query's tokens, and not a sum


def read_late(folder: Path) -> Late:
    """Read the folder of MultiVectorEncoder or PyLate; InvalidConfig if it has something else."""
    if "HF_ColBERT" in (read_json(folder / "config.json").get("architectures") or ()):
        raise InvalidConfig(
            "config.json: the layout of Stanford's ColBERT is not supported; save the model with MultiVectorEncoder of "
            "sentence-transformers"
        )
    config, modules = read_json(folder / SENTENCE_CONFIG), _list_modules(folder)
    settings = {**transformer_settings(folder)}
    pylate = any(name in config for name in PYLATE)
    inner = [each for each in modules[1:] if each.kind != "MultiVectorMask"]
    masks = [each.settings for each in modules[1:] if each.kind == "MultiVectorMask"]
    is_known = modules and modules[0].kind == "Transformer" and {each.kind for each in inner} <= {"Dense", "Normalize"}
    if not is_known or len(masks) > 1 or not (masks or pylate):
        raise _reject(modules, "Transformer, Dense, MultiVectorMask, Normalize")
    for each in inner:
        names = [each.settings.get(f"module_{end}_name") for end in ("input", "output")]
        if not pylate and (names[0] != TOKENS[0] or names[1] not in TOKENS):
            raise InvalidConfig(f"{each.kind}: module_input_name: must be token_embeddings, a vector for each token")
    mask = masks[0] if masks else {"skiplist_words": config.get("skiplist_words", PUNCTUATION)}
    if mask.get("keep_only_token_ids"):
        raise InvalidConfig("MultiVectorMask: keep_only_token_ids is not supported; remove it for texts")
    if not masks:
        inner = [*inner, SentenceModule("Normalize", folder, {})]
    lengths = {name: settings.pop(f"{name}_length", None) or config.get(f"{name}_length") for name in KINDS}
    expansion = settings.pop("query_expansion", None) or config.get("query_expansion")
    if pylate and "query_expansion" not in config and config.get("do_query_expansion") is not False:
        attend = config.get("attend_to_expansion_tokens", config.get("attend_to_mask_tokens"))
        length = lengths.pop("query") or EXPANDED_TOKENS
        expansion = {"strategy": "fixed", "attend": bool(attend), "length": length}
    check_transformer(folder, NEUTRAL_LATE, settings)
    return Late(
        inner,
        {name: config.get(f"{name}_prefix") or "" for name in KINDS},
        {name: length for name, length in lengths.items() if length},
        mask.get("skiplist_words") or [],
        mask.get("skiplist_tasks") or ["document"],
        expansion or {},
        config.get("similarity_fn_name") == "meanmaxsim",
    )


KINDS = ("query", "document")


def choose_words(
    indices: NDArray[np.int64], values: NDArray[np.float32], most: int | None, least: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Keep weights above `least`, the `most` largest of them, in the order of their indices; NaN stays, an error."""
    kept = np.flatnonzero(~(values <= max(least, 0.0)))
    if most is not None and len(kept) > most:
        kept = np.sort(kept[np.argsort(-values[kept], kind="stable")[:most]])
    return indices[kept], values[kept]


def gather_words(
    ids: Sequence[int], weights: NDArray[np.float32], excluded: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the words of a text, without the excluded ones, and the largest weight of each, by tokens' ids (T,)."""
    found: NDArray[np.int64] = np.asarray(ids, np.int64)
    is_kept = ~np.isin(found, excluded)
    words, places = np.unique(found[is_kept], return_inverse=True)
    values = np.full(len(words), -np.inf, np.float32)
    np.maximum.at(values, places, weights[: len(ids)][is_kept])
    return words, values
