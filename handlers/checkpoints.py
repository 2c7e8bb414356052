"""Checkpoints of transformers, loaded strictly: every weight of the model is read from the checkpoint.

folder -> load_strictly  -> model, or InvalidConfig with the first names of the missing weights
       -> load_tokenizer -> tokenizer
config.json -> check_labels -> labels in the order of the model's outputs
"""

import re
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

from handlers.errors import InvalidConfig

MOST_NAMES = 3  # the most names in a message; it counts the others
VOCABULARIES = ("tokenizer.json", "vocab*", "*.model", "*.spm")  # files that tokenizers read their vocabularies from
# Kinds of tokenizers without a vocabulary, of bytes and characters.
WITHOUT_VOCABULARY = ("byt5", "canine", "perceiver")
# Names of weights that PEFT and AdapterHub add, and of those that quantised layers have.
ADAPTERS = re.compile(
    r"\b(lora|loha|lokr|hada|ia3|vera|oft|boft)_|\.adapters?\b|\badapter_|prefix_tuning|prompt_embeddings"
)
QUANTISED = re.compile(
    r"\.(\w*(scale|scales|zero_point|absmax|packed|quant\w*)(_inv)?|SCB|weight_format|q(weight|zeros)|g_idx|codes|codebooks|"
    r"W_q|meta|_data|weight\.\w+)$"
)


def join_names(names: Collection[str]) -> str:
    """Join the first names, and count the others."""
    first = sorted(names)[:MOST_NAMES]
    return ", ".join(first) + (f" and {len(names) - len(first)} more" if len(names) > len(first) else "")


def import_transformers() -> Any:
    """Import transformers, which takes a second, and silence it: its warnings and errors may quote a text."""
    import transformers  # noqa: PLC0415

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def load_strictly(auto_class: str, folder: Path, *, unused: str = "(?!)", **options: object) -> Any:
    """Load by a class of transformers, in evaluation mode; only weights that match `unused` may be missing."""
    options |= {"use_safetensors": True, "local_files_only": True, "ignore_mismatched_sizes": True}
    model_class = getattr(import_transformers(), auto_class)
    model, found = model_class.from_pretrained(folder, output_loading_info=True, **options)
    _check_unused(model, found["unexpected_keys"])
    if missing := [name for name in found["missing_keys"] if not re.search(unused, name)]:
        saved = ", ".join(model.config.architectures or ["no class"])
        raise InvalidConfig(
            f"the weights lack {join_names(missing)}, which {auto_class} needs; config.json names {saved}; use the "
            "task of that model, save a fine-tuned model with save_pretrained, or, if names of weights have a prefix, "
            "pass their file"
        )
    for name, given, needed in sorted(found["mismatched_keys"]):
        if needed[0] == model.config.num_labels and given[1:] == needed[1:]:
            raise InvalidConfig(
                f"config.json names {needed[0]} labels, the model has {given[0]} outputs: correct its id2label"
            )
        raise InvalidConfig(f"{name} has shape {list(given)} in the weights, and {list(needed)} by config.json")
    kinds = {re.sub(r"\d+", "0", name) for name in model.state_dict()}
    if more := [name for name in found["unexpected_keys"] if re.sub(r"\d+", "0", name) in kinds]:
        raise InvalidConfig(f"config.json has fewer layers than the weights, which also have {join_names(more)}")
    return model.eval()


def _check_unused(model: Any, names: Collection[str]) -> None:
    """Raise InvalidConfig if weights that belong to the model's layers have no place in them: its answers differ."""
    layers = {
        name
        for name, layer in model.named_modules()
        if not any(layer.children()) and any(True for _ in layer.parameters(recurse=False))
    }
    prefix = f"{model.base_model_prefix}."
    owners = {
        name: {*_list_owners(name.removeprefix(prefix)), *_list_owners(name), *_list_owners(prefix + name)}
        for name in names
    }
    if adapters := [name for name in names if ADAPTERS.search(name)]:
        raise InvalidConfig(
            f"the weights have an adapter beside the model ({join_names(adapters)}), which config.json does not have; "
            "merge it with peft's merge_and_unload() and save the result with save_pretrained"
        )
    unused = [name for name in names if owners[name] & layers]
    if quantised := [name for name in unused if QUANTISED.search(name)]:
        raise InvalidConfig(
            f"the weights are quantised ({join_names(quantised)}); name the original checkpoint, in fp32, bf16 or fp16"
        )
    if unused:
        raise InvalidConfig(
            f"the weights have {join_names(unused)}, which the model of config.json does not use; correct config.json, "
            "or save the model again with save_pretrained"
        )


def _list_owners(name: str) -> list[str]:
    """List the modules that a weight's name may be in."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Load a tokenizer; InvalidConfig if its vocabulary is missing, without which transformers makes an empty one."""
    configs = "".join(path.read_text(encoding="utf-8").lower() for path in folder.glob("*config.json"))
    if not any(any(folder.glob(name)) for name in VOCABULARIES) and not any(
        kind in configs for kind in WITHOUT_VOCABULARY
    ):
        raise InvalidConfig("the checkpoint has no tokenizer; save one beside it with tokenizer.save_pretrained")
    options = {"trust_remote_code": trust_remote_code, "local_files_only": True}
    with warnings.catch_warnings():
        # Marian's tokenizer recommends a package whose result it does not use.
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
        return import_transformers().AutoTokenizer.from_pretrained(folder, **options)


def check_labels(labels: dict[int, str] | None, engine: object = None) -> dict[int, str]:
    """Return the labels of config.json in the order of the model's outputs."""
    if not labels:
        raise InvalidConfig("config.json has no labels; add id2label, numbered from 0 on")
    outputs = getattr(engine, "output_sizes", {}).get("logits", len(labels))
    if outputs != len(labels):
        raise InvalidConfig(f"the archive has {len(labels)} labels, and its model {outputs} outputs; build it again")
    if gaps := [str(index) for index in range(outputs) if index not in labels]:
        raise InvalidConfig(f"id2label has {outputs} labels, but none for {join_names(gaps)}; number them from 0 on")
    return {index: labels[index] for index in range(outputs)}
